//! What a member's raft half is told, and asked for.

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_raft_log::driver::{self, Message, Role};
use clearlane_raft_log::wal::group::Written;

use super::unproposed::Proposal;
use super::{Applied, ChangeError, Core, Outcome, RequestId};
use crate::copies::Received;
use crate::error::Result;
use crate::membership::{Change, Refused, learner_is_ready};
use crate::progress::Progress;

/// One thing for the raft loop.
#[derive(Debug)]
pub enum Input {
    /// A request, which was [checked](crate::requests::check()), is to be proposed.
    Propose(Box<InternalRaftRequest>, RequestId),
    /// A change of members is to be proposed.
    ChangeMembers(Change, RequestId),
    /// A read waits until this member has applied all that was acknowledged before.
    Read(RequestId),
    /// A request has gone, and waits for nothing any more.
    GiveUp(RequestId),
    /// A message of another member.
    Message(Message),
    /// A copy of another member's store is here, whole.
    Copy(Box<Received>),
    /// A copy has arrived at a member, or has not.
    CopySent {
        /// The member.
        to: u64,
        /// Whether it has.
        arrived: bool,
    },
    /// Messages to this member get lost.
    Unreachable(u64),
    /// This member is to lead, if this one does.
    TransferLeader(u64),
    /// What has become of [`Outputs::write`](super::Outputs::write).
    Written(Written),
    /// The store was committed: its engine has this on disk.
    Committed(Progress),
    /// What the apply loop has done.
    Applied(Box<Applied>),
}

impl Core {
    /// Takes note of something. After an error the process stops.
    pub fn take(&mut self, input: Input) -> Result<()> {
        match input {
            Input::Propose(request, of) => self.take_proposal(Proposal::Request(request), of),
            Input::ChangeMembers(change, of) => match self.may_change(&change) {
                Ok(()) => self.take_proposal(Proposal::Members(change), of),
                Err(error) => self.complete(of, Outcome::NotChanged(error)),
            },
            Input::Read(of) => {
                if let Err(error) = self.barrier.read(of) {
                    self.complete(of, Outcome::MayNotRead(error));
                }
            }
            Input::GiveUp(of) => {
                if !self.wait.give_up(of) && !self.barrier.cancel(of) {
                    self.unproposed.give_up(of);
                }
            }
            Input::Message(message) => self.take_message(message),
            Input::Copy(copy) => self.copy_received(*copy)?,
            Input::CopySent { to, arrived } => self.copy_sent(to, arrived),
            Input::Unreachable(id) => self.driver.unreachable(id),
            Input::TransferLeader(to) => self.driver.transfer_leader(to),
            Input::Written(written) => self.written(written)?,
            Input::Committed(durable) => self.store_committed(&durable)?,
            Input::Applied(applied) => self.applied(*applied)?,
        }
        Ok(())
    }

    /// What raft cannot use is no fault of this member.
    fn take_message(&mut self, message: Message) {
        let _received = self.receive(message);
        #[cfg(feature = "planted-bugs")]
        self.out.unusable.extend(_received.err());
    }

    /// Proposes, or keeps the proposal until there is a leader.
    fn take_proposal(&mut self, proposal: Proposal, of: RequestId) {
        if self.takes_proposals() && self.unproposed.is_empty() {
            self.propose(proposal, of);
        } else if !self.unproposed.push(proposal, of) {
            self.complete(of, Outcome::NotProposed(driver::Error::QueueFull));
        }
    }

    /// Whether a change is possible as far as this member knows; when it is applied it is checked again. Only
    /// the leader knows how far a learner has come.
    fn may_change(&self, change: &Change) -> std::result::Result<(), ChangeError> {
        let Change::Promote { id } = *change else {
            return Ok(self.members.check(&change.to_conf_change(0))?);
        };
        let leadership = self.driver.leadership();
        if leadership.role != Role::Leader {
            return Err(ChangeError::NotLeader);
        }
        match self.members.get(id) {
            None => Err(Refused::NotFound.into()),
            Some(member) if !member.is_learner => Err(Refused::NotLearner.into()),
            Some(_) => Ok(learner_is_ready(id, leadership.leader, &self.driver.matched())?),
        }
    }
}
