//! The watchers of an old era and their sync states, protected by etcd's lock `watchable`.
//!
//! There are three groups, with etcd's names:
//!
//! * *synced*: the writer finds these watchers by the key of each event, in a [`WatcherGroup`].
//! * *unsynced*: each sync round reads the store once for up to 512 of these watchers.
//! * *victims*: the channel of these watchers was full when there were events for them. The
//!   response of a victim is kept and retried until the channel has capacity. So a victim keeps the
//!   events of up to 1,000 revisions in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::changes::Changes;
use crate::watch::channel::{ChannelsToWake, WatchChannel, WatcherKey};
use crate::watch::detached_stream::{DetachedStream, DetachedWatcher};
use crate::watch::interface::WatchMetrics;
use crate::watch::response::{
    Event, INVALID_WATCH_ID, Response, ResponseKind, WatchId, WatchIdAllocator, WatchRequest,
};
use crate::watch::watcher_group::WatcherGroup;

/// Maximum number of watchers in a sync round, which is the same as in etcd.
const WATCHERS_PER_SYNC_MAX: usize = 512;
/// Maximum number of revisions that one sync round delivers to a watcher, which is the same as in
/// etcd.
const BATCH_REVISIONS_MAX: usize = 1000;

#[derive(Debug)]
struct Watcher {
    request: WatchRequest,
    /// The watcher has received all its events below this revision. For a victim, this is the
    /// revision after the transaction or the sync round that has made it a victim.
    from: i64,
    synced: bool,
    /// If true, the watcher has had no event since the last call of `notify_progress` for its
    /// stream, or since the watcher was created.
    quiet: bool,
}

#[derive(Debug)]
struct Stream {
    channel: Arc<WatchChannel>,
    watchers: BTreeMap<WatchId, Watcher>,
    watch_ids: WatchIdAllocator,
}

/// A response that was not added to the channel, because the channel was full. `next_revision` is
/// the revision to continue from, or `None` if the response contains all missed events.
#[derive(Debug)]
struct Victim {
    response: Response,
    next_revision: Option<i64>,
}

impl Victim {
    fn first_revision(self) -> Option<i64> {
        let ResponseKind::Events { events, .. } = self.response.kind else { return None };
        Some(events.first()?.change.record().mod_revision)
    }
}

#[derive(Debug, Default)]
pub(crate) struct EtcdWatchers {
    streams: BTreeMap<u64, Stream>,
    last_stream: u64,
    synced: WatcherGroup<WatcherKey>,
    unsynced: BTreeSet<WatcherKey>,
    victims: BTreeMap<WatcherKey, Victim>,
}

impl EtcdWatchers {
    pub(super) fn open(&mut self, make: impl FnOnce(u64) -> WatchChannel) -> Arc<WatchChannel> {
        self.last_stream += 1;
        let channel = Arc::new(make(self.last_stream));
        let (watchers, watch_ids) = (BTreeMap::new(), WatchIdAllocator::default());
        let stream = Stream { channel: Arc::clone(&channel), watchers, watch_ids };
        self.streams.insert(self.last_stream, stream);
        channel
    }

    pub(super) fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        for (id, watcher) in closed.watchers {
            self.forget(WatcherKey { stream, id }, &watcher.request);
        }
    }

    pub(super) fn detach_streams(&mut self) -> Vec<DetachedStream> {
        let detached = std::mem::take(self);
        self.last_stream = detached.last_stream;
        let mut victims = detached.victims;
        let detach = |(stream, of): (u64, Stream)| {
            let watchers = of.watchers.into_iter().map(|(id, watcher)| {
                // The events of a victim were never added to the channel. So the watcher continues
                // at the first of these events.
                let victim = victims.remove(&WatcherKey { stream, id });
                let next_revision = victim.and_then(Victim::first_revision).unwrap_or(watcher.from);
                let Watcher { request, quiet, .. } = watcher;
                DetachedWatcher { id, request, next_revision, quiet }
            });
            let watchers = watchers.collect();
            DetachedStream { watchers, channel: of.channel, watch_ids: of.watch_ids }
        };
        detached.streams.into_iter().map(detach).collect()
    }

    /// Adds a stream of another watchable store. `now` is the store's revision.
    pub(super) fn attach_stream(&mut self, detached: DetachedStream, now: i64) {
        let DetachedStream { channel, watch_ids, watchers } = detached;
        let number = channel.stream;
        self.last_stream = self.last_stream.max(number);
        let stream = Stream { channel, watch_ids, watchers: BTreeMap::new() };
        let was_there = self.streams.insert(number, stream).is_some();
        assert!(!was_there, "the watchable store already has stream {number}");
        for watcher in watchers {
            self.add_watcher(number, watcher, now);
        }
    }

    fn add_watcher(&mut self, stream: u64, watcher: DetachedWatcher, now: i64) {
        let DetachedWatcher { id, request, next_revision: from, quiet } = watcher;
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let (key, synced) = (WatcherKey { stream, id }, from > now);
        if synced {
            self.synced.insert(&request.keys, key);
        } else {
            self.unsynced.insert(key);
        }
        of.watchers.insert(id, Watcher { request, from, synced, quiet });
    }

    /// Creates a watcher, or rejects the request. `now` is the store's revision.
    pub(super) fn watch(&mut self, stream: u64, request: WatchRequest, now: i64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        if let Some(refusal) = request.rejection(|id| of.watchers.contains_key(&id)) {
            of.channel.push_response(INVALID_WATCH_ID, now, ResponseKind::Rejected(refusal));
            return;
        }
        let id = of.watch_ids.allocate(request.id, |id| of.watchers.contains_key(&id));
        of.channel.set_needs_previous(id, request.prev_kv);
        of.channel.push_response(id, now, ResponseKind::Created);
        let next_revision = request.first_revision(now);
        let watcher = DetachedWatcher { id, request, next_revision, quiet: true };
        self.add_watcher(stream, watcher, now);
    }

    pub(super) fn cancel(&mut self, stream: u64, id: WatchId, now: i64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let Some(watcher) = of.watchers.remove(&id) else { return };
        of.channel.push_response(id, now, ResponseKind::Canceled);
        self.forget(WatcherKey { stream, id }, &watcher.request);
    }

    fn forget(&mut self, key: WatcherKey, request: &WatchRequest) {
        self.synced.remove(&request.keys, &key);
        self.unsynced.remove(&key);
        self.victims.remove(&key);
    }

    /// Notifies the synced watchers of the changes of a write transaction, before the transaction
    /// ends.
    pub(crate) fn notify(&mut self, revision: i64, changes: &Changes) -> ChannelsToWake {
        let mut wanted: BTreeMap<WatcherKey, Vec<Event>> = BTreeMap::new();
        for change in changes.iter() {
            self.synced.for_each_watching(&change.record().key, &mut |key| {
                wanted.entry(*key).or_default().push(Event::new(change.clone().into_owned()));
            });
        }
        let mut to_wake = ChannelsToWake::new();
        for (key, events) in wanted {
            let Some(watcher) = self.watcher(key) else { continue };
            if watcher.from > revision {
                continue;
            }
            watcher.from = revision + 1;
            if self.notify_watcher(key, revision, events, None, &mut to_wake) {
                continue;
            }
            let Some(watcher) = self.watcher(key) else { continue };
            watcher.synced = false;
            let keys = watcher.request.keys.clone();
            self.synced.remove(&keys, &key);
        }
        to_wake
    }

    fn watcher(&mut self, key: WatcherKey) -> Option<&mut Watcher> {
        self.streams.get_mut(&key.stream)?.watchers.get_mut(&key.id)
    }

    /// Adds to the watcher's channel all events that the watcher has requested. If the channel has
    /// no capacity, makes the watcher a victim and returns false. Otherwise returns true.
    fn notify_watcher(
        &mut self,
        key: WatcherKey,
        revision: i64,
        mut events: Vec<Event>,
        next_revision: Option<i64>,
        to_wake: &mut ChannelsToWake,
    ) -> bool {
        let Some(of) = self.streams.get_mut(&key.stream) else { return true };
        let Some(watcher) = of.watchers.get_mut(&key.id) else { return true };
        events.retain(|event| watcher.request.wants(event.kind()));
        if events.is_empty() {
            return true;
        }
        watcher.quiet = false;
        let fragment = watcher.request.fragment;
        let kind = ResponseKind::Events { events: events.into(), fragment };
        let response = Response { id: key.id, revision, kind };
        let rejected = try_push(&of.channel, Victim { response, next_revision });
        let is_pushed = rejected.is_none();
        if is_pushed {
            to_wake.push(Arc::clone(&of.channel));
        }
        self.victims.extend(rejected.map(|victim| (key, victim)));
        is_pushed
    }

    pub(super) fn retry_victims(&mut self, now: i64) -> ChannelsToWake {
        let mut to_wake = ChannelsToWake::new();
        for (key, victim) in std::mem::take(&mut self.victims) {
            let Some(of) = self.streams.get(&key.stream) else { continue };
            let (channel, rest) = (Arc::clone(&of.channel), victim.next_revision);
            match try_push(&channel, victim) {
                Some(victim) => drop(self.victims.insert(key, victim)),
                None => {
                    to_wake.push(channel);
                    self.update_sync_state(key, rest, now);
                }
            }
        }
        to_wake
    }

    /// Called after all events of a response were added. The watcher becomes synced if it has
    /// everything up to `now`, and unsynced otherwise. `rest` is the revision to continue from, or
    /// `None` if no missed event is left.
    fn update_sync_state(&mut self, key: WatcherKey, rest: Option<i64>, now: i64) {
        let Some(watcher) = self.watcher(key) else { return };
        watcher.from = rest.unwrap_or(watcher.from);
        watcher.synced = watcher.from > now;
        if !watcher.synced {
            self.unsynced.insert(key);
            return;
        }
        let keys = watcher.request.keys.clone();
        self.unsynced.remove(&key);
        self.synced.insert(&keys, key);
    }

    /// Starts a sync round. Returns its watchers, and the oldest revision that any of these
    /// watchers has missed. Returns `None` if no watcher needs a read. A watcher that has missed a
    /// compacted revision gets a response, and is removed.
    pub(super) fn begin_sync(
        &mut self,
        compacted: i64,
        to_wake: &mut ChannelsToWake,
    ) -> Option<SyncRound> {
        let watcher_keys: Vec<WatcherKey> =
            self.unsynced.iter().take(WATCHERS_PER_SYNC_MAX).copied().collect();
        let mut round = SyncRound { watchers: Vec::new(), from: i64::MAX };
        for key in watcher_keys {
            let Some(from) = self.watcher(key).map(|watcher| watcher.from) else { continue };
            if from < compacted {
                self.cancel_compacted(key, compacted, to_wake);
            } else {
                round.from = round.from.min(from);
                round.watchers.push(key);
            }
        }
        (!round.watchers.is_empty()).then_some(round)
    }

    fn cancel_compacted(&mut self, key: WatcherKey, compacted: i64, to_wake: &mut ChannelsToWake) {
        let Some(of) = self.streams.get_mut(&key.stream) else { return };
        let Some(watcher) = of.watchers.remove(&key.id) else { return };
        of.channel.push_response(key.id, 0, ResponseKind::Compacted(compacted));
        to_wake.push(Arc::clone(&of.channel));
        self.forget(key, &watcher.request);
    }

    /// Delivers the missed events up to `now` to the round's watchers. A watcher gets the events of
    /// at most 1,000 revisions. If it has missed more, it stays unsynced.
    pub(super) fn finish_sync(
        &mut self,
        round: SyncRound,
        events: &[Event],
        now: i64,
        to_wake: &mut ChannelsToWake,
    ) {
        for key in round.watchers {
            let Some(watcher) = self.watcher(key) else { continue };
            let (wanted, rest) = watcher.missed_events(events);
            watcher.from = now + 1;
            self.unsynced.remove(&key);
            if self.notify_watcher(key, now, wanted, rest, to_wake) {
                self.update_sync_state(key, rest, now);
            }
        }
    }

    /// Sends a progress response for a stream, if it has watchers, and all of them have started and
    /// are synced.
    pub(super) fn request_progress(&mut self, stream: u64, now: i64) {
        let Some(of) = self.streams.get(&stream) else { return };
        let is_synced = |watcher: &Watcher| watcher.synced && watcher.request.start_revision <= now;
        if !of.watchers.is_empty() && of.watchers.values().all(is_synced) {
            of.channel.push_response(INVALID_WATCH_ID, now, ResponseKind::Progress);
        }
    }

    pub(super) fn notify_progress(&mut self, stream: u64, now: i64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let watchers = &mut of.watchers;
        let _ = of.channel.with_lock(|open| {
            for (id, watcher) in watchers {
                let is_synced = watcher.synced && watcher.request.start_revision <= now;
                let wants = watcher.request.progress_notify && watcher.quiet && is_synced;
                if wants && !open.is_full() {
                    let kind = ResponseKind::Progress;
                    open.push(Response { id: *id, revision: now, kind }, 0);
                }
                watcher.quiet = true;
            }
        });
    }

    pub(super) fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    pub(super) fn metrics(&self) -> WatchMetrics {
        WatchMetrics {
            streams: self.streams.len(),
            watchers: self.streams.values().map(|of| of.watchers.len()).sum(),
            unsynced: self.unsynced.len() + self.victims.len(),
            queued: 0,
        }
    }
}

/// Up to 512 unsynced watchers, and the oldest revision that any of these watchers has missed.
#[derive(Debug)]
pub(super) struct SyncRound {
    watchers: Vec<WatcherKey>,
    pub(super) from: i64,
}

impl Watcher {
    /// Returns the missed events of up to 1,000 revisions, and the revision to continue from, or
    /// `None` if there are no more events.
    fn missed_events(&self, events: &[Event]) -> (Vec<Event>, Option<i64>) {
        let (mut missed, mut revisions, mut newest) = (Vec::new(), 0, 0);
        for event in events {
            let record = event.change.record();
            if record.mod_revision < self.from || !self.request.keys.contains(&record.key) {
                continue;
            }
            if record.mod_revision != newest {
                if revisions == BATCH_REVISIONS_MAX {
                    return (missed, Some(record.mod_revision));
                }
                revisions += 1;
                newest = record.mod_revision;
            }
            missed.push(event.clone());
        }
        (missed, None)
    }
}

/// Adds a response if there is capacity. Otherwise returns the victim. Returns `None` if the
/// response was added.
fn try_push(channel: &WatchChannel, victim: Victim) -> Option<Victim> {
    let (rejected, _) = channel.with_lock(|open| {
        if !open.has_capacity() {
            return Some(victim);
        }
        // The channel's limit is a number of responses, so the size of the events is not needed.
        open.push(victim.response, 0);
        None
    });
    rejected
}
