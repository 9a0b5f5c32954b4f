//! A member as a server runs one: its core on one thread, its log and its commits on two more.
//!
//! ```text
//!   inbox ──▶ core ──▶ batches of the log ──▶ disk thread ──┐
//!     ▲        │                                            │ written
//!     │        └─▶ "commit now", or the clock ─▶ commit thread
//!     └───────────────── written, committed ────────────────┘
//! ```
//!
//! What old views of the store cost when they are dropped is paid by the commit thread, too.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use clearlane_backend::{Config, Design, Retired};
use clearlane_engine::{EngineKind, Options};
use clearlane_member::Progress;
use clearlane_member::copies::{DirectoryVault, Received, Vault};
use clearlane_member::core::{Core, Ground, Outputs, Settings, bootstrap, start};
use clearlane_member::membership;
use clearlane_mvcc::{OneAfterTheOther, Store};
use clearlane_raft_log::Metadata;
use clearlane_raft_log::driver::Message;
use clearlane_raft_log::files::Disk;
use clearlane_raft_log::wal::group::{Batch, Written};
use clearlane_raft_log::wal::{self, Wal};

use crate::HEALTHY;

/// How often the commit thread looks at the time; a tick of the store commits every 100 ms.
const COMMIT_TICK: Duration = Duration::from_millis(10);

/// What comes to a member from other threads.
pub(crate) enum Input {
    Message(Message),
    Written(Written),
    Committed,
    Copy(Received),
    CopySent { to: u64, arrived: bool },
}

/// Where the inputs of members go, each with the member's id.
pub(crate) type Inbox = Sender<(u64, Input)>;

enum DiskJob {
    Write(Batch),
    Purge(u64),
}

enum CommitJob {
    /// Do not wait for the clock.
    Now,
    /// Commit this store from now on.
    Store(Arc<dyn Store<Progress>>),
    Drop(Vec<Retired>),
}

/// One member that runs.
pub(crate) struct Member {
    pub(crate) id: u64,
    pub(crate) core: Core,
    began: Instant,
    longest_call: Duration,
    longest_write_ns: Arc<AtomicU64>,
    to_disk: Sender<DiskJob>,
    to_commits: Sender<CommitJob>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// A new member's ground, in a directory that is there.
pub(crate) fn ground(directory: &Path) -> Ground {
    let vault = open_vault(directory);
    Ground {
        files: Arc::new(Disk),
        wal_dir: directory.join("wal"),
        wal: wal::Options::default(),
        vault,
        parts: Design::SnapshotReadTx.into(),
        backend: Config::default(),
        learners_max: 1,
        workers: Arc::new(OneAfterTheOther),
    }
}

fn open_vault(directory: &Path) -> Arc<dyn Vault> {
    let (kind, options) = (EngineKind::Redb, Options::default());
    let vault = DirectoryVault::new(Arc::new(Disk), &directory.join("snap"), kind, options);
    Arc::new(vault.expect(HEALTHY))
}

/// Makes the log of one of three members.
pub(crate) fn make(ground: &Ground, id: u64) {
    let first: Vec<_> = (1..=3).map(described).collect();
    bootstrap(ground, Metadata { node_id: id, cluster_id: 77 }, &first).expect(HEALTHY);
}

fn described(id: u64) -> membership::Member {
    let peer_urls = vec![format!("http://127.0.0.1:{id}")];
    membership::Member { id, peer_urls, name: format!("m{id}"), ..Default::default() }
}

impl Member {
    /// Starts it with what its directory has.
    pub(crate) fn start(id: u64, ground: Ground, settings: Settings, inbox: &Inbox) -> Member {
        let (core, wal) = start(ground, settings).expect(HEALTHY);
        let (to_disk, disk_jobs) = mpsc::channel();
        let (to_commits, commit_jobs) = mpsc::channel();
        let store = Arc::clone(core.store());
        let (disk_inbox, commit_inbox) = (inbox.clone(), inbox.clone());
        let longest_write_ns = Arc::new(AtomicU64::new(0));
        let longest = Arc::clone(&longest_write_ns);
        let threads = vec![
            std::thread::spawn(move || write_log(id, wal, &disk_jobs, &disk_inbox, &longest)),
            std::thread::spawn(move || commit(id, store, &commit_jobs, &commit_inbox)),
        ];
        let (began, longest_call) = (Instant::now(), Duration::ZERO);
        Member { id, core, began, longest_call, longest_write_ns, to_disk, to_commits, threads }
    }

    /// Takes an input.
    pub(crate) fn take(&mut self, input: Input) {
        let begin = Instant::now();
        match input {
            // What raft cannot use is nobody's loss.
            Input::Message(message) => drop(self.core.receive(message)),
            Input::Written(written) => self.core.written(written).expect(HEALTHY),
            Input::Committed => self.core.store_committed().expect(HEALTHY),
            Input::Copy(copy) => self.core.copy_received(copy).expect(HEALTHY),
            Input::CopySent { to, arrived } => self.core.copy_sent(to, arrived),
        }
        self.longest_call = self.longest_call.max(begin.elapsed());
    }

    /// The longest call of the core since this was called last.
    pub(crate) fn take_longest_call(&mut self) -> Duration {
        std::mem::take(&mut self.longest_call)
    }

    /// The longest write of the log since this was called last.
    pub(crate) fn take_longest_write(&self) -> Duration {
        Duration::from_nanos(self.longest_write_ns.swap(0, Ordering::Relaxed))
    }

    /// Does what there is to do. What is left in the outputs is for others.
    pub(crate) fn poll(&mut self) -> Outputs {
        let begin = Instant::now();
        let mut outputs = self.core.poll(self.began.elapsed()).expect(HEALTHY);
        self.longest_call = self.longest_call.max(begin.elapsed());
        if let Some(batch) = outputs.write.take() {
            self.to_disk.send(DiskJob::Write(batch)).expect(HEALTHY);
        }
        if let Some(index) = outputs.purge.take() {
            self.to_disk.send(DiskJob::Purge(index)).expect(HEALTHY);
        }
        if outputs.store_replaced {
            let store = Arc::clone(self.core.store());
            self.to_commits.send(CommitJob::Store(store)).expect(HEALTHY);
        }
        let retired = std::mem::take(&mut outputs.retired);
        if !retired.is_empty() {
            self.to_commits.send(CommitJob::Drop(retired)).expect(HEALTHY);
        }
        if outputs.commit_due {
            self.to_commits.send(CommitJob::Now).expect(HEALTHY);
        }
        outputs
    }

    /// Stops it, and waits until its files are closed.
    pub(crate) fn stop(self) {
        let Member { core, to_disk, to_commits, threads, .. } = self;
        drop((to_disk, to_commits));
        for thread in threads {
            thread.join().expect("a thread of the bench does not panic");
        }
        drop(core);
    }
}

fn write_log(
    id: u64,
    mut wal: Wal,
    jobs: &Receiver<DiskJob>,
    inbox: &Inbox,
    longest_ns: &AtomicU64,
) {
    for job in jobs {
        match job {
            DiskJob::Purge(index) => drop(wal.purge(index).expect(HEALTHY)),
            DiskJob::Write(batch) => {
                let begin = Instant::now();
                let written = batch.write(&mut wal);
                longest_ns.fetch_max(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
                // If nobody hears it, the member is stopping.
                let _ = inbox.send((id, Input::Written(written)));
            }
        }
    }
}

fn commit(id: u64, mut store: Arc<dyn Store<Progress>>, jobs: &Receiver<CommitJob>, inbox: &Inbox) {
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
                CommitJob::Store(other) => store = other,
                CommitJob::Drop(retired) => drop(retired),
            }
        }
        if is_due {
            store.commit().expect(HEALTHY);
        } else if !store.tick(began.elapsed()).expect(HEALTHY) {
            continue;
        }
        // If nobody hears it, the member is stopping.
        let _ = inbox.send((id, Input::Committed));
    }
}
