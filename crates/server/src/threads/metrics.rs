//! Metrics of a member's threads, from the start of the process.
//!
//! Each is an atomic number that any thread may read; two of them may be of different moments. What
//! is stored is not among them, but for its [sizes](StoreSizes): ask the store.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearlane_backend::Sizes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{Changes, RangeOptions, Store};

use crate::applied_position::AppliedPosition;
use crate::apply::AppliedResponse;
use crate::error::Result;
use crate::replica::RequestOutcome;

/// Durations in buckets with doubling bounds; the last bucket has none.
#[derive(Debug)]
pub struct DurationHistogram {
    first_ns: u64,
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// `bounded` is the number of buckets with a bound.
    pub fn new(first: Duration, bounded: usize) -> DurationHistogram {
        let first_ns = u64::try_from(first.as_nanos()).unwrap_or(u64::MAX).max(1);
        let counts = (0..=bounded).map(|_| AtomicU64::new(0)).collect();
        DurationHistogram { first_ns, counts, sum_ns: AtomicU64::new(0) }
    }

    #[inline]
    pub fn record(&self, took: Duration) {
        self.record_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    #[inline]
    pub fn record_ns(&self, took_ns: u64) {
        // It is at most first·2^k if (took-1)/first has at most k bits.
        let bits = u64::BITS - (took_ns.saturating_sub(1) / self.first_ns).leading_zeros();
        let bucket = (bits as usize).min(self.counts.len() - 1);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(took_ns, Relaxed);
    }

    pub fn first_bound(&self) -> Duration {
        Duration::from_nanos(self.first_ns)
    }

    /// Per bucket.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.counts.iter().map(|count| count.load(Relaxed))
    }

    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Relaxed))
    }
}

#[derive(Debug)]
pub struct Metrics {
    pub log_syncs: DurationHistogram,
    pub log_writes: DurationHistogram,
    pub log_bytes: AtomicU64,
    pub commits: DurationHistogram,
    /// Per entry, as the time of a batch divided by its entries.
    pub applies: DurationHistogram,
    pub compaction_steps: DurationHistogram,
    /// From the first step to the last.
    pub compactions: DurationHistogram,
    pub compacted_records: AtomicU64,
    /// End of the last compaction, in seconds since 1970; 0 if there was none.
    pub compacted_at: AtomicU64,
    pub puts: AtomicU64,
    pub deletes: AtomicU64,
    /// With more than one change.
    pub txns: AtomicU64,
    /// Bytes of keys and values.
    pub put_bytes: AtomicU64,
    pub keys: AtomicI64,
    /// Changes to another leader than before.
    pub leader_changes: AtomicU64,
    leader: AtomicU64,
    /// TTL of the leases granted through this member.
    pub lease_ttls: DurationHistogram,
    /// Counted while this member led.
    pub leases_expired: AtomicU64,
    pub proposals_pending: AtomicU64,
    pub proposals_failed: AtomicU64,
    /// Reads of network threads that missed the cache and went to a pool.
    pub uncached_reads: AtomicU64,
    pub reads_failed: AtomicU64,
    /// Read indexes that came late or not at all.
    pub slow_read_indexes: AtomicU64,
    /// Entries and reads beyond `--warning-apply-duration`.
    pub slow_applies: AtomicU64,
    /// Bytes that the log's last segment was too short by at the start.
    pub log_missing: AtomicU64,
    pub late_heartbeats: AtomicU64,
    /// Appends that members rejected below the index that they had acknowledged to this leader.
    pub lost_log_reports: AtomicU64,
    pub tick_lateness: DurationHistogram,
    /// The maximum, in nanoseconds.
    pub tick_lateness_max: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let disk = || DurationHistogram::new(Duration::from_millis(1), 14);
        let count = AtomicU64::default;
        Metrics {
            log_syncs: disk(),
            log_writes: disk(),
            log_bytes: count(),
            commits: disk(),
            applies: DurationHistogram::new(Duration::from_micros(100), 20),
            compaction_steps: DurationHistogram::new(Duration::from_millis(1), 13),
            compactions: DurationHistogram::new(Duration::from_millis(100), 14),
            compacted_records: count(),
            compacted_at: count(),
            puts: count(),
            deletes: count(),
            txns: count(),
            put_bytes: count(),
            keys: AtomicI64::default(),
            leader_changes: count(),
            leader: count(),
            lease_ttls: DurationHistogram::new(Duration::from_secs(1), 24),
            leases_expired: count(),
            proposals_pending: count(),
            proposals_failed: count(),
            uncached_reads: count(),
            reads_failed: count(),
            slow_read_indexes: count(),
            slow_applies: count(),
            log_missing: count(),
            late_heartbeats: count(),
            lost_log_reports: count(),
            tick_lateness: DurationHistogram::new(Duration::from_millis(1), 12),
            tick_lateness_max: count(),
        }
    }
}

impl Metrics {
    /// Counts the keys of a store that was opened or installed.
    pub(super) fn count_keys(&self, store: &dyn Store<AppliedPosition>) -> Result<()> {
        let all = RangeOptions { count_only: true, ..RangeOptions::default() };
        let count = store.begin_read().range(KeyRange::ALL, all)?.count;
        self.keys.store(i64::try_from(count).unwrap_or(i64::MAX), Relaxed);
        Ok(())
    }

    pub(super) fn record_changes(&self, changes: &Changes) {
        let (mut puts, mut put_bytes, mut born) = (0, 0, 0);
        for record in changes.puts() {
            puts += 1;
            put_bytes += record.key.len() + record.value.len();
            born += i64::from(record.version == 1);
        }
        let died = changes.len() as i64 - puts as i64;
        self.puts.fetch_add(puts, Relaxed);
        self.put_bytes.fetch_add(put_bytes as u64, Relaxed);
        self.deletes.fetch_add(died as u64, Relaxed);
        self.keys.fetch_add(born - died, Relaxed);
        if changes.len() > 1 {
            self.txns.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn record_tick(&self, late: Duration) {
        self.tick_lateness.record(late);
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.tick_lateness_max.fetch_max(late_ns, Relaxed);
    }

    /// 0 for none.
    pub(super) fn record_leader(&self, leader: u64) {
        if leader != 0 && self.leader.swap(leader, Relaxed) != leader {
            self.leader_changes.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn record_compaction(&self, took: Duration, removed: u64) {
        self.compactions.record(took);
        self.compacted_records.fetch_add(removed, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.compacted_at.store(now.as_secs(), Relaxed);
    }

    pub(super) fn record_completion(&self, outcome: &RequestOutcome) {
        if let RequestOutcome::Applied(Ok(AppliedResponse::LeaseGrant(granted))) = outcome {
            self.lease_ttls.record(Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0)));
        }
    }

    pub(super) fn record_applied(&self, entries: u64, took: Duration) {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        if let Some(each) = took.checked_div(entries) {
            (0..entries).for_each(|_| self.applies.record(each));
        }
    }
}

/// The sizes of the store as of the last commit. What they mean: [`quota`](crate::quota).
#[derive(Debug, Default)]
pub struct StoreSizes {
    in_use: AtomicU64,
    peak_in_use: AtomicU64,
}

impl StoreSizes {
    /// Bytes of all keys and values, history included, at their maximum since the store was last
    /// rewritten: what counts for the quota.
    pub fn size(&self) -> u64 {
        self.peak_in_use.load(Relaxed)
    }

    /// Bytes of all keys and values, history included.
    pub fn in_use(&self) -> u64 {
        self.in_use.load(Relaxed)
    }

    pub(super) fn update(&self, sizes: Sizes) {
        self.in_use.store(sizes.in_use, Relaxed);
        self.peak_in_use.fetch_max(sizes.in_use, Relaxed);
    }

    /// For a store that was rewritten or replaced.
    pub(super) fn reset(&self, sizes: Sizes) {
        self.update(sizes);
        self.peak_in_use.store(sizes.in_use, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_on_a_bound_is_below_it() {
        for first_ns in [1, 3, 1000] {
            for k in 0..5 {
                let bound = first_ns << k;
                for (value, bucket) in [(bound, k), (bound + 1, k + 1)] {
                    let buckets = DurationHistogram::new(Duration::from_nanos(first_ns), 5);
                    buckets.record_ns(value);
                    let counts: Vec<u64> = buckets.counts().collect();
                    assert_eq!(counts[bucket], 1, "{value} of {first_ns}·2^{k}: {counts:?}");
                }
            }
        }
        let buckets = DurationHistogram::new(Duration::from_nanos(1), 3);
        (0..=5).for_each(|value| buckets.record_ns(value));
        assert_eq!(buckets.sum(), Duration::from_nanos(15));
        buckets.record_ns(u64::MAX);
        let counts: Vec<u64> = buckets.counts().collect();
        assert_eq!(counts, [2, 1, 2, 2], "up to 1, 2, 4, and more");
    }
}
