//! Measures how promptly other voters acknowledge entries, as seen by this leader.
//!
//! A voter is *prompt* if two conditions have held for the last one and a half election time-outs.
//! It was never silent for longer than three quarters of an election time-out. It also never took
//! longer than this time to acknowledge another entry, while it had entries to acknowledge. So a
//! voter whose disk stalls is not prompt, and neither is a voter whose syncs take as long as an
//! election time-out. If all disks are that slow, leadership does not move from one member to the
//! next.
//!
//! Voters are watched only while this member leads. So for a new leader no voter is prompt, until
//! it has led for one and a half election time-outs, in ticks. The same holds for a new voter.

use std::collections::BTreeMap;

use clearlane_raft::VoterProgress;

#[derive(Debug, Default)]
pub(super) struct VoterWatches {
    watches: BTreeMap<u64, VoterWatch>,
    /// The leader's last index at the previous tick. The leader has sent entries up to this index.
    sent_index: u64,
}

#[derive(Debug, Default)]
struct VoterWatch {
    matched: u64,
    /// Ticks since the voter acknowledged another entry, while it has some to acknowledge.
    lag_ticks: usize,
    /// Ticks since the last message of the voter.
    silent_ticks: usize,
    prompt_ticks: usize,
}

impl VoterWatches {
    /// Records that a message of member `from` has arrived.
    pub(super) fn record_message(&mut self, from: u64) {
        if let Some(watch) = self.watches.get_mut(&from) {
            watch.silent_ticks = 0;
        }
    }

    /// Records one tick. `voters` lists the other voters. The list is empty unless this member
    /// leads.
    pub(super) fn tick(
        &mut self,
        voters: &[VoterProgress],
        last_index: u64,
        election_ticks: usize,
    ) {
        self.watches.retain(|id, _| voters.iter().any(|voter| voter.id == *id));
        for voter in voters {
            let watch = self.watches.entry(voter.id).or_default();
            let has_advanced = voter.matched != watch.matched || voter.matched >= self.sent_index;
            // A voter that needs a raft snapshot has nothing to acknowledge until the raft snapshot
            // arrives.
            let is_waiting = !has_advanced && !voter.needs_snapshot;
            watch.lag_ticks = if is_waiting { watch.lag_ticks + 1 } else { 0 };
            watch.silent_ticks += 1;
            watch.matched = voter.matched;
            let delay = watch.lag_ticks.max(watch.silent_ticks);
            let is_prompt = 4 * delay <= 3 * election_ticks;
            watch.prompt_ticks = if is_prompt { watch.prompt_ticks + 1 } else { 0 };
        }
        self.sent_index = last_index;
    }

    pub(super) fn is_prompt(&self, id: u64, election_ticks: usize) -> bool {
        self.watches.get(&id).is_some_and(|watch| 2 * watch.prompt_ticks >= 3 * election_ticks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ELECTION_TICKS: usize = 10;

    fn voter(matched: u64) -> VoterProgress {
        VoterProgress { id: 2, matched, needs_snapshot: false }
    }

    /// Runs `ticks` ticks and returns whether voter 2 is prompt. One entry is proposed in each
    /// tick. Voter 2 acknowledges all entries in every `interval`th tick.
    fn run(watches: &mut VoterWatches, ticks: u64, interval: u64) -> bool {
        let first = watches.sent_index;
        for tick in 1..=ticks {
            watches.record_message(2);
            let acknowledged = first + tick - tick % interval;
            watches.tick(&[voter(acknowledged)], first + tick, ELECTION_TICKS);
        }
        watches.is_prompt(2, ELECTION_TICKS)
    }

    #[test]
    fn a_voter_with_slow_syncs_is_not_prompt() {
        for (interval, expected) in [(1, true), (3, true), (7, true), (10, false), (20, false)] {
            let mut watches = VoterWatches::default();
            assert_eq!(run(&mut watches, 60, interval), expected, "every {interval} ticks");
        }
    }

    #[test]
    fn a_voter_is_prompt_again_after_some_time() {
        let mut watches = VoterWatches::default();
        assert!(!run(&mut watches, 14, 1));
        assert!(run(&mut watches, 1, 1));
        assert!(!run(&mut watches, 9, 100), "it acknowledges nothing");
        assert!(!run(&mut watches, 14, 1));
        assert!(run(&mut watches, 2, 1));
    }

    #[test]
    fn a_silent_voter_is_not_prompt() {
        let mut watches = VoterWatches::default();
        assert!(run(&mut watches, 30, 1));
        // The voter has acknowledged everything, but sends no message for 8 ticks, which is more
        // than three quarters of the election time-out of 10 ticks.
        (0..8).for_each(|_| watches.tick(&[voter(30)], 30, ELECTION_TICKS));
        assert!(!watches.is_prompt(2, ELECTION_TICKS));
    }

    #[test]
    fn a_member_that_does_not_lead_watches_nobody() {
        let mut watches = VoterWatches::default();
        assert!(run(&mut watches, 30, 1));
        watches.tick(&[], 30, ELECTION_TICKS);
        assert!(!watches.is_prompt(2, ELECTION_TICKS));
    }
}
