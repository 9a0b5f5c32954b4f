//! How messages leave a member: the raft loop's side of the transport between members.

use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::Store;
use clearlane_raft::Message;

use super::raft_loop_queue::RaftLoopWaiter;
use crate::applied_position::AppliedPosition;

/// Sends messages to other members. It is called by the raft loop and must not block: what cannot
/// be sent is dropped.
pub trait Network: Send {
    /// Returns a message that cannot be sent. One that is lost later is reported with
    /// [`ServerThreads::report_unreachable`](super::ServerThreads::report_unreachable).
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>>;

    /// Sends a copy of the store with a message. The result is reported with
    /// [`ServerThreads::report_raft_snapshot`](super::ServerThreads::report_raft_snapshot).
    fn send_raft_snapshot(&mut self, message: Message, store: Arc<dyn Store<AppliedPosition>>);

    /// Waits for input of the raft loop, at most for `timeout`. Meanwhile the thread is the
    /// network's: it sends the queued messages and receives others.
    fn wait(&mut self, arrivals: RaftLoopWaiter<'_>, timeout: Duration) {
        arrivals.wait(timeout);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct NoNetwork;

impl Network for NoNetwork {
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>> {
        Err(Box::new(message))
    }

    fn send_raft_snapshot(&mut self, _message: Message, _store: Arc<dyn Store<AppliedPosition>>) {}
}
