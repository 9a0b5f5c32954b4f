//! Records which events of a transaction are already counted in a stream's channel.
//!
//! The watchers of a stream share their events. So an event that several watchers of a stream
//! receive is counted once. Its previous record is also counted once, if any of these watchers
//! requests it:
//!
//! ```text
//!   transaction 7: put a (10 bytes, new), put b (1 MiB, was 1 MiB)
//!   watcher of a                  10 bytes
//!   watcher of a..c, previous     1 MiB for b, 1 MiB for b's previous record; a is already counted
//!   watcher of b                  nothing more
//! ```

use crate::watch::response::{Event, change_size};

/// One bit per event for its change, and one for its previous record.
#[derive(Debug)]
pub(super) struct CountedEvents {
    changes: Vec<u64>,
    prev_kvs: Vec<u64>,
}

impl CountedEvents {
    pub(super) fn new(events: usize) -> CountedEvents {
        let none = vec![0; events.div_ceil(64)];
        CountedEvents { changes: none.clone(), prev_kvs: none }
    }

    pub(super) fn clear(&mut self) {
        self.changes.fill(0);
        self.prev_kvs.fill(0);
    }

    /// Counts event number `number`. Returns the bytes of the event that were not counted before.
    pub(super) fn add(&mut self, number: u32, event: &Event) -> usize {
        let mut bytes = 0;
        if is_first(&mut self.changes, number) {
            bytes += change_size(&event.change);
        }
        if event.prev_kv.is_some() && is_first(&mut self.prev_kvs, number) {
            bytes += event.prev_kv_size();
        }
        bytes
    }
}

fn is_first(bits: &mut [u64], number: u32) -> bool {
    let (word, bit) = (&mut bits[number as usize / 64], 1 << (number % 64));
    let is_first = *word & bit == 0;
    *word |= bit;
    is_first
}
