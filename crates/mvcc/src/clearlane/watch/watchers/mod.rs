//! All watchers of the default era and their sync states: what the lock `watchers` guards.
//!
//! Nothing here reads the store. With the lock held, `watchStream` is taken to add to a channel; so
//! the lock is held for no longer than it takes to hand one transaction's events to the watchers
//! that want them, or to look through all watchers when the queue has overflowed.

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

/// A transaction of which more events are wanted, counted once per watcher, is not handed on.
const NOTIFICATIONS_PER_TXN_MAX: usize = 1 << 20;

#[derive(Debug)]
struct Watcher {
    /// Tells this watcher from a later one with the same key.
    serial: u64,
    request: WatchRequest,
    sync_state: SyncState,
    /// Had no event since the last notice of progress.
    quiet: bool,
}

#[derive(Debug)]
enum SyncState {
    /// Is handed what happens from this revision on.
    Synced { from: i64 },
    /// Waits for its turn to read what it has missed.
    Unsynced(UnsyncedReader),
    /// A thread is reading for it, from this revision on.
    Syncing { next_revision: i64 },
}

#[derive(Debug)]
struct Stream {
    channel: Arc<WatchChannel>,
    watchers: BTreeMap<WatchId, Watcher>,
    watch_ids: WatchIdAllocator,
    /// The unsynced watchers that wait for their task.
    unsynced: VecDeque<WatchId>,
    /// Number of watchers that are not synced: `Unsynced` or `Syncing`.
    unsynced_count: usize,
    /// The watchers whose start revision was not delivered yet when they were added, by start.
    /// Some of these revisions may be delivered by now.
    undelivered_starts: BTreeSet<(i64, WatchId)>,
    /// It is among the streams whose watchers may read.
    is_ready: bool,
}

/// A step for an unsynced watcher, run without the lock `watchers`.
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
    /// Something was too much to hand on, and all watchers are unsynced.
    pub(super) has_overflowed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Watchers {
    streams: BTreeMap<u64, Stream>,
    synced: WatcherGroup<WatcherKey>,
    /// Streams with unsynced watchers, and perhaps with capacity.
    ready_streams: VecDeque<u64>,
    /// Everything up to here was handed on, or no watcher was there for it.
    delivered_revision: i64,
    /// Streams that wait for their progress, by the store's revision when it was requested.
    progress_requests: BTreeSet<(i64, u64)>,
    last_serial: u64,
    watcher_count: usize,
    unsynced_count: usize,
    /// Of all sync states.
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

    /// A thread that reads for one of the watchers finds it gone.
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

    /// Up to `now` nothing will be handed on.
    pub(super) fn attach_stream(&mut self, detached: DetachedStream, now: i64) {
        let number = detached.channel.stream;
        self.last_serial = self.last_serial.max(number);
        let stream = Stream::new(detached.channel, detached.watch_ids);
        let was_there = self.streams.insert(number, stream).is_some();
        assert!(!was_there, "stream {number} came to a watchable store that has its own");
        for watcher in detached.watchers {
            self.add_watcher(number, watcher, now);
        }
        self.schedule_stream(number);
    }

    /// Says whether the watcher is synced: it is if nothing is newer than what it has.
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

    /// Which of a transaction's events are wanted with the record before them. A watcher that comes
    /// later does not want this transaction; one that becomes synced meanwhile may.
    pub(super) fn needs_prev_kv(&self, events: &[Event]) -> Vec<bool> {
        let wants = |event: &Event| self.prev_kv_watchers.contains(event.key());
        events.iter().map(wants).collect()
    }

    /// No watcher was there to hand on to: what was published up to here was not kept.
    pub(super) fn advance_to(&mut self, revision: i64) {
        self.delivered_revision = self.delivered_revision.max(revision);
    }

    /// Makes a watcher, or refuses. `now` is a revision that the store has reached, and not below
    /// any that was handed on. Says whether the watcher is unsynced.
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

    /// The caller has removed the watcher from its stream and from the counts of unsynced watchers.
    fn forget(&mut self, key: WatcherKey, watcher: &Watcher) {
        if watcher.is_synced() {
            self.synced.remove(&watcher.request.keys, &key);
        }
        self.watcher_count -= 1;
        if watcher.request.prev_kv {
            self.prev_kv_watchers.remove(&watcher.request.keys, &key);
        }
    }

    /// Hands a transaction's events to the watchers that want them. `previous` are the same events
    /// with the records before, for the watchers that asked for that. If far too many are wanted,
    /// all watchers become unsynced instead, as with [`unsync_up_to`](Watchers::unsync_up_to).
    pub(super) fn notify(
        &mut self,
        revision: i64,
        events: &Arc<[Event]>,
        previous: &Arc<[Event]>,
        handed_on: &mut DeliveryResult,
    ) {
        if let Some(wanted) = self.interested_watchers(events) {
            let mut counted = CountedEvents::new(events.len());
            for of_stream in wanted.chunk_by(|a, b| a.0.stream == b.0.stream) {
                let transaction = Transaction { revision, events, with_prev_kv: previous };
                self.notify_stream(&transaction, of_stream, &mut counted, &mut handed_on.to_wake);
            }
            self.delivered_revision = self.delivered_revision.max(revision);
        } else {
            self.unsync_up_to(revision);
            handed_on.has_overflowed = true;
        }
        handed_on.to_wake.extend(self.send_requested_progress());
    }

    /// Which watchers may want which events, in the order of streams; nothing if that would be too
    /// much.
    fn interested_watchers(&self, events: &[Event]) -> Option<Vec<(WatcherKey, u32)>> {
        let mut wanted: Vec<(WatcherKey, u32)> = Vec::new();
        for (number, event) in events.iter().enumerate() {
            self.synced
                .for_each_watching(event.key(), &mut |key| wanted.push((*key, number as u32)));
            if wanted.len() > NOTIFICATIONS_PER_TXN_MAX {
                return None;
            }
        }
        // The order in which a key finds its watchers is not that of the streams.
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

    /// `next` is the first revision that the watcher is not handed any more.
    fn mark_unsynced(&mut self, key: WatcherKey, next: i64) {
        let Some(of) = self.streams.get_mut(&key.stream) else { return };
        let Some(watcher) = of.watchers.get_mut(&key.id) else { return };
        watcher.sync_state = SyncState::Unsynced(UnsyncedReader::starting_at(next));
        of.unsynced_count += 1;
        self.unsynced_count += 1;
        self.synced.remove(&watcher.request.keys, &key);
        of.unsynced.push_back(key.id);
    }

    /// What was published up to a revision is not in the queue any more: each synced watcher must
    /// read it in the store.
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

    /// A stream with an unsynced watcher may have capacity now.
    pub(super) fn schedule_stream(&mut self, stream: u64) {
        if let Some(of) = self.streams.get_mut(&stream)
            && !of.is_ready
            && !of.unsynced.is_empty()
        {
            of.is_ready = true;
            self.ready_streams.push_back(stream);
        }
    }

    /// The next unsynced watcher whose stream has capacity, to read for it.
    pub(super) fn next_sync_task(&mut self) -> Option<SyncTask> {
        while let Some(stream) = self.ready_streams.pop_front() {
            let Some(of) = self.streams.get_mut(&stream) else { continue };
            of.is_ready = false;
            // Without capacity the channel notes that a watcher waits, and reports when it has
            // some.
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

    /// Hands on what a task has read; `revision` is the store's. Returns the channel to wake.
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

    /// Progress for a whole stream, now or once `now` is handed on. The time that it takes does not
    /// depend on the number of watchers, because it runs on a network thread.
    pub(super) fn request_progress(&mut self, stream: u64, now: i64) -> ChannelsToWake {
        if self.streams.get(&stream).is_some_and(|of| !of.watchers.is_empty()) {
            self.progress_requests.insert((now, stream));
        }
        self.send_requested_progress()
    }

    /// Answers the streams whose request has been handed on. One with an unsynced watcher gets no
    /// answer.
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

    /// Notices for the watchers that want them. A client that does not read gets none: it has not
    /// asked, and they would fill the memory.
    pub(super) fn notify_progress(&mut self, stream: u64) {
        let Some(of) = self.streams.get_mut(&stream) else { return };
        let (watchers, handed_on) = (&mut of.watchers, self.delivered_revision);
        let _ = of.channel.with_lock(|open| {
            for (id, watcher) in watchers {
                let wants = watcher.request.progress_notify && watcher.quiet && !open.is_full();
                if let Some(revision) = watcher.progress_revision(handed_on).filter(|_| wants) {
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
            // One that was canceled and made anew is in the queue twice.
            let SyncState::Unsynced(reader) = &watcher.sync_state else { continue };
            let syncing = SyncState::Syncing { next_revision: reader.next_revision };
            let sync_state = std::mem::replace(&mut watcher.sync_state, syncing);
            let SyncState::Unsynced(reader) = sync_state else { unreachable!("looked at above") };
            let (serial, request) = (watcher.serial, watcher.request.clone());
            return Some(SyncTask { key: WatcherKey { stream, id }, serial, request, reader });
        }
        None
    }

    /// Returns whether the stream has watchers and each has a
    /// [progress revision](Watcher::progress_revision).
    fn is_synced(&self, handed_on: i64) -> bool {
        let last_start = self.undelivered_starts.last().map(|(start, _)| *start);
        !self.watchers.is_empty()
            && self.unsynced_count == 0
            && last_start.is_none_or(|start| start <= handed_on)
    }
}

impl Watcher {
    fn is_synced(&self) -> bool {
        matches!(self.sync_state, SyncState::Synced { .. })
    }

    fn detach(self, id: WatchId, handed_on: i64) -> DetachedWatcher {
        let next_revision = match self.sync_state {
            SyncState::Synced { from } => from.max(handed_on + 1),
            SyncState::Unsynced(reader) => reader.next_revision,
            SyncState::Syncing { next_revision } => next_revision,
        };
        DetachedWatcher { id, request: self.request, next_revision, quiet: self.quiet }
    }

    /// Up to which revision everything was delivered, if that is all that was handed on, or even
    /// more: one that was just made or synced is ahead of what waits in the queue. `None` if it is
    /// unsynced, or waits for a start in the future.
    fn progress_revision(&self, handed_on: i64) -> Option<i64> {
        match self.sync_state {
            SyncState::Synced { from } if self.request.start_revision <= handed_on => {
                Some(handed_on.max(from - 1))
            }
            _ => None,
        }
    }

    /// Adds what it wants of a transaction's events to the channel. `false` if there is no
    /// capacity.
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
            // What the events point to is shared, they themselves are this watcher's own.
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
