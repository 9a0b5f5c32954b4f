//! Mode `serializable`: nobody is asked. What reads do that accept an older answer.
//!
//! # The story
//!
//! A client that can live with a past state says so in its request, and then any member answers from
//! what it has, a learner or one that is cut off, too. What it sees was the state of the store at some
//! time; how long ago nobody says.
//!
//! ```text
//!   reader  ▶ go        no round, no entry, no wait
//! ```
//!
//! A member need not take such a request through a barrier at all. This mode is the floor against
//! which the others are measured, and it makes the difference visible: the same scripts run over it.

use std::time::Duration;

use crate::error::Result;
use crate::ids::RequestIds;
use crate::interface::{Action, Config, Event, Figures, ReadBarrier, Reader};
use crate::room::Room;

/// Lets everybody go.
#[derive(Debug)]
pub(crate) struct Serializable<T> {
    room: Room<T>,
}

impl<T: Reader> Serializable<T> {
    pub(crate) fn new(config: Config) -> Serializable<T> {
        Serializable { room: Room::new(&config) }
    }
}

impl<T: Reader> ReadBarrier<T> for Serializable<T> {
    fn read(&mut self, reader: T) -> Result<()> {
        self.room.enter(reader)
    }

    fn cancel(&mut self, reader: T) -> bool {
        self.room.cancel(reader, |_| {})
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Applied { index } => self.room.applied(index),
            Event::Stopped => self.room.stop(Vec::new()),
            _ => {}
        }
    }

    fn poll(&mut self, _: Duration, _: &mut RequestIds) -> Vec<Action<T>> {
        let group = self.room.take_queue();
        self.room.wait_behind(self.room.applied_index(), group);
        self.room.take_actions()
    }

    fn next_poll(&self) -> Option<Duration> {
        None
    }

    fn awaited(&self) -> Option<u64> {
        self.room.awaited()
    }

    fn figures(&self) -> Figures {
        self.room.figures()
    }
}
