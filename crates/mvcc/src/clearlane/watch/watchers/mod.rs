//! All watchers of the default era, and whether each of them is synced.
//!
//! A *synced* watcher receives new transactions from the delivery queue. An *unsynced* watcher
//! first reads the events it has missed from the store, in steps.
//!
//! ```text
//!            channel full, or queue overflow
//!   Synced ──────────────────────────────────▶ Unsynced ◀─┐
//!     ▲                                           │       │ more to read
//!     │                            next_sync_task ▼       │
//!     └──── no newer events ────────────────── Syncing ───┘
//! ```
//!
//! * The delivery thread calls `notify` for each transaction.
//! * The sync thread takes a task, reads the store, and calls `finish_sync_task`.
//! * Network threads call `open`, `watch`, `cancel`, `request_progress`, `notify_progress` and
//!   `close`.
//!
//! Locking: the caller holds `watchers`. Methods take a stream's `watchStream` under it and never
//! read records. Most calls are short. `notify` takes longer: it delivers one transaction to all
//! interested watchers. `close` and `notify_progress` visit all watchers of a stream.
//! `unsync_up_to` and `detach_streams` visit all watchers, and the calls of `attach_stream` that
//! follow `detach_streams` add all watchers.
//!
//! Invariant: a watcher becomes synced only if no transaction after its last read has been
//! delivered. So it misses no event. In etcd: `watchableStore`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use super::counted_events::CountedEvents;
use super::unsynced_reader::{SyncStep, UnsyncedReader};
use crate::watch::channel::{ChannelGuard, ChannelsToWake, WatchChannel, WatcherKey};
use crate::watch::detached_stream::{DetachedStream, DetachedWatcher};
use crate::watch::interface::WatchMetrics;
use crate::watch::response::{
    Event, INVALID_WATCH_ID, Response, ResponseKind, WatchId, WatchIdAllocator, WatchRequest,
};
use crate::watch::watcher_group::WatcherGroup;

/// Maximum number of pairs of a synced watcher and an event in its range, for one transaction. If a
/// transaction has more, it is not delivered: the watchers read it from the store.
const NOTIFICATIONS_PER_TXN_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Watcher {
    /// Distinguishes this watcher from a later watcher with the same stream and ID.
    serial: u64,
    request: WatchRequest,
    sync_state: SyncState,
    /// If true, the watcher has had no event since the last call of `notify_progress` for its
    /// stream, or since the watcher was created.
    quiet: bool,
}

#[derive(Debug)]
enum SyncState {
    /// The watcher receives all transactions from this revision on.
    Synced { from: i64 },
    /// The watcher waits for its turn to read missed events.
    Unsynced(UnsyncedReader),
    /// A thread reads the missed events of this watcher, from this revision on.
    Syncing { next_revision: i64 },
}

#[derive(Debug)]
struct Stream {
    channel: Arc<WatchChannel>,
    watchers: BTreeMap<WatchId, Watcher>,
    watch_ids: WatchIdAllocator,
    /// The IDs of the unsynced watchers that wait for a task. IDs of canceled watchers may also be
    /// in this queue.
    unsynced: VecDeque<WatchId>,
    /// Number of watchers that are `Unsynced` or `Syncing`.
    unsynced_count: usize,
    /// Watchers whose start revision was above `delivered_revision` when they were added, sorted by
    /// start revision. Some of these revisions may have been delivered since then.
    undelivered_starts: BTreeSet<(i64, WatchId)>,
    /// If true, the stream is in `ready_streams`.
    is_ready: bool,
}

/// One read step for an unsynced watcher. It runs without the lock `watchers`.
#[derive(Debug)]
pub(super) struct SyncTask {
    key: WatcherKey,
    serial: u64,
    pub(super) request: WatchRequest,
    pub(super) reader: UnsyncedReader,
}

struct Transaction<'t> {
    revision: i64,
    events: &'t Arc<[Event]>,
    with_prev_kv: &'t Arc<[Event]>,
}

#[derive(Debug, Default)]
pub(super) struct DeliveryResult {
    pub(super) to_wake: ChannelsToWake,
    /// If true, at least one transaction was not delivered. All synced watchers became unsynced,
    /// except watchers that start after this transaction.
    pub(super) has_overflowed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Watchers {
    streams: BTreeMap<u64, Stream>,
    synced: WatcherGroup<WatcherKey>,
    /// Streams that have unsynced watchers and may have capacity.
    ready_streams: VecDeque<u64>,
    /// The delivery is finished for all transactions up to this revision. Some of them reached no
    /// watcher: transactions dropped at an overflow (the watchers that needed them became
    /// unsynced), and transactions published while there were no watchers.
    delivered_revision: i64,
    /// Streams that wait for a progress response, sorted by the store's revision at the time of the
    /// request.
    progress_requests: BTreeSet<(i64, u64)>,
    last_serial: u64,
    watcher_count: usize,
    unsynced_count: usize,
    /// The watchers that request previous records, in all sync states.
    prev_kv_watchers: WatcherGroup<WatcherKey>,
}

impl Watchers {
    pub(super) fn new(revision: i64) -> Watchers {
        Watchers { delivered_revision: revision, ..Watchers::default() }
    }

    pub(super) fn open(&mut self, make: impl FnOnce(u64) -> WatchChannel) -> Arc<WatchChannel> {
        self.last_serial += 1;
        let channel = Arc::new(make(self.last_serial));
        let stream = Stream::new(Arc::clone(&channel), WatchIdAllocator::default());
        self.streams.insert(self.last_serial, stream);
        channel
    }

    pub(super) fn close(&mut self, stream: u64) {
        let Some(closed) = self.streams.remove(&stream) else { return };
        self.unsynced_count -= closed.unsynced_count;
        for (id, watcher) in closed.watchers {
            self.forget(WatcherKey { stream, id }, &watcher);
        }
    }

    /// Removes all streams. If a thread is reading for one of the watchers, it does not find the
    /// watcher when it has finished.
    pub(super) fn detach_streams(&mut self) -> Vec<DetachedStream> {
        let delivered = self.delivered_revision;
        let detached = std::mem::replace(self, Watchers::new(delivered));
        self.last_serial = detached.last_serial;
        let detach = |stream: Stream| {
            let watchers = stream.watchers.into_iter();
            let watchers = watchers.map(|(id, watcher)| watcher.detach(id, delivered)).collect();
            DetachedStream { channel: stream.channel, watch_ids: stream.watch_ids, watchers }
        };
        detached.streams.into_values().map(detach).collect()
    }

    /// Adds a stream of another watchable store. `now` is the revision of this store. A watcher
    /// whose next revision is above `now` becomes synced, because it needs no event up to `now`. So
    /// the caller first marks the transactions up to `now` as delivered
    /// ([`advance_to`](Watchers::advance_to)).
    pub(super) fn attach_stream(&mut self, detached: DetachedStream, now: i64) {
        let number = detached.channel.stream;
        self.last_serial = self.last_serial.max(number);
        let stream = Stream::new(detached.channel, detached.watch_ids);
        let was_there = self.streams.insert(number, stream).is_some();
        assert!(!was_there, "the watchable store already has stream {number}");
        for watcher in detached.watchers {
            self.add_watcher(number, watcher, now);
        }
        self.schedule_stream(number);
    }

    /// Adds a watcher. Returns true if it is synced, which means that it needs no event up to
    /// `now`. Returns false if it is unsynced, or if the stream is closed.
    fn add_watcher(&mut self, stream: u64, watcher: DetachedWatcher, now: i64) -> bool {
        let DetachedWatcher { id, request, next_revision, quiet } = watcher;
        let Some(of) = self.streams.get_mut(&stream) else { return false };
        let key = WatcherKey { stream, id };
        let is_synced = next_revision > now;
        let sync_state = if is_synced {
            self.synced.insert(&request.keys, key);
            SyncState::Synced { from: next_revision }
        } else {
            of.unsynced.push_back(id);
            SyncState::Unsynced(UnsyncedReader::starting_at(next_revision))
        };
        if request.start_revision > self.delivered_revision {
            of.undelivered_starts.insert((request.start_revision, id));
        }
        self.last_serial += 1;
        self.watcher_count += 1;
        of.unsynced_count += usize::from(!is_synced);
        self.unsynced_count += usize::from(!is_synced);
        if request.prev_kv {
            self.prev_kv_watchers.insert(&request.keys, key);
        }
        of.watchers.insert(id, Watcher { serial: self.last_serial, request, sync_state, quiet });
        is_synced
    }

    pub(super) fn is_empty(&self) -> bool {
        self.watcher_count == 0
    }

    /// Returns for each event of a transaction whether its previous record is needed. A watcher
    /// that is added later does not receive this transaction. A watcher that becomes synced before
    /// the delivery may receive it. So watchers of all sync states are considered.
    pub(super) fn needs_prev_kv(&self, events: &[Event]) -> Vec<bool> {
        let wants = |event: &Event| self.prev_kv_watchers.contains(event.key());
        events.iter().map(wants).collect()
    }

    /// Marks all transactions up to a revision as delivered. Called if the queue does not have
    /// them, because there were no watchers or because the store has just replaced another store.
    pub(super) fn advance_to(&mut self, revision: i64) {
        self.delivered_revision = self.delivered_revision.max(revision);
    }

    /// Creates a watcher, or rejects the request. `now` is a revision that the store has reached,
    /// and no higher revision has been delivered. Returns true if the watcher was created and is
    /// unsynced.
    pub(super) fn watch(&mut self, stream: u64, request: WatchRequest, now: i64) -> bool {
        let Some(of) = self.streams.get_mut(&stream) else { return false };
        if let Some(refusal) = request.rejection(|id| of.watchers.contains_key(&id)) {
            of.channel.push_response(INVALID_WATCH_ID, now, ResponseKind::Rejected(refusal));
            return false;
        }
        let id = of.watch_ids.allocate(request.id, |id| of.watchers.contains_key(&id));
        let channel = Arc::clone(&of.channel);
        let next_revision = request.first_revision(now);
        let watcher = DetachedWatcher { id, request, next_revision, quiet: true };
        let is_synced = self.add_watcher(stream, watcher, now);
        channel.push_response(id, now, ResponseKind::Created);
        if !is_synced {
            self.schedule_stream(stream);
        }
        !is_synced
    }

    pub(super) fn cancel(&mut self, stream: u64, id: WatchId, now: i64) {
        if self.remove(WatcherKey { stream, id })
            && let Some(of) = self.streams.get(&stream)
        {
            of.channel.push_response(id, now, ResponseKind::Canceled);
        }
    }

    fn remove(&mut self, key: WatcherKey) -> bool {
        let Some(of) = self.streams.get_mut(&key.stream) else { return false };
        let Some(watcher) = of.watchers.remove(&key.id) else { return false };
        of.undelivered_starts.remove(&(watcher.request.start_revision, key.id));
        if !watcher.is_synced() {
            of.unsynced_count -= 1;
            self.unsynced_count -= 1;
        }
        self.forget(key, &watcher);
        true
    }

    /// Removes a watcher from the groups. The caller has already removed it from its stream and
    /// from the counts of unsynced watchers.
    fn forget(&mut self, key: WatcherKey, watcher: &Watcher) {
        if watcher.is_synced() {
            self.synced.remove(&watcher.request.keys, &key);
        }
        self.watcher_count -= 1;
        if watcher.request.prev_kv {
            self.prev_kv_watchers.remove(&watcher.request.keys, &key);
        }
    }

    /// Delivers a transaction's events to the interested watchers. `previous` has the same events
    /// with their previous records, for the watchers that request them. If there are more than
    /// [`NOTIFICATIONS_PER_TXN_MAX`] notifications, the transaction is not delivered, as with
    /// [`unsync_up_to`](Watchers::unsync_up_to).
    pub(super) fn notify(
        &mut self,
        revision: i64,
        events: &Arc<[Event]>,
        previous: &Arc<[Event]>,
        delivery: &mut DeliveryResult,
    ) {
        if let Some(wanted) = self.interested_watchers(events) {
            let mut counted = CountedEvents::new(events.len());
            for of_stream in wanted.chunk_by(|a, b| a.0.stream == b.0.stream) {
                let transaction = Transaction { revision, events, with_prev_kv: previous };
                self.notify_stream(&transaction, of_stream, &mut counted, &mut delivery.to_wake);
            }
            self.delivered_revision = self.delivered_revision.max(revision);
        } else {
            self.unsync_up_to(revision);
            delivery.has_overflowed = true;
        }
        delivery.to_wake.extend(self.send_requested_progress());
    }

    /// Returns pairs of a watcher that may want an event, and the number of the event, sorted by
    /// stream. Returns `None` if there are more than [`NOTIFICATIONS_PER_TXN_MAX`] pairs.
    fn interested_watchers(&self, events: &[Event]) -> Option<Vec<(WatcherKey, u32)>> {
        let mut wanted: Vec<(WatcherKey, u32)> = Vec::new();
        for (number, event) in events.iter().enumerate() {
            self.synced
                .for_each_watching(event.key(), &mut |key| wanted.push((*key, number as u32)));
            if wanted.len() > NOTIFICATIONS_PER_TXN_MAX {
                return None;
            }
        }
        // The watchers of a key are not found in the order of streams.
        wanted.sort_unstable();
        Some(wanted)
    }

    fn notify_stream(
        &mut self,
        transaction: &Transaction<'_>,
        wanted: &[(WatcherKey, u32)],
        counted: &mut CountedEvents,
        to_wake: &mut ChannelsToWake,
    ) {
        let Some(of) = self.streams.get_mut(&wanted[0].0.stream) else { return };
        let channel = Arc::clone(&of.channel);
        counted.clear();
        let (refused, wakes) = channel.with_lock(|open| {
            let mut refused = Vec::new();
            for group in wanted.chunk_by(|a, b| a.0 == b.0) {
                let key = group[0].0;
                let Some(watcher) = of.watchers.get_mut(&key.id) else { continue };
                if !watcher.notify(open, key.id, transaction, group, counted) {
                    refused.push(key);
                }
            }
            refused
        });
        for key in refused {
            self.mark_unsynced(key, transaction.revision);
        }
        if wakes {
            to_wake.push(channel);
        }
    }

    /// Makes a synced watcher unsynced. `next` is the first revision that it must read.
    fn mark_unsynced(&mut self, key: WatcherKey, next: i64) {
        let Some(of) = self.streams.get_mut(&key.stream) else { return };
        let Some(watcher) = of.watchers.get_mut(&key.id) else { return };
        watcher.sync_state = SyncState::Unsynced(UnsyncedReader::starting_at(next));
        of.unsynced_count += 1;
        self.unsynced_count += 1;
        self.synced.remove(&watcher.request.keys, &key);
        of.unsynced.push_back(key.id);
    }

    /// Skips all transactions up to `up_to`, which are no longer in the queue. Each synced watcher
    /// becomes unsynced, whatever its keys, and reads the skipped revisions from the store. A
    /// synced watcher whose first revision is above `up_to` stays synced.
    pub(super) fn unsync_up_to(&mut self, up_to: i64) {
        let next = self.delivered_revision + 1;
        let mut unsynced = Vec::new();
        for (stream, of) in &self.streams {
            for (id, watcher) in &of.watchers {
                if let SyncState::Synced { from } = watcher.sync_state
                    && from <= up_to
                {
                    unsynced.push((WatcherKey { stream: *stream, id: *id }, from.max(next)));
                }
            }
        }
        for (key, next) in unsynced {
            self.mark_unsynced(key, next);
            self.schedule_stream(key.stream);
        }
        self.delivered_revision = self.delivered_revision.max(up_to);
    }

    /// Marks a stream as ready: it may have capacity again for its unsynced watchers.
    pub(super) fn schedule_stream(&mut self, stream: u64) {
        if let Some(of) = self.streams.get_mut(&stream)
            && !of.is_ready
            && !of.unsynced.is_empty()
        {
            of.is_ready = true;
            self.ready_streams.push_back(stream);
        }
    }

    /// Returns a task for the next unsynced watcher whose stream has capacity, or `None`.
    pub(super) fn next_sync_task(&mut self) -> Option<SyncTask> {
        while let Some(stream) = self.ready_streams.pop_front() {
            let Some(of) = self.streams.get_mut(&stream) else { continue };
            of.is_ready = false;
            // If the channel is full, it remembers that a watcher is waiting, and reports when it
            // is half empty.
            if !of.channel.with_lock(|open| open.has_capacity()).0 {
                continue;
            }
            let task = of.next_sync_task(stream);
            self.schedule_stream(stream);
            if task.is_some() {
                return task;
            }
        }
        None
    }

    /// Delivers the events that a task has read, or ends the watcher if its next revision is
    /// compacted. `revision` is the store's revision at the time of the read. Returns the channel
    /// if its client's thread must be woken, and `None` otherwise.
    pub(super) fn finish_sync_task(
        &mut self,
        task: SyncTask,
        step: SyncStep,
        revision: i64,
    ) -> Option<Arc<WatchChannel>> {
        let key = task.key;
        let of = self.streams.get_mut(&key.stream)?;
        let watcher = of.watchers.get_mut(&key.id).filter(|now| now.serial == task.serial)?;
        let channel = Arc::clone(&of.channel);
        let (events, done) = match step {
            SyncStep::Events { events, done } => (events, done),
            SyncStep::Compacted(compacted) => {
                self.remove(key);
                channel.push_response(key.id, 0, ResponseKind::Compacted(compacted));
                self.schedule_stream(key.stream);
                return Some(channel);
            }
        };
        let next = task.reader.next_revision;
        if done && next > self.delivered_revision {
            watcher.sync_state = SyncState::Synced { from: next };
            of.unsynced_count -= 1;
            self.unsynced_count -= 1;
            self.synced.insert(&watcher.request.keys, key);
        } else {
            watcher.sync_state = SyncState::Unsynced(task.reader);
            of.unsynced.push_back(key.id);
        }
        let fragment = watcher.request.fragment;
        let wakes = !events.is_empty() && {
            watcher.quiet = false;
            let bytes = events.iter().map(Event::size).sum();
            let kind = ResponseKind::Events { events: events.into(), fragment };
            let response = Response { id: key.id, revision, kind };
            channel.with_lock(|open| open.push(response, bytes)).1
        };
        self.schedule_stream(key.stream);
        wakes.then_some(channel)
    }

    pub(super) fn requeue_sync_task(&mut self, task: SyncTask) {
        let SyncTask { key, serial, reader, .. } = task;
        let Some(of) = self.streams.get_mut(&key.stream) else { return };
        if let Some(watcher) = of.watchers.get_mut(&key.id)
            && watcher.serial == serial
        {
            watcher.sync_state = SyncState::Unsynced(reader);
            of.unsynced.push_back(key.id);
            self.schedule_stream(key.stream);
        }
    }

    /// Requests the progress of a whole stream. The request is due once `now` is delivered. The
    /// response follows if each watcher of the stream is synced then, and has reached its start
    /// revision. Otherwise the request is dropped, and the client must repeat it. A stream without
    /// watchers gets no response. The cost does not depend on the number of watchers, because this
    /// runs on a network thread.
    pub(super) fn request_progress(&mut self, stream: u64, now: i64) -> ChannelsToWake {
        if self.streams.get(&stream).is_some_and(|of| !of.watchers.is_empty()) {
            self.progress_requests.insert((now, stream));
        }
        self.send_requested_progress()
    }

    /// Removes the progress requests that are due, and sends their responses. A stream gets no
    /// response if it has an unsynced watcher, or a watcher that starts above `delivered_revision`.
    /// `notify` and `request_progress` call this function. The function is not called when a
    /// watcher becomes synced, so a request that was dropped earlier gets no response then.
    fn send_requested_progress(&mut self) -> ChannelsToWake {
        let mut to_wake = ChannelsToWake::new();
        while let Some((asked_at, stream)) = self.progress_requests.first().copied()
            && asked_at <= self.delivered_revision
        {
            self.progress_requests.pop_first();
            let Some(of) = self.streams.get(&stream) else { continue };
            if of.is_synced(self.delivered_revision) {
                let (id, revision) = (INVALID_WATCH_ID, self.delivered_revision);
                of.channel.push_response(id, revision, ResponseKind::Progress);
                to_wake.push(Arc::clone(&of.channel));
            }
        }
        to_wake
    }

    /// Sends a progress notice to each synced watcher that requested notices and had no event since
    /// the last call. If the channel is full, its watchers get no notices: otherwise the notices
    /// for a client that does not read would use more and more memory.
    pub(super) fn notify_progress(&mut self, stream: u64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let (watchers, delivered_revision) = (&mut of.watchers, self.delivered_revision);
        let _ = of.channel.with_lock(|open| {
            for (id, watcher) in watchers {
                let wants = watcher.request.progress_notify && watcher.quiet && !open.is_full();
                if let Some(revision) =
                    watcher.progress_revision(delivered_revision).filter(|_| wants)
                {
                    open.push(Response { id: *id, revision, kind: ResponseKind::Progress }, 0);
                }
                watcher.quiet = true;
            }
        });
    }

    pub(super) fn metrics(&self, queued: usize) -> WatchMetrics {
        WatchMetrics {
            streams: self.streams.len(),
            watchers: self.watcher_count,
            unsynced: self.unsynced_count,
            queued,
        }
    }
}

impl Stream {
    fn new(channel: Arc<WatchChannel>, watch_ids: WatchIdAllocator) -> Stream {
        Stream {
            channel,
            watchers: BTreeMap::new(),
            watch_ids,
            unsynced: VecDeque::new(),
            unsynced_count: 0,
            undelivered_starts: BTreeSet::new(),
            is_ready: false,
        }
    }

    fn next_sync_task(&mut self, stream: u64) -> Option<SyncTask> {
        while let Some(id) = self.unsynced.pop_front() {
            let Some(watcher) = self.watchers.get_mut(&id) else { continue };
            // If a watcher was canceled and created again with the same ID, the queue may contain
            // this ID twice. So the watcher may be syncing or synced already.
            let SyncState::Unsynced(reader) = &watcher.sync_state else { continue };
            let syncing = SyncState::Syncing { next_revision: reader.next_revision };
            let sync_state = std::mem::replace(&mut watcher.sync_state, syncing);
            let SyncState::Unsynced(reader) = sync_state else { unreachable!("looked at above") };
            let (serial, request) = (watcher.serial, watcher.request.clone());
            return Some(SyncTask { key: WatcherKey { stream, id }, serial, request, reader });
        }
        None
    }

    /// Returns true if the stream has watchers and each of them has a
    /// [progress revision](Watcher::progress_revision).
    fn is_synced(&self, delivered_revision: i64) -> bool {
        let last_start = self.undelivered_starts.last().map(|(start, _)| *start);
        !self.watchers.is_empty()
            && self.unsynced_count == 0
            && last_start.is_none_or(|start| start <= delivered_revision)
    }
}

impl Watcher {
    fn is_synced(&self) -> bool {
        matches!(self.sync_state, SyncState::Synced { .. })
    }

    fn detach(self, id: WatchId, delivered_revision: i64) -> DetachedWatcher {
        let next_revision = match self.sync_state {
            SyncState::Synced { from } => from.max(delivered_revision + 1),
            SyncState::Unsynced(reader) => reader.next_revision,
            SyncState::Syncing { next_revision } => next_revision,
        };
        DetachedWatcher { id, request: self.request, next_revision, quiet: self.quiet }
    }

    /// Returns the revision up to which this watcher has all its events. It may exceed
    /// `delivered_revision`: a new watcher needs no events that are still queued. Returns `None` if
    /// the watcher is unsynced or starts in the future.
    fn progress_revision(&self, delivered_revision: i64) -> Option<i64> {
        match self.sync_state {
            SyncState::Synced { from } if self.request.start_revision <= delivered_revision => {
                Some(delivered_revision.max(from - 1))
            }
            _ => None,
        }
    }

    /// Adds to the channel all events that the watcher has requested. Returns false if there are
    /// such events and the channel has no capacity.
    fn notify(
        &mut self,
        open: &mut ChannelGuard<'_>,
        id: WatchId,
        transaction: &Transaction<'_>,
        wanted: &[(WatcherKey, u32)],
        counted: &mut CountedEvents,
    ) -> bool {
        let (request, revision) = (&self.request, transaction.revision);
        let events = if request.prev_kv { transaction.with_prev_kv } else { transaction.events };
        let started = matches!(self.sync_state, SyncState::Synced { from } if from <= revision);
        let wants = |number: u32| request.wants(events[number as usize].kind());
        let numbers = || wanted.iter().map(|(_, number)| *number).filter(|number| wants(*number));
        let count = numbers().count();
        if !started || count == 0 {
            return true;
        }
        if !open.has_capacity() {
            return false;
        }
        let mut bytes: usize =
            numbers().map(|number| counted.add(number, &events[number as usize])).sum();
        let events = if count == events.len() {
            Arc::clone(events)
        } else {
            // The records are shared between watchers. The `Event` values belong to this watcher.
            bytes += count * size_of::<Event>();
            numbers().map(|number| events[number as usize].clone()).collect()
        };
        self.quiet = false;
        let kind = ResponseKind::Events { events, fragment: request.fragment };
        open.push(Response { id, revision, kind }, bytes);
        true
    }
}

#[cfg(test)]
mod tests;
