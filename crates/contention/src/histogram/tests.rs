//! Compares the histogram with exact values, and checks its arithmetic.

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
fn buckets_are_close_to_their_values_and_never_below() {
    let mut random = StdRng::seed_from_u64(7);
    for _ in 0..50 {
        let values: Vec<u64> = (0..2_000).map(|_| spread_value(&mut random)).collect();
        let histogram = Histogram::new();
        for value in &values {
            histogram.record(*value);
            let largest = last_value_of(bucket_of(*value));
            assert!(largest >= *value, "{largest} < {value}");
            let error = (largest - value) as f64 / (*value).max(1) as f64;
            assert!(error < 1.0 / 16.0, "{largest} for {value}");
        }
        let snapshot = histogram.snapshot();
        let mut expected = std::collections::BTreeMap::new();
        for value in &values {
            *expected.entry(last_value_of(bucket_of(*value))).or_insert(0) += 1;
        }
        assert_eq!(snapshot.buckets().collect::<Vec<_>>(), Vec::from_iter(expected));
        assert_eq!(snapshot.count, values.len() as u64);
        assert_eq!(Some(snapshot.max), values.iter().max().copied());
        assert_eq!(snapshot.sum, values.iter().sum::<u64>());
    }
}

/// Returns a value from 0 to 34 seconds, in nanoseconds. All magnitudes are about equally likely.
fn spread_value(random: &mut impl Rng) -> u64 {
    let bits = random.random_range(0..36);
    random.random_range(0..=1 << bits)
}

#[test]
fn merging_adds_up() {
    let (one, other, both) = (Histogram::new(), Histogram::new(), Histogram::new());
    for (histogram, values) in [(&one, [3, 100, 5_000]), (&other, [7, 70, 700])] {
        values.iter().for_each(|value| histogram.record(*value));
        values.iter().for_each(|value| both.record(*value));
    }
    let mut merged = one.snapshot();
    merged.merge(&other.snapshot());
    assert_eq!(merged, both.snapshot());
}
