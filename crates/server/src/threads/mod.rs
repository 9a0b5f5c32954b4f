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
use clearlane_raft::{Leadership, Message};
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
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::apply::RequestRejection;
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::quota::Quota;
use crate::raft_snapshot::{ReceivedSnapshot, StoreDir};
use crate::replica::{ReplicaConfig, ReplicaInput, StorageConfig};
use crate::response_memory::ResponseMemory;
use crate::trace::TraceRecorder;
use crate::watch::WatchServer;

/// A running member.
///
/// Each thread owns its state, and they exchange batches. Beside the threads in the picture there
/// are a [read pool](ReadPool), two threads for watchers and, from the first cold read on, a pool
/// for those. A thread that fails sets [`ServerThreads::failure`], and all of them stop.
#[derive(Debug)]
pub struct ServerThreads {
    state: Arc<ServerState>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl ServerThreads {
    /// Opens what is on disk, and starts the threads.
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

    pub fn auth(&self) -> &AuthStore {
        &self.state.auth
    }

    /// The clock of the replica and the leases.
    pub fn now(&self) -> Duration {
        self.state.start.elapsed()
    }

    pub fn status(&self) -> &Status {
        &self.state.status
    }

    /// The parts of this member that make no progress.
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

    /// Changes when users or roles do.
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

    /// Refuses work that commits the store, or writes `bytes` beside it, if the disk lacks the
    /// room.
    pub fn require_disk_space(&self, bytes: u64) -> std::result::Result<(), RequestRejection> {
        let are_commits_forbidden = &self.state.disk_space.are_commits_forbidden;
        let is_forbidden = are_commits_forbidden.load(Ordering::Relaxed)
            || self.state.store_dir.free_space() < bytes;
        if is_forbidden { Err(RequestRejection::NoSpace) } else { Ok(()) }
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

    /// Checks and hashes passwords.
    pub fn password_pool(&self) -> &ReadPool {
        &self.state.password_pool
    }

    /// For small reads that wait for the disk.
    pub fn uncached_pool(&self) -> &ReadPool {
        &self.state.uncached_pool
    }

    pub fn receive(&self, messages: Vec<Message>) {
        self.state.raft_queue.push_messages(messages);
    }

    /// The report of this member to a member that starts without data. The sender is dropped if
    /// this member stops.
    pub fn report_to(&self, request: MembersRequest) -> oneshot::Receiver<MembersReply> {
        let (reply, receiver) = oneshot::channel();
        self.state.raft_queue.push([RaftLoopEvent::ReportTo(request, reply)]);
        receiver
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
        self.state.failure.subscribe()
    }

    /// Stops the threads. No acknowledged write is lost: it is in the log, and applied again at the
    /// next start if the store has not committed it.
    pub fn stop(&self) {
        self.state.raft_queue.push([RaftLoopEvent::Stop]);
        self.state.disk_space.stop();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        threads.extend(self.state.read_pool.stop());
        threads.extend(self.state.uncached_pool.stop());
        threads.extend(self.state.password_pool.stop());
        for thread in threads {
            // An error: the closing of the thread has panicked, which the panic hook has printed.
            let _ = thread.join();
        }
    }
}

impl Drop for ServerThreads {
    fn drop(&mut self) {
        self.stop();
    }
}
