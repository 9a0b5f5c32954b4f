//! Where a read of keys runs, so that a network thread waits neither for a lock nor for the disk.
//!
//! ```text
//!   default era   in memory, small ──▶ this network thread
//!                 on the disk, small ─▶ uncached pool: its threads wait for the disk
//!                 long ───────────────▶ read pool: three run at a time, in slices
//!   old eras      anything ───────────▶ a thread for each request, as etcd has a goroutine
//! ```
//!
//! In the read pool a short read does not wait for long ones, so a read says [how many
//! keys](ReadSize) it may look at. In an old era a read waits for the locks of its era, and with
//! them in hand for the disk. The number of these threads is bounded.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_contention::{TaskLabel, now_ns};
use clearlane_engine::try_read_cached;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::{Compare, RangeRequest};
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::apply::range::has_first_keys;
use crate::apply::{ApplyError, KeySpan};
use crate::handle::Server;
use crate::request_error::RequestError;
use crate::request_trace::{LockWaitMark, RequestTrace, Stage};
use crate::threads::JobKind;
use crate::walk_steps::has_more_past_keys;

/// The greatest number of keys of a read that is short. Collected and sorted they take a few
/// milliseconds.
const SHORT_READ_KEYS_MAX: u64 = 4096;

pub(crate) type ReadResult<T> = Result<T, ApplyError>;

#[derive(Clone, Copy, Debug)]
pub(crate) enum PoolJob {
    Read(JobKind),
    Uncached,
}

/// At how many keys a read may look.
#[derive(Clone, Debug)]
pub(crate) enum ReadSize {
    /// Some keys by their names.
    SingleKeys,
    AtMost(u64),
    Ranges(Vec<ReadSpan>),
}

/// The keys of a range, at a revision; 0 is the newest.
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

    pub(crate) fn job_kind(&self, view: &(dyn ReadTxn + '_)) -> ReadResult<JobKind> {
        let ReadSize::Ranges(ranges) = self else { return Ok(self.kind()) };
        let options = RangeOptions { count_only: true, ..RangeOptions::default() };
        let mut keys = 0;
        for ReadSpan { key, range_end, revision } in ranges {
            let span = KeySpan::new(key, range_end);
            if has_more_past_keys(view, span.range(), *revision, SHORT_READ_KEYS_MAX as usize) {
                return Ok(JobKind::Long);
            }
            // The index knows it, without a walk.
            keys += view.visit_records(span.range(), options, &mut |_| ControlFlow::Break(()))?;
        }
        Ok(ReadSize::AtMost(keys).kind())
    }

    /// Without a look at the store.
    pub(crate) fn kind(&self) -> JobKind {
        match self {
            ReadSize::SingleKeys => JobKind::Short,
            ReadSize::AtMost(keys) if *keys <= SHORT_READ_KEYS_MAX => JobKind::Short,
            ReadSize::AtMost(_) | ReadSize::Ranges(_) => JobKind::Long,
        }
    }
}

impl Server {
    /// A read of single keys runs on this thread; on a cache miss, in the uncached pool.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        trace: &mut RequestTrace,
        label: TaskLabel,
        size: ReadSize,
        work: impl Fn(&(dyn ReadTxn + '_)) -> ReadResult<T> + Send + 'static,
    ) -> Result<T, RequestError> {
        let number = trace.number;
        let Some(view) = self.threads().store().begin_snapshot_read() else {
            return Box::pin(self.read_locked(trace, label, number, work)).await;
        };
        let pool = match size {
            ReadSize::SingleKeys => PoolJob::Uncached,
            size => PoolJob::Read(size.job_kind(&*view)?),
        };
        let work = move || {
            let _as = label.enter_numbered(number);
            work(&*view)
        };
        if matches!(pool, PoolJob::Uncached)
            && let Some(done) = self.read_cached(&work)
        {
            return Ok(done?);
        }
        Box::pin(self.run_in_pool(pool, trace, work)).await
    }

    /// `None` if the read would have to wait for the disk.
    pub(crate) fn read_cached<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let found = try_read_cached(read).ok();
        if found.is_none() {
            self.threads().metrics().uncached_reads.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// Runs a read in a pool, and adds its waits for locks to its trace.
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

    /// On this thread; in an old era on a thread that may wait for the locks.
    pub async fn read_store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&(dyn ReadTxn + '_)) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        self.run_where_locks_may_wait(|server| work(&*server.threads().store().begin_read())).await
    }

    pub async fn store_revision(&self) -> Result<i64, RequestError> {
        self.read_store(|read| read.revision()).await
    }

    /// On this thread; in an old era on a thread that may wait for the locks.
    pub async fn run_where_locks_may_wait<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Server) -> T + Send + 'static,
    ) -> Result<T, RequestError> {
        if self.threads().store().era() == Era::Clearlane {
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
            // The request has been dropped: take no lock for it.
            if !done.is_closed() {
                let _ = done.send(work());
            }
        });
        // An error means that the runtime stops, or that the work has panicked.
        self.within_deadline(result).await?.map_err(|_| RequestError::Stopped)
    }
}

/// Work for another thread, as a stage of a request.
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
