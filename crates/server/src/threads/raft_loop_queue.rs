//! The events for the raft loop: a list that gathers while it works.
//!
//! The first thing in an empty list wakes the raft loop, if it sleeps, and nothing else does. *How*
//! it is woken is its own business: it [sleeps](RaftLoopWaiter) in a future, on whatever it has to
//! run futures with. What the apply loop has done wakes it only if that [is
//! urgent](ApplyReport::is_urgent), and is taken along otherwise.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clearlane_raft::Message;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::replica::{ApplyReport, ReplicaInput};

/// One thing for the raft loop.
#[derive(Debug)]
pub(super) enum RaftLoopEvent {
    /// For the member's raft half.
    Replica(ReplicaInput),
    /// The other members say that this one was removed.
    Removed,
    /// The disk is nearly full, or is so no more.
    DiskSpace,
    Stop,
}

impl From<ReplicaInput> for RaftLoopEvent {
    fn from(input: ReplicaInput) -> RaftLoopEvent {
        RaftLoopEvent::Replica(input)
    }
}

/// The list.
#[derive(Debug, Default)]
pub(super) struct RaftLoopQueue {
    queued: Mutex<QueuedEvents>,
    /// Of messages that gather.
    message_bytes: AtomicU64,
    drained: Notify,
}

#[derive(Debug, Default)]
struct QueuedEvents {
    events: Vec<RaftLoopEvent>,
    /// What the apply loop has done.
    applied: Option<Box<ApplyReport>>,
    /// The index that the raft loop awaits.
    awaited_index: u64,
    /// What the apply loop has done is urgent.
    is_urgent: bool,
    /// The raft loop's, while it sleeps.
    waker: Option<Waker>,
}

impl QueuedEvents {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.is_urgent
    }
}

/// While more than this gathers, members' streams are not read.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

impl RaftLoopQueue {
    pub(super) fn push(&self, inputs: impl IntoIterator<Item = impl Into<RaftLoopEvent>>) {
        let mut gathering = self.queued.lock();
        gathering.events.extend(inputs.into_iter().map(Into::into));
        let is_empty = gathering.is_empty();
        let sleeper = if is_empty { None } else { gathering.waker.take() };
        drop(gathering);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// Messages of other members.
    pub(super) fn push_messages(&self, messages: Vec<Message>) {
        let bytes = messages.iter().map(Message::bytes).sum();
        self.message_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.push(messages.into_iter().map(ReplicaInput::Message));
    }

    /// What the apply loop has done.
    pub(super) fn push_applied(&self, applied: ApplyReport) {
        let mut gathering = self.queued.lock();
        gathering.is_urgent |= applied.is_urgent(gathering.awaited_index);
        match &mut gathering.applied {
            Some(before) => before.merge(applied),
            none => *none = Some(Box::new(applied)),
        }
        let sleeper = if gathering.is_urgent { gathering.waker.take() } else { None };
        drop(gathering);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
    }

    /// The raft loop awaits this index.
    pub(super) fn set_awaited_index(&self, index: u64) {
        let mut gathering = self.queued.lock();
        let gathering = &mut *gathering;
        gathering.awaited_index = index;
        if let Some(applied) = &gathering.applied {
            gathering.is_urgent |= applied.is_urgent(index);
        }
    }

    /// Waits until not too much has gathered.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let taken = self.drained.notified();
            if self.message_bytes.load(Ordering::Relaxed) <= MESSAGE_BYTES_MAX {
                return;
            }
            taken.await;
        }
    }

    /// All that has gathered, in front what the apply loop has done. No input wakes the raft loop
    /// for a while.
    pub(super) fn drain(&self) -> (Option<Box<ApplyReport>>, Vec<RaftLoopEvent>) {
        let mut gathering = self.queued.lock();
        gathering.waker = None;
        gathering.is_urgent = false;
        let taken = (gathering.applied.take(), std::mem::take(&mut gathering.events));
        drop(gathering);
        // What was counted and not taken yet is little.
        if self.message_bytes.swap(0, Ordering::Relaxed) > MESSAGE_BYTES_MAX {
            self.drained.notify_waiters();
        }
        taken
    }

    /// For the raft loop.
    pub(super) fn waiter(&self) -> RaftLoopWaiter<'_> {
        RaftLoopWaiter(self)
    }
}

/// What the raft loop waits for.
#[derive(Clone, Copy, Debug)]
pub struct RaftLoopWaiter<'i>(&'i RaftLoopQueue);

impl RaftLoopWaiter<'_> {
    /// Whether there is something already.
    pub fn is_ready(self) -> bool {
        !self.0.queued.lock().is_empty()
    }

    /// Waits until there is something. One at a time may.
    pub async fn ready(self) {
        poll_fn(|context| {
            let mut gathering = self.0.queued.lock();
            if !gathering.is_empty() {
                return Poll::Ready(());
            }
            gathering.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// The same for a thread that has nothing else to do, but not longer than this.
    pub fn wait(self, timeout: Duration) {
        let end = Instant::now() + timeout;
        let waker = Waker::from(Arc::new(ParkedThread(thread::current())));
        let mut any = pin!(self.ready());
        while any.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::park_timeout(left);
        }
    }
}

/// A thread that is parked.
struct ParkedThread(Thread);

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
