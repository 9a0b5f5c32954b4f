//! Appends in flight to the disk, and the messages that wait for them.
//!
//! ```text
//!   append 4: term 2      append 6: entries 7..8
//!   └ "you have my vote"  └ "I have up to 8", and messages of readies 7 and 8, which write nothing
//! ```
//!
//! A ready that writes nothing, or only a commit index, joins the last append in the queue. So the
//! queue has only one element per append, however long the disk takes.

use std::collections::VecDeque;

use super::message::Message;
use super::ready::ReadyAppend;

/// The queue of appends, oldest first.
#[derive(Debug)]
pub(super) struct PendingAppends {
    appends: VecDeque<PendingAppend>,
    pub(super) newest_ready: u64,
    /// Bytes of entries in flight.
    pub(super) bytes: u64,
    pub(super) durable_term: u64,
}

#[derive(Debug, Default)]
struct PendingAppend {
    number: u64,
    /// The number of the newest ready that becomes durable with this append.
    last_ready: u64,
    term: Option<u64>,
    /// If true, the append has entries or installs a store.
    changes_log: bool,
    bytes: u64,
    messages: Vec<Message>,
}

#[derive(Debug, Default)]
pub(super) struct DurableAppends {
    /// The number of the newest durable ready. All earlier readies are also durable.
    pub(super) ready: u64,
    pub(super) messages: Vec<Message>,
}

impl PendingAppends {
    pub(super) fn new(durable_term: u64) -> PendingAppends {
        PendingAppends { appends: VecDeque::new(), newest_ready: 0, bytes: 0, durable_term }
    }

    /// Adds a ready. Returns its messages immediately if the ready writes nothing that must be
    /// synced and no append is in flight. Otherwise keeps the messages and returns `None`.
    pub(super) fn push(
        &mut self,
        ready: u64,
        append: Option<&ReadyAppend>,
        messages: Vec<Message>,
    ) -> Option<DurableAppends> {
        self.newest_ready = ready;
        if let Some(append) = append.filter(|append| append.must_sync) {
            let bytes = append.entries.iter().map(|entry| entry.data.len() as u64).sum();
            self.bytes += bytes;
            self.appends.push_back(PendingAppend {
                number: ready,
                last_ready: ready,
                term: append.hard_state.map(|state| state.term),
                changes_log: !append.entries.is_empty() || append.install_snapshot.is_some(),
                bytes,
                messages,
            });
            return None;
        }
        let Some(before) = self.appends.back_mut() else {
            return Some(DurableAppends { ready, messages });
        };
        before.last_ready = ready;
        before.messages.extend(messages);
        None
    }

    /// Removes the appends up to this number, which are durable. Returns their messages, or `None`
    /// if there was no such append.
    pub(super) fn remove_durable(&mut self, number: u64) -> Option<DurableAppends> {
        let mut done: Option<DurableAppends> = None;
        while let Some(append) = self.appends.pop_front_if(|append| append.number <= number) {
            self.bytes -= append.bytes;
            self.durable_term = append.term.unwrap_or(self.durable_term);
            let done = done.get_or_insert_default();
            done.ready = append.last_ready;
            done.messages.extend(append.messages);
        }
        done
    }

    /// Returns whether entries, or a store to install, are in flight to the disk. If so, the log on
    /// disk lags behind the log in memory.
    pub(super) fn has_log_changes(&self) -> bool {
        self.appends.iter().any(|append| append.changes_log)
    }
}
