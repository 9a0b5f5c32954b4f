//! Several members. Only syncs and the network take time, so the expected times are calculated by
//! hand.

use clearlane_simulator::costs::Costs;
use clearlane_simulator::era::Era;
use clearlane_simulator::results::Results;
use clearlane_simulator::run::run;
use clearlane_simulator::scenario::Scenario;
use clearlane_simulator::server::Build;
use clearlane_simulator::spread::Spread;

const LOAD: &str = "
    seconds = 10

    [keys]
    count = 1_000
    size = 32
    value = 64

    [[class]]
    name = 'put'
    operation = 'put'
    rate = 1

    [[class]]
    name = 'fresh'
    operation = 'range'
    rate = 1

    [[class]]
    name = 'past'
    operation = 'range'
    rate = 1
    consistency = 'serializable'

    [model]
    sync_ms = 1
    round_trips_ms.1-2 = 1
    round_trips_ms.1-3 = 2
    members = 3
";

/// Only disks and networks take time.
fn free() -> Costs {
    Costs {
        request_ns: 0,
        client_ns: 0,
        sent_byte_ns: 0.0,
        received_byte_ns: 0.0,
        raft_turn_ns: 0,
        log_entry_ns: 0,
        log_byte_ns: 0.0,
        log_sync: Spread::constant(0),
        index_seek_ns: 0,
        index_key_ns: 0,
        record_ns: 0,
        record_byte_ns: 0.0,
        apply_ns: 0,
        buffer_op_ns: 0,
        commit_op_ns: 0,
        commit_sync: Spread::constant(0),
        ..Costs::by_hand()
    }
}

/// Returns the times of a put, a linearizable read and a serializable read, in milliseconds. The
/// results also show how the requests have spent these times.
fn found(knobs: &[(&str, &str)], era: Era) -> (Vec<f64>, Results) {
    let mut scenario = Scenario::parse(LOAD).unwrap();
    knobs.iter().for_each(|(name, value)| scenario.set(name, value).unwrap());
    let results = run(&scenario, &Build::new(era, free())).unwrap();
    let ms = |name: &str| {
        let class = results.classes.iter().find(|class| class.name == name).unwrap();
        assert_eq!(class.answers(), 10, "{name}");
        let middle = class.latency_ms(0.5).unwrap();
        // The histogram keeps three digits, and counts a request that takes no time as 1 µs.
        // Rounding to 0.01 ms gives the exact time.
        (middle * 100.0).round() / 100.0
    };
    let times = ["put", "fresh", "past"].map(ms).to_vec();
    (times, results)
}

fn times(knobs: &[(&str, &str)]) -> Vec<f64> {
    let (ours, _) = found(knobs, Era::Clearlane);
    let (theirs, _) = found(knobs, Era::V3_5);
    assert_eq!(ours, theirs);
    ours
}

#[test]
fn three_members_wait_for_the_nearer_of_two() {
    // 0.5 ms to member 2, 1 ms for its disk, and 0.5 ms back. The leader's own disk ends earlier.
    assert_eq!(times(&[]), [2.0, 1.0, 0.0]);
    // With a disk of 5 ms: 0.5 + 5 + 0.5.
    assert_eq!(times(&[("model.sync_ms", "5")]), [6.0, 1.0, 0.0]);
    // Member 2 is now far away, so member 3 completes the quorum: 2 ms for the round trip, and 1 ms
    // for the disk.
    assert_eq!(times(&[("model.round_trips_ms.1-2", "9")]), [3.0, 2.0, 0.0]);
}

#[test]
fn a_sole_member_waits_for_its_own_disk() {
    let mut alone = Scenario::parse(LOAD).unwrap();
    alone.model.round_trips.clear();
    alone.set("model.members", "1").unwrap();
    for era in [Era::Clearlane, Era::V3_5] {
        let results = run(&alone, &Build::new(era, free())).unwrap();
        let ms = |at: usize| results.classes[at].latency_ms(1.0).unwrap();
        assert!((ms(0) - 1.0).abs() < 0.01 && ms(1) < 0.01, "{era}");
    }
}

#[test]
fn five_members_wait_for_the_second_nearest() {
    let far = |pair: &'static str, ms: &'static str| (pair, ms);
    let five = [
        ("model.members", "5"),
        far("model.round_trips_ms.1-4", "7"),
        far("model.round_trips_ms.1-5", "8"),
    ];
    // The leader knows after 2 and 3 ms that members 2 and 3 have the entry. Together with the
    // leader they are a quorum.
    assert_eq!(times(&five), [3.0, 2.0, 0.0]);
    // Two of the other four members respond before the others, but they are learners, which are not
    // part of the quorum.
    let learners = [
        ("model.learners", "2"),
        far("model.round_trips_ms.1-4", "0.1"),
        far("model.round_trips_ms.1-5", "0.1"),
    ];
    assert_eq!(times(&learners), [2.0, 1.0, 0.0]);
}

#[test]
fn at_another_member_everything_goes_by_the_leader() {
    let at = |member: &'static str, era| {
        found(&[("model.connect.put", member), ("model.connect.fresh", member)], era).0
    };
    // The way to the leader, the quorum, and the way back with the commit index: 0.5 + 2 + 0.5. A
    // read sends its request to the leader, which asks a quorum: 0.5 + 1 + 0.5.
    assert_eq!(at("2", Era::V3_5), [3.0, 2.0, 0.0]);
    assert_eq!(at("3", Era::V3_5), [4.0, 3.0, 0.0]);
    // In the era `clearlane`, the leader and the requesting member are the quorum: 0.5 + 0.5.
    assert_eq!(at("2", Era::Clearlane), [3.0, 1.0, 0.0]);
    assert_eq!(at("3", Era::Clearlane), [4.0, 2.0, 0.0]);
}

/// Two of five voters are not a quorum. So a read at member 2 waits for heartbeats, even in the era
/// `clearlane`, and takes as long as in 3.5.
#[test]
fn the_requesting_member_is_not_always_enough() {
    let far = [("model.round_trips_ms.1-4", "7"), ("model.round_trips_ms.1-5", "8")];
    let five = [("model.members", "5"), ("model.connect.fresh", "2"), far[0], far[1]];
    assert_eq!(times(&five), [3.0, 3.0, 0.0]);
}

#[test]
fn clients_have_a_network_of_their_own() {
    assert_eq!(times(&[("model.client_round_trip_ms", "3")]), [5.0, 4.0, 3.0]);
}

/// A put takes 2 ms: 1 ms for the disk of the follower that completes the quorum, and 1 ms for the
/// network.
#[test]
fn a_quorum_is_explained_by_what_its_last_one_did() {
    let (_, results) = found(&[], Era::V3_5);
    let line = |class: &str| {
        let table = results.table();
        table.lines().find(|line| line.trim_start().starts_with(class)).unwrap().to_owned()
    };
    assert!(line("put").ends_with("   50 % disk, 50 % network"), "{}", line("put"));
    assert!(line("fresh").ends_with("   100 % network"), "{}", line("fresh"));
}

/// The leader's own disk is sometimes slow. A leader of etcd waits for its own disk. In the era
/// `clearlane`, the disks of the other members are enough.
#[test]
fn a_leader_of_etcd_is_one_of_its_quorum() {
    let slow = [("model.sync_ms", "10"), ("model.round_trip_ms", "1")];
    let mut scenario = Scenario::parse(LOAD).unwrap();
    slow.iter().for_each(|(name, value)| scenario.set(name, value).unwrap());
    scenario.set("model.sync_ms", "{ mean = 10, p99 = 90 }").unwrap();
    scenario.set("put.rate", "20").unwrap();
    scenario.set("seconds", "100").unwrap();
    let mean = |era| {
        let results = run(&scenario, &Build::new(era, free())).unwrap();
        let put = &results.classes[0];
        put.account.total_ns() / put.answers()
    };
    let (ours, theirs) = (mean(Era::Clearlane), mean(Era::V3_5));
    assert!(ours < theirs, "{ours} {theirs}");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let told = |knobs: &[(&str, &str)]| {
        let mut scenario = Scenario::parse(LOAD).unwrap();
        knobs.iter().for_each(|(name, value)| scenario.set(name, value).unwrap());
        let build = Build::new(Era::Clearlane, Costs::by_hand());
        run(&scenario, &build).map(drop).unwrap_err().to_string()
    };
    for (knobs, line) in [
        (
            vec![("model.members", "1")],
            "`round_trips_ms.1-2` is not a pair of members 1 to 1, the smaller one first",
        ),
        (
            vec![("model.round_trips_ms.2-1", "1")],
            "`round_trips_ms.2-1` is not a pair of members 1 to 3, the smaller one first",
        ),
        (
            vec![("model.connect.get", "1")],
            "`connect.get`: unknown class; known are put, fresh, past",
        ),
        (
            vec![("model.connect.past", "5")],
            "`connect.past`: the cluster has only 3 members and 0 learners",
        ),
        (
            vec![("model.learners", "1"), ("model.connect.fresh", "4")],
            "`connect.fresh`: the member is a learner, which serves only serializable ranges",
        ),
    ] {
        assert_eq!(told(&knobs), format!("[model]: {line}"));
    }
}
