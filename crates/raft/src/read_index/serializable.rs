//! Mode `serializable`: no member is asked, and a read may see an older state.
//!
//! Any member answers from what it has, a learner or one that is cut off, too. What a reader sees
//! was the state of the store at some time; how long ago is not known. Such a read need not pass a
//! ReadIndex queue at all. This mode is the baseline for the others in measurements, and the same
//! scripts run over it.

use std::time::Duration;

use super::error::Result;
use super::ids::RequestIdGenerator;
use super::interface::{
    ReadIndexAction, ReadIndexConfig, ReadIndexEvent, ReadIndexMetrics, ReadIndexQueue, Reader,
};
use super::waiters::Waiters;

#[derive(Debug)]
pub(crate) struct SerializableRead<T> {
    waiters: Waiters<T>,
}

impl<T: Reader> SerializableRead<T> {
    pub(crate) fn new(config: ReadIndexConfig) -> SerializableRead<T> {
        SerializableRead { waiters: Waiters::new(&config) }
    }
}

impl<T: Reader> ReadIndexQueue<T> for SerializableRead<T> {
    fn enqueue(&mut self, reader: T) -> Result<()> {
        self.waiters.enqueue(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        self.waiters.cancel(reader, |_| {})
    }

    fn handle_event(&mut self, event: ReadIndexEvent) {
        if let ReadIndexEvent::Applied { index } = event {
            self.waiters.set_applied_index(index);
        }
    }

    fn poll(&mut self, _: Duration, _: &mut RequestIdGenerator) -> Vec<ReadIndexAction<T>> {
        let group = self.waiters.take_queue();
        self.waiters.wait_for_index(self.waiters.applied_index(), group);
        self.waiters.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        None
    }

    fn awaited_index(&self) -> Option<u64> {
        self.waiters.awaited_index()
    }

    fn metrics(&self) -> ReadIndexMetrics {
        self.waiters.metrics()
    }
}
