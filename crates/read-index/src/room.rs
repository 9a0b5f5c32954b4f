//! The room in which readers wait: what all modes have in common.
//!
//! ```text
//!   read ──▶ queue ──▶ (the mode: a round, entries, a lease) ──▶ behind ──▶ Go
//!             │                        │                           │
//!             until it is this         until somebody has said       until this member has
//!             group's turn             which index is fresh enough   applied up to there
//! ```
//!
//! A mode takes the queue when it is its turn, and comes back with an index. From there on all modes
//! are the same: the group waits *behind* an index. These waits are kept in a map ordered by index,
//! and everything up to the applied index goes at once. There is no time-out here, as in etcd: an
//! answer to "how far?" does not grow old, and how long to wait for it is the client's to decide.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::interface::{Action, Config, Figures};
use crate::readers::{Group, Readers};

/// Readers who wait, what they wait for, and what is to be done for them.
#[derive(Debug)]
pub(crate) struct Room<T> {
    pub(crate) readers: Readers<T>,
    queue: Group<T>,
    /// Groups by the index that they wait for.
    behind: BTreeMap<u64, Group<T>>,
    applied: u64,
    stopped: bool,
    clock: Clock,
    actions: Vec<Action<T>>,
    pub(crate) figures: Figures,
}

impl<T: Copy + Eq + Hash> Room<T> {
    pub(crate) fn new(config: &Config) -> Room<T> {
        Room {
            readers: Readers::new(config.readers_max),
            queue: Group::new(),
            behind: BTreeMap::new(),
            applied: 0,
            stopped: false,
            clock: Clock::default(),
            actions: Vec::new(),
            figures: Figures::default(),
        }
    }

    pub(crate) fn enter(&mut self, reader: T) -> Result<()> {
        if self.stopped {
            return Err(Error::Stopped);
        }
        let seat = self.readers.seat(reader)?;
        self.queue.push(seat);
        Ok(())
    }

    /// The reader gives up. Where many have, the entries that they left are swept out of the room, and
    /// by `sweep_mode` out of what the mode holds.
    pub(crate) fn cancel(&mut self, reader: T, sweep_mode: impl FnOnce(&mut Readers<T>)) -> bool {
        let found = self.readers.cancel(reader);
        if found && self.readers.sweep_is_due() {
            self.readers.sweep(&mut self.queue);
            for group in self.behind.values_mut() {
                self.readers.sweep(group);
            }
            self.behind.retain(|_, group| !group.is_empty());
            sweep_mode(&mut self.readers);
        }
        found
    }

    pub(crate) fn queue_is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn take_queue(&mut self) -> Group<T> {
        std::mem::take(&mut self.queue)
    }

    /// Whoever is in the group may go on once `index` is applied.
    pub(crate) fn wait_behind(&mut self, index: u64, group: Group<T>) {
        if group.is_empty() {
            return;
        }
        self.behind.entry(index).or_default().extend(group);
        self.let_go();
    }

    pub(crate) fn applied(&mut self, index: u64) {
        self.applied = self.applied.max(index);
        self.let_go();
    }

    pub(crate) fn applied_index(&self) -> u64 {
        self.applied
    }

    /// The least index that a group waits for.
    pub(crate) fn awaited(&self) -> Option<u64> {
        self.behind.keys().next().copied()
    }

    fn let_go(&mut self) {
        while let Some(entry) = self.behind.first_entry()
            && *entry.key() <= self.applied
        {
            let (index, group) = entry.remove_entry();
            let readers = self.readers.release(group);
            if !readers.is_empty() {
                self.figures.released += readers.len() as u64;
                self.actions.push(Action::Go { index, readers });
            }
        }
    }

    pub(crate) fn fail(&mut self, error: Error, group: Group<T>) {
        let readers = self.readers.release(group);
        if !readers.is_empty() {
            self.figures.refused += readers.len() as u64;
            self.actions.push(Action::Fail { error, readers });
        }
    }

    /// Everybody in the room, and in the mode's `rest`, fails; nobody enters any more.
    pub(crate) fn stop(&mut self, rest: Group<T>) {
        self.stopped = true;
        let mut everybody = rest;
        for group in std::mem::take(&mut self.behind).into_values() {
            everybody.extend(group);
        }
        everybody.append(&mut self.queue);
        self.fail(Error::Stopped, everybody);
    }

    pub(crate) fn told(&mut self, now: Duration) -> Moment {
        self.clock.told(now)
    }

    pub(crate) fn untold(&self, steady: Duration) -> Duration {
        self.clock.untold(steady)
    }

    pub(crate) fn act(&mut self, action: Action<T>) {
        self.actions.push(action);
    }

    pub(crate) fn take_actions(&mut self) -> Vec<Action<T>> {
        std::mem::take(&mut self.actions)
    }

    pub(crate) fn figures(&self) -> Figures {
        let (waiting, entries) = (self.readers.len(), self.readers.entries());
        Figures { waiting, entries, ..self.figures }
    }
}
