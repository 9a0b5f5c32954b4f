//! A member with its threads: its two halves, a disk, a clock, and the requests of net threads.
//!
//! ```text
//!   net threads ── requests ──▶ ┌───────────┐ ── batch ──▶ ┌────────────┐
//!      ▲  a queue each          │ raft loop │              │ wal thread │  write, one sync
//!      │                        │           │ ◀─ written ─ └────────────┘
//!      │                        └───────────┘ ◀─ committed ─┐
//!      │                   entries │   ▲ applied            │
//!      │                           ▼   │                    │
//!      │                        ┌────────────┐ ── commit ─▶ ┌───────────────┐
//!      └── outcomes, in bulk ── │ apply loop │              │ commit thread │ store, compaction
//!                               └────────────┘              └───────────────┘
//! ```
//!
//! Each thread owns what it works on, and they talk in batches: while one is busy, what is for it gathers. Beside
//! them there are threads for [what takes long](ReadPool) to read, and for watchers. A thread that fails says so by
//! [`Node::failure`], and everything stops: no request is answered any more.

mod apply_loop;
mod commit_thread;
mod completions;
mod desk;
mod figures;
mod inbox;
mod others;
mod raft_loop;
mod sizes;
mod slow;
mod read_pool;
mod room;
mod timed_files;
mod wal_thread;
pub(crate) mod watch_thread;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use clearlane_backend::Design;
use clearlane_lease::Lessor;
use clearlane_locks::Registry;
use clearlane_mvcc::{Store, StoreParts};
use clearlane_raft_log::Metadata;
use clearlane_raft_log::driver::{Leadership, Message};
use clearlane_raft_log::files::Files;
use clearlane_raft_log::wal::Wal;
use clearlane_read_index::ReadMode;
use clearlane_turns::Turn;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::commit_thread::Commits;
use self::completions::CompletionQueue;
pub use self::desk::{Asked, Desk};
pub use self::figures::{Buckets, Figures};
pub use self::inbox::Arrivals;
use self::inbox::{Inbox, ToRaft};
pub use self::others::{Asking, Others, Traffic};
pub use self::read_pool::ReadPool;
use self::room::Room;
pub use self::sizes::StoreSizes;
use self::timed_files::TimedFiles;
use crate::alarms::Alarms;
use crate::copies::{Received, Vault};
pub use crate::core::Outcome;
use crate::core::{Applied, Applier, Core, Ground, Input, Settings, Wait, start};
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::progress::Progress;
use crate::quota::Quota;
use crate::recording::Recording;
use crate::requests::Refused;
use crate::shelf::Shelf;
use crate::watch::Watching;

/// So many threads read what takes long.
const READERS: usize = 2;
/// So many wait for the disk with what is small.
const COLD_READERS: usize = 4;

/// The store that answers, behind what may be exchanged at any time.
pub type CurrentStore = ArcSwap<Arc<dyn Store<Progress>>>;

/// Brings messages to other members. It lives on the raft loop, and must not block it: what cannot be sent is
/// dropped.
pub trait Network: Send {
    /// Sends a message to whoever it is for, or gives it back. If it gets lost later
    /// [`Node::unreachable`] is told.
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>>;

    /// Sends a copy of the store with a message. What has become of it is told to
    /// [`Node::copy_sent`].
    fn send_copy(&mut self, message: Message, store: Arc<dyn Store<Progress>>);

    /// Waits until something has arrived for the raft loop, but not longer than this. Meanwhile the thread is the
    /// network's: what was sent since the last time leaves here, and what comes in arrives here.
    fn wait(&mut self, arrivals: Arrivals<'_>, timeout: Duration) {
        arrivals.sleep(timeout);
    }
}

/// For a member that is alone.
#[derive(Clone, Copy, Debug)]
pub struct NoNetwork;

impl Network for NoNetwork {
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>> {
        Err(Box::new(message))
    }

    fn send_copy(&mut self, _message: Message, _store: Arc<dyn Store<Progress>>) {}
}

/// A running member.
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    cold_readers: Once,
    failure: watch::Receiver<Option<Arc<Error>>>,
}

/// What the threads have in common.
#[derive(Debug)]
struct Shared {
    inbox: Inbox,
    store: CurrentStore,
    status: Status,
    figures: Arc<Figures>,
    locks: Registry,
    recording: Recording,
    queues: Mutex<Vec<Arc<CompletionQueue>>>,
    wait: Arc<Wait>,
    read_pool: ReadPool,
    cold_pool: ReadPool,
    metadata: Metadata,
    watching: Arc<Watching>,
    leases: Arc<Lessor>,
    /// From here the core's time counts.
    begin: Instant,
    members: watch::Sender<Arc<Members>>,
    vault: Arc<dyn Vault>,
    others: OnceLock<Arc<dyn Others>>,
    failed: watch::Sender<Option<Arc<Error>>>,
    alarms: ArcSwap<Alarms>,
    leadership: watch::Sender<Leadership>,
    /// Up to which revision compactions have done their work.
    compacted: watch::Sender<i64>,
    sizes: StoreSizes,
    quota: Quota,
    shelf: Arc<Shelf>,
    room: Arc<Room>,
    files: Arc<dyn Files>,
    wal_dir: PathBuf,
    election_timeout: Duration,
    /// Whether a reader need not ask when nobody else votes: the old eras always do, and who has chosen
    /// another way to be fresh gets that.
    reads_alone: bool,
}

/// What anybody may look at, at any time.
#[derive(Debug, Default)]
pub struct Status {
    leader: AtomicU64,
    term: AtomicU64,
    applied: AtomicU64,
    applied_term: AtomicU64,
    committed: AtomicU64,
    is_learner: AtomicBool,
    /// See [`Outputs::is_alone`](crate::core::Outputs::is_alone).
    is_alone: AtomicBool,
    /// On the clock of [`Node::now`].
    leader_elected_ns: AtomicU64,
    leader_lost_ns: AtomicU64,
}

impl Status {
    /// Who leads; 0 if nobody is known to.
    pub fn leader(&self) -> u64 {
        self.leader.load(Ordering::Relaxed)
    }

    /// Raft's term.
    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    /// The last entry that is applied.
    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// The last entry that is committed, as far as this member knows.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Whether this member only learns.
    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// When the last leader was elected.
    pub fn leader_elected(&self) -> Duration {
        Duration::from_nanos(self.leader_elected_ns.load(Ordering::Relaxed))
    }

    /// Since when no leader is known, if none is; otherwise when the last one was lost.
    pub fn leader_lost(&self) -> Duration {
        Duration::from_nanos(self.leader_lost_ns.load(Ordering::Relaxed))
    }

    /// A member that joins is not among them before it has applied the entry that adds it. Until then
    /// it is what it was told.
    fn members_are(&self, members: &Members, this: u64) {
        if let Some(member) = members.get(this) {
            self.is_learner.store(member.is_learner, Ordering::Relaxed);
        }
    }

    /// Before anything is applied.
    fn begins(&self, core: &Core, members: &Members, joins_as_learner: Option<bool>) {
        let is_new = members.is_empty() && core.committed() == 0;
        // A new member that was started again before it heard of others does not know what it is: a learner
        // must not answer as if it voted.
        let is_learner = is_new && joins_as_learner.unwrap_or(true);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        self.members_are(members, core.metadata().node_id);
    }

    fn alone_is(&self, is_alone: bool) {
        self.is_alone.store(is_alone, Ordering::Release);
    }

    fn leadership_is(&self, now: Leadership, at: Duration) {
        if now.leader != self.leader() {
            let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
            let changed =
                if now.leader == 0 { &self.leader_lost_ns } else { &self.leader_elected_ns };
            changed.store(at_ns, Ordering::Relaxed);
        }
        self.leader.store(now.leader, Ordering::Relaxed);
        self.term.store(now.term, Ordering::Relaxed);
    }

    fn committed_is(&self, committed: u64) {
        self.committed.store(committed, Ordering::Relaxed);
    }

    fn applied_is(&self, index: u64, term: u64) {
        self.applied_term.store(term, Ordering::Relaxed);
        self.applied.store(index, Ordering::Release);
    }
}

impl Node {
    /// Opens what is on disk, and starts the threads.
    pub fn start(ground: Ground, settings: Settings, network: Box<dyn Network>) -> Result<Node> {
        let (tick, batch_interval) = (settings.reads.tick, ground.backend.batch_interval);
        let figures = Arc::new(Figures::default());
        let locks = ground.backend.locks.clone();
        let room = Arc::new(Room::default());
        let files = TimedFiles::new(ground.files, Arc::clone(&figures), Arc::clone(&room));
        let files: Arc<dyn Files> = Arc::new(files);
        let ground = Ground { files: Arc::clone(&files), ..ground };
        let wal_dir = ground.wal_dir.clone();
        let joins_as_learner = settings.joins_as_learner;
        let reads_alone = settings.read_mode == ReadMode::ReadIndex
            && ground.parts.design == Design::SnapshotReadTx;
        let (quota, compactions) = (Quota::new(settings.quota_bytes), settings.compactions);
        let election_timeout =
            tick * u32::try_from(settings.raft.election_ticks).unwrap_or(u32::MAX);
        let (vault, readers_turn) = (Arc::clone(&ground.vault), readers_turn(ground.parts));
        let (core, applier, wal) = start(ground, settings)?;
        figures.begin(&**applier.store(), &wal)?;
        let commits = Commits::new(&core, &applier, batch_interval, compactions);
        let (failed, failure) = watch::channel(None);
        let watching = Arc::new(Watching::new(applier.store(), &locks));
        let shared = Arc::new(Shared {
            inbox: Inbox::default(),
            store: ArcSwap::from_pointee(Arc::clone(applier.store())),
            status: Status::default(),
            figures,
            recording: Recording::new(&locks),
            locks,
            queues: Mutex::default(),
            wait: Arc::clone(core.wait()),
            read_pool: ReadPool::default(),
            cold_pool: ReadPool::default(),
            metadata: core.metadata(),
            watching,
            leases: Arc::clone(applier.leases()),
            begin: Instant::now(),
            vault,
            others: OnceLock::new(),
            failed,
            members: watch::Sender::new(Arc::clone(core.members())),
            alarms: ArcSwap::new(Arc::clone(core.alarms())),
            leadership: watch::Sender::new(core.leadership()),
            compacted: watch::Sender::new(0),
            sizes: StoreSizes::default(),
            quota,
            shelf: Arc::default(),
            room,
            files,
            wal_dir,
            election_timeout,
            reads_alone,
        });
        shared.sizes.begin_anew(applier.store().sizes()?);
        shared.begins(&core, &applier, joins_as_learner);
        let halves = (core, applier, wal);
        let mut threads = loops(halves, commits, tick, network, &shared);
        threads.extend((0..READERS).map(|number| reader(number, readers_turn, &shared)));
        let threads = Mutex::new(threads.into_iter().collect::<std::io::Result<_>>()?);
        Ok(Node { shared, threads, cold_readers: Once::new(), failure })
    }

    /// A place for the requests of one thread. Its [task](Desk::run) must run on that thread.
    pub fn desk(&self) -> Desk {
        Desk::new(&self.shared)
    }

    /// The store that answers now.
    pub fn store(&self) -> Arc<dyn Store<Progress>> {
        Arc::clone(&self.shared.store.load())
    }

    /// The leases.
    pub fn leases(&self) -> &Lessor {
        &self.shared.leases
    }

    /// What time it is for the core, and for the leases.
    pub fn now(&self) -> Duration {
        self.shared.begin.elapsed()
    }

    /// Who leads, and how far this member has come.
    pub fn status(&self) -> &Status {
        &self.shared.status
    }

    /// What its threads have counted.
    pub fn figures(&self) -> &Figures {
        &self.shared.figures
    }

    /// The locks of its store.
    pub fn locks(&self) -> &Registry {
        &self.shared.locks
    }

    /// What happened when, if somebody wants to know.
    pub fn recording(&self) -> &Recording {
        &self.shared.recording
    }

    /// This member and its cluster.
    pub fn metadata(&self) -> Metadata {
        self.shared.metadata
    }

    /// Which alarms are raised, as far as this member has applied the log.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.shared.alarms.load_full()
    }

    /// Who leads, for those who wait for another.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.leadership.subscribe()
    }

    /// Up to which revision compactions have done their work since the start, for those who wait.
    pub fn compacted(&self) -> watch::Receiver<i64> {
        self.shared.compacted.subscribe()
    }

    /// How large the store is.
    pub fn sizes(&self) -> &StoreSizes {
        &self.shared.sizes
    }

    /// How large it may become.
    pub fn quota(&self) -> Quota {
        self.shared.quota
    }

    /// Whether the disk is nearly full.
    pub fn is_disk_low(&self) -> bool {
        self.shared.room.is_low()
    }

    /// Refuses what would commit the store, or write so much beside it, if the disk has no room for that.
    pub fn require_room(&self, bytes: u64) -> std::result::Result<(), Refused> {
        let has_room = || self.shared.vault.free_space() >= bytes;
        match !self.shared.room.forbids_commits() && has_room() {
            true => Ok(()),
            false => Err(Refused::NoSpace),
        }
    }

    /// A leader that is silent for so long is not one any more.
    pub fn election_timeout(&self) -> Duration {
        self.shared.election_timeout
    }

    /// Asks the leader, who must be this member, to hand over to another. Whether it has shows in
    /// [`leadership`](Node::leadership).
    pub fn transfer_leader(&self, to: u64) {
        self.shared.inbox.push([Input::TransferLeader(to)]);
    }

    /// Rewrites the store without the space of what was deleted. It takes long, and blocks nobody
    /// but the caller in the default era.
    pub fn defragment(&self) -> Result<()> {
        let store = self.store();
        store.defragment()?;
        self.shared.sizes.begin_anew(store.sizes()?);
        Ok(())
    }

    /// Its watchers.
    pub fn watching(&self) -> &Arc<Watching> {
        &self.shared.watching
    }

    /// Where long answers lie until they are sent.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shared.shelf
    }

    /// For what takes long to read.
    pub fn read_pool(&self) -> &ReadPool {
        &self.shared.read_pool
    }

    /// For what is small, and must wait for the disk. Its threads come with the first such read: the allocator gives
    /// each two megabytes, which a member that has all in memory need not spend.
    pub fn cold_pool(&self) -> &ReadPool {
        self.cold_readers.call_once(|| {
            for number in 0..COLD_READERS {
                match cold_reader(number, &self.shared) {
                    Ok(thread) => self.threads.lock().push(thread),
                    Err(error) => self.shared.fail(error.into()),
                }
            }
        });
        &self.shared.cold_pool
    }

    /// Messages of other members.
    pub fn receive(&self, messages: Vec<Message>) {
        self.shared.inbox.push_messages(messages);
    }

    /// Waits while so many messages have gathered that no more should be received.
    pub async fn has_room(&self) {
        self.shared.inbox.has_room().await;
    }

    /// A copy of another member's store is here, whole. It came through a
    /// [`Receiver`](crate::copies::Receiver) over this member's [`vault`](Node::vault).
    pub fn copy_received(&self, copy: Received) {
        self.shared.inbox.push([Input::Copy(Box::new(copy))]);
    }

    /// A copy has arrived at a member, or has not.
    pub fn copy_sent(&self, to: u64, arrived: bool) {
        self.shared.inbox.push([Input::CopySent { to, arrived }]);
    }

    /// Whether all that was acknowledged is applied here, and nobody need be asked: this member leads and
    /// is the only one who votes.
    pub fn is_alone(&self) -> bool {
        self.shared.reads_alone && self.shared.status.is_alone.load(Ordering::Acquire)
    }

    /// Messages to this member get lost.
    pub fn unreachable(&self, id: u64) {
        self.shared.inbox.push([Input::Unreachable(id)]);
    }

    /// Another member says that this one was removed. It stops.
    pub fn was_removed(&self) {
        self.shared.inbox.push([ToRaft::Removed]);
    }

    /// Where this member's stores lie.
    pub fn vault(&self) -> &Arc<dyn Vault> {
        &self.shared.vault
    }

    /// Who is a member, what is known of them, and the cluster's version.
    pub fn members(&self) -> Arc<Members> {
        Arc::clone(&self.shared.members.borrow())
    }

    /// The same, for whoever waits for a change.
    pub fn watch_members(&self) -> watch::Receiver<Arc<Members>> {
        self.shared.members.subscribe()
    }

    /// Whom to ask at other members; `None` before the network is there.
    pub fn others(&self) -> Option<&Arc<dyn Others>> {
        self.shared.others.get()
    }

    /// The network is there. A second one is ignored.
    pub fn meet(&self, others: Arc<dyn Others>) {
        let _ = self.shared.others.set(others);
    }

    /// Becomes something when the member cannot go on: then the process stops.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<Error>>> {
        self.failure.clone()
    }

    /// Stops the threads, in an order in which nothing that was answered is lost: what is applied
    /// is in the log, and what is not committed to the store is applied again at the next start.
    pub fn stop(&self) {
        self.shared.inbox.push([ToRaft::Stop]);
        self.shared.room.end();
        self.shared.read_pool.stop();
        self.shared.cold_pool.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Starts the threads that a request passes, but for those that read.
fn loops(
    (core, applier, wal): (Core, Applier, Wal),
    commits: Commits,
    tick: Duration,
    network: Box<dyn Network>,
    shared: &Arc<Shared>,
) -> Vec<std::io::Result<JoinHandle<()>>> {
    let (to_wal, from_raft) = std::sync::mpsc::channel();
    let (to_commit, commit_work) = std::sync::mpsc::channel();
    let (to_apply, apply_work) = std::sync::mpsc::channel();
    let applies_to = to_commit.clone();
    let ends = raft_loop::Ends { to_wal, to_apply, to_commit, network };
    vec![
        spawn("wal", Turn::Soon, shared, move |shared| wal_thread::run(wal, &from_raft, shared)),
        spawn("commit", Turn::Usual, shared, move |shared| commits.run(&commit_work, shared)),
        spawn("raft", Turn::Soon, shared, move |shared| raft_loop::run(core, tick, ends, shared)),
        spawn("apply", Turn::Soon, shared, move |shared| {
            apply_loop::run(applier, &apply_work, applies_to, shared)
        }),
        spawn("watch", Turn::Soon, shared, watch_thread::deliver),
        spawn("catch-up", Turn::Usual, shared, watch_thread::catch_up),
    ]
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Who has no lock while he reads keeps nobody up for long if he is put off.
fn readers_turn(parts: StoreParts) -> Turn {
    if parts == StoreParts::from(Design::SnapshotReadTx) { Turn::Late } else { Turn::Usual }
}

/// Starts a thread that reads what takes long.
fn reader(number: usize, turn: Turn, shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    spawn(&format!("read-{number}"), turn, shared, |shared| {
        shared.read_pool.work();
        Ok(())
    })
}

/// Starts a thread that waits for the disk. It sleeps and wakes as those do who answer.
fn cold_reader(number: usize, shared: &Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    spawn(&format!("cold-{number}"), Turn::Soon, shared, |shared| {
        shared.cold_pool.work();
        Ok(())
    })
}

/// Starts a thread that reports how it failed.
fn spawn(
    name: &str,
    turn: Turn,
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> Result<()> + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = name.to_owned();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let guard = Guard { thread, shared: &shared };
        // If the system does not agree, it is a matter of time only.
        turn.take();
        if let Err(error) = work(&shared) {
            shared.fail(error);
        }
        drop(guard);
    })
}

/// A thread that panics fails its member: the others would wait for it for ever.
struct Guard<'s> {
    thread: String,
    shared: &'s Shared,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.fail(Error::Panicked { thread: std::mem::take(&mut self.thread) });
        }
    }
}

impl Shared {
    /// Before the first thread does.
    fn begins(&self, core: &Core, applier: &Applier, joins_as_learner: Option<bool>) {
        self.room.begin();
        self.status.leadership_is(core.leadership(), Duration::ZERO);
        self.status.committed_is(core.committed());
        self.status.applied_is(applier.progress().index, applier.progress().term);
        self.status.begins(core, applier.members(), joins_as_learner);
    }

    fn fail(&self, error: Error) {
        self.failed.send_if_modified(|failed| {
            let first = failed.is_none();
            failed.get_or_insert_with(|| Arc::new(error));
            first
        });
        self.inbox.push([ToRaft::Stop]);
    }

    /// Publishes what is applied: before requests are answered.
    fn show(&self, applied: &Applied) {
        self.status.applied_is(applied.index, applied.term);
        if let Some(members) = &applied.members {
            self.status.members_are(members, self.metadata.node_id);
            self.members.send_replace(Arc::clone(members));
        }
        if let Some(alarms) = &applied.alarms {
            self.alarms.store(Arc::clone(alarms));
        }
    }
}
