//! Metrics of a member's threads, counted from the start of the member.
//!
//! Any thread may read the metrics, which are atomic numbers. Two metrics that are read together
//! may be from different times. This module has only two metrics of the stored data: the number of
//! keys and the [sizes](StoreSizes). The store has the others.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearlane_backend::Sizes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{Changes, RangeOptions, Store};
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::apply::AppliedResponse;
use clearlane_replica::{RequestOutcome, Result};

/// A histogram of durations. The limit of each bucket is twice the limit of the previous bucket.
/// The last bucket has no limit.
#[derive(Debug)]
pub struct DurationHistogram {
    first_ns: u64,
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Creates a histogram. `first` is the limit of the first bucket, and `bounded` the number of
    /// buckets with a limit.
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
        // The duration is at most first·2^k if (took-1)/first has at most k bits.
        let bits = u64::BITS - (took_ns.saturating_sub(1) / self.first_ns).leading_zeros();
        let bucket = (bits as usize).min(self.counts.len() - 1);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(took_ns, Relaxed);
    }

    pub fn first_bound(&self) -> Duration {
        Duration::from_nanos(self.first_ns)
    }

    /// Returns the count of each bucket.
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
    /// Durations of applying one entry: the time of a batch divided by the number of its entries.
    pub applies: DurationHistogram,
    pub compaction_steps: DurationHistogram,
    /// Durations of compactions, from the first step to the last.
    pub compactions: DurationHistogram,
    pub compacted_records: AtomicU64,
    /// End of the last compaction, in seconds since 1970; 0 if there was none.
    pub compacted_at: AtomicU64,
    pub puts: AtomicU64,
    pub deletes: AtomicU64,
    /// Number of transactions with more than one change.
    pub txns: AtomicU64,
    /// Bytes of the keys and values of all puts.
    pub put_bytes: AtomicU64,
    pub keys: AtomicI64,
    /// Number of changes to another leader, including the first leader that this member knows.
    pub leader_changes: AtomicU64,
    leader: AtomicU64,
    /// TTLs of the leases granted through this member.
    pub lease_ttls: DurationHistogram,
    /// Number of revocations of expired leases that this member proposed as the leader.
    pub leases_expired: AtomicU64,
    pub proposals_pending: AtomicU64,
    pub proposals_failed: AtomicU64,
    /// Number of reads on network threads that missed the cache and were sent to a pool.
    pub uncached_reads: AtomicU64,
    pub reads_failed: AtomicU64,
    /// Number of ReadIndex requests whose response arrived late or never.
    pub slow_read_indexes: AtomicU64,
    /// Number of entries and reads that took longer than `--warning-apply-duration`.
    pub slow_applies: AtomicU64,
    /// Number of bytes by which the log's last segment was too short at startup.
    pub log_missing: AtomicU64,
    pub late_heartbeats: AtomicU64,
    /// Number of appends that members rejected although they had acknowledged the rejected index to
    /// this leader.
    pub lost_log_reports: AtomicU64,
    pub tick_lateness: DurationHistogram,
    /// The longest delay of a tick, in nanoseconds.
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

    /// Records the leader. Counts a leader change if the last recorded leader was another member,
    /// or if this is the first recorded leader. Ignores 0, which means that there is no leader.
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

/// The sizes of the store as of the last commit. See [`quota`](clearlane_replica::quota).
#[derive(Debug, Default)]
pub struct StoreSizes {
    in_use: AtomicU64,
    peak_in_use: AtomicU64,
}

impl StoreSizes {
    /// Returns the largest total size of all keys and values since the store was last opened,
    /// rewritten or replaced, in bytes and including history. The quota limits this size.
    pub fn size(&self) -> u64 {
        self.peak_in_use.load(Relaxed)
    }

    /// Returns the total size of all keys and values, in bytes and including history.
    pub fn in_use(&self) -> u64 {
        self.in_use.load(Relaxed)
    }

    pub(super) fn update(&self, sizes: Sizes) {
        self.in_use.store(sizes.in_use, Relaxed);
        self.peak_in_use.fetch_max(sizes.in_use, Relaxed);
    }

    /// Sets the sizes of a store that was opened, rewritten or replaced.
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
