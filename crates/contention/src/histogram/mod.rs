//! A histogram of times that many threads fill without waiting for each other.
//!
//! Log-linear, as in HdrHistogram: every power of two is cut into [`BUCKETS_PER_POWER`] buckets of
//! equal width. Recording is a shift to find the bucket, two atomic additions and a maximum.
//!
//! * The end of a bucket is not below its values, and above them by less than 1/16 (6.25 %).
//! * Count, sum and max are exact. The count is the sum of the buckets: no second counter can
//!   differ.
//! * A snapshot taken while others record may see the bucket of a value and not yet its share of
//!   the sum.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(test)]
mod tests;

/// The precision: the end of a bucket is above its values by less than one part in this many.
const BUCKETS_PER_POWER: usize = 16;
const BUCKETS_PER_POWER_BITS: u32 = BUCKETS_PER_POWER.trailing_zeros();

/// The values below [`BUCKETS_PER_POWER`] have one bucket each.
const BUCKET_COUNT: usize =
    BUCKETS_PER_POWER + (u64::BITS - BUCKETS_PER_POWER_BITS) as usize * BUCKETS_PER_POWER;

/// Counts values, here nanoseconds from ten to ten billion, in buckets whose width grows with the
/// value:
///
/// ```text
/// value   0 1 2 … 15 │ 16 17 … 31 │ 32 34 … 62 │ 64 68 … 124 │ 128 136 …
/// width       1      │      1     │      2     │      4      │     8
/// bucket  0 1 2 … 15 │ 16 17 … 31 │ 32 33 … 47 │ 48 49 …  63 │  64  65 …
/// ```
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
    max: AtomicU64,
}

impl Histogram {
    /// About 8 KiB.
    pub fn new() -> Histogram {
        let buckets = (0..BUCKET_COUNT).map(|_| AtomicU64::new(0)).collect();
        Histogram { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    #[inline]
    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        // Rarely a new maximum: look before writing to memory that is shared.
        if value > self.max.load(Relaxed) {
            self.max.fetch_max(value, Relaxed);
        }
    }

    pub fn snapshot(&self) -> HistogramSnapshot {
        let buckets: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let count = buckets.iter().sum();
        HistogramSnapshot {
            buckets,
            count,
            sum: self.sum.load(Relaxed),
            max: self.max.load(Relaxed),
        }
    }

    /// A value recorded at the same time may survive in part.
    pub fn reset(&self) {
        self.buckets.iter().for_each(|bucket| bucket.store(0, Relaxed));
        self.sum.store(0, Relaxed);
        self.max.store(0, Relaxed);
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// The contents of a [`Histogram`] at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: Vec<u64>,
    pub count: u64,
    pub sum: u64,
    /// 0 if there are no values.
    pub max: u64,
}

impl HistogramSnapshot {
    pub fn merge(&mut self, other: &HistogramSnapshot) {
        for (mine, others) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += others;
        }
        self.count += other.count;
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// The non-empty buckets, as (largest value of the bucket, count).
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| (last_value_of(bucket), *count))
    }

    pub(crate) fn add_zeros(&mut self, count: u64) {
        self.buckets[0] += count;
        self.count += count;
    }
}

impl Default for HistogramSnapshot {
    fn default() -> Self {
        HistogramSnapshot { buckets: vec![0; BUCKET_COUNT], count: 0, sum: 0, max: 0 }
    }
}

#[inline]
fn bucket_of(value: u64) -> usize {
    if value < BUCKETS_PER_POWER as u64 {
        return value as usize;
    }
    let power = value.ilog2() - BUCKETS_PER_POWER_BITS;
    // The leading one bit of what is left after the shift makes `power` start at bucket 16.
    power as usize * BUCKETS_PER_POWER + (value >> power) as usize
}

fn last_value_of(bucket: usize) -> u64 {
    if bucket < BUCKETS_PER_POWER {
        return bucket as u64;
    }
    let power = bucket / BUCKETS_PER_POWER - 1;
    let first = ((bucket % BUCKETS_PER_POWER + BUCKETS_PER_POWER) as u64) << power;
    first + ((1 << power) - 1)
}
