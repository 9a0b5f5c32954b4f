//! Large proposals, one at a time: while the entry of one is not on this leader's disk, the next
//! wait here, and small ones go past.
//!
//! What is appended in one turn is synced together. So four values of a megabyte would be four
//! megabytes in front of a small put, and again as many while it waits for its own sync.
//!
//! * A member that does not lead holds none back: it forwards them, and the leader does.
//! * The order among large proposals is that of their arrival. Requests that are under way together
//!   have no order (etcd has a goroutine for each).
//! * Beyond [`WAITING_BYTES_MAX`] of forwarded ones they go at once: to drop one would lose it.

use std::collections::VecDeque;

use bytes::Bytes;
use clearlane_raft as raft;
use clearlane_raft::{Message, Role};

use super::{Replica, RequestOutcome};

/// About what a disk writes in the time of a sync.
const LARGE_BYTES: usize = 64 << 10;
const WAITING_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct LargeProposals {
    waiting: VecDeque<LargeProposal>,
    forwarded_bytes: usize,
    /// The index of the large entry that was appended last.
    last_index: u64,
}

#[derive(Debug)]
enum LargeProposal {
    /// With the id of its request.
    Own(u64, Bytes),
    Forwarded(Message),
}

impl Replica {
    /// Proposes at once or, if it is a large one, when the last of them is on disk.
    pub(super) fn propose_data(&mut self, id: u64, data: Bytes) -> raft::Result<()> {
        if data.len() < LARGE_BYTES {
            return self.raft.propose(data);
        }
        if self.holds_large_proposals() {
            self.large_proposals.waiting.push_back(LargeProposal::Own(id, data));
            return Ok(());
        }
        self.propose_large(|raft| raft.propose(data))
    }

    /// The same for one that another member has forwarded.
    pub(super) fn step_proposal(&mut self, message: Message) -> raft::Result<()> {
        let bytes = message.bytes() as usize;
        if bytes < LARGE_BYTES {
            return self.raft.step(message);
        }
        let held = self.large_proposals.forwarded_bytes + bytes;
        if self.holds_large_proposals() && held <= WAITING_BYTES_MAX {
            self.large_proposals.forwarded_bytes = held;
            self.large_proposals.waiting.push_back(LargeProposal::Forwarded(message));
            return Ok(());
        }
        self.propose_large(|raft| raft.step(message))
    }

    /// Proposes the next that waits if it need not. Returns whether there was one.
    pub(super) fn propose_waiting_large(&mut self) -> bool {
        if !self.can_propose() || self.is_large_entry_unsynced() {
            return false;
        }
        let Some(next) = self.large_proposals.waiting.pop_front() else { return false };
        match next {
            LargeProposal::Own(id, data) => {
                // It may have been cancelled.
                let Some(of) = self.wait.request_of(id) else { return true };
                if let Err(error) = self.propose_large(|raft| raft.propose(data)) {
                    self.wait.cancel(of);
                    self.complete(of, RequestOutcome::NotProposed(error));
                }
            }
            LargeProposal::Forwarded(message) => {
                self.large_proposals.forwarded_bytes -= message.bytes() as usize;
                // As when it arrives: a refused one is lost.
                let _ = self.propose_large(|raft| raft.step(message));
            }
        }
        true
    }

    fn holds_large_proposals(&self) -> bool {
        self.is_large_entry_unsynced() || (self.leads() && !self.large_proposals.waiting.is_empty())
    }

    fn is_large_entry_unsynced(&self) -> bool {
        self.leads() && self.raft.persisted_index() < self.large_proposals.last_index
    }

    fn leads(&self) -> bool {
        self.raft.leadership().role == Role::Leader
    }

    fn propose_large(
        &mut self,
        propose: impl FnOnce(&mut raft::RaftNode) -> raft::Result<()>,
    ) -> raft::Result<()> {
        propose(&mut self.raft)?;
        self.large_proposals.last_index = self.raft.last_index();
        Ok(())
    }
}
