//! The threads of a member, each with its scheduling class.
//!
//! An error or a panic of one of them is the member's failure: the others would wait for it for
//! ever.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_net::sched::SchedClass::{self, Batch, Latency, Normal};
use clearlane_wal::Wal;

use super::commit_thread::CommitThread;
use super::network::Network;
use super::read_pool::ReadPool;
use super::state::ServerState;
use super::{apply_loop, raft_loop, wal_thread, watch_thread};
use crate::error::{Error, Result};
use crate::replica::{Applier, Replica};

/// Starts all threads but those of the pools, which start with their jobs: the allocator gives each
/// two megabytes, which a member without long reads need not spend.
pub(super) fn spawn_all(
    (replica, applier, wal): (Replica, Applier, Wal),
    commits: CommitThread,
    tick: Duration,
    network: Box<dyn Network>,
    shared: &Arc<ServerState>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let (to_wal, from_raft) = channel();
    let (to_commit, commit_work) = channel();
    let (to_apply, apply_work) = channel();
    let applies_to = to_commit.clone();
    let channels = raft_loop::Channels { to_wal, to_apply, to_commit, network };
    let threads = [
        spawn("wal", Latency, shared, move |state| wal_thread::run(wal, &from_raft, state)),
        spawn("commit", Normal, shared, move |state| commits.run(&commit_work, state)),
        spawn("raft", Latency, shared, move |state| raft_loop::run(replica, tick, channels, state)),
        spawn("apply", Latency, shared, move |state| {
            apply_loop::run(applier, &apply_work, applies_to, state)
        }),
        spawn("watch", Latency, shared, watch_thread::deliver),
        spawn("catch-up", Normal, shared, watch_thread::sync_watchers),
    ];
    // A reader without locks may be preempted for long: it blocks no other thread.
    let has_locks = shared.store.load().era() != Era::Clearlane;
    let reader_class = if has_locks { Normal } else { Batch };
    prepare_pool(&shared.read_pool, shared, move |number, state| {
        let run = |state: &ServerState| state.read_pool.run_worker();
        spawn(&format!("read-{number}"), reader_class, state, run)
    });
    // They have the class of the threads that answer: they only sleep and wake.
    prepare_pool(&shared.uncached_pool, shared, |number, state| {
        let run = |state: &ServerState| state.uncached_pool.run_worker();
        spawn(&format!("uncached-{number}"), Latency, state, run)
    });
    // Each job computes for tens of milliseconds, and holds no lock meanwhile.
    prepare_pool(&shared.password_pool, shared, |number, state| {
        let run = |state: &ServerState| state.password_pool.run_worker();
        spawn(&format!("password-{number}"), Batch, state, run)
    });
    threads.into_iter().collect()
}

/// A pool without any thread is the member's failure.
fn prepare_pool(
    pool: &ReadPool,
    shared: &Arc<ServerState>,
    start: impl Fn(usize, &Arc<ServerState>) -> io::Result<JoinHandle<()>> + Send + Sync + 'static,
) {
    let state = Arc::downgrade(shared);
    pool.set_start_thread(Box::new(move |number| {
        let Some(shared) = state.upgrade() else {
            return Err(io::Error::other("the member has stopped"));
        };
        let started = start(number, &shared);
        if let (0, Err(error)) = (number, &started) {
            shared.fail(io::Error::new(error.kind(), error.to_string()).into());
        }
        started
    }));
}

/// Its error is published as the member's failure.
fn spawn(
    name: &str,
    sched_class: SchedClass,
    shared: &Arc<ServerState>,
    work: impl FnOnce(&ServerState) -> Result<()> + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = name.to_owned();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            // The class changes timing only: an error is ignored.
            sched_class.apply_to_thread();
            work(&shared)
        }));
        if let Err(error) = ended.unwrap_or_else(|_| Err(Error::Panicked { thread })) {
            shared.fail(error);
        }
    })
}
