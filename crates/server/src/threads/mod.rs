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

mod apply_loop;
mod commit_thread;
mod completions;
mod request_channel;
mod metrics;
mod raft_loop_queue;
mod peer_clients;
mod raft_loop;
mod sizes;
mod slow;
mod read_pool;
mod disk_space;
mod timed_files;
mod wal_thread;
pub(crate) mod watch_thread;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use clearlane_backend::Era;
use clearlane_contention::Registry;
use clearlane_lease::Lessor;
use clearlane_mvcc::Store;
use clearlane_net::sched::SchedClass;
use clearlane_raft::read_index::ReadMode;
use clearlane_raft::{Leadership, Message};
use clearlane_wal::Metadata;
use clearlane_wal::Wal;
use clearlane_wal::files::FileSystem;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::commit_thread::CommitThreadInit;
use self::completions::CompletionQueue;
use self::disk_space::DiskSpace;
pub use self::metrics::{DurationHistogram, Metrics};
pub use self::peer_clients::{PeerClients, PeerFuture, PeerTraffic};
pub use self::raft_loop_queue::RaftLoopWaiter;
use self::raft_loop_queue::{RaftLoopEvent, RaftLoopQueue};
pub use self::read_pool::ReadPool;
pub use self::request_channel::RequestChannel;
pub use self::sizes::StoreSizes;
use self::timed_files::TimedFiles;
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::apply::RequestRejection;
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::quota::Quota;
use crate::raft_snapshot::{ReceivedSnapshot, StoreDir};
use crate::replica::{
    Applier, ApplyReport, Replica, ReplicaConfig, ReplicaInput, StorageConfig, Wait, start,
};
use crate::response_memory::ResponseMemory;
use crate::trace::TraceRecorder;
use crate::watch::WatchServer;

const READ_POOL_THREADS: usize = 2;
const UNCACHED_POOL_THREADS: usize = 4;

pub type CurrentStore = ArcSwap<Arc<dyn Store<AppliedPosition>>>;

/// Sends messages to other members. It is called by the raft loop and must not block: what cannot
/// be sent is dropped.
pub trait Network: Send {
    /// Returns a message that cannot be sent. One that is lost later is reported with
    /// [`ServerThreads::report_unreachable`].
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>>;

    /// Sends a copy of the store with a message. The result is reported with
    /// [`ServerThreads::report_raft_snapshot`].
    fn send_raft_snapshot(&mut self, message: Message, store: Arc<dyn Store<AppliedPosition>>);

    /// Waits for input of the raft loop, at most for `timeout`. Meanwhile the thread is the
    /// network's: it sends the queued messages and receives others.
    fn wait(&mut self, arrivals: RaftLoopWaiter<'_>, timeout: Duration) {
        arrivals.wait(timeout);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct NoNetwork;

impl Network for NoNetwork {
    fn send(&mut self, message: Message) -> std::result::Result<(), Box<Message>> {
        Err(Box::new(message))
    }

    fn send_raft_snapshot(&mut self, _message: Message, _store: Arc<dyn Store<AppliedPosition>>) {}
}

/// A running member.
///
/// Each thread owns its state, and they exchange batches. Beside the threads in the picture there
/// are a [read pool](ReadPool) and two threads for watchers. A thread that fails sets
/// [`ServerThreads::failure`], and all of them stop.
#[derive(Debug)]
pub struct ServerThreads {
    state: Arc<ServerState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    uncached_readers: Once,
    failure: watch::Receiver<Option<Arc<Error>>>,
}

#[derive(Debug)]
struct ServerState {
    raft_queue: RaftLoopQueue,
    store: CurrentStore,
    status: Status,
    metrics: Arc<Metrics>,
    locks: Registry,
    trace: TraceRecorder,
    completion_queues: Mutex<Vec<Arc<CompletionQueue>>>,
    wait: Arc<Wait>,
    read_pool: ReadPool,
    uncached_pool: ReadPool,
    metadata: Metadata,
    watch_server: Arc<WatchServer>,
    leases: Arc<Lessor>,
    /// The zero of the replica's clock.
    start: Instant,
    members: watch::Sender<Arc<Members>>,
    store_dir: Arc<dyn StoreDir>,
    peer_clients: OnceLock<Arc<dyn PeerClients>>,
    failure: watch::Sender<Option<Arc<Error>>>,
    alarms: ArcSwap<Alarms>,
    leadership: watch::Sender<Leadership>,
    compacted: watch::Sender<i64>,
    sizes: StoreSizes,
    quota: Quota,
    response_memory: Arc<ResponseMemory>,
    disk_space: Arc<DiskSpace>,
    files: Arc<dyn FileSystem>,
    wal_dir: PathBuf,
    election_timeout: Duration,
    /// Whether a reader may skip ReadIndex at a sole voter: not in the old eras, and not in another
    /// read mode.
    can_skip_read_index: bool,
}

/// Atomics that any thread may read.
#[derive(Debug, Default)]
pub struct Status {
    leader: AtomicU64,
    term: AtomicU64,
    applied: AtomicU64,
    committed: AtomicU64,
    is_learner: AtomicBool,
    /// See [`ReplicaReady`](crate::replica::ReplicaReady::is_sole_voter_caught_up).
    is_sole_voter_caught_up: AtomicBool,
    /// On the clock of [`ServerThreads::now`].
    leader_elected_ns: AtomicU64,
    leader_lost_ns: AtomicU64,
}

impl Status {
    /// 0 if none is known.
    pub fn leader(&self) -> u64 {
        self.leader.load(Ordering::Relaxed)
    }

    pub fn term(&self) -> u64 {
        self.term.load(Ordering::Relaxed)
    }

    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// As far as this member knows.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    pub fn is_learner(&self) -> bool {
        self.is_learner.load(Ordering::Relaxed)
    }

    /// On the clock of [`ServerThreads::now`].
    pub fn leader_elected(&self) -> Duration {
        Duration::from_nanos(self.leader_elected_ns.load(Ordering::Relaxed))
    }

    /// The start of the current time without a leader, otherwise of the last one.
    pub fn leader_lost(&self) -> Duration {
        Duration::from_nanos(self.leader_lost_ns.load(Ordering::Relaxed))
    }

    /// A member that joins keeps its role until it has applied the entry that adds it.
    fn set_members(&self, members: &Members, this: u64) {
        if let Some(member) = members.get(this) {
            self.is_learner.store(member.is_learner, Ordering::Relaxed);
        }
    }

    /// Called before anything is applied.
    fn init_is_learner(
        &self,
        replica: &Replica,
        members: &Members,
        joins_as_learner: Option<bool>,
    ) {
        let is_new = members.is_empty() && replica.committed() == 0;
        // Without members and without an answer this counts as a learner: a learner must not answer
        // as if it voted.
        let is_learner = is_new && joins_as_learner.unwrap_or(true);
        self.is_learner.store(is_learner, Ordering::Relaxed);
        self.set_members(members, replica.metadata().node_id);
    }

    fn set_sole_voter_caught_up(&self, is_alone: bool) {
        self.is_sole_voter_caught_up.store(is_alone, Ordering::Release);
    }

    fn set_leadership(&self, now: Leadership, at: Duration) {
        if now.leader != self.leader() {
            let at_ns = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
            let changed =
                if now.leader == 0 { &self.leader_lost_ns } else { &self.leader_elected_ns };
            changed.store(at_ns, Ordering::Relaxed);
        }
        self.leader.store(now.leader, Ordering::Relaxed);
        self.term.store(now.term, Ordering::Relaxed);
    }

    fn set_committed(&self, committed: u64) {
        self.committed.store(committed, Ordering::Relaxed);
    }

    fn set_applied(&self, index: u64) {
        self.applied.store(index, Ordering::Release);
    }
}

impl ServerThreads {
    /// Opens what is on disk, and starts the threads.
    pub fn start(
        storage: StorageConfig,
        settings: ReplicaConfig,
        network: Box<dyn Network>,
    ) -> Result<ServerThreads> {
        let (tick, batch_interval) =
            (settings.read_index.tick_interval, storage.backend.batch_interval);
        let metrics = Arc::new(Metrics::default());
        let locks = storage.backend.locks.clone();
        let disk_space = Arc::new(DiskSpace::default());
        let files = TimedFiles::new(storage.files, Arc::clone(&metrics), Arc::clone(&disk_space));
        let files: Arc<dyn FileSystem> = Arc::new(files);
        let storage = StorageConfig { files: Arc::clone(&files), ..storage };
        let wal_dir = storage.wal_dir.clone();
        let joins_as_learner = settings.joins_as_learner;
        let reads_alone =
            settings.read_mode == ReadMode::ReadIndex && storage.era == Era::Clearlane;
        let (quota, compactions) = (Quota::new(settings.quota_bytes), settings.compaction);
        let election_timeout =
            tick * u32::try_from(settings.raft.election_ticks).unwrap_or(u32::MAX);
        let (store_dir, readers_turn) =
            (Arc::clone(&storage.store_dir), reader_sched_class(storage.era));
        let (replica, applier, wal) = start(storage, settings)?;
        metrics.init(&**applier.store(), &wal)?;
        let commits = CommitThreadInit::new(&replica, &applier, batch_interval, compactions);
        let (failed, failure) = watch::channel(None);
        let watching = Arc::new(WatchServer::new(applier.store(), &locks));
        let shared = Arc::new(ServerState {
            raft_queue: RaftLoopQueue::default(),
            store: ArcSwap::from_pointee(applier.store().clone() as Arc<dyn Store<_>>),
            status: Status::default(),
            metrics,
            trace: TraceRecorder::new(&locks),
            locks,
            completion_queues: Mutex::default(),
            wait: Arc::clone(replica.wait()),
            read_pool: ReadPool::default(),
            uncached_pool: ReadPool::default(),
            metadata: replica.metadata(),
            watch_server: watching,
            leases: Arc::clone(applier.leases()),
            start: Instant::now(),
            store_dir,
            peer_clients: OnceLock::new(),
            failure: failed,
            members: watch::Sender::new(Arc::clone(replica.members())),
            alarms: ArcSwap::new(Arc::clone(replica.alarms())),
            leadership: watch::Sender::new(replica.leadership()),
            compacted: watch::Sender::new(0),
            sizes: StoreSizes::default(),
            quota,
            response_memory: Arc::default(),
            disk_space,
            files,
            wal_dir,
            election_timeout,
            can_skip_read_index: reads_alone,
        });
        shared.sizes.reset(applier.store().sizes()?);
        shared.init_status(&replica, &applier, joins_as_learner);
        let halves = (replica, applier, wal);
        let mut threads = spawn_loops(halves, commits, tick, network, &shared);
        threads.extend(
            (0..READ_POOL_THREADS).map(|number| spawn_reader(number, readers_turn, &shared)),
        );
        let threads = Mutex::new(threads.into_iter().collect::<std::io::Result<_>>()?);
        Ok(ServerThreads { state: shared, threads, uncached_readers: Once::new(), failure })
    }

    /// The channel's [task](RequestChannel::run) must run on the thread that uses it.
    pub fn request_channel(&self) -> RequestChannel {
        RequestChannel::new(&self.state)
    }

    /// Replaced when a raft snapshot is installed.
    pub fn store(&self) -> Arc<dyn Store<AppliedPosition>> {
        Arc::clone(&self.state.store.load())
    }

    pub fn leases(&self) -> &Lessor {
        &self.state.leases
    }

    /// The clock of the replica and the leases.
    pub fn now(&self) -> Duration {
        self.state.start.elapsed()
    }

    pub fn status(&self) -> &Status {
        &self.state.status
    }

    pub fn metrics(&self) -> &Metrics {
        &self.state.metrics
    }

    pub fn locks(&self) -> &Registry {
        &self.state.locks
    }

    pub fn trace(&self) -> &TraceRecorder {
        &self.state.trace
    }

    pub fn metadata(&self) -> Metadata {
        self.state.metadata
    }

    /// As far as this member has applied the log.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.state.alarms.load_full()
    }

    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.state.leadership.subscribe()
    }

    /// The revision up to which compactions have finished since the start.
    pub fn compacted(&self) -> watch::Receiver<i64> {
        self.state.compacted.subscribe()
    }

    pub fn sizes(&self) -> &StoreSizes {
        &self.state.sizes
    }

    pub fn quota(&self) -> Quota {
        self.state.quota
    }

    pub fn is_disk_low(&self) -> bool {
        self.state.disk_space.is_low()
    }

    /// Refuses work that commits the store, or writes `bytes` beside it, if the disk lacks the
    /// room.
    pub fn require_disk_space(&self, bytes: u64) -> std::result::Result<(), RequestRejection> {
        let has_room = || self.state.store_dir.free_space() >= bytes;
        if !self.state.disk_space.forbids_commits() && has_room() {
            Ok(())
        } else {
            Err(RequestRejection::NoSpace)
        }
    }

    pub fn election_timeout(&self) -> Duration {
        self.state.election_timeout
    }

    /// Only for the leader. A transfer shows in [`leadership`](ServerThreads::leadership).
    pub fn transfer_leader(&self, to: u64) {
        self.state.raft_queue.push([ReplicaInput::TransferLeader(to)]);
    }

    /// Rewrites the store without the space of deleted records. It takes long; in the default era
    /// it blocks no thread but the caller.
    pub fn defragment(&self) -> Result<()> {
        let store = self.store();
        store.defragment()?;
        self.state.sizes.reset(store.sizes()?);
        Ok(())
    }

    pub fn watch_server(&self) -> &Arc<WatchServer> {
        &self.state.watch_server
    }

    pub fn response_memory(&self) -> &Arc<ResponseMemory> {
        &self.state.response_memory
    }

    pub fn read_pool(&self) -> &ReadPool {
        &self.state.read_pool
    }

    /// For small reads that wait for the disk. Its threads start with the first one: the allocator
    /// gives each two megabytes, which a member with its store in memory need not spend.
    pub fn uncached_pool(&self) -> &ReadPool {
        self.uncached_readers.call_once(|| {
            for number in 0..UNCACHED_POOL_THREADS {
                match spawn_uncached_reader(number, &self.state) {
                    Ok(thread) => self.threads.lock().push(thread),
                    Err(error) => self.state.fail(error.into()),
                }
            }
        });
        &self.state.uncached_pool
    }

    pub fn receive(&self, messages: Vec<Message>) {
        self.state.raft_queue.push_messages(messages);
    }

    /// Back-pressure: pending while too many message bytes are queued for the raft loop.
    pub async fn wait_for_capacity(&self) {
        self.state.raft_queue.wait_for_capacity().await;
    }

    /// A complete copy of another member's store, received into this member's
    /// [`store_dir`](ServerThreads::store_dir) by a
    /// [`SnapshotReceiver`](crate::raft_snapshot::SnapshotReceiver).
    pub fn receive_raft_snapshot(&self, copy: ReceivedSnapshot) {
        self.state.raft_queue.push([ReplicaInput::RaftSnapshot(Box::new(copy))]);
    }

    pub fn report_raft_snapshot(&self, to: u64, arrived: bool) {
        self.state.raft_queue.push([ReplicaInput::RaftSnapshotSent { to, is_delivered: arrived }]);
    }

    /// Whether everything acknowledged is applied here and a read may skip ReadIndex: this member
    /// leads and is the only voter.
    pub fn is_sole_voter_caught_up(&self) -> bool {
        self.state.can_skip_read_index
            && self.state.status.is_sole_voter_caught_up.load(Ordering::Acquire)
    }

    pub fn report_unreachable(&self, id: u64) {
        self.state.raft_queue.push([ReplicaInput::Unreachable(id)]);
    }

    /// Another member says that this one was removed, so it stops.
    pub fn report_removed(&self) {
        self.state.raft_queue.push([RaftLoopEvent::Removed]);
    }

    pub fn store_dir(&self) -> &Arc<dyn StoreDir> {
        &self.state.store_dir
    }

    pub fn members(&self) -> Arc<Members> {
        Arc::clone(&self.state.members.borrow())
    }

    pub fn watch_members(&self) -> watch::Receiver<Arc<Members>> {
        self.state.members.subscribe()
    }

    /// `None` before [`set_peer_clients`](Self::set_peer_clients).
    pub fn peer_clients(&self) -> Option<&Arc<dyn PeerClients>> {
        self.state.peer_clients.get()
    }

    /// A second call is ignored.
    pub fn set_peer_clients(&self, others: Arc<dyn PeerClients>) {
        let _ = self.state.peer_clients.set(others);
    }

    /// Set when the member cannot go on: then the process stops.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<Error>>> {
        self.failure.clone()
    }

    /// Stops the threads. No acknowledged write is lost: it is in the log, and applied again at the
    /// next start if the store has not committed it.
    pub fn stop(&self) {
        self.state.raft_queue.push([RaftLoopEvent::Stop]);
        self.state.disk_space.stop();
        self.state.read_pool.stop();
        self.state.uncached_pool.stop();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            // A panic has been reported by its guard.
            let _ = thread.join();
        }
    }
}

fn spawn_loops(
    (replica, applier, wal): (Replica, Applier, Wal),
    commits: CommitThreadInit,
    tick: Duration,
    network: Box<dyn Network>,
    shared: &Arc<ServerState>,
) -> Vec<std::io::Result<JoinHandle<()>>> {
    let (to_wal, from_raft) = std::sync::mpsc::channel();
    let (to_commit, commit_work) = std::sync::mpsc::channel();
    let (to_apply, apply_work) = std::sync::mpsc::channel();
    let applies_to = to_commit.clone();
    let channels = raft_loop::Channels { to_wal, to_apply, to_commit, network };
    vec![
        spawn("wal", SchedClass::Latency, shared, move |shared| {
            wal_thread::run(wal, &from_raft, shared)
        }),
        spawn("commit", SchedClass::Normal, shared, move |shared| {
            commits.run(&commit_work, shared)
        }),
        spawn("raft", SchedClass::Latency, shared, move |shared| {
            raft_loop::run(replica, tick, channels, shared)
        }),
        spawn("apply", SchedClass::Latency, shared, move |shared| {
            apply_loop::run(applier, &apply_work, applies_to, shared)
        }),
        spawn("watch", SchedClass::Latency, shared, watch_thread::deliver),
        spawn("catch-up", SchedClass::Normal, shared, watch_thread::sync_watchers),
    ]
}

impl Drop for ServerThreads {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A reader without locks may be preempted for long: it blocks no other thread.
fn reader_sched_class(era: Era) -> SchedClass {
    if era == Era::Clearlane { SchedClass::Batch } else { SchedClass::Normal }
}

fn spawn_reader(
    number: usize,
    sched_class: SchedClass,
    shared: &Arc<ServerState>,
) -> std::io::Result<JoinHandle<()>> {
    spawn(&format!("read-{number}"), sched_class, shared, |shared| {
        shared.read_pool.run_worker();
        Ok(())
    })
}

/// It has the class of the threads that answer: it only sleeps and wakes.
fn spawn_uncached_reader(
    number: usize,
    shared: &Arc<ServerState>,
) -> std::io::Result<JoinHandle<()>> {
    spawn(&format!("cold-{number}"), SchedClass::Latency, shared, |shared| {
        shared.uncached_pool.run_worker();
        Ok(())
    })
}

/// Its error is published as the member's failure.
fn spawn(
    name: &str,
    sched_class: SchedClass,
    shared: &Arc<ServerState>,
    work: impl FnOnce(&ServerState) -> Result<()> + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    let shared = Arc::clone(shared);
    let thread = name.to_owned();
    thread::Builder::new().name(name.to_owned()).spawn(move || {
        let guard = PanicGuard { thread, state: &shared };
        // The class changes timing only: an error is ignored.
        sched_class.apply_to_thread();
        if let Err(error) = work(&shared) {
            shared.fail(error);
        }
        drop(guard);
    })
}

/// A panic fails the member: other threads would wait for this one for ever.
struct PanicGuard<'s> {
    thread: String,
    state: &'s ServerState,
}

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.state.fail(Error::Panicked { thread: std::mem::take(&mut self.thread) });
        }
    }
}

impl ServerState {
    /// Called before the first thread starts.
    fn init_status(&self, replica: &Replica, applier: &Applier, joins_as_learner: Option<bool>) {
        self.disk_space.start();
        self.status.set_leadership(replica.leadership(), Duration::ZERO);
        self.status.set_committed(replica.committed());
        self.status.set_applied(applier.applied_position().index);
        self.status.init_is_learner(replica, applier.members(), joins_as_learner);
    }

    fn fail(&self, error: Error) {
        self.failure.send_if_modified(|failed| {
            let first = failed.is_none();
            failed.get_or_insert_with(|| Arc::new(error));
            first
        });
        self.raft_queue.push([RaftLoopEvent::Stop]);
    }

    /// Called before requests are completed.
    fn publish_applied(&self, applied: &ApplyReport) {
        self.status.set_applied(applied.index);
        if let Some(members) = &applied.members {
            self.status.set_members(members, self.metadata.node_id);
            self.members.send_replace(Arc::clone(members));
        }
        if let Some(alarms) = &applied.alarms {
            self.alarms.store(Arc::clone(alarms));
        }
    }
}
