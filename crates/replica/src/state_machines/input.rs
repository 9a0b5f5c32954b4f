//! The inputs of a member's raft half.

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft as raft;
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
        /// It was [checked](crate::apply::check()).
        request: Box<InternalRaftRequest>,
        /// Of the transaction that it is, if they were evaluated before.
        compares: Option<Box<EvaluatedCompares>>,
        of: RequestId,
    },
    ChangeMembers(MemberChange, RequestId),
    /// A read waits until this member has applied all that was acknowledged before.
    ReadIndex(RequestId),
    /// The request has been dropped.
    Cancel(RequestId),
    Message(Message),
    /// A complete copy of another member's store.
    RaftSnapshot(Box<ReceivedSnapshot>),
    RaftSnapshotSent {
        to: u64,
        is_delivered: bool,
    },
    Unreachable(u64),
    /// Does nothing unless this member leads.
    TransferLeader(u64),
    /// The result of [`ReplicaReady::wal_batch`](super::ReplicaReady::wal_batch).
    WalWritten(BatchResult),
    /// The position that the engine has on disk.
    StoreCommitted(AppliedPosition),
    Applied(Box<ApplyReport>),
}

impl Replica {
    /// After an error the process stops.
    pub fn handle_input(&mut self, input: ReplicaInput) -> Result<()> {
        match input {
            ReplicaInput::Propose { request, compares, of } => {
                self.handle_proposal(QueuedProposal::Request(request, compares), of)
            }
            ReplicaInput::ChangeMembers(change, of) => match self.check_change(&change) {
                Ok(()) => self.handle_proposal(QueuedProposal::MemberChange(change), of),
                Err(error) => self.complete(of, RequestOutcome::ChangeRejected(error)),
            },
            ReplicaInput::ReadIndex(of) => {
                if let Err(error) = self.read_index.enqueue(of) {
                    self.complete(of, RequestOutcome::ReadFailed(error));
                }
            }
            // Only a queued proposal is taken back: one that was proposed may still be applied.
            ReplicaInput::Cancel(of) => {
                if !self.wait.cancel(of) && !self.read_index.cancel(of) {
                    self.queued_proposals.cancel(of);
                }
            }
            ReplicaInput::Message(message) => {
                // A message that raft refuses is not this member's error, but it may prove one.
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
            ReplicaInput::WalWritten(written) => self.handle_written(written)?,
            ReplicaInput::StoreCommitted(durable) => self.handle_store_committed(&durable)?,
            ReplicaInput::Applied(applied) => self.handle_applied(*applied)?,
        }
        Ok(())
    }

    /// Proposes, or queues the proposal until there is a leader.
    fn handle_proposal(&mut self, proposal: QueuedProposal, of: RequestId) {
        if self.can_propose() && self.queued_proposals.is_empty() {
            self.propose(proposal, of);
        } else if !self.queued_proposals.push(proposal, of) {
            self.complete(of, RequestOutcome::NotProposed(raft::Error::QueueFull));
        }
    }

    /// Whether a change is possible as far as this member knows; it is checked again when applied.
    /// Only the leader knows how far a learner has come.
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
