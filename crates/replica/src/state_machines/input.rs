//! The inputs of a member's raft half.

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft as raft;
use clearlane_raft::read_index::ReadNeed;
use clearlane_raft::{Message, Role};
use clearlane_wal::group_commit::BatchResult;

use super::queued_proposals::QueuedProposal;
use super::{ApplyReport, MemberChangeError, Replica, RequestId, RequestOutcome};
use crate::applied_position::AppliedPosition;
use crate::apply::EvaluatedCompares;
use crate::error::Result;
use crate::membership::{MemberChange, check_learner_ready};
use crate::raft_snapshot::ReceivedSnapshot;

#[derive(Debug)]
pub enum ReplicaInput {
    Propose {
        /// The request. If it is from a client, it has passed [`check`](crate::apply::check()).
        request: Box<InternalRaftRequest>,
        /// The result of the compares, if the request is a transaction whose compares were
        /// evaluated before. Otherwise `None`.
        compares: Option<Box<EvaluatedCompares>>,
        of: RequestId,
    },
    ChangeMembers(MemberChange, RequestId),
    /// A read that waits for a read index. Depending on its need, it also waits until this member
    /// has applied the entries up to that index.
    ReadIndex(RequestId, ReadNeed),
    /// The caller has dropped the request, or its deadline or time-out has passed. A proposal that
    /// raft already has may still be applied.
    Cancel(RequestId),
    Message(Message),
    /// A complete raft snapshot, received from another member.
    RaftSnapshot(Box<ReceivedSnapshot>),
    RaftSnapshotSent {
        to: u64,
        is_delivered: bool,
    },
    Unreachable(u64),
    /// Transfers leadership to a member. Does nothing unless this member leads.
    TransferLeader(u64),
    /// Shortens the wait for the first election.
    AdvanceElection,
    /// The result of [`ReplicaReady::wal_batch`](super::ReplicaReady::wal_batch).
    WalWritten(BatchResult),
    /// The position of the store that the engine has on disk.
    StoreCommitted(AppliedPosition),
    Applied(Box<ApplyReport>),
}

impl Replica {
    /// Processes an input. After an error the process stops.
    pub fn handle_input(&mut self, input: ReplicaInput) -> Result<()> {
        match input {
            ReplicaInput::Propose { request, compares, of } => {
                self.handle_proposal(QueuedProposal::Request(request, compares), of)
            }
            ReplicaInput::ChangeMembers(change, of) => match self.check_change(&change) {
                Ok(()) => self.handle_proposal(QueuedProposal::MemberChange(change), of),
                Err(error) => self.complete(of, RequestOutcome::ChangeRejected(error)),
            },
            ReplicaInput::ReadIndex(of, need) => {
                // Until a leader has applied an entry of its own term, a revocation that a former
                // leader proposed may be committed but not applied. So a renewal of that lease must
                // wait for the applied index.
                let has_applied_own = self.applied.1 == self.raft.leadership().term;
                let need = if has_applied_own { need } else { ReadNeed::Applied };
                if let Err(error) = self.read_index.enqueue(of, need) {
                    self.complete(of, RequestOutcome::ReadFailed(error));
                }
            }
            // A ReadIndex request, or a proposal that is queued or held, is withdrawn. A proposal
            // that raft has may still be applied.
            ReplicaInput::Cancel(of) => {
                if !self.wait.cancel(of) && !self.read_index.cancel(of) {
                    self.queued_proposals.cancel(of);
                }
            }
            ReplicaInput::Message(message) => {
                // A message that raft rejects is not an error of this member. But the message may
                // prove that this member has lost a part of its log.
                if let Err(error @ raft::Error::LostLog { .. }) = self.receive(message) {
                    return Err(error.into());
                }
            }
            ReplicaInput::RaftSnapshot(copy) => self.handle_received_snapshot(*copy)?,
            ReplicaInput::RaftSnapshotSent { to, is_delivered } => {
                self.sending_snapshots.remove(&to);
                self.raft.report_snapshot(to, is_delivered);
            }
            ReplicaInput::Unreachable(id) => self.raft.report_unreachable(id),
            ReplicaInput::TransferLeader(to) => self.raft.transfer_leader(to),
            ReplicaInput::AdvanceElection => self.raft.advance_election(),
            ReplicaInput::WalWritten(written) => self.handle_written(written)?,
            ReplicaInput::StoreCommitted(durable) => self.handle_store_committed(&durable)?,
            ReplicaInput::Applied(applied) => self.handle_applied(*applied)?,
        }
        Ok(())
    }

    /// Passes a proposal to raft, or queues it until a leader can accept it. Completes the request
    /// with a rejection if the queue is full.
    fn handle_proposal(&mut self, proposal: QueuedProposal, of: RequestId) {
        if self.can_propose() && self.queued_proposals.is_empty() {
            self.start_proposal(proposal, of);
        } else if !self.queued_proposals.push(proposal, of) {
            self.complete(of, RequestOutcome::NotProposed(raft::Error::QueueFull));
        }
    }

    /// Checks a change as far as this member can. The change is checked again when it is applied.
    /// A promotion fails unless this member leads, because only the leader knows the progress of a
    /// learner.
    fn check_change(&self, change: &MemberChange) -> std::result::Result<(), MemberChangeError> {
        let leadership = self.raft.leadership();
        let promotes = matches!(change, MemberChange::Promote { .. });
        if promotes && leadership.role != Role::Leader {
            return Err(MemberChangeError::NotLeader);
        }
        self.members.check(change)?;
        if promotes {
            let matched = self.raft.match_indexes();
            check_learner_ready(change.id(), leadership.leader, &matched)?;
        }
        Ok(())
    }
}
