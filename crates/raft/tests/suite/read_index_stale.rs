//! Tests that no read is stale. Also tests that reads become stale with each of three planted bugs:
//! a leader that waits for no quorum, a retry that reuses an id, and ids that repeat after a
//! restart.

use std::time::Duration;

use crate::read_index_cluster::{Cluster, PlantedBug};
use clearlane_raft::read_index::{ReadIndexError, ReadMode, RequestIdGenerator};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const RETRY: Duration = Duration::from_millis(500);

/// Reads at a deposed leader that does not know it was deposed. Returns the outcome for the reader,
/// which is `None` if the reader still waits. Also returns the index that the reader must see.
fn deposed(planted: PlantedBug) -> (Option<Result<u64, ReadIndexError>>, u64) {
    let mut cluster = Cluster::new(3, ReadMode::ReadIndex, planted);
    cluster.read(1, 10);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(1, 10), Some(Ok(1)), "a leader that leads answers");
    cluster.cut(&[1], &[2, 3]);
    let written = cluster.elect_and_write(2, &[2, 3]);
    cluster.read(1, 11);
    for _ in 0..20 {
        cluster.now += RETRY;
        cluster.poll(1);
        cluster.deliver_all();
    }
    (cluster.outcome(1, 11), written)
}

#[test]
fn a_deposed_leader_releases_no_reader() {
    assert_eq!(deposed(PlantedBug::Nothing).0, Some(Err(ReadIndexError::TimedOut)));
}

#[test]
fn a_leader_that_does_not_ask_shows_the_past() {
    let (outcome, written) = deposed(PlantedBug::NoHeartbeats);
    assert!(outcome.unwrap().unwrap() < written, "without rounds the read is stale: {outcome:?}");
}

/// Plays the history of etcd's issue 20418. Returns the outcome for the reader at member 2, which
/// is `None` if the reader still waits. Also returns the index that the reader must see.
///
/// ```text
///   member       event                                         requests that wait at member 1
///   1 (leader)   sends heartbeats with id A to 2, 3, 4, 5      A
///   2, 3         acknowledge A: the response to A is in flight
///   4, 5         acknowledge A: the acknowledgements are in flight
///   3, 4, 5      elect 3, and acknowledge a write to a client
///   2            still follows 1, and sends a request B to 1   B
///   1            has no response to A, and retries             B A, if the retry reuses the id A
///   4, 5         their acknowledgements of A arrive            none: A and B have been answered
/// ```
fn late_acknowledgements(planted: PlantedBug) -> (Option<Result<u64, ReadIndexError>>, u64) {
    let mut cluster = Cluster::new(5, ReadMode::ReadIndex, planted);
    cluster.blocked_links.extend([(4, 1), (5, 1), (1, 1)]);
    cluster.read(1, 10);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(1, 10), None, "answered, but the answer is on its way");
    cluster.cut(&[1, 2], &[3, 4, 5]);
    let written = cluster.elect_and_write(3, &[3, 4, 5]);
    cluster.read(2, 20);
    cluster.deliver_all();
    assert_eq!(cluster.outcome(2, 20), None, "1 and 2 are no quorum");
    cluster.now += RETRY;
    cluster.poll(1);
    cluster.blocked_links.remove(&(4, 1));
    cluster.blocked_links.remove(&(5, 1));
    cluster.deliver_all();
    (cluster.outcome(2, 20), written)
}

#[test]
fn a_late_acknowledgement_answers_no_later_question() {
    assert_eq!(late_acknowledgements(PlantedBug::Nothing).0, None);
}

#[test]
fn a_late_acknowledgement_answers_a_question_with_a_reused_id() {
    let (outcome, written) = late_acknowledgements(PlantedBug::RetriesReuseIds);
    assert!(outcome.unwrap().unwrap() < written, "if ids are reused the read is stale");
}

/// A member sends an attempt for a reader, restarts, and sends another attempt for a second reader.
/// Then the response to the first attempt arrives. Returns whether this response releases the
/// second reader. `ids_after` returns the generator of ids after the restart.
fn answer_of_before_the_restart(
    ids_after: impl Fn(&RequestIdGenerator) -> RequestIdGenerator,
) -> bool {
    let mut cluster = Cluster::new(3, ReadMode::ReadIndex, PlantedBug::Nothing);
    cluster.blocked_links.insert((1, 2));
    cluster.read(2, 10);
    cluster.deliver_all();
    let ids = ids_after(&cluster.member(2).ids);
    cluster.restart(2, ids);
    cluster.blocked_links.insert((2, 1));
    cluster.read(2, 11);
    cluster.blocked_links.remove(&(1, 2));
    cluster.deliver_all();
    cluster.outcome(2, 11).is_some()
}

#[test]
fn an_answer_of_before_a_restart_releases_no_reader() {
    let clock_stood_still = |_: &RequestIdGenerator| RequestIdGenerator::new(2, 0);
    assert!(answer_of_before_the_restart(clock_stood_still), "this is why ids must not repeat");
    assert!(!answer_of_before_the_restart(|_| RequestIdGenerator::new(2, 1)));
    assert!(!answer_of_before_the_restart(
        |ids| RequestIdGenerator::new(2, 0).starting_above(ids.last())
    ));
}

#[test]
fn an_answer_to_another_member_releases_no_reader() {
    let mut cluster = Cluster::new(3, ReadMode::ReadIndex, PlantedBug::Nothing);
    cluster.read(2, 10);
    let context = cluster.member(2).ids.last();
    cluster.blocked_links.extend([(1, 1), (2, 1), (3, 1)]);
    cluster.read(1, 10);
    cluster.member(1).barrier.on_answer(context, 1);
    cluster.poll(1);
    assert_eq!(cluster.outcome(1, 10), None);
    assert_eq!(cluster.member(1).barrier.metrics().late_answers, 1);
}

#[derive(Debug, Clone)]
enum Step {
    Read(u64),
    Hold(u64, u64),
    LetGo(u64, u64),
    DeliverAll,
    /// The members of the list, which are at least a quorum, elect the first of them, which commits
    /// an entry.
    Elect(Vec<u64>),
    Pass(u64),
    Restart(u64),
}

const MEMBERS: u64 = 5;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let member = || 1..=MEMBERS;
    let all = Just((1..=MEMBERS).collect::<Vec<u64>>()).prop_shuffle();
    let voters = (all, 3..=5_usize).prop_map(|(mut voters, count)| {
        voters.truncate(count);
        voters
    });
    let step = prop_oneof![
        6 => member().prop_map(Step::Read),
        6 => (member(), member()).prop_map(|(from, to)| Step::Hold(from, to)),
        4 => (member(), member()).prop_map(|(from, to)| Step::LetGo(from, to)),
        4 => Just(Step::DeliverAll),
        2 => voters.prop_map(Step::Elect),
        3 => prop::sample::select(vec![100, 500, 7_000]).prop_map(Step::Pass),
        1 => member().prop_map(Step::Restart),
    ];
    prop::collection::vec(step, 1..60)
}

/// Plays a history. Returns the number of released reads. If a read has missed a write that was
/// acknowledged before the read arrived, also returns a description of the read.
fn play(steps: &[Step], planted: PlantedBug) -> (usize, Option<String>) {
    let mut cluster = Cluster::new(MEMBERS, ReadMode::ReadIndex, planted);
    let (mut written, mut reads) = (1, Vec::new());
    for (step, at) in steps.iter().zip(1..) {
        match step {
            Step::Read(member) => {
                reads.push((*member, at, written));
                cluster.read(*member, at);
            }
            Step::Hold(from, to) => _ = cluster.blocked_links.insert((*from, *to)),
            Step::LetGo(from, to) => _ = cluster.blocked_links.remove(&(*from, *to)),
            Step::DeliverAll => cluster.deliver_all(),
            Step::Elect(voters) => written = cluster.elect_and_write(voters[0], voters),
            Step::Pass(ms) => {
                cluster.now += Duration::from_millis(*ms);
                (1..=MEMBERS).for_each(|member| cluster.poll(member));
            }
            Step::Restart(member) => {
                // The restart loses the member's waiting readers. The clock has advanced, so the
                // new ids are larger than the old ids.
                let ids = RequestIdGenerator::new(*member, at);
                assert!(ids.last() > cluster.member(*member).ids.last(), "ids go on");
                cluster.restart(*member, ids);
                reads.retain(|(reader_at, _, _)| reader_at != member);
            }
        }
    }
    cluster.blocked_links.clear();
    cluster.deliver_all();
    let mut let_go = 0;
    for (member, reader, expected) in reads {
        if let Some(Ok(index)) = cluster.outcome(member, reader) {
            let_go += 1;
            if index < expected {
                return (let_go, Some(format!("reader {reader}: {index} < {expected}")));
            }
        }
    }
    (let_go, None)
}

/// Plays random histories. Returns the number of released reads, or an error if a read was stale.
fn histories(planted: PlantedBug) -> Result<usize, String> {
    let config =
        ProptestConfig { cases: 250, failure_persistence: None, ..ProptestConfig::default() };
    let let_go = std::cell::Cell::new(0);
    let played = TestRunner::new(config).run(&steps(), |steps| {
        let (reads, stale) = play(&steps, planted);
        let_go.set(let_go.get() + reads);
        stale.map_or(Ok(()), |stale| Err(TestCaseError::fail(stale)))
    });
    played.map(|()| let_go.get()).map_err(|error| error.to_string())
}

#[test]
fn no_history_has_a_stale_read() {
    let let_go = histories(PlantedBug::Nothing).unwrap_or_else(|error| panic!("{error}"));
    assert!(let_go > 250, "something was tested: {let_go}");
}

#[test]
fn histories_find_a_leader_that_does_not_ask() {
    let found = histories(PlantedBug::NoHeartbeats);
    assert!(found.is_err(), "{found:?}");
}
