//! The differences between the ways to find a read index. A
//! [`ReadIndexQueue`](super::ReadIndexQueue) consists of one mode and of [`Waiters`], whose code is
//! the same in all modes.

use std::fmt::Debug;
use std::time::Duration;

use super::clock::ClockReading;
use super::ids::RequestIdGenerator;
use super::interface::Reader;
use super::readers::ReaderTable;
use super::waiters::Waiters;

/// One way to find a read index. It receives the events of
/// [`ReadIndexQueue`](super::ReadIndexQueue), and ignores events that do not concern it.
pub(super) trait Mode<T>: Debug + Send {
    fn on_answer(&mut self, _waiters: &mut Waiters<T>, _context: u64, _index: u64) {}

    fn on_leader(&mut self, _waiters: &mut Waiters<T>, _leader: Option<u64>, _term: u64) {}

    fn on_transfer_started(&mut self) {}

    fn on_first_commit(&mut self) {}

    fn on_committed(&mut self, _index: u64) {}

    /// Fails readers that are over their time-out, and starts the work that is due for the queue.
    fn advance(
        &mut self,
        waiters: &mut Waiters<T>,
        reading: ClockReading,
        ids: &mut RequestIdGenerator,
    );

    /// Returns the steady time at which [`advance`](Mode::advance) must be called next, or `None`
    /// if there is no work that depends on the time.
    fn next_advance(&self, _waiters: &Waiters<T>) -> Option<Duration> {
        None
    }

    /// Drops the entries of readers that have given up.
    fn sweep(&mut self, _readers: &mut ReaderTable<T>) {}
}

/// Mode `serializable`: no other member is contacted, and a read may see an older state.
///
/// Any member answers from its store, even a learner or a member that is cut off. A serializable
/// read does not need a ReadIndex queue. This mode exists as the baseline for measurements of the
/// other modes.
#[derive(Debug)]
pub(super) struct SerializableRead;

impl<T: Reader> Mode<T> for SerializableRead {
    fn advance(&mut self, waiters: &mut Waiters<T>, _: ClockReading, _: &mut RequestIdGenerator) {
        let group = waiters.take_queue();
        waiters.wait_for_index(waiters.applied_index, group);
    }
}
