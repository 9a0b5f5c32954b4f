//! What goes wrong, and when: drawn from the seed.
//!
//! # The idea
//!
//! A fault alone is seldom interesting; code is written with single faults in mind. What finds mistakes
//! is a fault upon a fault: a leader is cut off while its clock runs slow, and the member that takes
//! over loses its power with the vote half written. So faults come one after the other, with pauses of
//! any size between, milliseconds or seconds, each lasts for a while of its own, and they overlap.
//!
//! And each seed has its *taste*: some kinds of faults are frequent in it and some never come. If every
//! seed had a bit of everything, each would be like the other, and a mistake that needs many restarts
//! without a single cut would never be seen.
//!
//! ```text
//!   0 s                                                                     20 s         ≤ 80 s
//!   │ clients ask and ask ...                                                 │            │
//!   │   faults ──╳────╳╳──╳───────╳─────────╳╳╳──╳────╳──────────╳──╳──────── │ the quiet  │
//!   │                                                                         │ end        │
//!                                                                all repaired ┘   all agree ┘
//! ```
//!
//! At the quiet end everything is repaired. From then on there is no excuse: a write must come through,
//! and all members must come to the same.
//!
//! # What is spared
//!
//! No fault takes away what cannot be replaced: disks lose what was not synced, and nothing else.
//! Members leave only while enough others vote to replace a lost majority by waiting. Under leases
//! clocks differ by less than the margin that leases leave for it.

use crate::chance::Chance;
use crate::network::{Cut, Weather};
use crate::world::{MILLISECOND, Micros, SECOND};

/// Something that goes wrong, or is asked for at a bad moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Members stop, and start again after a while.
    Crash {
        /// Which.
        members: Vec<u64>,
        /// Whether the machine lost its power, too, and with it what was not synced.
        power: bool,
        /// For how long.
        down: Micros,
    },
    /// A machine loses its power in the midst of something: at the n-th operation of its disk from now.
    PowerCut {
        /// Which.
        member: u64,
        /// Before which operation.
        operation: u64,
        /// For how long.
        down: Micros,
    },
    /// A disk reports an error, at the n-th operation from now. The member must stop.
    DiskError {
        /// Whose.
        member: u64,
        /// Which operation.
        operation: u64,
        /// For how long it is down.
        down: Micros,
    },
    /// Links are cut for a while.
    Cut(Cut, Micros),
    /// The network is in another state for a while.
    Weather(Weather, Micros),
    /// A disk takes up to so long for a batch, for a while.
    SlowDisk {
        /// Whose.
        member: u64,
        /// The longest write.
        write: Micros,
        /// For how long.
        lasts: Micros,
    },
    /// A member does nothing for a while, and does not notice: its process was stopped.
    Pause(u64, Micros),
    /// A clock goes at another rate.
    Drift(u64, i64),
    /// A new member is to join.
    Join,
    /// A learner is to become a voter.
    Promote(u64),
    /// A member is to leave.
    Leave(u64),
    /// The leader is to hand over.
    Transfer {
        /// To whom.
        to: u64,
        /// Whether the old leader is cut off as soon as it has asked the new one to take over.
        cut: Option<Micros>,
    },
    /// Whoever votes next loses its power right then, and who gets the vote is cut off from the others.
    Vote {
        /// How long the voter is down.
        down: Micros,
        /// How long the cut lasts.
        cut: Micros,
    },
    /// Old revisions are to be forgotten.
    Compact,
}

/// What can be seen of the cluster by those who want to break it.
#[derive(Clone, Debug, Default)]
pub struct Sight {
    /// The members that run.
    pub up: Vec<u64>,
    /// Who leads, in the newest term.
    pub leader: Option<u64>,
    /// Who votes.
    pub voters: Vec<u64>,
    /// Who only listens.
    pub learners: Vec<u64>,
}

/// The kinds, with how frequent they are in a seed that has a taste for them.
const KINDS: [(Kind, u64); 14] = [
    (Kind::Crash, 10),
    (Kind::CrashMany, 5),
    (Kind::PowerCut, 10),
    (Kind::DiskError, 4),
    (Kind::Cut, 12),
    (Kind::CutLeader, 8),
    (Kind::Weather, 8),
    (Kind::SlowDisk, 5),
    (Kind::Pause, 5),
    (Kind::Drift, 4),
    (Kind::Members, 8),
    (Kind::Transfer, 8),
    (Kind::Vote, 6),
    (Kind::Compact, 5),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Crash,
    CrashMany,
    PowerCut,
    DiskError,
    Cut,
    CutLeader,
    Weather,
    SlowDisk,
    Pause,
    Drift,
    Members,
    Transfer,
    Vote,
    Compact,
}

/// Where faults come from.
#[derive(Debug)]
pub struct Faults {
    taste: Vec<(Kind, u64)>,
    longest_pause: Micros,
    drift_ppm_max: u64,
    /// With fewer voters nobody leaves.
    voters_min: usize,
    /// Of ten changes of members, how many are removals.
    removals_of_ten: u64,
    chance: Chance,
}

impl Faults {
    /// The faults of a seed, in a cluster that keeps so many voters.
    pub fn new(mut chance: Chance, voters_min: usize, drift_ppm_max: u64) -> Faults {
        let mut taste: Vec<(Kind, u64)> =
            KINDS.into_iter().filter(|_| chance.permille(650)).collect();
        if taste.is_empty() {
            taste = KINDS.to_vec();
        }
        let longest_pause = chance.of_any_size(600 * MILLISECOND, 8 * SECOND);
        Faults { taste, longest_pause, drift_ppm_max, voters_min, removals_of_ten: 3, chance }
    }

    /// Changes of members become frequent, and nearly all of them removals.
    pub fn remove_members_often(&mut self) {
        self.prefer(Kind::Members);
        self.removals_of_ten = 9;
    }

    /// Leaders are often asked to hand over.
    pub fn transfer_often(&mut self) {
        self.prefer(Kind::Transfer);
    }

    fn prefer(&mut self, preferred: Kind) {
        self.taste.retain(|(kind, _)| *kind != preferred);
        self.taste.push((preferred, 40));
    }

    /// How long nothing new goes wrong.
    pub fn pause(&mut self) -> Micros {
        self.chance.of_any_size(MILLISECOND, self.longest_pause)
    }

    /// What goes wrong now; nothing if what was drawn cannot happen to this cluster.
    pub fn draw(&mut self, sight: &Sight) -> Option<Fault> {
        let all: u64 = self.taste.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.chance.between(1, all);
        let kind = self.taste.iter().find(|(_, weight)| {
            let found = drawn <= *weight;
            drawn = drawn.saturating_sub(*weight);
            found
        });
        let (kind, _) = kind?;
        self.fault(*kind, sight)
    }

    fn fault(&mut self, kind: Kind, sight: &Sight) -> Option<Fault> {
        let member = self.victim(sight)?;
        let chance = &mut self.chance;
        Some(match kind {
            Kind::Crash => {
                let (members, power) = (vec![member], chance.permille(700));
                Fault::Crash { members, power, down: a_while(chance) }
            }
            Kind::CrashMany => {
                let all = chance.permille(500);
                let members = if all { sight.up.clone() } else { chance.some_of(&sight.up) };
                let power = chance.permille(900);
                Fault::Crash { members, power, down: a_while(chance) }
            }
            Kind::PowerCut => {
                let (operation, down) = (chance.of_any_size(1, 40), a_while(chance));
                Fault::PowerCut { member, operation, down }
            }
            Kind::DiskError => {
                let (operation, down) = (chance.of_any_size(1, 40), a_while(chance));
                Fault::DiskError { member, operation, down }
            }
            Kind::Cut => {
                let cut = any_cut(chance, member, &sight.up)?;
                Fault::Cut(cut, a_while(chance))
            }
            Kind::CutLeader => {
                let leader = sight.leader?;
                let cut = match chance.between(0, 3) {
                    0 => Cut::Mute(leader),
                    1 => Cut::Deaf(leader),
                    _ => Cut::Split(vec![leader]),
                };
                Fault::Cut(cut, chance.between(500 * MILLISECOND, 4 * SECOND))
            }
            Kind::Weather => Fault::Weather(Weather::any(chance), a_while(chance)),
            Kind::SlowDisk => {
                let write = chance.of_any_size(10 * MILLISECOND, 2 * SECOND);
                Fault::SlowDisk { member, write, lasts: a_while(chance) }
            }
            Kind::Pause => Fault::Pause(member, a_while(chance)),
            Kind::Drift => {
                let size = chance.of_any_size(0, self.drift_ppm_max) as i64;
                Fault::Drift(member, if chance.permille(500) { size } else { -size })
            }
            Kind::Members => return self.members(sight),
            Kind::Transfer => {
                let to = *chance.one_of(&sight.voters)?;
                let cut = chance.permille(600).then(|| chance.between(SECOND, 3 * SECOND));
                Fault::Transfer { to, cut }
            }
            Kind::Vote => {
                let down = chance.of_any_size(MILLISECOND, 2 * SECOND);
                Fault::Vote { down, cut: chance.between(SECOND, 5 * SECOND) }
            }
            Kind::Compact => Fault::Compact,
        })
    }

    fn members(&mut self, sight: &Sight) -> Option<Fault> {
        let (voters, learners) = (&sight.voters, &sight.learners);
        match self.chance.between(0, 9) {
            // Removals have the last of the ten.
            drawn if drawn + self.removals_of_ten < 10 => match drawn {
                0..=2 if learners.is_empty() && voters.len() < 6 => Some(Fault::Join),
                _ => self.chance.one_of(learners).copied().map(Fault::Promote),
            },
            _ if voters.len() > self.voters_min => {
                let mut all: Vec<u64> = voters.iter().chain(learners).copied().collect();
                if voters.len() == 2 {
                    all.retain(|id| Some(*id) != sight.leader);
                }
                self.chance.one_of(&all).copied().map(Fault::Leave)
            }
            _ => self.chance.one_of(learners).copied().map(Fault::Leave),
        }
    }

    /// Whose turn it is: the leader's more often than others'.
    fn victim(&mut self, sight: &Sight) -> Option<u64> {
        match sight.leader {
            Some(leader) if self.chance.permille(250) => Some(leader),
            _ => self.chance.one_of(&sight.up).copied(),
        }
    }
}

/// How long something lasts.
fn a_while(chance: &mut Chance) -> Micros {
    chance.of_any_size(20 * MILLISECOND, 6 * SECOND)
}

fn any_cut(chance: &mut Chance, member: u64, up: &[u64]) -> Option<Cut> {
    Some(match chance.between(0, 5) {
        0 => Cut::Split(vec![member]),
        1 => Cut::Split(chance.some_of(up)),
        2 => Cut::Deaf(member),
        3 => Cut::Mute(member),
        4 => Cut::Bridge(member),
        _ => Cut::Link((member, *chance.one_of(up)?)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    use super::*;

    fn sight() -> Sight {
        Sight { up: vec![1, 2, 3], leader: Some(2), voters: vec![1, 2, 3], learners: vec![4] }
    }

    #[test]
    fn all_kinds_come_and_each_seed_has_its_taste() {
        let mut kinds = BTreeSet::new();
        let mut tastes = BTreeSet::new();
        for seed in 0..50 {
            let mut faults = Faults::new(Chance::new(seed), 3, 1000);
            tastes.insert(format!("{:?}", faults.taste));
            for _ in 0..200 {
                let fault = faults.draw(&sight());
                let with_few_voters = Sight { voters: vec![1, 2, 3], learners: vec![], ..sight() };
                let other = faults.draw(&with_few_voters);
                for fault in fault.iter().chain(&other) {
                    kinds.insert(format!("{:?}", discriminant(fault)));
                }
                assert!(!matches!(other, Some(Fault::Leave(_))), "too few are left");
            }
        }
        assert_eq!(kinds.len(), 14, "{kinds:?}");
        assert!(tastes.len() > 40);
    }

    #[test]
    fn a_cluster_of_which_nothing_runs_is_left_alone() {
        let mut faults = Faults::new(Chance::new(1), 3, 1000);
        assert!((0..100).all(|_| faults.draw(&Sight::default()).is_none()));
        assert!((0..100).all(|_| faults.pause() <= 8 * SECOND));
    }
}
