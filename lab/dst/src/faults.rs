//! The faults, drawn from the seed. `docs/dst.md` lists them.
//!
//! ```text
//!   0 s                                                               8 to 30 s   ≤ 60 s more
//!   │ client operations ...                                                   │            │
//!   │   faults ──╳────╳╳──╳───────╳─────────╳╳╳──╳────╳──────────╳──╳──────── │ the quiet  │
//!   │                                                                         │ phase      │
//!                                                                all repaired ┘   all agree ┘
//! ```
//!
//! In a run with stalled disks, faults start 23 s later. Faults overlap. In each seed, about a
//! third of the kinds do not occur. Three limits ensure that a correct cluster breaks no rule:
//!
//! * A disk loses only unsynced data.
//! * Members leave only while enough voters remain. So a majority that has crashed returns after
//!   some time.
//! * If a leader's lease allows its reads, clocks differ by less than the margin of the lease.

use crate::event_queue::{MILLISECOND, Micros, SECOND};
use crate::network::{NetworkFaults, Partition};
use crate::rng::Rng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Members stop, and start again after `down`.
    Crash {
        members: Vec<u64>,
        /// If true, unsynced data is lost.
        power: bool,
        down: Micros,
    },
    /// A machine loses its power before a disk operation.
    PowerCut {
        member: u64,
        /// The number of the operation, counted from the time of the fault.
        operation: u64,
        down: Micros,
    },
    /// A disk operation returns an error. The member must stop.
    DiskError {
        member: u64,
        /// The number of the operation, counted from the time of the fault.
        operation: u64,
        down: Micros,
    },
    Partition(Partition, Micros),
    Network(NetworkFaults, Micros),
    SlowDisk {
        member: u64,
        /// The longest time that writing a batch takes.
        write: Micros,
        duration: Micros,
    },
    /// The process is paused for this time, as by `SIGSTOP`.
    Pause(u64, Micros),
    /// The clock of a member changes its drift, in parts per million.
    Drift(u64, i64),
    AddMember,
    Promote(u64),
    RemoveMember(u64),
    TransferLeader {
        to: u64,
        /// How long the old leader is cut off after its `MsgTimeoutNow` has arrived. `None` if it
        /// is not cut off.
        cut: Option<Micros>,
    },
    /// The next member that votes for a candidate loses its power after its vote has arrived. The
    /// candidate is cut off from all members except the voter.
    CrashAfterVote {
        down: Micros,
        cut: Micros,
    },
    Compact,
}

#[derive(Clone, Debug, Default)]
pub struct ClusterView {
    pub up: Vec<u64>,
    /// The leader of the newest term.
    pub leader: Option<u64>,
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
}

/// The weight of each kind, among the kinds that occur in a seed.
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
pub enum FaultKind {
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

#[derive(Debug)]
pub struct FaultGenerator {
    weights: Vec<(FaultKind, u64)>,
    pause_max: Micros,
    drift_ppm_max: u64,
    /// Minimum number of voters. A voter is removed only if at least this many voters remain.
    voters_min: usize,
    /// Number of draws, out of ten, that remove a member.
    removals_of_ten: u64,
    rng: Rng,
}

impl FaultGenerator {
    pub fn new(mut rng: Rng, voters_min: usize, drift_ppm_max: u64) -> FaultGenerator {
        let mut weights: Vec<(FaultKind, u64)> =
            FAULT_WEIGHTS.into_iter().filter(|_| rng.permille(650)).collect();
        if weights.is_empty() {
            weights = FAULT_WEIGHTS.to_vec();
        }
        let pause_max = rng.log_uniform(600 * MILLISECOND, 8 * SECOND);
        FaultGenerator { weights, pause_max, drift_ppm_max, voters_min, removals_of_ten: 3, rng }
    }

    /// Makes membership changes frequent. Nine of ten are removals.
    pub fn remove_members_often(&mut self) {
        self.prefer(FaultKind::Members);
        self.removals_of_ten = 9;
    }

    pub fn prefer(&mut self, preferred: FaultKind) {
        self.weights.retain(|(kind, _)| *kind != preferred);
        self.weights.push((preferred, 40));
    }

    pub fn pause(&mut self) -> Micros {
        self.rng.log_uniform(MILLISECOND, self.pause_max)
    }

    /// Returns the next fault, or `None` if the drawn kind is not possible in this cluster.
    pub fn next_fault(&mut self, view: &ClusterView) -> Option<Fault> {
        let all: u64 = self.weights.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.rng.between(1, all);
        let kind = self.weights.iter().find(|(_, weight)| {
            let found = drawn <= *weight;
            drawn = drawn.saturating_sub(*weight);
            found
        });
        let (kind, _) = kind?;
        self.fault_of_kind(*kind, view)
    }

    fn fault_of_kind(&mut self, kind: FaultKind, view: &ClusterView) -> Option<Fault> {
        let member = self.choose_member(view)?;
        let rng = &mut self.rng;
        Some(match kind {
            FaultKind::Crash => {
                let (members, power) = (vec![member], rng.permille(700));
                Fault::Crash { members, power, down: random_duration(rng) }
            }
            FaultKind::CrashMany => {
                let all = rng.permille(500);
                let members = if all { view.up.clone() } else { rng.choose_some(&view.up) };
                let power = rng.permille(900);
                Fault::Crash { members, power, down: random_duration(rng) }
            }
            FaultKind::PowerCut => {
                let (operation, down) = (rng.log_uniform(1, 40), random_duration(rng));
                Fault::PowerCut { member, operation, down }
            }
            FaultKind::DiskError => {
                let (operation, down) = (rng.log_uniform(1, 40), random_duration(rng));
                Fault::DiskError { member, operation, down }
            }
            FaultKind::Partition => {
                let cut = random_partition(rng, member, &view.up)?;
                Fault::Partition(cut, random_duration(rng))
            }
            FaultKind::PartitionLeader => {
                let leader = view.leader?;
                let cut = match rng.between(0, 3) {
                    0 => Partition::NoOutbound(leader),
                    1 => Partition::NoInbound(leader),
                    _ => Partition::Split(vec![leader]),
                };
                Fault::Partition(cut, rng.between(500 * MILLISECOND, 4 * SECOND))
            }
            FaultKind::Network => Fault::Network(NetworkFaults::random(rng), random_duration(rng)),
            FaultKind::SlowDisk => {
                let write = rng.log_uniform(10 * MILLISECOND, 2 * SECOND);
                Fault::SlowDisk { member, write, duration: random_duration(rng) }
            }
            FaultKind::Pause => Fault::Pause(member, random_duration(rng)),
            FaultKind::Drift => {
                let size = rng.log_uniform(0, self.drift_ppm_max) as i64;
                Fault::Drift(member, if rng.permille(500) { size } else { -size })
            }
            FaultKind::Members => return self.member_change(view),
            FaultKind::TransferLeader => {
                let to = *rng.choose(&view.voters)?;
                let cut = rng.permille(600).then(|| rng.between(SECOND, 3 * SECOND));
                Fault::TransferLeader { to, cut }
            }
            FaultKind::CrashAfterVote => {
                let down = rng.log_uniform(MILLISECOND, 2 * SECOND);
                Fault::CrashAfterVote { down, cut: rng.between(SECOND, 5 * SECOND) }
            }
            FaultKind::Compact => Fault::Compact,
        })
    }

    fn member_change(&mut self, view: &ClusterView) -> Option<Fault> {
        let (voters, learners) = (&view.voters, &view.learners);
        match self.rng.between(0, 9) {
            // The highest `removals_of_ten` of the ten possible numbers are removals.
            drawn if drawn + self.removals_of_ten < 10 => match drawn {
                0..=2 if learners.is_empty() && voters.len() < 6 => Some(Fault::AddMember),
                _ => self.rng.choose(learners).copied().map(Fault::Promote),
            },
            _ if voters.len() > self.voters_min => {
                let mut all: Vec<u64> = voters.iter().chain(learners).copied().collect();
                if voters.len() == 2 {
                    all.retain(|id| Some(*id) != view.leader);
                }
                self.rng.choose(&all).copied().map(Fault::RemoveMember)
            }
            _ => self.rng.choose(learners).copied().map(Fault::RemoveMember),
        }
    }

    /// Returns a running member, or `None` if no member is running. Chooses the leader more often
    /// than the others.
    fn choose_member(&mut self, view: &ClusterView) -> Option<u64> {
        match view.leader {
            Some(leader) if self.rng.permille(250) => Some(leader),
            _ => self.rng.choose(&view.up).copied(),
        }
    }
}

fn random_duration(rng: &mut Rng) -> Micros {
    rng.log_uniform(20 * MILLISECOND, 6 * SECOND)
}

fn random_partition(rng: &mut Rng, member: u64, up: &[u64]) -> Option<Partition> {
    Some(match rng.between(0, 5) {
        0 => Partition::Split(vec![member]),
        1 => Partition::Split(rng.choose_some(up)),
        2 => Partition::NoInbound(member),
        3 => Partition::NoOutbound(member),
        4 => Partition::Bridge(member),
        _ => Partition::Link((member, *rng.choose(up)?)),
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
