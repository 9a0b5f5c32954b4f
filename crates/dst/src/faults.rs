//! What goes wrong, and when: drawn from the seed.
//!
//! ```text
//!   0 s                                                                     20 s         ≤ 80 s
//!   │ clients ask and ask ...                                                 │            │
//!   │   faults ──╳────╳╳──╳───────╳─────────╳╳╳──╳────╳──────────╳──╳──────── │ the quiet  │
//!   │                                                                         │ end        │
//!                                                                all repaired ┘   all agree ┘
//! ```
//!
//! Faults overlap, and of their kinds some are left out in each seed: see `docs/dst.md`. No fault
//! takes away what cannot be replaced: disks lose what was not synced, and nothing else. Members
//! leave only while enough others vote that a lost majority comes back by waiting. Under leases,
//! clocks differ by less than the margin that leases leave for it.

use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::network::{NetworkFaults, Partition};
use crate::rng::Rng;

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
    /// A machine loses its power in the midst of something: at the n-th operation of its disk from
    /// now.
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
        /// The member.
        member: u64,
        /// Which operation.
        operation: u64,
        /// For how long it is down.
        down: Micros,
    },
    /// Links are cut for a while.
    Partition(Partition, Micros),
    /// The network is in another state for a while.
    Network(NetworkFaults, Micros),
    /// A disk takes up to so long for a batch, for a while.
    SlowDisk {
        /// The member.
        member: u64,
        /// The longest write.
        write: Micros,
        /// For how long.
        duration: Micros,
    },
    /// A member does nothing for a while, and does not notice: its process was stopped.
    Pause(u64, Micros),
    /// A clock goes at another rate.
    Drift(u64, i64),
    /// A new member is to join.
    AddMember,
    /// A learner is to become a voter.
    Promote(u64),
    /// A member is to leave.
    RemoveMember(u64),
    /// The leader is to hand over.
    TransferLeader {
        /// The member that takes over.
        to: u64,
        /// Whether the old leader is cut off as soon as it has asked the new one to take over.
        cut: Option<Micros>,
    },
    /// The next voter loses its power right then, and the member that gets the vote is cut off from
    /// the others.
    CrashAfterVote {
        /// How long the voter is down.
        down: Micros,
        /// How long the cut lasts.
        cut: Micros,
    },
    /// Old revisions are to be forgotten.
    Compact,
}

/// What can be seen of the cluster by the fault generator.
#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    /// The members that run.
    pub up: Vec<u64>,
    /// The leader, in the newest term.
    pub leader: Option<u64>,
    /// The voters.
    pub voters: Vec<u64>,
    /// The learners.
    pub learners: Vec<u64>,
}

/// The kinds, with how frequent each is in a seed in which it occurs.
const FAULT_WEIGHTS: [(FaultKind, u64); 14] = [
    (FaultKind::Crash, 10),
    (FaultKind::CrashMany, 5),
    (FaultKind::PowerCut, 10),
    (FaultKind::DiskError, 4),
    (FaultKind::Partition, 12),
    (FaultKind::PartitionLeader, 8),
    (FaultKind::Network, 8),
    (FaultKind::SlowDisk, 5),
    (FaultKind::Pause, 5),
    (FaultKind::Drift, 4),
    (FaultKind::Members, 8),
    (FaultKind::TransferLeader, 8),
    (FaultKind::CrashAfterVote, 6),
    (FaultKind::Compact, 5),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Crash,
    CrashMany,
    PowerCut,
    DiskError,
    Partition,
    PartitionLeader,
    Network,
    SlowDisk,
    Pause,
    Drift,
    Members,
    TransferLeader,
    CrashAfterVote,
    Compact,
}

/// Where faults come from.
#[derive(Debug)]
pub struct FaultGenerator {
    weights: Vec<(FaultKind, u64)>,
    pause_max: Micros,
    drift_ppm_max: u64,
    /// With fewer voters no member leaves.
    voters_min: usize,
    /// Of ten changes of members, how many are removals.
    removals_of_ten: u64,
    rng: Rng,
}

impl FaultGenerator {
    /// The faults of a seed, in a cluster that keeps this number of voters.
    pub fn new(mut chance: Rng, voters_min: usize, drift_ppm_max: u64) -> FaultGenerator {
        let mut weights: Vec<(FaultKind, u64)> =
            FAULT_WEIGHTS.into_iter().filter(|_| chance.permille(650)).collect();
        if weights.is_empty() {
            weights = FAULT_WEIGHTS.to_vec();
        }
        let longest_pause = chance.log_uniform(600 * MILLISECOND, 8 * SECOND);
        FaultGenerator {
            weights,
            pause_max: longest_pause,
            drift_ppm_max,
            voters_min,
            removals_of_ten: 3,
            rng: chance,
        }
    }

    /// Changes of members become frequent, and nearly all of them removals.
    pub fn remove_members_often(&mut self) {
        self.prefer(FaultKind::Members);
        self.removals_of_ten = 9;
    }

    /// Leaders are often asked to hand over.
    pub fn transfer_often(&mut self) {
        self.prefer(FaultKind::TransferLeader);
    }

    /// Leaders are often cut off.
    pub fn partition_leaders_often(&mut self) {
        self.prefer(FaultKind::PartitionLeader);
    }

    fn prefer(&mut self, preferred: FaultKind) {
        self.weights.retain(|(kind, _)| *kind != preferred);
        self.weights.push((preferred, 40));
    }

    /// How long nothing new goes wrong.
    pub fn pause(&mut self) -> Micros {
        self.rng.log_uniform(MILLISECOND, self.pause_max)
    }

    /// What goes wrong now; nothing if what was drawn cannot happen to this cluster.
    pub fn next_fault(&mut self, sight: &ClusterView) -> Option<Fault> {
        let all: u64 = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.between(1, all);
        let kind = self.weights.iter().find(|(_, weight)| {
            let found = drawn <= *weight;
            drawn = drawn.saturating_sub(*weight);
            found
        });
        let (kind, _) = kind?;
        self.fault_of_kind(*kind, sight)
    }

    fn fault_of_kind(&mut self, kind: FaultKind, sight: &ClusterView) -> Option<Fault> {
        let member = self.choose_member(sight)?;
        let chance = &mut self.rng;
        Some(match kind {
            FaultKind::Crash => {
                let (members, power) = (vec![member], chance.permille(700));
                Fault::Crash { members, power, down: random_duration(chance) }
            }
            FaultKind::CrashMany => {
                let all = chance.permille(500);
                let members = if all { sight.up.clone() } else { chance.choose_some(&sight.up) };
                let power = chance.permille(900);
                Fault::Crash { members, power, down: random_duration(chance) }
            }
            FaultKind::PowerCut => {
                let (operation, down) = (chance.log_uniform(1, 40), random_duration(chance));
                Fault::PowerCut { member, operation, down }
            }
            FaultKind::DiskError => {
                let (operation, down) = (chance.log_uniform(1, 40), random_duration(chance));
                Fault::DiskError { member, operation, down }
            }
            FaultKind::Partition => {
                let cut = random_partition(chance, member, &sight.up)?;
                Fault::Partition(cut, random_duration(chance))
            }
            FaultKind::PartitionLeader => {
                let leader = sight.leader?;
                let cut = match chance.between(0, 3) {
                    0 => Partition::NoOutbound(leader),
                    1 => Partition::NoInbound(leader),
                    _ => Partition::Split(vec![leader]),
                };
                Fault::Partition(cut, chance.between(500 * MILLISECOND, 4 * SECOND))
            }
            FaultKind::Network => {
                Fault::Network(NetworkFaults::random(chance), random_duration(chance))
            }
            FaultKind::SlowDisk => {
                let write = chance.log_uniform(10 * MILLISECOND, 2 * SECOND);
                Fault::SlowDisk { member, write, duration: random_duration(chance) }
            }
            FaultKind::Pause => Fault::Pause(member, random_duration(chance)),
            FaultKind::Drift => {
                let size = chance.log_uniform(0, self.drift_ppm_max) as i64;
                Fault::Drift(member, if chance.permille(500) { size } else { -size })
            }
            FaultKind::Members => return self.member_change(sight),
            FaultKind::TransferLeader => {
                let to = *chance.choose(&sight.voters)?;
                let cut = chance.permille(600).then(|| chance.between(SECOND, 3 * SECOND));
                Fault::TransferLeader { to, cut }
            }
            FaultKind::CrashAfterVote => {
                let down = chance.log_uniform(MILLISECOND, 2 * SECOND);
                Fault::CrashAfterVote { down, cut: chance.between(SECOND, 5 * SECOND) }
            }
            FaultKind::Compact => Fault::Compact,
        })
    }

    fn member_change(&mut self, sight: &ClusterView) -> Option<Fault> {
        let (voters, learners) = (&sight.voters, &sight.learners);
        match self.rng.between(0, 9) {
            // Removals have the last of the ten.
            drawn if drawn + self.removals_of_ten < 10 => match drawn {
                0..=2 if learners.is_empty() && voters.len() < 6 => Some(Fault::AddMember),
                _ => self.rng.choose(learners).copied().map(Fault::Promote),
            },
            _ if voters.len() > self.voters_min => {
                let mut all: Vec<u64> = voters.iter().chain(learners).copied().collect();
                if voters.len() == 2 {
                    all.retain(|id| Some(*id) != sight.leader);
                }
                self.rng.choose(&all).copied().map(Fault::RemoveMember)
            }
            _ => self.rng.choose(learners).copied().map(Fault::RemoveMember),
        }
    }

    /// The next member: the leader more often than others.
    fn choose_member(&mut self, sight: &ClusterView) -> Option<u64> {
        match sight.leader {
            Some(leader) if self.rng.permille(250) => Some(leader),
            _ => self.rng.choose(&sight.up).copied(),
        }
    }
}

/// How long something lasts.
fn random_duration(chance: &mut Rng) -> Micros {
    chance.log_uniform(20 * MILLISECOND, 6 * SECOND)
}

fn random_partition(chance: &mut Rng, member: u64, up: &[u64]) -> Option<Partition> {
    Some(match chance.between(0, 5) {
        0 => Partition::Split(vec![member]),
        1 => Partition::Split(chance.choose_some(up)),
        2 => Partition::NoInbound(member),
        3 => Partition::NoOutbound(member),
        4 => Partition::Bridge(member),
        _ => Partition::Link((member, *chance.choose(up)?)),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::mem::discriminant;

    use super::*;

    fn cluster_view() -> ClusterView {
        ClusterView { up: vec![1, 2, 3], leader: Some(2), voters: vec![1, 2, 3], learners: vec![4] }
    }

    #[test]
    fn all_kinds_come_and_each_seed_has_its_taste() {
        let mut kinds = BTreeSet::new();
        let mut all_weights = BTreeSet::new();
        for seed in 0..50 {
            let mut faults = FaultGenerator::new(Rng::new(seed), 3, 1000);
            all_weights.insert(format!("{:?}", faults.weights));
            for _ in 0..200 {
                let fault = faults.next_fault(&cluster_view());
                let with_few_voters =
                    ClusterView { voters: vec![1, 2, 3], learners: vec![], ..cluster_view() };
                let other = faults.next_fault(&with_few_voters);
                for fault in fault.iter().chain(&other) {
                    kinds.insert(format!("{:?}", discriminant(fault)));
                }
                assert!(!matches!(other, Some(Fault::RemoveMember(_))), "too few are left");
            }
        }
        assert_eq!(kinds.len(), 14, "{kinds:?}");
        assert!(all_weights.len() > 40);
    }

    #[test]
    fn a_cluster_of_which_nothing_runs_is_left_alone() {
        let mut faults = FaultGenerator::new(Rng::new(1), 3, 1000);
        assert!((0..100).all(|_| faults.next_fault(&ClusterView::default()).is_none()));
        assert!((0..100).all(|_| faults.pause() <= 8 * SECOND));
    }
}
