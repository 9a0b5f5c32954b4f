//! Runs the policies in virtual time.

use proptest::prelude::*;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);

fn parsed(mode: &str, retention: &str) -> AutoCompaction {
    AutoCompaction::parse(mode, retention).unwrap().expect("not switched off")
}

/// Runs all checks that are due up to and including the time `until`. Reports each requested
/// compaction as successful immediately. Returns the minute and the revision of each compaction.
fn run(
    policy: &mut AutoCompaction,
    until: Duration,
    revision_at: impl Fn(u64) -> i64,
) -> Vec<(u64, i64)> {
    let mut asked = Vec::new();
    while policy.next_check() <= until {
        let now = policy.next_check();
        let minute = now.as_secs() / 60;
        if let Some(revision) = policy.check(now, revision_at(minute)) {
            asked.push((minute, revision));
            policy.compacted(revision);
        }
    }
    asked
}

fn steady(minute: u64) -> i64 {
    minute as i64 + 1
}

#[test]
fn modes_are_read_and_0_is_none() {
    for mode in ["periodic", "revision"] {
        assert!(AutoCompaction::parse(mode, "0").unwrap().is_none());
        assert!(AutoCompaction::parse(mode, "1").unwrap().is_some());
        assert!(AutoCompaction::parse(mode, "x").is_err());
    }
    assert!(AutoCompaction::parse("periodic", "0h").unwrap().is_none());
    for mode in ["", "Periodic", "hourly"] {
        assert_eq!(
            AutoCompaction::parse(mode, "1").unwrap_err().to_string(),
            format!("unknown auto compaction mode {mode:?}: allowed are periodic, revision")
        );
    }
}

#[test]
fn the_interval_is_the_retention_but_an_hour_at_most() {
    for (retention, tick, until, expected) in [
        ("30m", 3, 130, [(30, 1), (60, 31), (90, 61), (120, 91)]),
        ("3", 6, 360, [(180, 1), (240, 61), (300, 121), (360, 181)]),
    ] {
        let mut policy = parsed("periodic", retention);
        assert_eq!(policy.next_check(), Duration::ZERO);
        assert_eq!(policy.check(Duration::ZERO, 1), None);
        assert_eq!(policy.next_check(), tick * MINUTE, "a tenth of it");
        assert_eq!(run(&mut policy, until * MINUTE, steady), expected);
    }
}

#[test]
fn a_tiny_retention_does_not_spin() {
    let mut policy = parsed("periodic", "1ns");
    assert_eq!(policy.check(Duration::ZERO, 1), None);
    assert_eq!(policy.next_check(), Duration::from_millis(1));
    assert_eq!(policy.check(Duration::from_millis(1), 9), Some(1));
}

#[test]
fn by_revision_looks_every_five_minutes() {
    let mut policy = parsed("revision", "10");
    let expected = [(10, 1), (15, 6), (20, 11), (25, 16), (30, 21)];
    assert_eq!(run(&mut policy, 30 * MINUTE, steady), expected, "nothing at or below 0");
    assert_eq!(policy.next_check(), 35 * MINUTE);
}

#[test]
fn by_revision_does_not_ask_when_it_begins() {
    let mut policy = parsed("revision", "10");
    assert_eq!(policy.check(7 * HOUR, 5_000), None);
    assert_eq!(policy.next_check(), 7 * HOUR + 5 * MINUTE);
    assert_eq!(policy.check(8 * HOUR, 6_000), Some(5_990));
}

#[test]
fn a_store_that_rests_is_left_alone() {
    // There are writes in the first hour, and again from minute 300 on.
    let revision_at = |minute: u64| match minute {
        0..60 => minute as i64 + 1,
        60..300 => 60,
        _ => minute as i64 - 240,
    };
    let asked = run(&mut parsed("periodic", "1h"), 8 * HOUR, revision_at);
    // The first new revision after the pause is sampled at minute 306. It is old enough at
    // minute 366.
    assert_eq!(asked, [(60, 1), (120, 60), (366, 66), (426, 126)]);
    let asked = run(&mut parsed("revision", "50"), 8 * HOUR, revision_at);
    assert!(asked.windows(2).all(|pair| pair[0].1 < pair[1].1), "{asked:?}");
    assert!(asked.iter().all(|(minute, _)| !(65..300).contains(minute)), "{asked:?}");
    assert_eq!(asked.last(), Some(&(480, 190)));
}

#[test]
fn a_clock_that_stands_still_changes_nothing() {
    for (mode, retention) in [("periodic", "1h"), ("revision", "10")] {
        let mut policy = parsed(mode, retention);
        assert_eq!(policy.check(HOUR, 100), None);
        let next = policy.next_check();
        for revision in 100..200 {
            assert_eq!(policy.check(HOUR, revision), None);
            assert_eq!(policy.check(next - Duration::from_nanos(1), revision), None, "too early");
        }
        assert_eq!(policy.next_check(), next);
        assert!(policy.check(Duration::MAX, 200).is_some());
        assert_eq!(policy.next_check(), Duration::MAX);
    }
}

#[test]
fn after_a_long_gap_more_is_kept_and_never_less() {
    let mut policy = parsed("periodic", "1h");
    assert_eq!(run(&mut policy, HOUR, steady), [(60, 1)]);
    // There is no check for five hours, while 10,000 revisions are written.
    assert_eq!(
        policy.check(6 * HOUR, 10_000),
        Some(61),
        "what was current at the last sample before the gap"
    );
    policy.compacted(61);
    // The 10,000 revisions may have been written in the last minute of the gap. So they are kept
    // for another hour.
    for minute in (6..60).step_by(6) {
        assert_eq!(policy.check(6 * HOUR + minute * MINUTE, 10_001), None);
    }
    assert_eq!(policy.check(7 * HOUR, 10_001), Some(10_000));
    // Missed checks are not repeated.
    assert_eq!(policy.next_check(), 7 * HOUR + 6 * MINUTE);
}

#[test]
fn a_failure_is_tried_again_at_the_next_tick() {
    let mut policy = parsed("periodic", "1h");
    for minute in (0..60).step_by(6) {
        assert_eq!(policy.check(minute * MINUTE, steady(u64::from(minute))), None);
    }
    assert_eq!(policy.check(60 * MINUTE, 61), Some(1));
    policy.failed();
    assert_eq!(policy.check(60 * MINUTE, 61), None, "not at once");
    assert_eq!(policy.check(66 * MINUTE, 67), Some(7));
    policy.failed();
    assert_eq!(policy.check(72 * MINUTE, 73), Some(13));
    policy.compacted(13);
    let asked = run(&mut policy, 3 * HOUR, steady);
    assert_eq!(asked, [(132, 73)], "an hour behind the success");

    let mut policy = parsed("revision", "10");
    assert_eq!(policy.check(Duration::ZERO, 20), None);
    assert_eq!(policy.check(5 * MINUTE, 20), Some(10));
    policy.failed();
    assert_eq!(policy.check(10 * MINUTE, 20), Some(10));
    policy.compacted(10);
    assert_eq!(policy.check(15 * MINUTE, 20), None);
}

#[test]
fn what_others_compact_counts() {
    let mut policy = parsed("periodic", "1h");
    assert_eq!(run(&mut policy, 54 * MINUTE, steady), []);
    // Another request compacts at 50. Before minute 114, every revision that this policy could
    // request is at most 50.
    policy.compacted(50);
    assert_eq!(run(&mut policy, 3 * HOUR, steady), [(114, 55), (174, 115)]);

    // Another request compacts at a higher revision than this policy has requested. The policy's
    // own result arrives later.
    let mut policy = parsed("revision", "10");
    assert_eq!(policy.check(Duration::ZERO, 100), None);
    assert_eq!(policy.check(5 * MINUTE, 100), Some(90));
    policy.compacted(95);
    policy.compacted(90);
    assert_eq!(policy.check(10 * MINUTE, 104), None, "94 is compacted");
    assert_eq!(policy.check(15 * MINUTE, 106), Some(96));
    // Another request compacts at a lower revision, so the policy still waits for its own result.
    policy.compacted(93);
    assert_eq!(policy.check(20 * MINUTE, 120), None);
}

#[test]
fn a_paused_one_takes_notes_and_goes_on_at_once() {
    let mut policy = parsed("periodic", "1h");
    policy.pause();
    assert_eq!(run(&mut policy, 150 * MINUTE, steady), []);
    policy.resume();
    assert_eq!(policy.check(156 * MINUTE, 157), Some(97));
    // The member loses leadership before the result of its compaction arrives, and then becomes
    // leader again.
    policy.pause();
    assert_eq!(policy.check(162 * MINUTE, 163), None);
    policy.resume();
    assert_eq!(policy.check(168 * MINUTE, 169), Some(109), "nothing is awaited any more");
    policy.compacted(97);
    assert_eq!(policy.check(174 * MINUTE, 175), None, "that was the old one's outcome");
    policy.compacted(109);
    assert_eq!(run(&mut policy, 4 * HOUR, steady), [(228, 169)]);

    let mut policy = parsed("revision", "10");
    policy.pause();
    assert_eq!(run(&mut policy, 20 * MINUTE, steady), []);
    policy.resume();
    assert_eq!(run(&mut policy, 26 * MINUTE, steady), [(25, 16)]);
}

#[derive(Clone, Debug)]
enum Event {
    /// Minutes that pass, and the number of revisions that are written in this time.
    Tick(u32, i64),
    Success,
    Failure,
    Pause,
    Resume,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (0..20_u32, 0..9_i64).prop_map(|(minutes, writes)| Event::Tick(minutes, writes)),
        1 => (200..900_u32, 0..9_i64).prop_map(|(minutes, writes)| Event::Tick(minutes, writes)),
        4 => Just(Event::Success),
        1 => Just(Event::Failure),
        1 => Just(Event::Pause),
        1 => Just(Event::Resume),
    ]
}

proptest! {
    /// In every sequence of events, a requested revision is old enough and not compacted, and no
    /// other request is pending.
    #[test]
    fn periodic_keeps_its_invariants(
        hours in 1..5_u32,
        events in prop::collection::vec(event(), 1..400),
    ) {
        let mut policy = parsed("periodic", &hours.to_string());
        let (mut now, mut revision, mut paused) = (Duration::ZERO, 1_i64, false);
        // The times of all ticks, each with the revision that was current then.
        let mut history = vec![(now, revision)];
        let (mut open, mut compacted, mut last) = (None, 0, None);
        for event in events {
            match event {
                Event::Tick(minutes, writes) => {
                    (now, revision) = (now + minutes * MINUTE, revision + writes);
                    history.push((now, revision));
                    if let Some(asked) = policy.check(now, revision) {
                        let known = history.iter().rev().find(|(at, _)| *at + hours * HOUR <= now);
                        prop_assert!(asked <= known.expect("not before the retention is over").1);
                        prop_assert!(asked > compacted && open.is_none() && !paused);
                        prop_assert!(last.is_none_or(|last| now >= last + HOUR));
                        open = Some((now, asked));
                    }
                }
                Event::Success => if let Some((when, asked)) = open.take() {
                    policy.compacted(asked);
                    (compacted, last) = (asked, Some(when));
                },
                Event::Failure => {
                    policy.failed();
                    open = None;
                }
                Event::Pause => {
                    policy.pause();
                    (paused, open) = (true, None);
                }
                Event::Resume => {
                    policy.resume();
                    paused = false;
                }
            }
        }
    }
}
