//! Tests leases under clock drift. No read is stale while clocks drift within the margin. Reads
//! become stale if clocks drift further, or if a member votes right after it has started.

use std::time::Duration;

use crate::read_index_cluster::{Cluster, PlantedBug};
use clearlane_raft::read_index::{ReadIndexConfig, ReadMode, RequestIdGenerator};

const MILLISECOND: Duration = Duration::from_millis(1);

/// The speeds of the members' clocks, in thousandths of the correct speed.
#[derive(Debug, Clone, Copy)]
struct Drift {
    leader: u32,
    followers: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct LeaseOutcome {
    /// Reads that the old leader released before there was a new leader.
    good: u32,
    /// Reads that the old leader released after there was a new leader.
    stale: u32,
}

/// Returns the true time at which a clock of this speed shows the time `shown`.
fn when_it_shows(shown: Duration, speed: u32) -> Duration {
    shown * 1000 / speed
}

/// Runs the worst case. The leader sends a ReadIndex request at time 0, and a follower receives it
/// immediately. The follower's next tick is due at the same instant. The leader is cut off when it
/// has the response. The followers elect another leader at the true time `election`, and
/// acknowledge a write. The old leader gets a read every millisecond. Returns how many reads the
/// old leader released before the election, and how many after the election.
fn run(drift: Drift, election: Duration) -> LeaseOutcome {
    let mut cluster = Cluster::new(3, ReadMode::Lease, PlantedBug::Nothing);
    cluster.read(1, 0);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(1, 0), Some(Ok(1)), "the round gives a lease");
    cluster.cut(&[1], &[2, 3]);
    let (mut seen, mut written) = (LeaseOutcome::default(), None);
    for reader in 1..2_000 {
        let truly = MILLISECOND * reader;
        if truly >= election && written.is_none() {
            // A member that knows a leader votes before its election time-out only if the member
            // was restarted.
            if election < earliest_election(drift) {
                cluster.restart(3, RequestIdGenerator::new(3, 1));
            }
            written = Some(cluster.elect_and_write(2, &[2, 3]));
        }
        cluster.now = truly * drift.leader / 1000;
        cluster.read(1, u64::from(reader));
        cluster.deliver_all();
        match (cluster.outcome(1, u64::from(reader)), written) {
            (Some(Ok(index)), Some(written)) => seen.stale += u32::from(index < written),
            (Some(Ok(_)), None) => seen.good += 1,
            _ => {}
        }
    }
    seen
}

/// Returns the earliest time at which followers with this drift may elect another leader.
fn earliest_election(drift: Drift) -> Duration {
    let config = ReadIndexConfig::new(1);
    when_it_shows(config.election_timeout - config.tick_interval, drift.followers)
}

#[test]
fn no_read_is_stale_while_clocks_drift_within_the_margin() {
    // A follower waits for at least 900 ms on its clock, and the leader's lease is 100 ms shorter.
    // The largest ratio of speeds below is 1055 to 945, which is less than 900 to 800.
    for drift in [(1000, 1000), (950, 1000), (1000, 1050), (945, 1055), (1055, 945)] {
        let drift = Drift { leader: drift.0, followers: drift.1 };
        let seen = run(drift, earliest_election(drift));
        assert_eq!(seen.stale, 0, "{drift:?}");
        assert!(seen.good > 700, "the lease is used: {drift:?} {seen:?}");
    }
}

#[test]
fn reads_are_stale_when_clocks_drift_further() {
    for drift in [(800, 1000), (1000, 1250), (900, 1100)] {
        let drift = Drift { leader: drift.0, followers: drift.1 };
        let seen = run(drift, earliest_election(drift));
        assert!(seen.stale > 0, "this is the assumption that a lease makes: {drift:?} {seen:?}");
    }
}

#[test]
fn reads_are_stale_when_a_member_votes_right_after_it_started() {
    let drift = Drift { leader: 1000, followers: 1000 };
    let seen = run(drift, Duration::from_millis(200));
    assert!(seen.stale > 500, "it has forgotten what it acknowledged: {seen:?}");
}

#[test]
fn a_transfer_ends_the_lease_before_the_next_leader_can_be() {
    let mut cluster = Cluster::new(3, ReadMode::Lease, PlantedBug::Nothing);
    cluster.read(1, 0);
    cluster.deliver_all();
    cluster.member(1).barrier.on_transfer_started();
    cluster.cut(&[1], &[2, 3]);
    cluster.elect_and_write(2, &[2, 3]);
    cluster.read(1, 1);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(1, 1), None);
}

#[test]
fn an_answer_that_was_slow_gives_a_lease_from_when_it_was_asked() {
    let mut cluster = Cluster::new(3, ReadMode::Lease, PlantedBug::Nothing);
    cluster.blocked_links.insert((1, 1));
    cluster.read(1, 0);
    cluster.deliver_all();
    // The request was sent at time 0, so the lease starts at time 0.
    cluster.cut(&[1], &[2, 3]);
    cluster.now = Duration::from_millis(450);
    cluster.blocked_links.remove(&(1, 1));
    cluster.deliver_all();
    assert_eq!(cluster.outcome(1, 0), Some(Ok(1)));
    cluster.now = Duration::from_millis(799);
    cluster.read(1, 1);
    assert_eq!(cluster.outcome(1, 1), Some(Ok(1)));
    cluster.now = Duration::from_millis(800);
    cluster.read(1, 2);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(1, 2), None);
}
