//! The coherent cache: copies of key ranges that answer reads and feed watchers.
//!
//! ```text
//!   member ── list, watch ─▶ feed ─▶ scope: snapshot, history ─┬─▶ reads
//!   member ◀── probe ── prober ◀── linearizable reads          └─▶ watch sessions
//! ```
//!
//! # Why a linearizable read may be answered from a copy
//!
//! A watch gives two guarantees. All events of a revision arrive together. And progress at revision
//! R follows every event up to R. So when the feed has seen an event or progress of revision R, the
//! scope holds the exact state S(R) of its range.
//!
//! Let a read arrive at time t0. The proxy then makes a linearizable read upstream, the *probe*. It
//! starts after t0 and returns revision Q, so it took effect at some time p after t0. Every write
//! that was acknowledged before t0 has a revision of at most Q. The proxy waits until the scope
//! holds a state S(R) with R >= Q, and answers from it at time t1, with R in the header.
//!
//! The read then takes effect between t0 and t1:
//! * If R was committed after t0, at the moment of that commit. It is before t1, because the scope
//!   has R.
//! * If R was committed before t0, then R <= Q, so R = Q, and the moment is p.
//!
//! These moments are in the order of the revisions, so two reads cannot contradict each other.
//!
//! The argument fails if one of these rules is broken:
//! * A probe that started before t0 is not enough: a write may have been acknowledged between them.
//! * Progress is not a probe: a member that lags behind sends progress with an old revision.
//! * The header must have R, and not a newer revision: clients watch from the header's revision on.
//! * All keys of an answer come from one state.
//!
//! A serializable read needs no probe. It is answered from the newest state if that state is not
//! older than what the connection has seen, and if a probe shows that it includes every write
//! acknowledged [`lag_max`](CacheConfig::lag_max) ago.
//!
//! # Who may be answered
//!
//! Only callers without a token. Their probe has no token either, so it succeeds only while the
//! cluster has no auth; and then everyone may read everything. All calls with a token go upstream,
//! where the member checks them. So the cache can never show one user what another one may read.

mod backfill;
pub mod budget;
pub mod contents;
pub mod epoch;
pub mod feed;
pub mod probe;
pub mod range;
pub mod read;
pub mod scope;
mod version;

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use self::budget::{Decision, Refusal, Refusals, Usage};
use self::contents::HistoryLimits;
use self::epoch::NewestRevision;
use self::probe::{Probe, Prober};
use self::range::Span;
use self::scope::Scope;
use crate::trace::ProxyTrace;
use crate::upstream::Upstream;

/// A range is cached when this number of reads in it was forwarded.
const READS_BEFORE_CACHED: u32 = 8;
/// Maximum number of ranges whose reads are counted.
const COUNTED_RANGES_MAX: usize = 1024;
/// Maximum number of ranges that are cached because clients use them.
const SCOPES_MAX: usize = 64;
/// A range that nobody uses is dropped after this time, unless it is configured.
const IDLE_MAX: Duration = Duration::from_secs(300);
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct CacheConfig {
    /// Prefixes that are always cached.
    pub prefixes: Vec<Vec<u8>>,
    /// If true, ranges that clients read or watch often are cached as well.
    pub on_demand: bool,
    /// Maximum memory of all cached ranges together, with their histories. [`budget`] describes
    /// which range is dropped first.
    pub bytes_max: usize,
    /// A range is in use for this time after a client has used it, and while it has watchers.
    pub in_use_time: Duration,
    pub history: HistoryLimits,
    /// A serializable read is forwarded if the cache may be older than this.
    pub lag_max: Duration,
    pub probe_interval: Duration,
    /// The probes of a range stop when no client has used it for this time.
    pub probe_idle_max: Duration,
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            prefixes: Vec::new(),
            on_demand: true,
            bytes_max: 256 << 20,
            in_use_time: Duration::from_secs(10),
            history: HistoryLimits::default(),
            lag_max: Duration::from_secs(1),
            probe_interval: Duration::from_millis(200),
            probe_idle_max: Duration::from_secs(10),
        }
    }
}

#[derive(Debug, Default)]
pub struct CacheMetrics {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    /// Number of ranges that were dropped because of the budget.
    pub dropped: AtomicU64,
    /// Number of deliveries that needed no event of a member: for each revision, the watches that
    /// got its events, except the first one.
    pub coalesced: AtomicU64,
}

#[derive(Debug)]
pub struct Cache {
    pub config: CacheConfig,
    pub upstream: Arc<Upstream>,
    pub prober: Arc<Prober>,
    pub metrics: Arc<CacheMetrics>,
    pub(crate) trace: Arc<ProxyTrace>,
    /// The number of the [epoch]. It increases when the cluster was replaced.
    epoch: watch::Sender<u64>,
    /// The newest revision in any response of the proxy. A watch from "now" starts after it.
    seen: NewestRevision,
    /// The newest revision that a probe has shown.
    known_revision: NewestRevision,
    /// True if the log shows that a member is too old.
    is_old_member_logged: AtomicBool,
    /// Reads that go to members although the cache has their range.
    fallbacks: Arc<Semaphore>,
    /// Attempts to read older events.
    backfills: Semaphore,
    scopes: ArcSwap<Vec<Arc<Scope>>>,
    state: Mutex<CacheState>,
    /// Runs the feeds. The network threads have no time for them.
    runtime: Handle,
}

#[derive(Debug, Default)]
struct CacheState {
    tasks: Vec<ScopeTask>,
    /// The numbers of forwarded reads, by the prefix that would be cached.
    reads: std::collections::HashMap<Vec<u8>, u32>,
    refusals: Refusals,
}

#[derive(Debug)]
struct ScopeTask {
    scope: Arc<Scope>,
    is_configured: bool,
    task: JoinHandle<()>,
}

impl Drop for ScopeTask {
    fn drop(&mut self) {
        self.task.abort();
        self.scope.close();
    }
}

impl Cache {
    /// Starts to cache the configured prefixes. Must be called on a runtime.
    pub fn start(
        upstream: Arc<Upstream>,
        config: CacheConfig,
        trace: Arc<ProxyTrace>,
    ) -> Arc<Cache> {
        let cache = Arc::new(Cache {
            prober: Prober::new(Arc::clone(&upstream), Arc::clone(&trace)),
            upstream,
            config,
            metrics: Arc::default(),
            trace,
            epoch: watch::channel(0).0,
            seen: NewestRevision::default(),
            known_revision: NewestRevision::default(),
            is_old_member_logged: AtomicBool::new(false),
            fallbacks: Arc::new(Semaphore::new(read::FALLBACKS_MAX)),
            backfills: Semaphore::new(backfill::ATTEMPTS_MAX),
            scopes: ArcSwap::default(),
            state: Mutex::default(),
            runtime: Handle::current(),
        });
        for prefix in &cache.config.prefixes {
            cache.add(Span::of_prefix(prefix), true);
        }
        let weak = Arc::downgrade(&cache);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP_INTERVAL).await;
                let Some(cache) = weak.upgrade() else { return };
                cache.sweep();
            }
        });
        cache
    }

    /// Makes a probe, and checks that the cluster is still the same one. A probe is linearizable,
    /// so its revision cannot be lower than a revision that was known before, also if it is known
    /// from a response to a client. If it is lower, the cluster was restored from a backup or
    /// replaced, and everything that the cache has is wrong.
    pub async fn probe(self: &Arc<Self>) -> Result<Probe, Status> {
        let epoch = self.epoch();
        let mut known = self.known_revision.of(epoch).max(self.seen(epoch));
        let mut cluster_id = 0;
        for scope in self.scopes.load().iter() {
            if let Some(state) = scope.published() {
                known = known.max(state.snapshot.revision);
                cluster_id = state.header.cluster_id;
            }
        }
        let probe = self.prober.probe().await?;
        let header = &probe.header;
        if header.revision < known || cluster_id != 0 && header.cluster_id != cluster_id {
            tracing::error!(
                known,
                found = header.revision,
                "the cluster behind the proxy was replaced, or restored from a backup"
            );
            self.forget_cluster(epoch);
            return Err(Status::unavailable("clearlane grpc-proxy: the cluster was replaced"));
        }
        self.known_revision.note(epoch, header.revision);
        Ok(probe)
    }

    /// Starts the epoch after `old`: forgets everything about the cluster, ends all watches, and
    /// starts to cache again. Does nothing if `old` has ended already.
    fn forget_cluster(self: &Arc<Self>, old: u64) {
        let mut state = self.state.lock();
        if self.epoch() != old {
            return;
        }
        // Before the scopes: a session that finds a scope of the new epoch also finds the epoch.
        self.epoch.send_replace(old + 1);
        for it in &mut state.tasks {
            it.task.abort();
            it.scope.start_epoch(old + 1);
            it.task = self.runtime.spawn(Arc::clone(self).run_scope(Arc::clone(&it.scope)));
        }
    }

    pub fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Returns a receiver of the epoch's number.
    pub fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// Notes the revision of a response to a client. `epoch` was the epoch when the request went to
    /// a member, or when the watch was created.
    pub fn note_seen(&self, epoch: u64, revision: i64) {
        self.seen.note(epoch, revision);
    }

    pub fn seen(&self, epoch: u64) -> i64 {
        self.seen.of(epoch)
    }

    pub fn scopes(&self) -> Arc<Vec<Arc<Scope>>> {
        self.scopes.load_full()
    }

    /// Returns the scope that has all keys of the range and is loaded.
    pub fn covering(&self, span: &Span) -> Option<Arc<Scope>> {
        let scopes = self.scopes.load();
        let mut covering = scopes.iter().filter(|scope| scope.span.covers(span));
        let scope = covering.find(|scope| scope.revision() != 0)?;
        scope.touch();
        Some(Arc::clone(scope))
    }

    /// Returns a scope that has all keys of the range, and that is going to be loaded.
    fn loading(&self, span: &Span) -> Option<Arc<Scope>> {
        let scopes = self.scopes.load();
        scopes.iter().find(|scope| scope.span.covers(span) && scope.is_loading()).cloned()
    }

    /// Counts a forwarded read. After a few of them, their range is cached.
    pub fn count_forwarded(self: &Arc<Self>, span: &Span) {
        self.metrics.misses.fetch_add(1, Ordering::Relaxed);
        if !self.config.on_demand || self.scopes.load().iter().any(|it| it.span.covers(span)) {
            return;
        }
        let prefix = span.scope_prefix();
        let mut state = self.state.lock();
        if state.reads.len() >= COUNTED_RANGES_MAX {
            state.reads.clear();
        }
        let reads = state.reads.entry(prefix.to_vec()).or_default();
        *reads += 1;
        let is_enough = *reads >= READS_BEFORE_CACHED;
        drop(state);
        if is_enough {
            self.add(Span::of_prefix(&prefix), false);
        }
    }

    /// Returns the scope for a watcher of this range. Starts to cache the range if necessary, and
    /// waits until it is loaded. Returns `None` if it cannot be cached, or is not loaded within
    /// `patience` of its creation.
    pub async fn scope_for_watch(
        self: &Arc<Self>,
        span: &Span,
        patience: Duration,
    ) -> Option<Arc<Scope>> {
        let known = self.scopes.load().iter().find(|scope| scope.span.covers(span)).cloned();
        let scope = match known {
            Some(scope) => scope,
            None if self.config.on_demand => {
                self.add(Span::of_prefix(&span.scope_prefix()), false)?
            }
            None => return None,
        };
        scope.touch();
        let mut revisions = scope.revisions();
        let deadline = scope.created + patience;
        let loaded = timeout_at(deadline, revisions.wait_for(|revision| *revision != 0)).await;
        loaded.ok()?.ok()?;
        Some(scope)
    }

    /// Starts to cache a range. Returns `None` if it was refused lately, or if there are too many.
    fn add(self: &Arc<Self>, span: Span, is_configured: bool) -> Option<Arc<Scope>> {
        let mut state = self.state.lock();
        if let Some(known) = state.tasks.iter().find(|it| it.scope.span.covers(&span)) {
            return Some(Arc::clone(&known.scope));
        }
        if state.refusals.forbid(&span, Instant::now())
            || !is_configured && state.tasks.len() >= SCOPES_MAX
        {
            return None;
        }
        let scope = Scope::new(span, self.config.history, Arc::clone(&self.metrics));
        scope.touch();
        let task = self.runtime.spawn(Arc::clone(self).run_scope(Arc::clone(&scope)));
        state.tasks.push(ScopeTask { scope: Arc::clone(&scope), is_configured, task });
        self.publish(&state);
        Some(scope)
    }

    async fn run_scope(self: Arc<Self>, scope: Arc<Scope>) {
        loop {
            let (refusal, why) = tokio::select! {
                refused = feed::run(&scope, &self) => refused,
                () = feed::keep_fresh(&scope, &self) => return,
            };
            scope.reset();
            scope.set_loading(false);
            let Some((pause, is_configured)) = self.refuse(&scope, refusal) else { return };
            let pause_seconds = pause.as_secs();
            // One line is enough: no range can be cached from an old member.
            let is_known = refusal == Refusal::OldMember
                && self.is_old_member_logged.swap(true, Ordering::Relaxed);
            if !is_known {
                tracing::warn!(
                    scope = %scope.span, why, pause_seconds, "the range cannot be cached for now"
                );
            }
            if !is_configured {
                return;
            }
            tokio::time::sleep(pause).await;
            scope.set_loading(true);
        }
    }

    /// Notes that a range cannot be cached, and drops its scope unless it is configured. Returns
    /// the pause before the next attempt, and true if the range is configured. Returns `None` if
    /// the scope was dropped already.
    fn refuse(&self, scope: &Arc<Scope>, refusal: Refusal) -> Option<(Duration, bool)> {
        let mut state = self.state.lock();
        let at = state.tasks.iter().position(|it| Arc::ptr_eq(&it.scope, scope))?;
        if refusal == Refusal::TooLarge {
            self.metrics.dropped.fetch_add(1, Ordering::Relaxed);
        }
        let pause = state.refusals.add(&scope.span, refusal, Instant::now());
        let is_configured = state.tasks[at].is_configured;
        if !is_configured {
            // Dropping it aborts the caller at its next wait, and there is none.
            let dropped = state.tasks.swap_remove(at);
            self.publish(&state);
            drop(state);
            drop(dropped);
        }
        Some((pause, is_configured))
    }

    /// Returns true if this number of bytes fits into the budget.
    pub(super) fn has_room_for(&self, bytes: usize) -> bool {
        let used: usize = self.scopes.load().iter().map(|scope| scope.bytes()).sum();
        used.saturating_add(bytes) <= self.config.bytes_max
    }

    /// Makes room for a scope that has grown: if all scopes together are too large, drops others.
    /// Returns false if this scope must be dropped instead.
    pub(super) fn make_room(&self, scope: &Arc<Scope>) -> bool {
        if self.has_room_for(0) {
            return true;
        }
        let mut state = self.state.lock();
        let usages: Vec<Usage> = state.tasks.iter().map(|it| self.usage(it)).collect();
        let growing = state.tasks.iter().position(|it| Arc::ptr_eq(&it.scope, scope));
        let Some(growing) = growing else { return false };
        let is_loading = scope.revision() == 0;
        let victims = match budget::decide(&usages, growing, is_loading, self.config.bytes_max) {
            Decision::Drop(victims) => victims,
            Decision::DropGrowing => return false,
        };
        let (mut kept, mut dropped) = (Vec::new(), Vec::new());
        for (at, it) in std::mem::take(&mut state.tasks).into_iter().enumerate() {
            if victims.contains(&at) { dropped.push(it) } else { kept.push(it) }
        }
        state.tasks = kept;
        for it in &dropped {
            let span = &it.scope.span;
            let pause = state.refusals.add(span, Refusal::Displaced, Instant::now());
            let (bytes, pause_seconds) = (it.scope.bytes(), pause.as_secs());
            tracing::info!(scope = %span, bytes, pause_seconds, "a range made room for another one");
        }
        self.metrics.dropped.fetch_add(dropped.len() as u64, Ordering::Relaxed);
        self.publish(&state);
        drop(state);
        drop(dropped);
        true
    }

    fn usage(&self, it: &ScopeTask) -> Usage {
        let (bytes, idle) = (it.scope.bytes(), it.scope.idle_time());
        let is_in_use = it.scope.watchers() > 0 || idle < self.config.in_use_time;
        Usage { bytes, is_configured: it.is_configured, is_in_use, idle }
    }

    fn publish(&self, state: &CacheState) {
        let mut scopes: Vec<_> = state.tasks.iter().map(|it| Arc::clone(&it.scope)).collect();
        // A narrow scope comes before a wide one that includes it.
        scopes.sort_by_key(|scope| Reverse(scope.span.from.len()));
        self.scopes.store(Arc::new(scopes));
    }

    /// Drops scopes that nobody uses, and forgets the counted reads.
    fn sweep(&self) {
        let mut state = self.state.lock();
        state.reads.clear();
        let is_used = |it: &ScopeTask| {
            it.is_configured || it.scope.watchers() > 0 || it.scope.idle_time() < IDLE_MAX
        };
        let (used, unused) = std::mem::take(&mut state.tasks).into_iter().partition(is_used);
        state.tasks = used;
        self.publish(&state);
        drop(state);
        drop::<Vec<ScopeTask>>(unused);
    }
}
