//! The queue that collects events for the raft loop while the raft loop is working.
//!
//! The first event in an empty queue wakes the raft loop if it [sleeps](RaftLoopWaiter). A report
//! of the apply loop wakes the raft loop only if the report [is urgent](ApplyReport::is_urgent).

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use clearlane_raft::Message;
use clearlane_replica::{ApplyReport, ReplicaInput};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

#[derive(Debug)]
pub(super) enum RaftLoopEvent {
    Replica(ReplicaInput),
    /// Another member has reported that this member was removed.
    Removed,
    /// The disk was checked. Either it is low, or it was low before, or this member has raised
    /// NOSPACE.
    DiskSpace,
    /// A member without data requests a [report](clearlane_replica::Replica::report_to).
    ReportTo(MembersRequest, oneshot::Sender<MembersReply>),
    Stop,
}

impl From<ReplicaInput> for RaftLoopEvent {
    fn from(input: ReplicaInput) -> RaftLoopEvent {
        RaftLoopEvent::Replica(input)
    }
}

#[derive(Debug, Default)]
pub(super) struct RaftLoopQueue {
    queued: Mutex<QueuedEvents>,
    /// Number of bytes of the queued messages from other members.
    message_bytes: AtomicU64,
    drained: Notify,
}

#[derive(Debug, Default)]
struct QueuedEvents {
    events: Vec<RaftLoopEvent>,
    applied: Option<Box<ApplyReport>>,
    awaited_index: u64,
    is_urgent: bool,
    /// The raft loop's waker, set while it sleeps.
    waker: Option<Waker>,
}

impl QueuedEvents {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && !self.is_urgent
    }
}

/// Wakes the raft loop, if it sleeps and has something to do.
fn wake(mut queued: MutexGuard<'_, QueuedEvents>) {
    let waker = if queued.is_empty() { None } else { queued.waker.take() };
    drop(queued);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// While the queued messages have more than this number of bytes, the streams of other members are
/// not read.
const MESSAGE_BYTES_MAX: u64 = 64 << 20;

impl RaftLoopQueue {
    pub(super) fn push(&self, inputs: impl IntoIterator<Item = impl Into<RaftLoopEvent>>) {
        let mut queued = self.queued.lock();
        queued.events.extend(inputs.into_iter().map(Into::into));
        wake(queued);
    }

    pub(super) fn push_messages(&self, messages: Vec<Message>) {
        let bytes = messages.iter().map(Message::bytes).sum();
        self.message_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.push(messages.into_iter().map(ReplicaInput::Message));
    }

    /// Queues a report, merged with a report that is already queued.
    pub(super) fn push_applied(&self, applied: ApplyReport) {
        let mut queued = self.queued.lock();
        queued.is_urgent |= applied.is_urgent(queued.awaited_index);
        match &mut queued.applied {
            Some(before) => before.merge(applied),
            none => *none = Some(Box::new(applied)),
        }
        wake(queued);
    }

    pub(super) fn set_awaited_index(&self, index: u64) {
        let mut queued = self.queued.lock();
        let queued = &mut *queued;
        queued.awaited_index = index;
        if let Some(applied) = &queued.applied {
            queued.is_urgent |= applied.is_urgent(index);
        }
    }

    /// Waits while the queued messages have more than [`MESSAGE_BYTES_MAX`] bytes.
    pub(super) async fn wait_for_capacity(&self) {
        loop {
            let taken = self.drained.notified();
            if self.message_bytes.load(Ordering::Relaxed) <= MESSAGE_BYTES_MAX {
                return;
            }
            taken.await;
        }
    }

    /// Returns all events, and the apply loop's report, which must be handled first. Inputs do not
    /// wake the raft loop until it sleeps again.
    pub(super) fn drain(&self) -> (Option<Box<ApplyReport>>, Vec<RaftLoopEvent>) {
        let mut queued = self.queued.lock();
        queued.waker = None;
        queued.is_urgent = false;
        let taken = (queued.applied.take(), std::mem::take(&mut queued.events));
        drop(queued);
        // Setting the count to 0 also forgets the bytes of messages that were counted but not yet
        // queued. These bytes are few.
        if self.message_bytes.swap(0, Ordering::Relaxed) > MESSAGE_BYTES_MAX {
            self.drained.notify_waiters();
        }
        taken
    }

    pub(super) fn waiter(&self) -> RaftLoopWaiter<'_> {
        RaftLoopWaiter(self)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RaftLoopWaiter<'i>(&'i RaftLoopQueue);

impl RaftLoopWaiter<'_> {
    pub fn is_ready(self) -> bool {
        !self.0.queued.lock().is_empty()
    }

    /// Waits for events. Only one task at a time may wait.
    pub async fn ready(self) {
        poll_fn(|context| {
            let mut queued = self.0.queued.lock();
            if !queued.is_empty() {
                return Poll::Ready(());
            }
            queued.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits in a thread without a runtime, at most for `timeout`.
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

struct ParkedThread(Thread);

impl Wake for ParkedThread {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
