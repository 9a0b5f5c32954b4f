//! Starts the threads of a member, each with its scheduling class.
//!
//! If one thread fails or panics, the whole member fails, because the other threads would wait for
//! this thread forever.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clearlane_net::sched::SchedClass::{self, Batch, Latency, Normal};
use clearlane_replica::{Applier, Error, Replica, Result};
use clearlane_wal::Wal;

use super::commit_thread::CommitThread;
use super::network::Network;
use super::read_pool::ReadPool;
use super::state::ServerState;
use super::wal_thread::LogWriter;
use super::{apply_loop, raft_loop, wal_thread, watch_thread};

/// Starts all threads except the threads of the pools, and except the WAL thread if the log is not
/// synced. A pool starts threads when it receives jobs: the allocator gives each thread two
/// megabytes, which a member without long reads does not need.
pub(super) fn spawn_all(
    (replica, applier, wal): (Replica, Applier, Wal),
    commits: CommitThread,
    tick: Duration,
    network: Box<dyn Network>,
    shared: &Arc<ServerState>,
) -> io::Result<Vec<JoinHandle<()>>> {
    let (to_commit, commit_work) = channel();
    let (to_apply, apply_work) = channel();
    let applies_to = to_commit.clone();
    let mut threads = Vec::new();
    let log = if wal.syncs() {
        let (to_wal, from_raft) = channel();
        let run = move |state: &ServerState| wal_thread::run(wal, &from_raft, state);
        threads.push(spawn("wal", Latency, shared, run));
        LogWriter::Thread(to_wal)
    } else {
        LogWriter::Inline(Box::new(wal))
    };
    let channels = raft_loop::Channels { log, to_apply, to_commit, network };
    threads.extend([
        spawn("commit", Normal, shared, move |state| commits.run(&commit_work, state)),
        spawn("raft", Latency, shared, move |state| raft_loop::run(replica, tick, channels, state)),
        spawn("apply", Latency, shared, move |state| {
            apply_loop::run(applier, &apply_work, applies_to, state)
        }),
        spawn("watch", Latency, shared, watch_thread::deliver),
        spawn("catch-up", Normal, shared, watch_thread::sync_watchers),
    ]);
    // A reader without locks may be preempted for a long time, because it blocks no other thread.
    let reader_class = if shared.era.waits_for_locks { Normal } else { Batch };
    prepare_pool(&shared.read_pool, shared, move |number, state| {
        let run = |state: &ServerState| state.read_pool.run_worker();
        spawn(&format!("read-{number}"), reader_class, state, run)
    });
    // The threads of the uncached pool have the class of the network threads, because they only
    // wait for the disk.
    prepare_pool(&shared.uncached_pool, shared, |number, state| {
        let run = |state: &ServerState| state.uncached_pool.run_worker();
        spawn(&format!("uncached-{number}"), Latency, state, run)
    });
    // A job of the password pool computes for tens of milliseconds, and holds no lock during that
    // time. So its low class delays no other thread.
    prepare_pool(&shared.password_pool, shared, |number, state| {
        let run = |state: &ServerState| state.password_pool.run_worker();
        spawn(&format!("password-{number}"), Batch, state, run)
    });
    threads.into_iter().collect()
}

/// Sets how a pool starts its threads. If a pool has no thread and cannot start one, the member
/// fails.
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

/// Starts a thread. Its error is published as the member's failure.
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
            // An error is ignored, because the class only changes timing.
            sched_class.apply_to_thread();
            work(&shared)
        }));
        if let Err(error) = ended.unwrap_or_else(|_| Err(Error::Panicked { thread })) {
            shared.fail(error);
        }
    })
}
