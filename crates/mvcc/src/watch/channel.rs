//! One client's channel: the responses of its watchers that the client has not taken yet.
//!
//! Responses leave in the order in which they were added. The channel has a capacity for events. If
//! it is full, a watcher adds no events from the delivery queue and must remember where it stopped.
//!
//! ```text
//!   watchers ──▶ [created 0][events 0][events 1][canceled 1] ──▶ client
//!                full: no more events; at most half full: "capacity again"
//! ```
//!
//! A full channel omits progress notices. It still accepts responses to a client's requests, the
//! response that ends a watcher (after a compaction or a cancellation by the server), and events
//! that were already being read for an unsynced watcher. In etcd: `watchStream.ch`.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use atomic_waker::AtomicWaker;
use clearlane_contention::{Mutex, Registry};

use crate::watch::response::{Response, ResponseKind, WatchId};

/// Bytes of memory that a response takes in addition to its events.
const RESPONSE_BYTES: usize = 128;

/// The tasks to wake on one thread: tasks of streams that have new responses.
///
/// Waking a thread takes longer than adding a response. So the delivery thread collects the tasks
/// here and wakes the thread once for all its streams.
pub struct WakeSet {
    ready: parking_lot::Mutex<Vec<Waker>>,
    wake_thread: Box<dyn Fn() + Send + Sync>,
}

impl WakeSet {
    /// Creates a wake set. `wake_thread` may be called when there is nothing to do. It must not
    /// call back into a stream.
    pub fn new(wake_thread: impl Fn() + Send + Sync + 'static) -> Arc<WakeSet> {
        Arc::new(WakeSet {
            ready: parking_lot::Mutex::default(),
            wake_thread: Box::new(wake_thread),
        })
    }

    /// Wakes the tasks of all streams that have new responses. Runs on the thread of these tasks.
    pub fn wake_tasks(&self) {
        let ready = std::mem::take(&mut *self.ready.lock());
        ready.into_iter().for_each(Waker::wake);
    }
}

/// Channels that have new responses, so that their clients' threads must be woken.
pub(crate) type ChannelsToWake = Vec<Arc<WatchChannel>>;

/// Marks these channels as ready, and wakes the threads of their clients. Each thread is usually
/// woken once.
pub(crate) fn wake_all(channels: &[Arc<WatchChannel>]) {
    let mut woken: Vec<&Arc<WakeSet>> = Vec::new();
    for channel in channels {
        channel.mark_ready();
        let is_known = |wake_set: &&&Arc<WakeSet>| Arc::ptr_eq(wake_set, &channel.wake_set);
        // Only the last few wake sets are compared. If each stream has its own wake set, comparing
        // all of them would take too long.
        if woken.iter().rev().take(RECENT_WAKE_SETS_MAX).find(is_known).is_none() {
            woken.push(&channel.wake_set);
        }
    }
    woken.into_iter().for_each(|wake_set| (wake_set.wake_thread)());
}

const RECENT_WAKE_SETS_MAX: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelCapacity {
    Bytes(usize),
    /// Maximum number of responses, whatever their size. Responses to a client's requests are
    /// included, although etcd sends those through a separate channel.
    Responses(usize),
}

/// A watcher of a stream. Sorted by stream first, so that the watchers of a stream are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatcherKey {
    pub(crate) stream: u64,
    pub(crate) id: WatchId,
}

pub struct WatchChannel {
    pub(crate) stream: u64,
    capacity: ChannelCapacity,
    state: Mutex<ChannelState>,
    wake_set: Arc<WakeSet>,
    /// The task that waits for responses.
    task: AtomicWaker,
}

#[derive(Debug, Default)]
pub(crate) struct ChannelState {
    responses: VecDeque<(Response, usize)>,
    bytes: usize,
    /// If true, a watcher has found no capacity and is waiting for it.
    has_blocked_watchers: bool,
    /// The watchers whose events need previous records, which are added when the responses are
    /// taken.
    needs_previous: BTreeSet<WatchId>,
}

impl WatchChannel {
    pub(crate) fn new(
        stream: u64,
        capacity: ChannelCapacity,
        locks: &Registry,
        wake_set: Arc<WakeSet>,
    ) -> WatchChannel {
        let state = Mutex::new(locks, "watchStream", ChannelState::default());
        WatchChannel { stream, capacity, state, wake_set, task: AtomicWaker::new() }
    }

    /// Sets whether the responses of the watcher with this ID need previous records.
    pub(crate) fn set_needs_previous(&self, id: WatchId, completes: bool) {
        let mut state = self.state.lock();
        if completes {
            state.needs_previous.insert(id);
        } else {
            // An earlier watcher with this ID may have left an entry.
            state.needs_previous.remove(&id);
        }
    }

    pub(crate) fn needs_previous(&self, id: WatchId) -> bool {
        self.state.lock().needs_previous.contains(&id)
    }

    /// Adds a response without events, even if the channel is full: a response to a request, or the
    /// response that ends a watcher because the server has canceled it or because its next events
    /// are compacted. The caller must wake the thread that serves the client.
    pub(crate) fn push_response(&self, id: WatchId, revision: i64, kind: ResponseKind) {
        self.state.lock().push(Response { id, revision, kind }, RESPONSE_BYTES);
    }

    /// Calls `deliver` with the lock `watchStream` held, so that `deliver` can add the events of
    /// several watchers. Returns the result of `deliver`, and true if the channel was empty and has
    /// responses now: then the caller must wake the thread that serves the client.
    pub(crate) fn with_lock<R>(
        &self,
        deliver: impl FnOnce(&mut ChannelGuard<'_>) -> R,
    ) -> (R, bool) {
        let mut state = self.state.lock();
        let was_empty = state.responses.is_empty();
        let outcome = deliver(&mut ChannelGuard { state: &mut state, capacity: self.capacity });
        (outcome, was_empty && !state.responses.is_empty())
    }

    pub(crate) fn wake(&self) {
        self.mark_ready();
        (self.wake_set.wake_thread)();
    }

    fn mark_ready(&self) {
        if let Some(task) = self.task.take() {
            self.wake_set.ready.lock().push(task);
        }
    }

    /// Sets the task to wake when a response is added.
    pub(crate) fn set_task(&self, task: &Waker) {
        self.task.register(task);
    }

    /// Takes the next responses, up to about `bytes_max` bytes but at least one if there is any. In
    /// the default era, also returns true if a watcher waits for capacity and the channel is at
    /// most half full.
    pub(crate) fn take(&self, bytes_max: usize) -> (Vec<Response>, bool) {
        let mut state = self.state.lock();
        let mut taken = Vec::new();
        let mut left = bytes_max;
        while let Some((response, size)) =
            state.responses.pop_front_if(|(_, size)| *size <= left || taken.is_empty())
        {
            left = left.saturating_sub(size);
            state.bytes -= size;
            taken.push(response);
        }
        // The old eras retry blocked watchers at fixed intervals, whether or not there is capacity.
        let drained = state.has_blocked_watchers
            && matches!(self.capacity, ChannelCapacity::Bytes(max) if state.bytes <= max / 2);
        state.has_blocked_watchers &= !drained;
        (taken, drained)
    }
}

impl ChannelState {
    fn push(&mut self, response: Response, size: usize) {
        self.responses.push_back((response, size));
        self.bytes += size;
    }
}

pub(crate) struct ChannelGuard<'o> {
    state: &'o mut ChannelState,
    capacity: ChannelCapacity,
}

impl ChannelGuard<'_> {
    /// Returns true if there is no capacity for events. An empty channel always has capacity.
    pub(crate) fn is_full(&self) -> bool {
        match self.capacity {
            ChannelCapacity::Bytes(max) => self.state.bytes >= max.max(1),
            ChannelCapacity::Responses(max) => self.state.responses.len() >= max,
        }
    }

    /// Returns true if there is capacity for events. If not, the channel remembers this, and in the
    /// default era [`take`](WatchChannel::take) reports when the channel is at most half full.
    pub(crate) fn has_capacity(&mut self) -> bool {
        let is_full = self.is_full();
        self.state.has_blocked_watchers |= is_full;
        !is_full
    }

    /// Adds a response, even if the channel is full. `bytes` is the memory of its events that no
    /// earlier response shares.
    pub(crate) fn push(&mut self, response: Response, bytes: usize) {
        self.state.push(response, RESPONSE_BYTES + bytes);
    }
}

impl fmt::Debug for WatchChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchChannel").field("stream", &self.stream).finish_non_exhaustive()
    }
}

impl fmt::Debug for WakeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WakeSet").field("ready", &self.ready.lock().len()).finish_non_exhaustive()
    }
}
