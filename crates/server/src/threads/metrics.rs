//! What have the threads of a member counted? Figures for monitoring.
//!
//! Each figure is an atomic number. It is written by a thread that has just done something that
//! costs far more, and may be read by any thread, without waiting. What is read is no snapshot: two
//! figures may be of different moments.
//!
//! Figures count from the start of the process. What is stored (revision, sizes, members) is no
//! figure: ask the store.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clearlane_engine::KeyRange;
use clearlane_mvcc::{Change, RangeOptions, Store};
use clearlane_wal::Wal;

use crate::applied_position::AppliedPosition;
use crate::apply::AppliedResponse;
use crate::error::Result;
use crate::replica::ProposalResult;

/// How long something took, in buckets: the first up to a bound, each of the others up to twice the
/// bound of the one before, the last without one.
///
/// ```
/// use clearlane_server::threads::DurationHistogram;
/// use std::time::Duration;
///
/// let buckets = DurationHistogram::new(Duration::from_millis(1), 3);
/// for millis in [1, 2, 3, 4, 5] {
///     buckets.record(Duration::from_millis(millis));
/// }
/// let counts: Vec<u64> = buckets.counts().collect();
/// assert_eq!(counts, [1, 1, 2, 1], "up to 1, 2, 4, and more");
/// assert_eq!(buckets.sum(), Duration::from_millis(15));
/// ```
#[derive(Debug)]
pub struct DurationHistogram {
    first_ns: u64,
    counts: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
}

impl DurationHistogram {
    /// Number of buckets with a bound.
    pub fn new(first: Duration, bounded: usize) -> DurationHistogram {
        let first_ns = u64::try_from(first.as_nanos()).unwrap_or(u64::MAX).max(1);
        let counts = (0..=bounded).map(|_| AtomicU64::new(0)).collect();
        DurationHistogram { first_ns, counts, sum_ns: AtomicU64::new(0) }
    }

    /// Counts one.
    #[inline]
    pub fn record(&self, took: Duration) {
        self.record_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts one.
    #[inline]
    pub fn record_ns(&self, took_ns: u64) {
        // It is at most first·2^k if (took-1)/first has at most k bits.
        let bits = u64::BITS - (took_ns.saturating_sub(1) / self.first_ns).leading_zeros();
        let bucket = (bits as usize).min(self.counts.len() - 1);
        self.counts[bucket].fetch_add(1, Relaxed);
        self.sum_ns.fetch_add(took_ns, Relaxed);
    }

    /// The bound of the first bucket.
    pub fn first_bound(&self) -> Duration {
        Duration::from_nanos(self.first_ns)
    }

    /// How many are in each bucket; the last has no bound.
    pub fn counts(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.counts.iter().map(|count| count.load(Relaxed))
    }

    /// All of it.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns.load(Relaxed))
    }
}

/// What has been counted.
#[derive(Debug)]
pub struct Metrics {
    /// Syncs of the log.
    pub log_syncs: DurationHistogram,
    /// Writes to the log.
    pub log_writes: DurationHistogram,
    /// Bytes written to the log.
    pub log_bytes: AtomicU64,
    /// Commits of the store.
    pub commits: DurationHistogram,
    /// Applying an entry. It is timed by the batch, and the batch divided by its entries.
    pub applies: DurationHistogram,
    /// Steps of compactions.
    pub compaction_steps: DurationHistogram,
    /// Compactions, from their first step to their last.
    pub compactions: DurationHistogram,
    /// Records that compactions have removed.
    pub compacted_records: AtomicU64,
    /// When the last compaction ended, in seconds since 1970; 0 if there was none.
    pub compacted_at: AtomicU64,
    /// Puts that were applied.
    pub puts: AtomicU64,
    /// Deleted keys.
    pub deletes: AtomicU64,
    /// Transactions with more than one change.
    pub txns: AtomicU64,
    /// Bytes of keys and values that were put.
    pub put_bytes: AtomicU64,
    /// Keys that are there.
    pub keys: AtomicI64,
    /// Times that another member than before came to lead.
    pub leader_changes: AtomicU64,
    leader: AtomicU64,
    /// Time to live of the leases that were granted by way of this member.
    pub lease_ttls: DurationHistogram,
    /// Leases that ran out while this member led.
    pub leases_expired: AtomicU64,
    /// Proposals that wait to be applied.
    pub proposals_pending: AtomicU64,
    /// Proposals that were refused by raft.
    pub proposals_failed: AtomicU64,
    /// Reads of network threads that would have had to wait for the disk, and were left to others.
    pub uncached_reads: AtomicU64,
    /// Fresh reads that failed.
    pub reads_failed: AtomicU64,
    /// Questions for a read index that were answered late, or not at all.
    pub slow_read_indexes: AtomicU64,
    /// Entries, and reads, that took longer than `--warning-apply-duration`.
    pub slow_applies: AtomicU64,
    /// By so many bytes the log's last segment was too short at the start.
    pub log_missing: AtomicU64,
    /// Heartbeats of this leader that left later than they should have.
    pub late_heartbeats: AtomicU64,
    /// By how much raft's ticks were late.
    pub tick_lateness: DurationHistogram,
    /// The most of it, in nanoseconds.
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
            tick_lateness: DurationHistogram::new(Duration::from_millis(1), 12),
            tick_lateness_max: count(),
        }
    }
}

impl Metrics {
    /// What a start has found.
    pub(super) fn init(&self, store: &dyn Store<AppliedPosition>, wal: &Wal) -> Result<()> {
        let missing = wal.short_tail().map_or(0, |short| short.expected - short.found);
        self.log_missing.store(missing, Relaxed);
        self.count_keys(store)
    }

    /// Counts the keys of a store that was opened, or put in the place of another.
    pub(super) fn count_keys(&self, store: &dyn Store<AppliedPosition>) -> Result<()> {
        let all = RangeOptions { count_only: true, ..RangeOptions::default() };
        let count = store.begin_read().range(KeyRange::ALL, all)?.count;
        self.keys.store(i64::try_from(count).unwrap_or(i64::MAX), Relaxed);
        Ok(())
    }

    /// What a transaction has changed.
    pub(super) fn record_changes(&self, changes: &[Change]) {
        let (mut puts, mut put_bytes, mut born, mut died) = (0, 0, 0, 0);
        for change in changes {
            match change {
                Change::Put(record) => {
                    puts += 1;
                    put_bytes += record.key.len() + record.value.len();
                    born += i64::from(record.version == 1);
                }
                Change::Delete(_) => died += 1,
            }
        }
        self.puts.fetch_add(puts, Relaxed);
        self.put_bytes.fetch_add(put_bytes as u64, Relaxed);
        self.deletes.fetch_add(died as u64, Relaxed);
        self.keys.fetch_add(born - died, Relaxed);
        if changes.len() > 1 {
            self.txns.fetch_add(1, Relaxed);
        }
    }

    /// A tick of raft was late by so much.
    pub(super) fn record_tick(&self, late: Duration) {
        self.tick_lateness.record(late);
        let late_ns = u64::try_from(late.as_nanos()).unwrap_or(u64::MAX);
        self.tick_lateness_max.fetch_max(late_ns, Relaxed);
    }

    /// The current leader; 0 for none.
    pub(super) fn record_leader(&self, leader: u64) {
        if leader != 0 && self.leader.swap(leader, Relaxed) != leader {
            self.leader_changes.fetch_add(1, Relaxed);
        }
    }

    /// A compaction has done its work, in this time, and has removed so many records.
    pub(super) fn record_compaction(&self, took: Duration, removed: u64) {
        self.compactions.record(took);
        self.compacted_records.fetch_add(removed, Relaxed);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.compacted_at.store(now.as_secs(), Relaxed);
    }

    /// A waiting request is notified of the outcome of its proposal.
    pub(super) fn record_completion(&self, answer: &ProposalResult) {
        if let ProposalResult::Request(Ok(AppliedResponse::LeaseGrant(granted))) = answer {
            self.lease_ttls.record(Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0)));
        }
    }

    /// So many entries were applied in this time.
    pub(super) fn record_applied(&self, entries: u64, took: Duration) {
        let entries = u32::try_from(entries).unwrap_or(u32::MAX);
        if let Some(each) = took.checked_div(entries) {
            (0..entries).for_each(|_| self.applies.record(each));
        }
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
        buckets.record_ns(0);
        buckets.record_ns(u64::MAX);
        assert_eq!(buckets.counts().collect::<Vec<u64>>(), [1, 0, 0, 1]);
    }
}
