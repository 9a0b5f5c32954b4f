//! The raft loop's side of the transport between members: how messages leave a member.

use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::Store;
use clearlane_raft::Message;
use clearlane_replica::applied_position::AppliedPosition;

use super::raft_loop_queue::RaftLoopWaiter;

/// Sends messages to other members. The raft loop calls it. Sending must not block: a message that
/// cannot be sent is dropped.
pub trait Network: Send {
    /// Sends a message, or returns the message if it cannot be sent. If the message is lost later,
    /// the network reports this with
    /// [`ServerThreads::report_unreachable`](super::ServerThreads::report_unreachable).
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>>;

    /// Sends a message with a raft snapshot of the store. The network reports the result with
    /// [`ServerThreads::report_raft_snapshot`](super::ServerThreads::report_raft_snapshot).
    fn send_raft_snapshot(&mut self, message: Message, store: Arc<dyn Store<AppliedPosition>>);

    /// Waits for input of the raft loop, at most for `timeout`. During the wait the thread belongs
    /// to the network, which sends the queued messages and receives messages from other members.
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
