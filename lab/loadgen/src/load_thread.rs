//! The threads of runs and of closed loops: how they start and how they end.
//!
//! Each thread has its own connections. It opens them first and then does its work with them. After
//! the last request was due, responses may take up to [`DRAIN`], or [`STOPPED_DRAIN`] if the load
//! was ended early.

use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::sched::SchedClass;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use crate::connection::{Connection, Endpoints, open_direct};
use crate::stop::Stop;
use crate::{Error, Result};

/// How long to wait for responses after the last request was due.
pub const DRAIN: Duration = Duration::from_secs(30);
/// How long to wait for responses after a load was ended early.
pub(crate) const STOPPED_DRAIN: Duration = Duration::from_secs(2);
/// How often a waiting thread checks whether the load is over.
pub(crate) const END_INTERVAL: Duration = Duration::from_millis(50);

/// Starts a thread with `count` connections, and returns when they are open. `first` is the number
/// of connections that other threads have opened before. It decides which servers these connections
/// use, because connections use the servers in turn. The receiver gets the result of `work`. Fails
/// if the thread cannot start, or if a connection cannot be opened.
pub(crate) async fn start_thread<T: Send + 'static, W: Future<Output = T>>(
    name: String,
    sched_class: SchedClass,
    endpoints: &Endpoints,
    (first, count): (u64, u64),
    work: impl FnOnce(Vec<Connection>) -> W + Send + 'static,
) -> Result<oneshot::Receiver<T>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Error::Local(format!("cannot start the async runtime: {error}")))?;
    let (opened, is_open) = oneshot::channel();
    let (ended, result) = oneshot::channel();
    let endpoints = endpoints.clone();
    let run = move || {
        sched_class.apply_to_thread();
        runtime.block_on(async {
            let connections = match open_direct(&endpoints, first, count).await {
                Ok(connections) => connections,
                Err(error) => return drop(opened.send(Err(error))),
            };
            let _ = opened.send(Ok(()));
            // Sending fails if the receiver was dropped. Then nobody needs the result.
            let _ = ended.send(work(connections).await);
        });
    };
    thread::Builder::new().name(name).spawn(run).map_err(thread_error)?;
    is_open.await.expect("the thread says so, or why not")?;
    Ok(result)
}

pub(crate) fn thread_error(error: std::io::Error) -> Error {
    Error::Local(format!("cannot start a thread: {error}"))
}

/// Waits for `work` and returns its result. Calls `each_second` once per second while it waits.
/// The first call is after `delay`.
pub(crate) async fn with_progress<T>(
    work: impl Future<Output = T>,
    delay: Duration,
    mut each_second: impl FnMut(),
) -> T {
    let mut work = pin!(work);
    let mut second = interval_at((Instant::now() + delay).into(), Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            done = &mut work => return done,
            _ = second.tick() => each_second(),
        }
    }
}

/// Waits for all tasks, and passes each result to `add`. Returns `None` if all tasks have ended. If
/// the load has been over for [`DRAIN`], or stopped for [`STOPPED_DRAIN`], the function gives up
/// and returns the reason as text. The remaining tasks still run, and the caller ends them.
pub(crate) async fn drain<T: 'static>(
    tasks: &mut JoinSet<T>,
    is_over: impl Fn() -> bool,
    stop: &Stop,
    mut add: impl FnMut(T),
) -> Option<String> {
    let (mut over, mut stopped) = (None, None);
    while !tasks.is_empty() {
        for (since, has_begun, length) in
            [(&mut stopped, stop.is_set(), STOPPED_DRAIN), (&mut over, is_over(), DRAIN)]
        {
            if has_begun && since.get_or_insert_with(Instant::now).elapsed() >= length {
                return Some(format!("no response within {} s after the end", length.as_secs()));
            }
        }
        if let Ok(Some(done)) = timeout(END_INTERVAL, tasks.join_next()).await {
            add(done.expect("a task neither panics nor is stopped"));
        }
    }
    None
}
