//! The histogram against exact percentiles, and its arithmetic.

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};

use super::*;

#[test]
fn buckets_follow_each_other_without_gap_or_overlap() {
    let mut next = 0;
    for bucket in 0..BUCKET_COUNT {
        assert_eq!(bucket_of(next), bucket, "first value {next}");
        assert_eq!(bucket_of(last_value_of(bucket)), bucket);
        next = last_value_of(bucket).wrapping_add(1);
    }
    assert_eq!(next, 0, "the last bucket ends at the largest value");
}

#[test]
fn percentiles_are_close_to_exact_and_never_below() {
    let mut random = StdRng::seed_from_u64(7);
    for round in 0..50 {
        let mut values: Vec<u64> = (0..2_000).map(|_| spread_value(&mut random)).collect();
        let histogram = Histogram::new();
        values.iter().for_each(|value| histogram.record(*value));
        values.sort_unstable();
        let snapshot = histogram.snapshot();
        for percent in [0.0, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let rank = (values.len() as f64 * percent / 100.0).ceil().max(1.0) as usize;
            let exact = values[rank - 1];
            let told = snapshot.percentile(percent);
            assert!(told >= exact, "round {round} p{percent}: {told} < {exact}");
            let error = (told - exact) as f64 / exact.max(1) as f64;
            assert!(error < 1.0 / 16.0, "round {round} p{percent}: {told} for {exact}");
        }
        assert_eq!(snapshot.count(), values.len() as u64);
        assert_eq!(snapshot.max(), values[values.len() - 1]);
        assert_eq!(snapshot.sum(), values.iter().sum::<u64>());
    }
}

/// Values from 0 to about a minute of nanoseconds, every magnitude as likely as every other.
fn spread_value(random: &mut impl Rng) -> u64 {
    let bits = random.random_range(0..36);
    random.random_range(0..=1 << bits)
}

#[test]
fn an_empty_histogram_answers_zero() {
    let snapshot = Histogram::new().snapshot();
    assert_eq!(snapshot, HistogramSnapshot::default());
    assert_eq!((snapshot.percentile(99.0), snapshot.max(), snapshot.count()), (0, 0, 0));
    assert_eq!(snapshot.mean(), 0.0);
}

#[test]
fn merge_and_since_undo_each_other() {
    let histogram = Histogram::new();
    [3, 100, 5_000].iter().for_each(|value| histogram.record(*value));
    let earlier = histogram.snapshot();
    [7, 70, 700].iter().for_each(|value| histogram.record(*value));
    let both = histogram.snapshot();

    let later = both.since(&earlier);
    assert_eq!((later.count(), later.sum()), (3, 777));
    assert!((700..744).contains(&later.max()), "max {}", later.max());

    let mut merged = earlier.clone();
    merged.merge(&later);
    assert_eq!(merged, both);
}

#[test]
fn threads_lose_nothing() {
    let histogram = Histogram::new();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10_000).for_each(|value| histogram.record(value)));
        }
    });
    let snapshot = histogram.snapshot();
    assert_eq!((snapshot.count(), snapshot.max()), (40_000, 9_999));
    assert_eq!(snapshot.buckets().map(|(_, count)| count).sum::<u64>(), 40_000);
}

#[test]
fn reset_forgets() {
    let histogram = Histogram::new();
    histogram.record(42);
    histogram.reset();
    assert_eq!(histogram.snapshot(), HistogramSnapshot::default());
}
