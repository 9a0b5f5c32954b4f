//! What the ways to find a read index differ in. A [`ReadIndexQueue`](super::ReadIndexQueue) has
//! one of them and the [`Waiters`], which are the same in all.

use std::fmt::Debug;
use std::time::Duration;

use super::clock::ClockReading;
use super::ids::RequestIdGenerator;
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
