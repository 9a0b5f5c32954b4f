//! Detects parts of this member that make no progress, and moves leadership to another member.
//!
//! ```text
//!   part      has work while                        makes progress when
//!   log       an append waits for its sync          a file operation ends, a batch is durable
//!   apply     committed entries are not applied     an entry is applied, or `record_progress`
//!   network   a thread has not answered the owner   the owner calls `record_progress`
//! ```
//!
//! The owner probes the network threads: each of them must answer a probe. While a thread has not
//! answered, the owner calls `record_progress` if the thread has used CPU time.
//!
//! A part *stalls* if it has work and makes no progress for one election time-out, in ticks. A
//! stalled member does not campaign. A stalled leader transfers leadership to the most advanced
//! [prompt](super::voter_watch) voter, and steps down if it still leads after half an election
//! time-out. The leader keeps leadership if the other voters could not commit without it: the
//! prompt voters must form a quorum. A new leader considers no voter prompt until it has led for
//! one and a half election time-outs, so until then it keeps leadership. See
//! `docs/raft-and-apply.md`.

use clearlane_raft::{Role, VoterProgress};

use super::Replica;
use super::voter_watch::VoterWatches;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The write-ahead log on its disk.
    Log,
    Apply,
    /// A network thread.
    Network,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Log, Part::Apply, Part::Network];

    /// Returns the part's label in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Part::Log => "log",
            Part::Apply => "apply",
            Part::Network => "network",
        }
    }
}

/// A part has stalled or recovered, or a stalled leader acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallEvent {
    /// The part has made no progress for this number of ticks.
    Stalled(Part, usize),
    /// The part has made progress or has no more work, after this number of ticks without progress.
    Recovered(Part, usize),
    /// The stalled leader has asked the member with this id to take over.
    TransfersLeadership(u64),
    /// The transfer did not complete in time. The leader no longer leads, and has asked the member
    /// with this id to campaign.
    StepsDown(u64),
    /// The leader keeps leadership, because too few other voters are prompt.
    KeepsLeadership,
}

#[derive(Debug, Default)]
pub(super) struct StallGuard {
    parts: [PartWatch; Part::ALL.len()],
    is_network_waiting: bool,
    pub(super) voters: VoterWatches,
    attempt: Option<TransferAttempt>,
    /// If true, [`StallEvent::KeepsLeadership`] was reported in this stall.
    has_reported_keeping: bool,
}

#[derive(Debug, Default)]
struct PartWatch {
    ticks_without_progress: usize,
    has_progressed: bool,
    is_stalled: bool,
}

#[derive(Clone, Copy, Debug)]
struct TransferAttempt {
    to: u64,
    ticks: usize,
}

impl PartWatch {
    fn tick(&mut self, part: Part, has_work: bool, limit: usize) -> Option<StallEvent> {
        if std::mem::take(&mut self.has_progressed) || !has_work {
            let ticks = std::mem::take(&mut self.ticks_without_progress);
            let was_stalled = std::mem::take(&mut self.is_stalled);
            return was_stalled.then_some(StallEvent::Recovered(part, ticks));
        }
        self.ticks_without_progress += 1;
        let ticks = self.ticks_without_progress;
        let has_stalled = ticks >= limit && !std::mem::replace(&mut self.is_stalled, true);
        has_stalled.then_some(StallEvent::Stalled(part, ticks))
    }
}

impl StallGuard {
    fn is_stalled(&self) -> bool {
        self.parts.iter().any(|part| part.is_stalled)
    }
}

impl Replica {
    /// Records that the part has done some of its work since the last tick.
    pub fn record_progress(&mut self, part: Part) {
        self.stalls.parts[part as usize].has_progressed = true;
    }

    /// Records whether any network thread has not yet answered the owner's probe.
    pub fn set_network_waiting(&mut self, is_waiting: bool) {
        self.stalls.is_network_waiting = is_waiting;
    }

    pub(super) fn tick_stalls(&mut self) {
        let election_ticks = self.config.raft.election_ticks;
        for part in Part::ALL {
            let has_work = match part {
                Part::Log => self.wal.is_awaited(),
                Part::Apply => self.has_unapplied(),
                Part::Network => self.stalls.is_network_waiting,
            };
            let event = self.stalls.parts[part as usize].tick(part, has_work, election_ticks);
            self.ready.stall_events.extend(event);
        }
        self.raft.set_held_back(self.stalls.is_stalled());
        let voters = self.raft.voter_progress();
        self.stalls.voters.tick(&voters, self.raft.last_index(), election_ticks);
        if self.stalls.is_stalled() && self.raft.leadership().role == Role::Leader {
            self.hand_over(&voters, election_ticks);
        } else {
            self.stalls.attempt = None;
            self.stalls.has_reported_keeping = false;
        }
    }

    fn hand_over(&mut self, voters: &[VoterProgress], election_ticks: usize) {
        let watches = &self.stalls.voters;
        let prompt: Vec<VoterProgress> = voters
            .iter()
            .filter(|voter| watches.is_prompt(voter.id, election_ticks))
            .copied()
            .collect();
        // The size of a quorum of all voters, including this member. `prompt` does not include this
        // member, so this number of prompt voters is a quorum without this member.
        let quorum = voters.len().div_ceil(2) + 1;
        let attempt = self.stalls.attempt;
        let heir = most_advanced(&prompt, attempt.map(|attempt| attempt.to));
        let Some(heir) = heir.filter(|_| prompt.len() >= quorum) else {
            if !std::mem::replace(&mut self.stalls.has_reported_keeping, true) {
                self.ready.stall_events.push(StallEvent::KeepsLeadership);
            }
            return;
        };
        self.stalls.attempt = match attempt {
            None => {
                self.raft.transfer_leader(heir);
                self.ready.stall_events.push(StallEvent::TransfersLeadership(heir));
                Some(TransferAttempt { to: heir, ticks: 0 })
            }
            Some(TransferAttempt { to, ticks }) if 2 * (ticks + 1) < election_ticks => {
                Some(TransferAttempt { to, ticks: ticks + 1 })
            }
            Some(_) => {
                self.raft.step_down(Some(heir));
                self.ready.stall_events.push(StallEvent::StepsDown(heir));
                None
            }
        };
    }
}

/// Returns the voter with the highest acknowledged index. If several voters have that index, the
/// result is not `asked`, the voter of the last attempt. Returns `None` if there are no voters.
fn most_advanced(voters: &[VoterProgress], asked: Option<u64>) -> Option<u64> {
    let key = |voter: &&VoterProgress| (voter.matched, Some(voter.id) != asked);
    voters.iter().max_by_key(key).map(|voter| voter.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_stalls_at_the_limit_and_recovers_with_progress() {
        let mut watch = PartWatch::default();
        let mut tick = |has_work: bool, progresses: bool| {
            watch.has_progressed |= progresses;
            watch.tick(Part::Apply, has_work, 3)
        };
        // Nothing stalls without work, or with progress in every third tick.
        assert!((0..10).all(|_| tick(false, false).is_none()));
        assert!((0..10).all(|number| tick(true, number % 3 == 2).is_none()));
        assert!(tick(false, false).is_none());
        assert!((0..2).all(|_| tick(true, false).is_none()));
        assert_eq!(tick(true, false), Some(StallEvent::Stalled(Part::Apply, 3)));
        assert!((0..4).all(|_| tick(true, false).is_none()), "it is reported once");
        assert_eq!(tick(true, true), Some(StallEvent::Recovered(Part::Apply, 7)));
        assert!((0..2).all(|_| tick(true, false).is_none()), "it counts from the progress");
    }

    #[test]
    fn the_most_advanced_voter_is_asked_and_among_equals_another_one() {
        let voter = |id, matched| VoterProgress { id, matched, needs_snapshot: false };
        let voters = [voter(2, 7), voter(3, 9), voter(4, 9)];
        assert_eq!(most_advanced(&voters, Some(3)), Some(4));
        assert_eq!(most_advanced(&voters, Some(4)), Some(3));
        assert_eq!(most_advanced(&voters[..2], Some(3)), Some(3));
        assert_eq!(most_advanced(&[], None), None);
    }
}
