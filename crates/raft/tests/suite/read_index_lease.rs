//! Leases under clock drift: no stale read while clocks drift
//! within the margin, and one when they drift further, or when a member votes right after it
//! has started.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod read_index_cluster;

use std::time::Duration;

use clearlane_raft::read_index::{ReadIndexConfig, ReadMode, RequestIdGenerator};
use read_index_cluster::{Cluster, PlantedBug};

const MILLISECOND: Duration = Duration::from_millis(1);

/// Clock speeds in thousandths: 1000 is right.
#[derive(Debug, Clone, Copy)]
struct Drift {
    leader: u32,
    followers: u32,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct LeaseOutcome {
    /// Reads that the old leader released before there was a new one.
    good: u32,
    /// Those that it released after.
    stale: u32,
}

/// True time, when a clock of that speed shows this time.
fn when_it_shows(shown: Duration, speed: u32) -> Duration {
    shown * 1000 / speed
}

/// The worst case: the leader asks at 0, a follower receives that at once, and its next
/// tick is due right then; the leader is cut off when it has the answer. The followers elect
/// another one at `election`, and acknowledge a write. The old leader is asked for a read every
/// millisecond.
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
            // A member that votes before it may has been restarted.
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

/// The earliest time at which followers with such clocks may elect another leader.
fn earliest_election(drift: Drift) -> Duration {
    let config = ReadIndexConfig::new(1);
    when_it_shows(config.election_timeout - config.tick_interval, drift.followers)
}

#[test]
fn no_read_is_stale_while_clocks_drift_within_the_margin() {
    // The margin is 100 of the 900 ms that a follower waits at least.
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
    // The followers have acknowledged at 0, and a lease counts from there.
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
