//! Where a read of keys runs, so that a network thread waits neither for a lock nor for the disk.
//!
//! ```text
//!   default era   in memory, small ──▶ this network thread
//!                 on the disk, small ─▶ uncached pool: its threads wait for the disk
//!                 long ───────────────▶ read pool: two threads, one job after the other
//!   old eras      anything ───────────▶ a thread for each request, as etcd has a goroutine
//! ```
//!
//! In an old era a read waits for the locks of its era, and with them in hand for the disk. The
//! number of these threads is bounded.

use std::sync::atomic::Ordering;

use clearlane_backend::Era;
use clearlane_contention::{TaskLabel, now_ns};
use clearlane_engine::try_read_cached;
use clearlane_mvcc::ReadTxn;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use crate::apply::ApplyError;
use crate::handle::Server;
use crate::request_error::RequestError;
use crate::request_trace::{LockWaitMark, RequestTrace, Stage};
use crate::threads::ReadPool;

pub(crate) type ReadResult<T> = Result<T, ApplyError>;

impl Server {
    /// A small read runs on this thread; on a cache miss, in the uncached pool.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        trace: &mut RequestTrace,
        label: TaskLabel,
        is_small: bool,
        work: impl Fn(&(dyn ReadTxn + '_)) -> ReadResult<T> + Send + 'static,
    ) -> Result<T, RequestError> {
        let number = trace.number;
        let Some(view) = self.threads().store().begin_snapshot_read() else {
            return Box::pin(self.read_locked(trace, label, number, work)).await;
        };
        let work = move || {
            let _as = label.enter_numbered(number);
            work(&*view)
        };
        let cached = if is_small { self.read_cached(&work) } else { None };
        let pool = match cached {
            Some(done) => return Ok(done?),
            None if is_small => self.threads().uncached_pool(),
            None => self.threads().read_pool(),
        };
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
        pool: &ReadPool,
        trace: &mut RequestTrace,
        work: impl FnOnce() -> ReadResult<T> + Send + 'static,
    ) -> Result<T, RequestError> {
        let done = pool.run(traced(*trace, work));
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
        let work = traced(*trace, move || {
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

    async fn run_on_own_thread<T: Send + 'static>(
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

fn traced<T>(
    mut trace: RequestTrace,
    work: impl FnOnce() -> ReadResult<T>,
) -> impl FnOnce() -> (ReadResult<T>, RequestTrace) {
    move || {
        trace.end_stage(Stage::Pool);
        let before = LockWaitMark::now();
        let done = work();
        trace.end_stage_with_locks(Stage::Backend, now_ns(), before);
        (done, trace)
    }
}
