//! A member without a network. Its raft half and its apply half run on one thread, one after the
//! other. A second thread writes its log, and a third thread commits its store.
//!
//! ```text
//!   inbox ──▶ both halves ──▶ batches of the log ──▶ disk thread ──┐
//!     ▲        │                                                   │ written
//!     │        └─▶ "commit now", or the clock ──▶ commit thread    │
//!     └───────────────── written, committed ───────────────────────┘
//! ```
//!
//! The commit thread also drops old states of the store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use clearlane_backend::{Config, DroppedStates, Era};
use clearlane_engine::{EngineKind, Options};
use clearlane_raft::Message;
use clearlane_replica::raft_snapshot::StoreDir;
use clearlane_replica::{
    AppliedPosition, Applier, NewStore, Replica, ReplicaConfig, ReplicaInput, ReplicaReady,
    RequestOutcome, StorageConfig, bootstrap, membership, start,
};
use clearlane_server::snapshot;
use clearlane_wal as wal;
use clearlane_wal::Metadata;
use clearlane_wal::Wal;
use clearlane_wal::files::OsFileSystem;
use clearlane_wal::group_commit::Batch;

use crate::HEALTHY;

/// How often the commit thread checks whether a commit is due. The store commits every 100 ms.
const COMMIT_TICK: Duration = Duration::from_millis(10);

/// The results of a poll that the caller must handle.
#[derive(Default)]
pub(crate) struct PollOutput {
    pub(crate) send: Vec<Message>,
    pub(crate) snapshots: Vec<Message>,
    /// The numbers that identify the completed puts.
    pub(crate) answered: Vec<u64>,
    pub(crate) is_snapshot_installed: bool,
}

/// The channel for inputs of members, each with the member's id.
pub(crate) type EventSender = Sender<(u64, ReplicaInput)>;

enum DiskJob {
    Write(Batch),
    Purge(u64),
}

enum CommitJob {
    /// Commit now, without waiting for the clock.
    Now,
    /// A raft snapshot has replaced the store. Later commits are made in this store.
    Store(NewStore),
    Drop(Vec<DroppedStates>),
}

/// A running member.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) replica: Replica,
    pub(crate) applier: Applier,
    began: Instant,
    longest_call: Duration,
    longest_write_ns: Arc<AtomicU64>,
    to_disk: Sender<DiskJob>,
    to_commits: Sender<CommitJob>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// Returns the configuration of a member's files, which are in an existing directory.
pub(crate) fn storage_config(directory: &Path) -> StorageConfig {
    let vault = open_store_dir(directory);
    StorageConfig {
        files: Arc::new(OsFileSystem),
        wal_dir: directory.join("wal"),
        wal: wal::Options::default(),
        store_dir: vault,
        era: Era::Clearlane,
        backend: Config::default(),
        learners_max: 1,
    }
}

fn open_store_dir(directory: &Path) -> Arc<dyn StoreDir> {
    let (kind, options) = (EngineKind::Bolt, Options::default());
    let snap = directory.join("snap");
    snapshot::open_store_dir(Arc::new(OsFileSystem), &snap, kind, options).expect(HEALTHY)
}

/// Creates the log of one of three members.
pub(crate) fn bootstrap_member(storage: &StorageConfig, id: u64) {
    let first: Vec<_> = (1..=3).map(member_description).collect();
    bootstrap(storage, Metadata { node_id: id, cluster_id: 77 }, &first).expect(HEALTHY);
}

fn member_description(id: u64) -> membership::Member {
    let peer_urls = vec![format!("http://127.0.0.1:{id}")];
    membership::Member { id, peer_urls, name: format!("m{id}"), ..Default::default() }
}

impl Member {
    /// Starts a member with the data in its directory.
    pub(crate) fn start(
        id: u64,
        storage: StorageConfig,
        settings: ReplicaConfig,
        inbox: &EventSender,
    ) -> Member {
        let (core, applier, wal) = start(storage, settings).expect(HEALTHY);
        let (to_disk, disk_jobs) = mpsc::channel();
        let (to_commits, commit_jobs) = mpsc::channel();
        let (store, engine) = (Arc::clone(&applier.store), Arc::clone(&applier.engine));
        let store = NewStore { store, engine };
        let (disk_inbox, commit_inbox) = (inbox.clone(), inbox.clone());
        let longest_write_ns = Arc::new(AtomicU64::new(0));
        let longest = Arc::clone(&longest_write_ns);
        let threads = vec![
            std::thread::spawn(move || write_log(id, wal, &disk_jobs, &disk_inbox, &longest)),
            std::thread::spawn(move || commit(id, store, &commit_jobs, &commit_inbox)),
        ];
        let (began, longest_call) = (Instant::now(), Duration::ZERO);
        Member {
            id,
            replica: core,
            applier,
            began,
            longest_call,
            longest_write_ns,
            to_disk,
            to_commits,
            threads,
        }
    }

    /// Passes an input to the replica, and records how long the call takes if it is the longest
    /// call so far.
    pub(crate) fn handle_event(&mut self, input: ReplicaInput) {
        let begin = Instant::now();
        self.replica.handle_input(input).expect(HEALTHY);
        self.longest_call = self.longest_call.max(begin.elapsed());
    }

    /// Returns the longest call of the replica or the applier since the last call of this function.
    pub(crate) fn take_longest_call(&mut self) -> Duration {
        std::mem::take(&mut self.longest_call)
    }

    /// Returns the longest write of the log since the last call of this function.
    pub(crate) fn take_longest_write(&self) -> Duration {
        Duration::from_nanos(self.longest_write_ns.swap(0, Ordering::Relaxed))
    }

    /// Processes all pending work. Returns the results that the caller must handle.
    pub(crate) fn poll(&mut self) -> PollOutput {
        let mut polled = PollOutput::default();
        loop {
            let begin = Instant::now();
            let outputs = self.replica.poll(self.began.elapsed()).expect(HEALTHY);
            self.longest_call = self.longest_call.max(begin.elapsed());
            self.handle_ready(outputs, &mut polled);
            if !self.applier.has_work() {
                return polled;
            }
            while self.applier.has_work() {
                self.apply(&mut polled);
            }
        }
    }

    fn handle_ready(&mut self, outputs: ReplicaReady, polled: &mut PollOutput) {
        let ReplicaReady {
            messages: send,
            raft_snapshots: copies,
            wal_batch: write,
            purge_below: purge,
            to_apply: apply,
            is_commit_due: commit_due,
            ..
        } = outputs;
        polled.send.extend(send);
        polled.snapshots.extend(copies);
        if let Some(batch) = write {
            self.to_disk.send(DiskJob::Write(batch)).expect(HEALTHY);
        }
        if let Some(index) = purge {
            self.to_disk.send(DiskJob::Purge(index)).expect(HEALTHY);
        }
        if commit_due {
            self.to_commits.send(CommitJob::Now).expect(HEALTHY);
        }
        apply.into_iter().for_each(|work| self.applier.enqueue(work));
    }

    fn apply(&mut self, polled: &mut PollOutput) {
        let begin = Instant::now();
        let outputs = self.applier.step().expect(HEALTHY);
        self.longest_call = self.longest_call.max(begin.elapsed());
        if let Some(new) = outputs.new_store {
            polled.is_snapshot_installed = true;
            self.to_commits.send(CommitJob::Store(new)).expect(HEALTHY);
        }
        for (of, outcome) in outputs.completions {
            let is_ok = matches!(outcome, RequestOutcome::Applied(Ok(_)));
            assert!(is_ok, "a put succeeds");
            polled.answered.push(u64::from(of.slot));
        }
        if !outputs.dropped_states.is_empty() {
            self.to_commits.send(CommitJob::Drop(outputs.dropped_states)).expect(HEALTHY);
        }
        if outputs.is_commit_due {
            self.to_commits.send(CommitJob::Now).expect(HEALTHY);
        }
        self.replica.handle_input(ReplicaInput::Applied(Box::new(outputs.report))).expect(HEALTHY);
    }

    /// Stops the member, and waits until its files are closed.
    pub(crate) fn stop(self) {
        let Member { replica: core, applier, to_disk, to_commits, threads, .. } = self;
        drop((to_disk, to_commits));
        for thread in threads {
            thread.join().expect("a thread of the bench does not panic");
        }
        drop((core, applier));
    }
}

fn write_log(
    id: u64,
    mut wal: Wal,
    jobs: &Receiver<DiskJob>,
    inbox: &EventSender,
    longest_ns: &AtomicU64,
) {
    for job in jobs {
        match job {
            DiskJob::Purge(index) => drop(wal.purge(index).expect(HEALTHY)),
            DiskJob::Write(batch) => {
                let begin = Instant::now();
                let written = batch.write(&mut wal);
                longest_ns.fetch_max(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
                // If the receiver is closed, the member is stopping.
                let _ = inbox.send((id, ReplicaInput::WalWritten(written)));
            }
        }
    }
}

fn commit(id: u64, mut new: NewStore, jobs: &Receiver<CommitJob>, inbox: &EventSender) {
    let began = Instant::now();
    loop {
        let first = match jobs.recv_timeout(COMMIT_TICK) {
            Ok(job) => Some(job),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut is_due = false;
        for job in first.into_iter().chain(jobs.try_iter()) {
            match job {
                CommitJob::Now => is_due = true,
                CommitJob::Store(other) => new = other,
                CommitJob::Drop(retired) => drop(retired),
            }
        }
        if is_due {
            new.store.commit().expect(HEALTHY);
        } else if !new.store.commit_if_due(began.elapsed()).expect(HEALTHY) {
            continue;
        }
        // If the receiver is closed, the member is stopping.
        let durable =
            AppliedPosition::read(&*new.engine.snapshot().expect(HEALTHY)).expect(HEALTHY);
        let _ = inbox.send((id, ReplicaInput::StoreCommitted(durable)));
    }
}
