//! A histogram of times. Many threads can fill it without waiting for each other.
//!
//! The buckets are log-linear, as in HdrHistogram: each power of two is divided into
//! [`BUCKETS_PER_POWER`] buckets of equal width. Recording a value takes a shift that finds the
//! bucket, two atomic additions, and an update of the maximum if the value exceeds it.
//!
//! * A snapshot shows each bucket by its end, which is the largest value that belongs to the
//!   bucket. The end is less than 1/16 (6.25 %) above any value in the bucket.
//! * `count`, `sum` and `max` are exact, not rounded to buckets. The count is the sum of the
//!   buckets, so it cannot differ from them.
//! * A snapshot taken while other threads record may include a value in its bucket but not in the
//!   sum or the maximum, or the other way round.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(test)]
mod tests;

/// Number of buckets for each power of two. It sets the precision: the end of a bucket is less than
/// 1/16 above the values in the bucket.
const BUCKETS_PER_POWER: usize = 16;
const BUCKETS_PER_POWER_BITS: u32 = BUCKETS_PER_POWER.trailing_zeros();

/// Number of buckets. Each value below [`BUCKETS_PER_POWER`] has its own bucket.
const BUCKET_COUNT: usize =
    BUCKETS_PER_POWER + (u64::BITS - BUCKETS_PER_POWER_BITS) as usize * BUCKETS_PER_POWER;

/// Counts values in buckets whose width grows with the value. In this crate the values are times,
/// mostly from ten nanoseconds to ten seconds. The table shows the first value of each bucket:
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
    /// Allocates an empty histogram of about 8 KiB.
    pub fn new() -> Histogram {
        let buckets = (0..BUCKET_COUNT).map(|_| AtomicU64::new(0)).collect();
        Histogram { buckets, sum: AtomicU64::new(0), max: AtomicU64::new(0) }
    }

    #[inline]
    pub fn record(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
        // A new maximum is rare, so read first: a write would take the cache line from other
        // threads.
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

    /// Sets all buckets, the sum and the maximum to 0. A value that another thread records during
    /// this call may remain in some of them.
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

/// The contents of a [`Histogram`] at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistogramSnapshot {
    buckets: Vec<u64>,
    pub count: u64,
    pub sum: u64,
    /// The largest value, or 0 if there are no values.
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

    /// Returns a pair for each non-empty bucket: the largest value that belongs to the bucket, and
    /// the count of values in it.
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
    // After the shift, the value is 16 to 31. So the buckets of `power` 0 start at bucket 16.
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
