//! Decides where a read of keys runs, so that a network thread waits neither for a lock nor for the
//! disk.
//!
//! ```text
//!   default era   single keys; ranges in key order, within a budget
//!                   pages in memory ───────▶ this network thread
//!                   a page on the disk ────▶ uncached pool: its threads wait for the disk
//!                 other reads ─────────────▶ read pool: three run at a time, in slices
//!   old eras      all reads ───────────────▶ a thread for each request, as etcd has a goroutine
//! ```
//!
//! A Range request starts on the network thread if it reads a single key, or counts keys, or reads
//! keys in key order and without filters. So does a read-only transaction of single keys. A range
//! restarts in the read pool if it exceeds the budget: 128 records, 256 KiB, or, at a past
//! revision, 1,024 keys of the index. All other reads are jobs of the read pool, for example sorted
//! ranges, later pages of a stream, and transactions with ranges.
//!
//! In the read pool a short read usually waits only for slices of long reads. For this, each read
//! declares [how many keys](ReadSize) it may visit. A read of up to 4,096 keys is short.
//!
//! In an old era a read waits for the locks of its era, and waits for the disk while it holds them.
//! The number of threads for such reads is limited.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clearlane_contention::{TaskLabel, now_ns};
use clearlane_engine::try_read_cached;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::{Compare, RangeRequest};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::handle::Server;
use crate::observe::request_trace::{RequestTrace, Stage};
use crate::threads::JobKind;
use clearlane_contention::LockWaitMark;
use clearlane_replica::RequestError;
use clearlane_replica::apply::range::has_first_keys;
use clearlane_replica::apply::{ApplyError, KeySpan};
use clearlane_replica::walk_steps::has_more_past_keys;

/// Maximum number of keys of a short read. Collecting and sorting that many keys takes a few
/// milliseconds.
const SHORT_READ_KEYS_MAX: u64 = 4096;

pub(crate) type ReadResult<T> = Result<T, ApplyError>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolJob {
    Read(JobKind),
    Uncached,
}

/// The number of keys that a read may visit.
#[derive(Clone, Debug)]
pub(crate) enum ReadSize {
    /// Single keys, without a range.
    SingleKeys,
    AtMost(u64),
    Ranges(Vec<ReadSpan>),
}

/// The keys of a range, at a revision. Revision 0 means the newest revision.
#[derive(Clone, Debug)]
pub(crate) struct ReadSpan {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
    pub(crate) revision: i64,
}

impl From<&Compare> for ReadSpan {
    fn from(compare: &Compare) -> ReadSpan {
        let Compare { key, range_end, .. } = compare;
        ReadSpan { key: key.clone(), range_end: range_end.clone(), revision: 0 }
    }
}

impl From<&RangeRequest> for ReadSpan {
    fn from(request: &RangeRequest) -> ReadSpan {
        let RangeRequest { key, range_end, revision, .. } = request;
        ReadSpan { key: key.clone(), range_end: range_end.clone(), revision: *revision }
    }
}

impl ReadSize {
    pub(crate) fn of_range(request: &RangeRequest) -> ReadSize {
        let limit = u64::try_from(request.limit).unwrap_or(0);
        let is_cut_short = (1..=SHORT_READ_KEYS_MAX).contains(&limit);
        if is_cut_short && has_first_keys(request) && request.revision <= 0 {
            return ReadSize::AtMost(limit);
        }
        ReadSize::of_spans([ReadSpan::from(request)].into_iter())
    }

    pub(crate) fn of_spans(spans: impl Iterator<Item = ReadSpan>) -> ReadSize {
        let ranges: Vec<_> = spans.filter(|span| !span.range_end.is_empty()).collect();
        if ranges.is_empty() { ReadSize::SingleKeys } else { ReadSize::Ranges(ranges) }
    }

    pub(crate) fn job_kind(&self, read_txn: &(dyn ReadTxn + '_)) -> ReadResult<JobKind> {
        let ReadSize::Ranges(ranges) = self else { return Ok(self.kind()) };
        let options = RangeOptions { count_only: true, ..RangeOptions::default() };
        let mut keys = 0;
        for ReadSpan { key, range_end, revision } in ranges {
            let span = KeySpan::new(key, range_end);
            if has_more_past_keys(read_txn, span.range(), *revision, SHORT_READ_KEYS_MAX as usize) {
                return Ok(JobKind::Long);
            }
            // Count the keys at the newest revision, even if the range is read at a past revision:
            // the index knows this number without a walk.
            keys +=
                read_txn.visit_records(span.range(), options, &mut |_| ControlFlow::Break(()))?;
        }
        Ok(ReadSize::AtMost(keys).kind())
    }

    /// Returns the kind of the job without reading the store.
    pub(crate) fn kind(&self) -> JobKind {
        match self {
            ReadSize::SingleKeys => JobKind::Short,
            ReadSize::AtMost(keys) if *keys <= SHORT_READ_KEYS_MAX => JobKind::Short,
            ReadSize::AtMost(_) | ReadSize::Ranges(_) => JobKind::Long,
        }
    }
}

impl Server {
    /// Runs a read. A read of single keys runs on this thread or, after a cache miss, in the
    /// uncached pool. Any other read runs in the read pool. In an old era each read runs on a
    /// separate thread.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        trace: &mut RequestTrace,
        label: TaskLabel,
        size: ReadSize,
        work: impl Fn(&(dyn ReadTxn + '_)) -> ReadResult<T> + Send + 'static,
    ) -> Result<T, RequestError> {
        let number = trace.number;
        let Some(read_txn) = self.threads().store().begin_snapshot_read() else {
            return Box::pin(self.read_locked(trace, label, number, work)).await;
        };
        let pool = match size {
            ReadSize::SingleKeys => PoolJob::Uncached,
            size => PoolJob::Read(size.job_kind(&*read_txn)?),
        };
        let work = move || {
            let _as = label.enter_numbered(number);
            work(&*read_txn)
        };
        if matches!(pool, PoolJob::Uncached)
            && let Some(done) = self.read_cached(&work)
        {
            return Ok(done?);
        }
        Box::pin(self.run_in_pool(pool, trace, work)).await
    }

    /// Runs a read on this thread. Returns `None` if the read would have to wait for the disk.
    pub(crate) fn read_cached<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let found = try_read_cached(read).ok();
        if found.is_none() {
            self.threads().metrics().uncached_reads.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Runs a read in a pool, and adds its times, including its waits for locks, to its trace.
    pub(crate) async fn run_in_pool<T: Send + 'static>(
        &self,
        pool: PoolJob,
        trace: &mut RequestTrace,
        work: impl FnOnce() -> ReadResult<T> + Send + 'static,
    ) -> Result<T, RequestError> {
        let (pool, kind) = match pool {
            PoolJob::Read(kind) => (self.threads().read_pool(), kind),
            PoolJob::Uncached => (self.threads().uncached_pool(), JobKind::Short),
        };
        let done = pool.run(kind, traced(*trace, Stage::Backend, work));
        let (done, traced) = self.within_deadline(done).await?.ok_or(RequestError::Stopped)?;
        *trace = traced;
        Ok(done?)
    }

    async fn read_locked<T: Send + 'static>(
        &self,
        trace: &mut RequestTrace,
        label: TaskLabel,
        number: u32,
        work: impl FnOnce(&(dyn ReadTxn + '_)) -> ReadResult<T> + Send + 'static,
    ) -> Result<T, RequestError> {
        let store = self.threads().store();
        let work = traced(*trace, Stage::Backend, move || {
            let _as = label.enter_numbered(number);
            work(&*store.begin_read())
        });
        let (done, traced) = self.run_on_own_thread(work).await?;
        *trace = traced;
        Ok(done?)
    }

    /// Reads on this thread or, in an old era, on a thread that may wait for the locks.
    pub async fn read_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&(dyn ReadTxn + '_)) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        self.run_where_locks_may_wait(|server| work(&*server.threads().store().begin_read())).await
    }

    pub async fn store_revision(&self) -> Result<i64, RequestError> {
        self.read_store(|read| read.revision()).await
    }

    /// Runs `work` on this thread or, in an old era, on a thread that may wait for the locks.
    pub async fn run_where_locks_may_wait<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Server) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        if !self.threads().era().waits_for_locks {
            return Ok(work(self));
        }
        let server = self.clone();
        self.run_on_own_thread(move || work(&server)).await
    }

    pub(crate) async fn run_on_own_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        let (done, result) = oneshot::channel();
        spawn_blocking(move || {
            // If the request has been dropped, no lock is taken for it.
            if !done.is_closed() {
                let _ = done.send(work());
            }
        });
        // An error means that the runtime is stopping, or that the work has panicked.
        self.within_deadline(result).await?.map_err(|_| RequestError::Stopped)
    }
}

/// Wraps work for another thread. The time of the work is recorded as the stage `stage` of a
/// request. The wait before the work starts is recorded as [`Stage::Pool`].
pub(crate) fn traced<T>(
    mut trace: RequestTrace,
    stage: Stage,
    work: impl FnOnce() -> T,
) -> impl FnOnce() -> (T, RequestTrace) {
    move || {
        trace.end_stage(Stage::Pool);
        let before = LockWaitMark::now();
        let done = work();
        trace.end_stage_with_locks(stage, now_ns(), before);
        (done, trace)
    }
}
