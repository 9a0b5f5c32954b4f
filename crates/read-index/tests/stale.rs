//! Why a leader must ask, and why a question must not be asked twice under one id: stale reads that are
//! there when the bug is planted, and are not when it is not.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster;

use std::time::Duration;

use clearlane_read_index::{Error, Event, ReadMode, RequestIds};
use cluster::{Cluster, Planted};

const RETRY: Duration = Duration::from_millis(500);

/// A leader that was deposed and does not know it is asked to read. The index that it lets the reader go
/// with, and what a reader must see.
fn deposed(planted: Planted) -> (Option<Result<u64, Error>>, u64) {
    let mut cluster = Cluster::new(3, ReadMode::ReadIndex, planted);
    cluster.read(1, 10);
    cluster.settle();
    assert_eq!(cluster.outcome(1, 10), Some(Ok(1)), "a leader that leads answers");
    cluster.cut(&[1], &[2, 3]);
    let written = cluster.elect_and_write(2, &[2, 3]);
    cluster.read(1, 11);
    for _ in 0..20 {
        cluster.now += RETRY;
        cluster.poll(1);
        cluster.settle();
    }
    (cluster.outcome(1, 11), written)
}

#[test]
fn a_deposed_leader_lets_nobody_go() {
    assert_eq!(deposed(Planted::Nothing).0, Some(Err(Error::TimedOut)));
}

#[test]
fn a_leader_that_does_not_ask_shows_the_past() {
    let (outcome, written) = deposed(Planted::NoHeartbeats);
    assert!(outcome.unwrap().unwrap() < written, "without rounds the read is stale: {outcome:?}");
}

/// etcd's issue 20418. What the reader at member 2 was told, and what it must see.
///
/// ```text
///   1 (leader)   A ─▶ 2 3 4 5      acknowledged by 2 and 3: answered, but the answer is slow
///   4, 5         acknowledge A too; that is slow as well
///   3, 4, 5      elect 3, and acknowledge a write to a client
///   2            takes 1 for the leader, and asks B            questions at 1:  B
///   1            has no answer to A, and asks again            questions at 1:  B A    if A is reused
///   4, 5         their acknowledgements of A arrive            A has a quorum: A and all before it
/// ```
fn late_acknowledgements(planted: Planted) -> (Option<Result<u64, Error>>, u64) {
    let mut cluster = Cluster::new(5, ReadMode::ReadIndex, planted);
    cluster.held.extend([(4, 1), (5, 1), (1, 1)]);
    cluster.read(1, 10);
    cluster.settle();
    assert_eq!(cluster.outcome(1, 10), None, "answered, but the answer is on its way");
    cluster.cut(&[1, 2], &[3, 4, 5]);
    let written = cluster.elect_and_write(3, &[3, 4, 5]);
    cluster.read(2, 20);
    cluster.settle();
    assert_eq!(cluster.outcome(2, 20), None, "1 and 2 are no quorum");
    cluster.now += RETRY;
    cluster.poll(1);
    cluster.held.remove(&(4, 1));
    cluster.held.remove(&(5, 1));
    cluster.settle();
    (cluster.outcome(2, 20), written)
}

#[test]
fn a_late_acknowledgement_answers_no_later_question() {
    assert_eq!(late_acknowledgements(Planted::Nothing).0, None);
}

#[test]
fn a_late_acknowledgement_answers_a_question_with_a_reused_id() {
    let (outcome, written) = late_acknowledgements(Planted::RetriesReuseIds);
    assert!(outcome.unwrap().unwrap() < written, "if ids are reused the read is stale");
}

/// The member asks, stops, starts again, and asks again; then the answer to the first question arrives.
/// Whether the reader of the second is let go by it.
fn answer_of_before_the_restart(ids_after: impl Fn(&RequestIds) -> RequestIds) -> bool {
    let mut cluster = Cluster::new(3, ReadMode::ReadIndex, Planted::Nothing);
    cluster.held.insert((1, 2));
    cluster.read(2, 10);
    cluster.settle();
    let ids = ids_after(&cluster.member(2).ids);
    let restarted = Cluster::new(3, ReadMode::ReadIndex, Planted::Nothing).members.remove(&2);
    *cluster.member(2) = restarted.unwrap();
    cluster.member(2).ids = ids;
    cluster.held.insert((2, 1));
    cluster.read(2, 11);
    cluster.held.remove(&(1, 2));
    cluster.settle();
    cluster.outcome(2, 11).is_some()
}

#[test]
fn an_answer_of_before_a_restart_is_nobodys() {
    let clock_stood_still = |_: &RequestIds| RequestIds::new(2, 0);
    assert!(answer_of_before_the_restart(clock_stood_still), "this is why ids must not repeat");
    assert!(!answer_of_before_the_restart(|_| RequestIds::new(2, 1)));
    assert!(!answer_of_before_the_restart(|ids| RequestIds::new(2, 0).above(ids.last())));
}

#[test]
fn an_answer_to_another_member_is_nobodys() {
    let mut cluster = Cluster::new(3, ReadMode::ReadIndex, Planted::Nothing);
    cluster.read(2, 10);
    let context = cluster.member(2).ids.last();
    cluster.held.extend([(1, 1), (2, 1), (3, 1)]);
    cluster.read(1, 10);
    cluster.member(1).barrier.hear(Event::Answered { context, index: 1 });
    cluster.poll(1);
    assert_eq!(cluster.outcome(1, 10), None);
    assert_eq!(cluster.member(1).barrier.figures().late_answers, 1);
}
