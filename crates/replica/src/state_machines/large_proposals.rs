//! Large proposals, a megabyte at a time: while the entries of some are on their way to this
//! leader's log, or too many of them to its store, the next wait here, and small ones go past.
//!
//! * What is appended in one turn is synced together: four values of a megabyte would be four
//!   megabytes in front of a small put, and again as many while it waits for its own sync.
//! * What the store has not committed is bounded, and the apply loop waits at the bound, with all
//!   entries. Large ones wait here first, at a quarter of it, and ask for a commit.
//! * A member that does not lead holds none back: it forwards them, and the leader does.
//! * The order among large proposals is that of their arrival. Requests that are under way together
//!   have no order (etcd has a goroutine for each).
//! * Beyond [`WAITING_BYTES_MAX`] of its own the leader refuses, as raft does beyond as many
//!   uncommitted bytes. Forwarded ones go at once then: to drop one would lose it.

use std::collections::VecDeque;
use std::ops::RangeBounds;

use bytes::Bytes;
use clearlane_raft as raft;
use clearlane_raft::{Message, Role};

use super::{Replica, RequestOutcome};

const LARGE_BYTES: usize = 64 << 10;
/// Of large entries that are written together; a larger one is written alone.
const UNSYNCED_BYTES_MAX: usize = 1 << 20;
/// Of large entries that were appended and are not in the durable store. A commit of them takes
/// tens of milliseconds.
const UNCOMMITTED_BYTES_MAX: usize = 16 << 20;
/// Of applied ones, for which a commit is asked for before its time.
const COMMIT_BYTES: usize = 4 << 20;
const WAITING_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct LargeProposals {
    waiting: VecDeque<LargeProposal>,
    own_bytes: usize,
    forwarded_bytes: usize,
    /// Index and bytes of large entries that this leader has appended in `term` and that are not in
    /// its durable store. In another term an index may be one that was cut off.
    uncommitted: VecDeque<(u64, usize)>,
    term: u64,
}

#[derive(Debug)]
enum LargeProposal {
    /// With the id of its request.
    Own(u64, Bytes),
    Forwarded(Message),
}

impl LargeProposals {
    /// Of the entries of `indexes`.
    fn bytes_within(&self, indexes: impl RangeBounds<u64>) -> usize {
        let within = self.uncommitted.iter().filter(|(index, _)| indexes.contains(index));
        within.map(|(_, bytes)| bytes).sum()
    }
}

impl LargeProposal {
    fn bytes(&self) -> usize {
        match self {
            LargeProposal::Own(_, data) => data.len(),
            LargeProposal::Forwarded(message) => message.bytes() as usize,
        }
    }
}

impl Replica {
    /// Proposes at once or, if it is a large one, when there is room in front of the disk.
    pub(super) fn propose_data(&mut self, id: u64, data: Bytes) -> raft::Result<()> {
        let bytes = data.len();
        if bytes < LARGE_BYTES {
            return self.raft.propose(data);
        }
        if !self.must_hold(bytes) {
            return self.propose_large(bytes, |raft| raft.propose(data));
        }
        if self.large_proposals.own_bytes + bytes > WAITING_BYTES_MAX {
            self.drop_cancelled_large();
        }
        let large = &mut self.large_proposals;
        if large.own_bytes + bytes > WAITING_BYTES_MAX {
            return Err(raft::Error::QueueFull);
        }
        large.own_bytes += bytes;
        large.waiting.push_back(LargeProposal::Own(id, data));
        Ok(())
    }

    /// The same for one that another member has forwarded.
    pub(super) fn step_proposal(&mut self, message: Message) -> raft::Result<()> {
        let bytes = message.bytes() as usize;
        if bytes < LARGE_BYTES {
            return self.raft.step(message);
        }
        let held = self.large_proposals.forwarded_bytes + bytes;
        if held > WAITING_BYTES_MAX || !self.must_hold(bytes) {
            return self.propose_large(bytes, |raft| raft.step(message));
        }
        self.large_proposals.forwarded_bytes = held;
        self.large_proposals.waiting.push_back(LargeProposal::Forwarded(message));
        Ok(())
    }

    /// Proposes the next that waits if there is room. Returns whether there was one.
    pub(super) fn propose_waiting_large(&mut self) -> bool {
        let Some(bytes) = self.large_proposals.waiting.front().map(LargeProposal::bytes) else {
            return false;
        };
        if !self.can_propose() {
            return false;
        }
        if self.is_disk_busy_for(bytes) {
            self.request_commit_of_large(bytes);
            return false;
        }
        match self.large_proposals.waiting.pop_front() {
            Some(LargeProposal::Own(id, data)) => {
                self.large_proposals.own_bytes -= bytes;
                // It may have been cancelled.
                let Some(of) = self.wait.request_of(id) else { return true };
                if let Err(error) = self.propose_large(bytes, |raft| raft.propose(data)) {
                    self.wait.cancel(of);
                    self.complete(of, RequestOutcome::NotProposed(error));
                }
            }
            Some(LargeProposal::Forwarded(message)) => {
                self.large_proposals.forwarded_bytes -= bytes;
                // As when it arrives: a refused one is lost.
                let _ = self.propose_large(bytes, |raft| raft.step(message));
            }
            None => {}
        }
        true
    }

    fn must_hold(&mut self, bytes: usize) -> bool {
        let others_wait = !self.large_proposals.waiting.is_empty();
        self.is_disk_busy_for(bytes) || (others_wait && self.leads())
    }

    /// Whether as many bytes of large entries are on their way to this leader's log or its store as
    /// may be.
    fn is_disk_busy_for(&mut self, bytes: usize) -> bool {
        self.forget_committed();
        let persisted = self.raft.persisted_index();
        let exceeds = |sum: usize, max| sum > 0 && sum + bytes > max;
        let uncommitted = self.large_proposals.bytes_within(..);
        exceeds(uncommitted, UNCOMMITTED_BYTES_MAX)
            || exceeds(self.large_proposals.bytes_within(persisted + 1..), UNSYNCED_BYTES_MAX)
    }

    fn forget_committed(&mut self) {
        let (now, durable) = (self.raft.leadership(), self.raft.durable_position().index);
        let large = &mut self.large_proposals;
        if now.role != Role::Leader || now.term != large.term {
            large.uncommitted.clear();
        }
        while large.uncommitted.pop_front_if(|(index, _)| *index <= durable).is_some() {}
    }

    /// While large proposals wait, the store commits what is applied of those before them: often,
    /// so that the bound is not reached, and at once if `bytes` more are beyond it.
    fn request_commit_of_large(&mut self, bytes: usize) {
        let large = &self.large_proposals;
        let (all, applied) = (large.bytes_within(..), large.bytes_within(..=self.applied.0));
        let is_needed = all == applied && all + bytes > UNCOMMITTED_BYTES_MAX;
        if (applied >= COMMIT_BYTES || is_needed)
            && !std::mem::replace(&mut self.is_commit_requested, true)
        {
            self.ready.is_commit_due = true;
        }
    }

    fn leads(&self) -> bool {
        self.raft.leadership().role == Role::Leader
    }

    fn propose_large(
        &mut self,
        bytes: usize,
        propose: impl FnOnce(&mut raft::RaftNode) -> raft::Result<()>,
    ) -> raft::Result<()> {
        propose(&mut self.raft)?;
        self.forget_committed();
        if self.leads() {
            self.large_proposals.term = self.raft.leadership().term;
            self.large_proposals.uncommitted.push_back((self.raft.last_index(), bytes));
        }
        Ok(())
    }

    fn drop_cancelled_large(&mut self) {
        let (wait, large) = (&self.wait, &mut self.large_proposals);
        let own_bytes = &mut large.own_bytes;
        large.waiting.retain(|waiting| match waiting {
            LargeProposal::Own(id, data) if wait.request_of(*id).is_none() => {
                *own_bytes -= data.len();
                false
            }
            _ => true,
        });
    }
}
