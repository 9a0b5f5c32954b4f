//! Resets the stream of a call after its deadline, even if the client reads nothing.
//!
//! hyper runs each HTTP/2 stream as a task. After hyper has taken a chunk from the body of a
//! response, it polls the body again only when the client's flow-control window is open. So a body
//! cannot check its deadline while the window is closed. A stream ends when its task is dropped: h2
//! then discards the queued data and sends `RST_STREAM` with `CANCEL`. Everything that the call
//! holds is released with the task. Only gRPC calls have a deadline; other HTTP requests have no
//! time limit here.
//!
//! ```text
//!   Router::call ─▶ [time limit] ─▶ execute ─▶ the task, dropped RESET_DELAY after the deadline
//! ```
//!
//! hyper calls the router and then the executor for each stream, before it accepts the next stream.
//! So the time limit that the router sets applies to the task of the same stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::rt::Executor;

/// Time from a deadline to the reset of a stream. Until then the client can receive a status.
pub(crate) const RESET_DELAY: Duration = Duration::from_millis(100);

const NO_LIMIT: u64 = u64::MAX;

/// Spawns the tasks of one connection. Clones share the time limit of the next task.
#[derive(Clone, Debug)]
pub(crate) struct StreamExecutor {
    /// The time limit of the next task, in nanoseconds.
    next_limit_ns: Arc<AtomicU64>,
}

impl Default for StreamExecutor {
    fn default() -> StreamExecutor {
        StreamExecutor { next_limit_ns: Arc::new(AtomicU64::new(NO_LIMIT)) }
    }
}

impl StreamExecutor {
    /// Sets the time limit of the next task; `None` for a task without a limit.
    pub(crate) fn limit_next(&self, limit: Option<Duration>) {
        let limit_ns = limit.and_then(|limit| u64::try_from(limit.as_nanos()).ok());
        self.next_limit_ns.store(limit_ns.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    }
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        match self.next_limit_ns.swap(NO_LIMIT, Ordering::Relaxed) {
            NO_LIMIT => drop(tokio::spawn(task)),
            limit_ns => {
                let limit = Duration::from_nanos(limit_ns).saturating_add(RESET_DELAY);
                drop(tokio::spawn(tokio::time::timeout(limit, task)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Instant;

    use tokio::sync::oneshot;

    use super::*;

    /// A task that never ends, and a receiver that fails when the task is dropped.
    fn endless() -> (impl Future<Output = ()>, oneshot::Receiver<()>) {
        let (held, dropped) = oneshot::channel::<()>();
        let task = async move {
            let _held = held;
            pending::<()>().await;
        };
        (task, dropped)
    }

    #[test]
    fn only_the_next_task_has_the_limit() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (executor, limit) = (StreamExecutor::default(), Duration::from_millis(20));
            let begin = Instant::now();
            executor.limit_next(Some(limit));
            let ((limited, ended), (other, mut endless)) = (endless(), endless());
            executor.clone().execute(limited);
            executor.execute(other);
            assert!(ended.await.is_err(), "nothing is sent");
            assert!(begin.elapsed() >= limit + RESET_DELAY);
            assert_eq!(endless.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        });
    }

    #[test]
    fn a_limit_can_be_removed_and_may_be_long() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let executor = StreamExecutor::default();
            executor.limit_next(Some(Duration::ZERO));
            for limit in [None, Some(Duration::MAX), Some(Duration::from_nanos(NO_LIMIT - 1))] {
                executor.limit_next(limit);
                let (report, end) = oneshot::channel();
                executor.execute(async move {
                    tokio::time::sleep(2 * RESET_DELAY).await;
                    report.send(()).unwrap();
                });
                assert_eq!(end.await, Ok(()), "{limit:?}");
            }
        });
    }
}
