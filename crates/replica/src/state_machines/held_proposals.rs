//! Proposals of other members that arrive while no member can accept them: this member leads and is
//! transferring leadership, or it knows of no leader, for example because it has stepped down.
//!
//! Raft would drop such a proposal without an error, and its client would wait until it times out.
//! A held proposal is passed to the next leader as soon as a leader is known. Raft has not seen it
//! before, so it is proposed at most once. A proposal is dropped after [`TIMEOUTS_MAX`] election
//! time-outs without a leader. A proposal over the limits below is not held, but passed to raft
//! immediately.

use std::collections::VecDeque;

use clearlane_raft::Message;

use super::Replica;

const PROPOSALS_MAX: usize = 16 << 10;
const BYTES_MAX: u64 = 64 << 20;
/// Number of election time-outs before a held proposal is dropped. With the default of one second,
/// the client of an older proposal has stopped waiting, or soon will: a request waits for 7.5 s at
/// most.
const TIMEOUTS_MAX: usize = 7;

/// Forwarded proposals that wait for the next leader, oldest first.
#[derive(Debug, Default)]
pub(super) struct HeldProposals {
    /// The proposals, each with the number of ticks until it is dropped.
    proposals: VecDeque<(Message, usize)>,
    bytes: u64,
}

impl HeldProposals {
    /// Holds a proposal. Returns the proposal if there is no capacity.
    fn push(&mut self, proposal: Message, ticks: usize) -> Option<Message> {
        let bytes = self.bytes + proposal.bytes();
        if self.proposals.len() >= PROPOSALS_MAX || bytes > BYTES_MAX {
            return Some(proposal);
        }
        self.bytes = bytes;
        self.proposals.push_back((proposal, ticks));
        None
    }

    fn pop(&mut self) -> Option<Message> {
        let (proposal, _) = self.proposals.pop_front()?;
        self.bytes -= proposal.bytes();
        Some(proposal)
    }

    pub(super) fn tick(&mut self) {
        for (_, ticks) in &mut self.proposals {
            *ticks = ticks.saturating_sub(1);
        }
        while self.proposals.front().is_some_and(|(_, ticks)| *ticks == 0) {
            self.pop();
        }
    }
}

impl Replica {
    /// Holds a proposal while no member can accept it. Returns the proposal if raft should get it
    /// now: a leader can accept it, or there is no capacity to hold it.
    pub(super) fn hold_proposal(&mut self, proposal: Message) -> Option<Message> {
        if self.can_propose() {
            return Some(proposal);
        }
        let ticks = TIMEOUTS_MAX * self.config.raft.election_ticks;
        self.held_proposals.push(proposal, ticks)
    }

    /// Passes the held proposals to raft if a leader can accept them. Returns whether any proposal
    /// was passed.
    pub(super) fn step_held_proposals(&mut self) -> bool {
        let mut has_stepped = false;
        while self.can_propose()
            && let Some(proposal) = self.held_proposals.pop()
        {
            // A rejected proposal is lost, as it would be if it arrived now.
            let _ = self.step_or_hold(proposal);
            has_stepped = true;
        }
        has_stepped
    }
}
