//! One client's channel: the responses of its watchers that the client has not taken yet.
//!
//! Responses leave in the order in which they came in. The channel is bounded: a full one takes no
//! more events, and a caller that has one to add must remember where it stopped.
//!
//! ```text
//!   watchers ──▶ [created 0][events 0][events 1][canceled 1] ──▶ client
//!                up to the capacity, then events are refused; at half of it, "capacity again"
//! ```
//!
//! Events are refused, and notices of progress are left out. A request of the client gets its
//! answer, so what else is in the channel is bounded by what the client asks for without reading.
//! In etcd: `watchStream.ch`.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use atomic_waker::AtomicWaker;
use clearlane_contention::{Mutex, Registry};

use crate::watch::response::{Response, ResponseKind, WatchId};

/// Memory of a response besides its events.
const RESPONSE_BYTES: usize = 128;

/// The streams of one thread whose tasks are to be woken.
///
/// To wake a thread takes longer than to add a response. So the thread that delivers a transaction
/// leaves the tasks here, and wakes the thread once, however many of its streams it was for.
pub struct WakeSet {
    ready: parking_lot::Mutex<Vec<Waker>>,
    wake_thread: Box<dyn Fn() + Send + Sync>,
}

impl WakeSet {
    /// `wake_thread` may be called for nothing. It must not call back into a stream.
    pub fn new(wake_thread: impl Fn() + Send + Sync + 'static) -> Arc<WakeSet> {
        Arc::new(WakeSet {
            ready: parking_lot::Mutex::default(),
            wake_thread: Box::new(wake_thread),
        })
    }

    /// Wakes the tasks of the streams that have something, on their own thread.
    pub fn wake_tasks(&self) {
        let ready = std::mem::take(&mut *self.ready.lock());
        ready.into_iter().for_each(Waker::wake);
    }
}

/// The channels that were empty and are not any more.
pub(crate) type ChannelsToWake = Vec<Arc<WatchChannel>>;

/// Marks these channels as ready, and wakes the thread of each once, or hardly more often.
pub(crate) fn wake_all(channels: &[Arc<WatchChannel>]) {
    let mut woken: Vec<&Arc<WakeSet>> = Vec::new();
    for channel in channels {
        channel.mark_ready();
        let is_known = |wake_set: &&&Arc<WakeSet>| Arc::ptr_eq(wake_set, &channel.wake_set);
        // Not all: where each stream has a wake set of its own, those would be too many to compare.
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
    /// Number of responses, whatever their size. In etcd the answers to a client's requests have a
    /// channel of their own; here they count.
    Responses(usize),
}

/// Ordered by stream first, so that those of a stream are neighbours.
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
    /// A watcher was refused and waits for capacity.
    has_blocked_watchers: bool,
    /// The watchers whose responses are to be completed when they are taken.
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

    /// Whether responses of the watcher that has this id now are completed when they are taken.
    pub(crate) fn set_needs_previous(&self, id: WatchId, completes: bool) {
        let mut state = self.state.lock();
        if completes {
            state.needs_previous.insert(id);
        } else {
            // Another watcher may have had the id.
            state.needs_previous.remove(&id);
        }
    }

    pub(crate) fn needs_previous(&self, id: WatchId) -> bool {
        self.state.lock().needs_previous.contains(&id)
    }

    /// Adds an answer, full or not. The caller wakes the thread that serves the client.
    pub(crate) fn push_response(&self, id: WatchId, revision: i64, kind: ResponseKind) {
        self.state.lock().push(Response { id, revision, kind }, RESPONSE_BYTES);
    }

    /// Adds the events of several watchers with one hold of the lock `watchStream`: `tell` is
    /// called with it. Says whether the thread that serves the client may sleep and is to be woken.
    pub(crate) fn with_lock<R>(&self, tell: impl FnOnce(&mut ChannelGuard<'_>) -> R) -> (R, bool) {
        let mut state = self.state.lock();
        let was_empty = state.responses.is_empty();
        let outcome = tell(&mut ChannelGuard { state: &mut state, capacity: self.capacity });
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

    /// The task to wake when the channel is not empty any more.
    pub(crate) fn set_task(&self, task: &Waker) {
        self.task.register(task);
    }

    /// The next responses, up to about `bytes_max` bytes but at least one if there is any; and, in
    /// the default era, whether there is capacity again for the watchers that were refused.
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
        // The old eras retry refused watchers by the clock, whether there is capacity or not.
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
    /// Whether there is no capacity for events. An empty channel has some, whatever its bound.
    pub(crate) fn is_full(&self) -> bool {
        match self.capacity {
            ChannelCapacity::Bytes(max) => self.state.bytes >= max.max(1),
            ChannelCapacity::Responses(max) => self.state.responses.len() >= max,
        }
    }

    /// Whether there is capacity for events. If not, the watchable store of the default era is
    /// notified as soon as there is.
    pub(crate) fn has_capacity(&mut self) -> bool {
        let is_full = self.is_full();
        self.state.has_blocked_watchers |= is_full;
        !is_full
    }

    /// Adds a response, full or not. `bytes` is what its events keep in memory that no response
    /// before it does.
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
