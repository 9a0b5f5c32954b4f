//! A member with its threads. The raft loop and the apply loop run the state machines of the crate
//! `replica`. The other threads connect the two loops with the disk and with clients.
//!
//! ```text
//!   network threads ─ requests ▶ ┌───────────┐ ── batch ──▶ ┌────────────┐
//!      ▲  a queue each           │ raft loop │              │ WAL thread │  write, one sync
//!      │                         │           │ ◀─ written ─ └────────────┘
//!      │                         └───────────┘ ◀─ committed ─┐
//!      │                    entries │   ▲ applied            │
//!      │                            ▼   │                    │
//!      │                         ┌────────────┐ ── commit ─▶ ┌───────────────┐
//!      └── outcomes, in batches ─│ apply loop │              │ commit thread │ store, compaction
//!                                └────────────┘              └───────────────┘
//! ```

mod apply_loop;
mod commit_thread;
mod completions;
mod lost_logs;
mod request_channel;
mod metrics;
mod network;
mod raft_loop_queue;
mod peer_clients;
mod raft_loop;
mod spawn;
mod state;
mod status;
mod read_pool;
mod read_schedule;
mod disk_space;
mod stalls;
mod timed_files;
mod wal_thread;
pub(crate) mod watch_thread;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use clearlane_auth::AuthStore;
use clearlane_contention::Registry;
use clearlane_lease::Lessor;
use clearlane_mvcc::Store;
use clearlane_proto::peerpb::{MembersReply, MembersRequest};
use clearlane_raft::read_index::ReadNeed;
use clearlane_raft::{Leadership, Message};
use clearlane_replica::alarms::Alarms;
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::apply::RequestRejection;
use clearlane_replica::membership::Members;
use clearlane_replica::quota::Quota;
use clearlane_replica::raft_snapshot::{ReceivedSnapshot, StoreDir};
use clearlane_replica::{EraPolicy, Error, ReplicaConfig, ReplicaInput, Result, StorageConfig};
use clearlane_wal::Metadata;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use self::commit_thread::CommitThread;
pub use self::metrics::{DurationHistogram, Metrics, StoreSizes};
pub use self::network::{Network, NoNetwork};
pub use self::peer_clients::{PeerClients, PeerFuture, PeerTraffic};
use self::raft_loop_queue::RaftLoopEvent;
pub use self::raft_loop_queue::RaftLoopWaiter;
pub use self::read_pool::ReadPool;
pub use self::read_schedule::JobKind;
pub use self::request_channel::RequestChannel;
use self::spawn::spawn_all;
pub use self::stalls::Stalls;
pub use self::state::CurrentStore;
use self::state::ServerState;
pub use self::status::Status;
use crate::observe::trace::TraceRecorder;
use crate::read::response_memory::ResponseMemory;
use crate::watch::WatchServer;

/// A running member.
///
/// Each thread owns its state, and the threads exchange batches. In addition to the threads in the
/// picture there are a [read pool](ReadPool), the delivery thread and the sync thread for watchers,
/// and two more pools: one for reads that miss the cache, and one for passwords. A pool starts its
/// threads when it receives jobs. A thread that fails sets [`ServerThreads::failure`]. Then the
/// raft loop ends, and with it the WAL thread, the apply loop, the commit thread and the threads
/// for watchers. The threads of the pools, and a WAL thread that waits for disk space, run until
/// [`ServerThreads::stop`]. The network threads belong to the caller.
#[derive(Debug)]
pub struct ServerThreads {
    state: Arc<ServerState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl ServerThreads {
    /// Opens the data on the disk, and starts the threads.
    pub fn start(
        storage: StorageConfig,
        config: ReplicaConfig,
        network: Box<dyn Network>,
    ) -> Result<ServerThreads> {
        let batch_interval = storage.backend.batch_interval;
        let (tick, compaction) = (config.read_index.tick_interval, config.compaction);
        let (state, parts) = ServerState::open(storage, config)?;
        let commits = CommitThread::new(&parts.0, &parts.1, batch_interval, compaction);
        let threads = Mutex::new(spawn_all(parts, commits, tick, network, &state)?);
        Ok(ServerThreads { state, threads })
    }

    /// Creates a request channel. The channel's [task](RequestChannel::run) must run on the thread
    /// that uses it.
    pub fn request_channel(&self) -> RequestChannel {
        RequestChannel::new(&self.state)
    }

    /// Returns the current store. It is replaced when a raft snapshot is installed.
    pub fn store(&self) -> Arc<dyn Store<AppliedPosition>> {
        Arc::clone(&self.state.store.load())
    }

    pub fn leases(&self) -> &Lessor {
        &self.state.leases
    }

    pub fn auth(&self) -> &AuthStore {
        &self.state.auth
    }

    /// Returns the time on the clock of the replica and the leases.
    pub fn now(&self) -> Duration {
        self.state.start.elapsed()
    }

    pub fn status(&self) -> &Status {
        &self.state.status
    }

    /// Returns the state that shows which parts of this member make no progress.
    pub fn stalls(&self) -> &Stalls {
        &self.state.stalls
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

    /// Returns the alarms as of the entries that this member has applied.
    pub fn alarms(&self) -> Arc<Alarms> {
        self.state.alarms.load_full()
    }

    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.state.leadership.subscribe()
    }

    /// Returns a receiver of the revision up to which compactions have finished. The revision is 0
    /// until the first compaction after the start has finished, or a raft snapshot is installed. A
    /// raft snapshot sets it to the compact revision of the new store, even if that compaction has
    /// not finished.
    pub fn compacted(&self) -> watch::Receiver<i64> {
        self.state.compacted.subscribe()
    }

    /// Returns a receiver of a counter that changes when users or roles change, when authentication
    /// is enabled or disabled, and when a raft snapshot is installed.
    pub fn auth_changes(&self) -> watch::Receiver<u64> {
        self.state.auth_changes.subscribe()
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

    /// Fails if the disk has no space for a commit of the store, or has fewer than `bytes` free
    /// bytes. Call this before work that commits or writes `bytes` bytes.
    pub fn require_disk_space(&self, bytes: u64) -> std::result::Result<(), RequestRejection> {
        let are_commits_forbidden = &self.state.disk_space.are_commits_forbidden;
        let is_forbidden = are_commits_forbidden.load(Ordering::Relaxed)
            || self.state.store_dir.free_space() < bytes;
        if is_forbidden { Err(RequestRejection::NoSpace) } else { Ok(()) }
    }

    pub fn election_timeout(&self) -> Duration {
        self.state.election_timeout
    }

    /// Transfers leadership. Call this only on the leader.
    /// [`leadership`](ServerThreads::leadership) shows the result.
    pub fn transfer_leader(&self, to: u64) {
        self.state.raft_queue.push([ReplicaInput::TransferLeader(to)]);
    }

    /// Shortens the wait for the next election. Does nothing if a leader is known.
    pub fn advance_election(&self) {
        self.state.raft_queue.push([ReplicaInput::AdvanceElection]);
    }

    /// Rewrites the store to free the space of deleted records, which takes a long time. In the
    /// default era reads and writes continue; only commits of the store wait, at the start and at
    /// the end. In an old era reads and writes wait.
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

    /// Returns the pool that checks and hashes passwords, and signs tokens.
    pub fn password_pool(&self) -> &ReadPool {
        &self.state.password_pool
    }

    /// Returns the pool for small reads that wait for the disk.
    pub fn uncached_pool(&self) -> &ReadPool {
        &self.state.uncached_pool
    }

    pub fn receive(&self, messages: Vec<Message>) {
        self.state.raft_queue.push_messages(messages);
    }

    /// Requests the report that this member sends to a member that starts without data. If this
    /// member stops, the returned receiver gets an error.
    pub fn report_to(&self, request: MembersRequest) -> oneshot::Receiver<MembersReply> {
        let (reply, receiver) = oneshot::channel();
        self.state.raft_queue.push([RaftLoopEvent::ReportTo(request, reply)]);
        receiver
    }

    /// Waits while too many message bytes are queued for the raft loop. This is the back-pressure
    /// for streams from other members.
    pub async fn wait_for_capacity(&self) {
        self.state.raft_queue.wait_for_capacity().await;
    }

    /// Passes a complete raft snapshot to the replica. A
    /// [`SnapshotReceiver`](clearlane_replica::raft_snapshot::SnapshotReceiver) has received it
    /// into this member's [`store_dir`](ServerThreads::store_dir).
    pub fn receive_raft_snapshot(&self, copy: ReceivedSnapshot) {
        self.state.raft_queue.push([ReplicaInput::RaftSnapshot(Box::new(copy))]);
    }

    pub fn report_raft_snapshot(&self, to: u64, arrived: bool) {
        self.state.raft_queue.push([ReplicaInput::RaftSnapshotSent { to, is_delivered: arrived }]);
    }

    pub fn era(&self) -> EraPolicy {
        self.state.era
    }

    /// Returns whether a read may skip the ReadIndex request. If the result is true, this member
    /// leads, is the only voter, and has applied everything that was acknowledged.
    pub fn is_sole_voter_caught_up(&self) -> bool {
        self.state.can_skip_read_index
            && self.state.status.is_sole_voter_caught_up.load(Ordering::Acquire)
    }

    /// Returns what a renewal must wait for if its lease exists here.
    pub fn need_of_renewals(&self) -> ReadNeed {
        self.state.need_of_renewals
    }

    pub fn report_unreachable(&self, id: u64) {
        self.state.raft_queue.push([ReplicaInput::Unreachable(id)]);
    }

    /// Stops this member, because another member has reported that this member was removed.
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

    /// Returns the clients for the other members. Returns `None` before
    /// [`set_peer_clients`](Self::set_peer_clients) is called.
    pub fn peer_clients(&self) -> Option<&Arc<dyn PeerClients>> {
        self.state.peer_clients.get()
    }

    /// Sets the clients. A second call is ignored.
    pub fn set_peer_clients(&self, others: Arc<dyn PeerClients>) {
        let _ = self.state.peer_clients.set(others);
    }

    /// Returns a receiver of the failure of this member. The failure is `None` until the member
    /// cannot continue; then the process stops.
    pub fn failure(&self) -> watch::Receiver<Option<Arc<Error>>> {
        self.state.failure.subscribe()
    }

    /// Stops the threads. No acknowledged write is lost: it is in the log, and is applied again at
    /// the next start if the store has not committed it.
    ///
    /// Except for the pools, only the raft loop receives a message to stop. It drops its channels,
    /// which ends the WAL thread (it first syncs everything it has received, but no longer waits
    /// for disk space) and the apply loop (it first applies everything it has received). The apply
    /// loop closes the watch signals, which ends both watch threads. The commit thread ends when
    /// the raft loop and the apply loop have both dropped its channel. Before it ends, it commits
    /// once more if the disk has space.
    pub fn stop(&self) {
        self.state.raft_queue.push([RaftLoopEvent::Stop]);
        self.state.disk_space.stop();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        threads.extend(self.state.read_pool.stop());
        threads.extend(self.state.uncached_pool.stop());
        threads.extend(self.state.password_pool.stop());
        for thread in threads {
            // An error means that the thread panicked while it was ending. The panic hook has
            // printed this panic.
            let _ = thread.join();
        }
    }
}

impl Drop for ServerThreads {
    fn drop(&mut self) {
        self.stop();
    }
}
