//! Mode `serializable`: no member is asked, and a read may see an older state.
//!
//! Any member answers from what it has, a learner or one that is cut off, too. What a reader sees
//! was the state of the store at some time; how long ago is not known. Such a read need not pass a
//! ReadIndex queue at all. This mode is the baseline for the others in measurements, and the same
//! scripts run over it.

use super::clock::ClockReading;
use super::ids::RequestIdGenerator;
use super::interface::Reader;
use super::mode::Mode;
use super::waiters::Waiters;

#[derive(Debug)]
pub(super) struct SerializableRead;

impl<T: Reader> Mode<T> for SerializableRead {
    fn advance(&mut self, waiters: &mut Waiters<T>, _: ClockReading, _: &mut RequestIdGenerator) {
        let group = waiters.take_queue();
        waiters.wait_for_index(waiters.applied_index, group);
    }
}
