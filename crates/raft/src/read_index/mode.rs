//! What the ways to find a read index differ in. A [`ReadIndexQueue`](super::ReadIndexQueue) has
//! one of them and the [`Waiters`], which are the same in all.

use std::fmt::Debug;
use std::time::Duration;

use super::clock::ClockReading;
use super::ids::RequestIdGenerator;
use super::interface::Reader;
use super::readers::ReaderTable;
use super::waiters::Waiters;

/// The events are those of [`ReadIndexQueue`](super::ReadIndexQueue); a mode ignores those that say
/// nothing to it.
pub(super) trait Mode<T>: Debug + Send {
    fn on_answer(&mut self, _waiters: &mut Waiters<T>, _context: u64, _index: u64) {}

    fn on_leader(&mut self, _waiters: &mut Waiters<T>, _leader: Option<u64>, _term: u64) {}

    fn on_transfer_started(&mut self) {}

    fn on_first_commit(&mut self) {}

    fn on_committed(&mut self, _index: u64) {}

    /// Fails what is late, and does for the queue what is due.
    fn advance(
        &mut self,
        waiters: &mut Waiters<T>,
        reading: ClockReading,
        ids: &mut RequestIdGenerator,
    );

    /// When there is more to do, in steady time.
    fn next_advance(&self, _waiters: &Waiters<T>) -> Option<Duration> {
        None
    }

    /// Drops the entries of readers that have given up.
    fn sweep(&mut self, _readers: &mut ReaderTable<T>) {}
}

/// Mode `serializable`: no member is asked, and a read may see an older state.
///
/// Any member answers from what it has, a learner or one that is cut off, too. Such a read need not
/// pass a ReadIndex queue at all: this mode is the baseline for the others in measurements.
#[derive(Debug)]
pub(super) struct SerializableRead;

impl<T: Reader> Mode<T> for SerializableRead {
    fn advance(&mut self, waiters: &mut Waiters<T>, _: ClockReading, _: &mut RequestIdGenerator) {
        let group = waiters.take_queue();
        waiters.wait_for_index(waiters.applied_index, group);
    }
}
