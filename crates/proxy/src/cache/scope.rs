//! One cached key range, shared by its feed, its readers and its watchers.
//!
//! ```text
//!   feed ── load, apply, advance, reset ─▶ Scope ─┬─ snapshot, revision ─▶ reads
//!                                                 └─ deliveries ─▶ the queue of each watch session
//! ```
//!
//! A watcher of the scope is *synced* or *lagging*. A synced watcher is in the group, and its
//! session's queue receives each event when the feed applies it. If the queue is full, the watcher
//! leaves the group and is lagging: its session reads the events from the history when it has room
//! again, and then it joins the group. The lock makes this exact: while a watcher joins, no event
//! can be applied.
//!
//! If the feed cannot continue without a gap, the scope is reset. Its watchers are then *detached*:
//! each session asks a member for the events from the watcher's next revision on. So a client hears
//! about a gap only if the member says that the revision is compacted.
//!
//! Locks: `state` before the lock of a session's queue. Nothing waits while it holds either.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use clearlane_mvcc::watch::{WatchedKeys, WatcherGroup};
use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::mvccpb::Event;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use super::CacheMetrics;
use super::contents::{BrokenFeed, Contents, HistoryLimits, RevisionEvents, Snapshot};
use super::range::Span;
use crate::watch::queue::{Delivery, SessionQueue};

/// Maximum number of revisions that one call of [`Scope::catch_up`] looks at.
const CATCH_UP_REVISIONS: usize = 4096;
const NOT_LOADING: u64 = u64::MAX;

/// A state of the scope that readers can use.
#[derive(Debug)]
pub struct Published {
    pub snapshot: Snapshot,
    /// The header of the member that feeds the scope. Its revision is the snapshot's.
    pub header: ResponseHeader,
}

/// A watcher of a scope. Its session decides which events the client wants.
#[derive(Debug)]
pub struct ScopeWatcher {
    /// Unique in the process.
    pub number: u64,
    pub keys: WatchedKeys,
    pub queue: Arc<SessionQueue>,
    /// Events below this revision are not for the watcher.
    pub first_revision: i64,
    /// True if the watcher needs the previous values, which older events do not have.
    pub needs_previous: bool,
    /// The epoch of the watcher's revisions.
    pub epoch: u64,
}

/// The result of [`Scope::catch_up`].
#[derive(Debug)]
pub enum CatchUp {
    /// Some events. The watcher is still lagging, from the next revision on.
    Events(Vec<(Arc<RevisionEvents>, Vec<u32>)>, i64),
    /// The last events before the watcher joined the group, and the scope's revision.
    Synced(Vec<(Arc<RevisionEvents>, Vec<u32>)>, i64),
    /// The history does not have the events, or is about another epoch.
    NotHere,
}

/// The result of [`Scope::reached`].
#[derive(Debug)]
pub enum Reached {
    Yes(Arc<Published>),
    NotYet,
    /// Nothing is loaded.
    Reset,
}

#[derive(Debug)]
pub struct Scope {
    pub span: Span,
    state: Mutex<ScopeState>,
    published: ArcSwapOption<Published>,
    /// All changes up to this revision are known. 0 while nothing is loaded.
    revision: watch::Sender<i64>,
    /// True while the feed finds no member that has a leader.
    leaderless: watch::Sender<bool>,
    /// Wakes the feed when somebody waits for a newer revision.
    pub wanted: Notify,
    /// Is true while the feed should ask for progress.
    pub wants_progress: AtomicBool,
    /// All reads up to this time, in milliseconds after `created`, could have been answered from
    /// the contents of now.
    fresh_until_ms: AtomicU64,
    used_ms: AtomicU64,
    /// When the feed has started to load the contents that are missing, in milliseconds after
    /// `created`. `NOT_LOADING` if it will not load them for now.
    loading_since_ms: AtomicU64,
    /// Memory of the contents, or of the part of a list that has arrived.
    bytes: AtomicUsize,
    pub(super) created: Instant,
    limits: HistoryLimits,
    metrics: Arc<CacheMetrics>,
    pub(super) backfill: Backfills,
}

/// The attempts to read older events. One runs at a time.
#[derive(Debug, Default)]
pub(super) struct Backfills {
    pub(super) wanted: Mutex<Wanted>,
    /// The number of the last attempt that has ended.
    pub(super) ended: watch::Sender<u64>,
}

/// Which older events are wanted, and which cannot be had.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The lowest and the highest start of the watches that wait for the next attempt.
    pub(super) starts: Option<(i64, i64)>,
    /// Number of attempts that have started.
    pub(super) attempts: u64,
    /// When the running attempt has started. `None` if none runs.
    pub(super) running_since: Option<Instant>,
    /// Events before this revision are compacted, or too many for the history.
    pub(super) refused_before: i64,
}

#[derive(Debug, Default)]
struct ScopeState {
    contents: Option<Contents>,
    /// The numbers of the synced watchers, by their keys.
    group: WatcherGroup<u64>,
    synced: HashMap<u64, Arc<ScopeWatcher>>,
    header: ResponseHeader,
    /// The epoch of the contents.
    epoch: u64,
    /// True if the scope was dropped. Its feed ends, and may not load anything until then.
    is_closed: bool,
}

impl Scope {
    pub fn new(span: Span, limits: HistoryLimits, metrics: Arc<CacheMetrics>) -> Arc<Scope> {
        Arc::new(Scope {
            span,
            state: Mutex::default(),
            published: ArcSwapOption::empty(),
            revision: watch::channel(0).0,
            leaderless: watch::channel(false).0,
            wanted: Notify::new(),
            wants_progress: AtomicBool::new(false),
            fresh_until_ms: AtomicU64::new(0),
            used_ms: AtomicU64::new(0),
            loading_since_ms: AtomicU64::new(0),
            bytes: AtomicUsize::new(0),
            created: Instant::now(),
            limits,
            metrics,
            backfill: Backfills::default(),
        })
    }

    /// Returns the newest state, or `None` if nothing is loaded.
    pub fn published(&self) -> Option<Arc<Published>> {
        self.published.load_full()
    }

    pub fn revision(&self) -> i64 {
        *self.revision.borrow()
    }

    /// Returns the memory of the contents, estimated. While a list arrives, it is the memory of the
    /// part that has arrived.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Notes how large the part of the list is that has arrived. Called by the feed.
    pub(super) fn set_listed_bytes(&self, bytes: usize) {
        let state = self.state.lock();
        if !state.is_closed {
            self.bytes.store(bytes, Ordering::Relaxed);
        }
    }

    pub fn watchers(&self) -> usize {
        self.state.lock().synced.len()
    }

    pub fn leaderless(&self) -> watch::Receiver<bool> {
        self.leaderless.subscribe()
    }

    /// Notes that a client uses the scope.
    pub fn touch(&self) {
        self.used_ms.store(self.ms_of(Instant::now()), Ordering::Relaxed);
    }

    pub fn idle_time(&self) -> Duration {
        let now = self.ms_of(Instant::now());
        Duration::from_millis(now.saturating_sub(self.used_ms.load(Ordering::Relaxed)))
    }

    fn ms_of(&self, time: Instant) -> u64 {
        u64::try_from(time.saturating_duration_since(self.created).as_millis()).unwrap_or(u64::MAX)
    }

    /// Notes that the contents of now include every write that was acknowledged before `time`.
    pub fn mark_fresh(&self, time: Instant) {
        self.fresh_until_ms.fetch_max(self.ms_of(time), Ordering::Relaxed);
    }

    /// Returns true if the contents include every write that was acknowledged `lag_max` ago.
    pub fn is_fresh(&self, lag_max: Duration) -> bool {
        self.is_fresh_at(Instant::now(), lag_max)
    }

    pub fn is_fresh_at(&self, now: Instant, lag_max: Duration) -> bool {
        let now = self.ms_of(now);
        let lag = now.saturating_sub(self.fresh_until_ms.load(Ordering::Relaxed));
        self.published.load().is_some() && u128::from(lag) <= lag_max.as_millis()
    }

    /// Waits until all changes up to this revision are known, and returns the state. Returns `None`
    /// at the deadline, or if the scope is reset before it.
    pub async fn wait_for(&self, revision: i64, deadline: Instant) -> Option<Arc<Published>> {
        if let Some(state) = self.published().filter(|it| it.snapshot.revision >= revision) {
            return Some(state);
        }
        let mut known = self.revision.subscribe();
        loop {
            known.mark_unchanged();
            match self.reached(revision) {
                Reached::Yes(state) => return Some(state),
                Reached::Reset => return None,
                Reached::NotYet => self.want_progress(),
            }
            timeout_at(deadline, known.changed()).await.ok()?.ok()?;
        }
    }

    /// Checks whether all changes up to this revision are known.
    pub fn reached(&self, revision: i64) -> Reached {
        let reached = self.revision();
        if reached < revision {
            return if reached == 0 { Reached::Reset } else { Reached::NotYet };
        }
        match self.published().filter(|state| state.snapshot.revision >= revision) {
            Some(state) => Reached::Yes(state),
            None => Reached::Reset,
        }
    }

    /// Asks the feed to learn the newest revision, although no key of the range has changed.
    pub fn want_progress(&self) {
        self.wants_progress.store(true, Ordering::Release);
        self.wanted.notify_one();
    }

    /// Returns true once for all calls of `want_progress` so far. Called by the feed.
    pub fn take_wants_progress(&self) -> bool {
        self.wants_progress.swap(false, Ordering::AcqRel)
    }

    /// Returns a receiver of the revision of the contents.
    pub fn revisions(&self) -> watch::Receiver<i64> {
        self.revision.subscribe()
    }

    /// Notes whether the feed is going to load the contents.
    pub(super) fn set_loading(&self, is_loading: bool) {
        let since = if is_loading { self.ms_of(Instant::now()) } else { NOT_LOADING };
        self.loading_since_ms.store(since, Ordering::Relaxed);
    }

    /// Returns true if nothing is loaded, and the feed is going to change that.
    pub(super) fn is_loading(&self) -> bool {
        self.revision() == 0 && self.loading_since_ms.load(Ordering::Relaxed) != NOT_LOADING
    }

    /// Waits until the contents are loaded, or until they have been missing for `patience`.
    pub(super) async fn loaded(&self, patience: Duration) {
        let since = Duration::from_millis(self.loading_since_ms.load(Ordering::Relaxed));
        let Some(deadline) = self.created.checked_add(since.saturating_add(patience)) else {
            return;
        };
        let mut revisions = self.revisions();
        let _ = timeout_at(deadline, revisions.wait_for(|revision| *revision != 0)).await;
    }

    /// Sets the contents. Called by the feed after a list that has started in this epoch.
    pub fn load(&self, contents: Contents, header: &ResponseHeader, epoch: u64) {
        let mut state = self.state.lock();
        if state.is_closed || epoch < state.epoch {
            return;
        }
        state.epoch = epoch;
        state.contents = Some(contents);
        state.header = *header;
        self.publish(&state);
    }

    /// Applies events, and passes them to the watchers. Called by the feed, which must reset the
    /// scope after an error.
    pub fn apply(&self, events: Vec<Event>, header: &ResponseHeader) -> Result<(), BrokenFeed> {
        let mut state = self.state.lock();
        let Some(contents) = &mut state.contents else { return Ok(()) };
        let applied = contents.apply(events)?;
        state.header = *header;
        for events in applied {
            let coalesced = state.deliver(&events).saturating_sub(1);
            self.metrics.coalesced.fetch_add(coalesced as u64, Ordering::Relaxed);
        }
        self.publish(&state);
        Ok(())
    }

    /// Notes that all events up to this revision were applied. Called by the feed.
    pub fn advance(&self, revision: i64, header: &ResponseHeader) {
        let mut state = self.state.lock();
        let Some(contents) = &mut state.contents else { return };
        contents.advance(revision);
        state.header = *header;
        self.publish(&state);
    }

    fn publish(&self, state: &ScopeState) {
        let Some(contents) = &state.contents else { return };
        let header = ResponseHeader { revision: contents.revision(), ..state.header };
        self.bytes.store(contents.bytes(), Ordering::Relaxed);
        self.published.store(Some(Arc::new(Published { snapshot: contents.snapshot(), header })));
        self.revision.send_replace(contents.revision());
    }

    /// Forgets the contents, and detaches all watchers. Called by the feed.
    pub fn reset(&self) {
        self.reset_locked(&mut self.state.lock(), false);
    }

    /// Forgets the contents, and ends all watchers: their revisions mean nothing to the cluster of
    /// the new epoch.
    pub fn start_epoch(&self, epoch: u64) {
        let mut state = self.state.lock();
        state.epoch = epoch;
        self.reset_locked(&mut state, true);
    }

    /// Forgets the contents for good, and detaches all watchers.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        self.reset_locked(&mut state, false);
    }

    fn reset_locked(&self, state: &mut ScopeState, watchers_end: bool) {
        // After an error of `apply`, the contents may be newer than what the watchers have got.
        let delivered = self.revision();
        if delivered != 0 {
            self.set_loading(true);
        }
        self.published.store(None);
        self.revision.send_replace(0);
        self.bytes.store(0, Ordering::Relaxed);
        state.contents = None;
        state.group = WatcherGroup::default();
        let mut synced: Vec<_> = std::mem::take(&mut state.synced).into_values().collect();
        synced.sort_unstable_by_key(|watcher| watcher.number);
        for watcher in synced {
            watcher.queue.push(match watchers_end {
                true => Delivery::Ended(watcher.number),
                false => Delivery::Detached(watcher.number, delivered),
            });
        }
    }

    /// Notes whether the member of the feed has a leader. Called by the feed.
    pub fn set_leaderless(&self, is_leaderless: bool) {
        self.leaderless
            .send_if_modified(|old| std::mem::replace(old, is_leaderless) != is_leaderless);
    }

    /// Reads the events that a lagging watcher is missing, from revision `from` on, until they have
    /// `bytes_max`. If these are all, adds the watcher to the synced ones.
    pub fn catch_up(&self, watcher: &Arc<ScopeWatcher>, from: i64, bytes_max: usize) -> CatchUp {
        let mut state = self.state.lock();
        if watcher.epoch != state.epoch {
            return CatchUp::NotHere;
        }
        let Some(contents) = &state.contents else { return CatchUp::NotHere };
        let base = match watcher.needs_previous {
            true => contents.base(),
            false => contents.history_base(),
        };
        if from <= base {
            return CatchUp::NotHere;
        }
        let (mut found, mut bytes) = (Vec::new(), 0);
        for (scanned, events) in contents.events_from(from).enumerate() {
            // The scope's lock must not be held for long.
            if scanned >= CATCH_UP_REVISIONS {
                return CatchUp::Events(found, events.revision);
            }
            let picks = picks_of(&watcher.keys, events);
            if picks.is_empty() {
                continue;
            }
            bytes += events.bytes();
            found.push((Arc::clone(events), picks));
            if bytes >= bytes_max {
                return CatchUp::Events(found, events.revision + 1);
            }
        }
        let revision = contents.revision();
        state.group.insert(&watcher.keys, watcher.number);
        state.synced.insert(watcher.number, Arc::clone(watcher));
        CatchUp::Synced(found, revision)
    }

    /// The history has every event after this revision. `None` if nothing is loaded.
    pub(super) fn history_base(&self) -> Option<i64> {
        self.state.lock().contents.as_ref().map(Contents::history_base)
    }

    /// Puts all events from `from + 1` to `base` before the history. Returns false if the history
    /// does not begin after `base` any more, or has no room for them.
    pub(super) fn extend_history(&self, events: Vec<Event>, from: i64, base: i64) -> bool {
        let mut state = self.state.lock();
        let Some(contents) = &mut state.contents else { return false };
        let is_extended = contents.extend_history(events, from, base);
        self.bytes.store(contents.bytes(), Ordering::Relaxed);
        is_extended
    }

    pub fn remove(&self, watcher: &ScopeWatcher) {
        self.state.lock().remove(watcher);
    }

    pub fn new_contents(
        &self,
        keys: Vec<clearlane_proto::mvccpb::KeyValue>,
        revision: i64,
    ) -> Contents {
        Contents::new(keys, revision, self.limits)
    }
}

impl ScopeState {
    /// Returns the number of watchers that the events are for.
    fn deliver(&mut self, events: &Arc<RevisionEvents>) -> usize {
        // In the order of the numbers, so that a test can repeat which queue is full.
        let mut picks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for (number, event) in (0..).zip(&events.events) {
            self.group.for_each_watching(&event.current.key, &mut |watcher| {
                picks.entry(*watcher).or_default().push(number);
            });
        }
        let receivers = picks.len();
        for (number, picks) in picks {
            let Some(watcher) = self.synced.get(&number).cloned() else { continue };
            if events.revision < watcher.first_revision
                || watcher.queue.try_push_events(number, events, picks)
            {
                continue;
            }
            self.remove(&watcher);
            watcher.queue.push(Delivery::Lagging(number, events.revision));
        }
        receivers
    }

    fn remove(&mut self, watcher: &ScopeWatcher) {
        if self.synced.remove(&watcher.number).is_some() {
            self.group.remove(&watcher.keys, &watcher.number);
        }
    }
}

fn picks_of(keys: &WatchedKeys, events: &RevisionEvents) -> Vec<u32> {
    let events = (0..).zip(&events.events);
    events
        .filter(|(_, event)| keys.contains(&event.current.key))
        .map(|(number, _)| number)
        .collect()
}
