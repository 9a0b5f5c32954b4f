//! Large proposals, which are written in groups of up to a megabyte. A large proposal waits here
//! while this leader's log writes other large entries, or while too many bytes of large entries are
//! not committed by its store. Small proposals overtake the waiting ones.
//!
//! * Entries that are appended together are synced together. Without groups, a small put could
//!   first have to wait for a running sync of, for example, four values of a megabyte each. It
//!   could then be synced together with four more such values.
//! * The amount of data that the store has not committed is limited, and at that limit the apply
//!   loop applies no entries. Large proposals wait here earlier, at a quarter of the limit, and
//!   request a commit.
//! * A member that does not lead holds no proposals back. It forwards them, and the leader holds
//!   them.
//! * At a leader, large proposals keep the order of their arrival, except forwarded ones over the
//!   limit. Requests that are in progress at the same time have no order (etcd has a goroutine for
//!   each).
//! * If more than [`WAITING_BYTES_MAX`] bytes of its own large proposals wait, the leader rejects
//!   further ones, as raft does for the same number of uncommitted bytes. Forwarded proposals have
//!   a limit of the same size. Above that limit they are proposed immediately, because a forwarded
//!   proposal that is dropped is lost.

use std::collections::VecDeque;
use std::ops::RangeBounds;

use bytes::Bytes;
use clearlane_raft as raft;
use clearlane_raft::{Message, Role};

use super::{Replica, RequestOutcome};

const LARGE_BYTES: usize = 64 << 10;
/// Maximum bytes of large entries that are written together. A larger entry is written separately.
const UNSYNCED_BYTES_MAX: usize = 1 << 20;
/// Maximum bytes of large entries that were appended and are not in the durable store. A commit of
/// that amount takes tens of milliseconds.
const UNCOMMITTED_BYTES_MAX: usize = 16 << 20;
/// Bytes of applied large entries at which a waiting large proposal requests a commit early.
const COMMIT_BYTES: usize = 4 << 20;
const WAITING_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(super) struct LargeProposals {
    waiting: VecDeque<LargeProposal>,
    own_bytes: usize,
    forwarded_bytes: usize,
    /// Index and bytes of the large entries that this leader has appended in `term` and that are
    /// not in its durable store. The list is cleared when the term changes, because entries at
    /// these indexes may have been replaced.
    uncommitted: VecDeque<(u64, usize)>,
    term: u64,
}

#[derive(Debug)]
enum LargeProposal {
    /// A proposal of this member, with the id in its header.
    Own(u64, Bytes),
    Forwarded(Message),
}

impl LargeProposals {
    /// Returns the bytes of the large entries in a range of indexes.
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
    /// Passes a small proposal to raft immediately. A large proposal waits while the disk is busy
    /// with other large entries, or while other large proposals wait. Fails if too many bytes would
    /// wait.
    pub(super) fn propose_or_hold(&mut self, id: u64, data: Bytes) -> raft::Result<()> {
        let bytes = data.len();
        if bytes < LARGE_BYTES {
            return self.raft.propose(data);
        }
        if !self.must_hold(bytes) {
            return self.propose_counted(bytes, |raft| raft.propose(data));
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

    /// Like [`Replica::propose_or_hold`], but for a proposal that another member has forwarded. If
    /// too many bytes would wait, raft gets the proposal immediately.
    pub(super) fn step_or_hold(&mut self, message: Message) -> raft::Result<()> {
        let bytes = message.bytes() as usize;
        if bytes < LARGE_BYTES {
            return self.raft.step(message);
        }
        let held = self.large_proposals.forwarded_bytes + bytes;
        if held > WAITING_BYTES_MAX || !self.must_hold(bytes) {
            return self.propose_counted(bytes, |raft| raft.step(message));
        }
        self.large_proposals.forwarded_bytes = held;
        self.large_proposals.waiting.push_back(LargeProposal::Forwarded(message));
        Ok(())
    }

    /// Passes the next waiting proposal to raft if a leader can accept it and the disk is not busy
    /// with other large entries. Returns whether a proposal was taken from the queue.
    pub(super) fn propose_held(&mut self) -> bool {
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
                // The request may have been cancelled.
                let Some(of) = self.wait.request_of(id) else { return true };
                if let Err(error) = self.propose_counted(bytes, |raft| raft.propose(data)) {
                    self.wait.cancel(of);
                    self.complete(of, RequestOutcome::NotProposed(error));
                }
            }
            Some(LargeProposal::Forwarded(message)) => {
                self.large_proposals.forwarded_bytes -= bytes;
                // If raft rejects the proposal, it is lost, as if it were rejected on arrival.
                let _ = self.propose_counted(bytes, |raft| raft.step(message));
            }
            None => {}
        }
        true
    }

    fn must_hold(&mut self, bytes: usize) -> bool {
        let others_wait = !self.large_proposals.waiting.is_empty();
        self.is_disk_busy_for(bytes) || (others_wait && self.leads())
    }

    /// Returns whether another entry of this size would exceed a limit for the large entries in
    /// flight to this leader's log or its store. If no large entry is in flight, an entry of any
    /// size is within the limits.
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

    /// Requests a commit of the store while large proposals wait, once the applied large entries
    /// have at least [`COMMIT_BYTES`]. So [`UNCOMMITTED_BYTES_MAX`] is rarely reached. If `bytes`
    /// more would exceed that limit, the commit is also requested for fewer applied bytes, once all
    /// large entries are applied.
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

    fn propose_counted(
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
