//! The data that the threads of a member share, grouped by how a thread may use it.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use clearlane_auth::AuthStore;
use clearlane_contention::Registry;
use clearlane_lease::Lessor;
use clearlane_mvcc::Store;
use clearlane_raft::Leadership;
use clearlane_raft::read_index::{ReadMode, ReadNeed};
use clearlane_replica::alarms::Alarms;
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_replica::membership::Members;
use clearlane_replica::quota::Quota;
use clearlane_replica::raft_snapshot::StoreDir;
use clearlane_replica::{
    Applier, ApplyReport, EraPolicy, Error, Replica, ReplicaConfig, Result, StorageConfig, Wait,
    start,
};
use clearlane_wal::files::FileSystem;
use clearlane_wal::{Metadata, Wal};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::completions::CompletionQueue;
use super::disk_space::DiskSpace;
use super::metrics::{Metrics, StoreSizes};
use super::peer_clients::PeerClients;
use super::raft_loop_queue::{RaftLoopEvent, RaftLoopQueue};
use super::read_pool::ReadPool;
use super::read_schedule::ScheduleLimits;
use super::stalls::Stalls;
use super::status::Status;
use super::timed_files::TimedFiles;
use crate::observe::trace::TraceRecorder;
use crate::read::response_memory::ResponseMemory;
use crate::watch::WatchServer;

pub type CurrentStore = ArcSwap<Arc<dyn Store<AppliedPosition>>>;

#[derive(Debug)]
pub(super) struct ServerState {
    // Constants.
    pub(super) metadata: Metadata,
    /// The time at which the replica's clock was zero.
    pub(super) start: Instant,
    pub(super) quota: Quota,
    pub(super) store_dir: Arc<dyn StoreDir>,
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) wal_dir: PathBuf,
    pub(super) election_timeout: Duration,
    /// If true, a reader may skip ReadIndex at a sole voter. It is false in the old eras, and in
    /// read modes other than [`ReadMode::ReadIndex`].
    pub(super) can_skip_read_index: bool,
    pub(super) need_of_renewals: ReadNeed,
    pub(super) era: EraPolicy,

    // Atomics, and pointers that are replaced as a whole.
    pub(super) store: CurrentStore,
    pub(super) status: Status,
    pub(super) metrics: Arc<Metrics>,
    pub(super) stalls: Arc<Stalls>,
    pub(super) alarms: ArcSwap<Alarms>,
    pub(super) sizes: StoreSizes,
    pub(super) response_memory: Arc<ResponseMemory>,
    pub(super) peer_clients: OnceLock<Arc<dyn PeerClients>>,

    // Types with locks inside.
    pub(super) raft_queue: RaftLoopQueue,
    pub(super) completion_queues: Mutex<Vec<Arc<CompletionQueue>>>,
    pub(super) wait: Arc<Wait>,
    pub(super) read_pool: Arc<ReadPool>,
    pub(super) uncached_pool: Arc<ReadPool>,
    /// Checks and hashes passwords, and signs tokens.
    pub(super) password_pool: Arc<ReadPool>,
    pub(super) disk_space: Arc<DiskSpace>,
    pub(super) members: watch::Sender<Arc<Members>>,
    pub(super) leadership: watch::Sender<Leadership>,
    /// The revision of the last compaction that this process has finished and committed; 0 before
    /// the first one. When a raft snapshot is installed, it becomes the compact revision of the new
    /// store, even if that compaction has not finished there.
    pub(super) compacted: watch::Sender<i64>,
    /// A counter that changes when users or roles may have changed, when authentication is enabled
    /// or disabled, and when a raft snapshot is installed.
    pub(super) auth_changes: watch::Sender<u64>,
    pub(super) failure: watch::Sender<Option<Arc<Error>>>,
    pub(super) trace: TraceRecorder,
    pub(super) locks: Registry,
    // Types with locks that are listed in the registry.
    pub(super) watch_server: Arc<WatchServer>,
    pub(super) leases: Arc<Lessor>,
    pub(super) auth: Arc<AuthStore>,
}

impl ServerState {
    /// Opens the data on the disk. No thread runs yet.
    pub(super) fn open(
        storage: StorageConfig,
        config: ReplicaConfig,
    ) -> Result<(Arc<ServerState>, (Replica, Applier, Wal))> {
        let metrics = Arc::new(Metrics::default());
        let disk_space = Arc::new(DiskSpace::default());
        let stalls = Arc::new(Stalls::default());
        let files: Arc<dyn FileSystem> = Arc::new(TimedFiles {
            files: storage.files,
            metrics: Arc::clone(&metrics),
            disk_space: Arc::clone(&disk_space),
            stalls: Arc::clone(&stalls),
        });
        let storage = StorageConfig { files: Arc::clone(&files), ..storage };
        let locks = storage.backend.locks.clone();
        let (wal_dir, store_dir) = (storage.wal_dir.clone(), Arc::clone(&storage.store_dir));
        let era = EraPolicy::of(storage.era);
        let can_skip_read_index =
            config.read_mode == ReadMode::ReadIndex && era.shortens_read_index;
        let (joins_as_learner, need_of_renewals) =
            (config.joins_as_learner, config.need_of_renewals);
        let quota = Quota::new(config.quota_bytes);
        let election_ticks = u32::try_from(config.raft.election_ticks).unwrap_or(u32::MAX);
        let election_timeout = config.read_index.tick_interval * election_ticks;
        let (replica, applier, wal) = start(storage, config)?;
        let missing = wal.short_tail.as_ref().map_or(0, |short| short.expected - short.found);
        metrics.log_missing.store(missing, Ordering::Relaxed);
        metrics.count_keys(&*applier.store)?;
        let status = Status::default();
        status.init(&replica, &applier, joins_as_learner);
        disk_space.start();
        let sizes = StoreSizes::default();
        sizes.reset(applier.store.sizes()?);
        let state = ServerState {
            raft_queue: RaftLoopQueue::default(),
            store: ArcSwap::from_pointee(applier.store.clone() as Arc<dyn Store<_>>),
            status,
            metrics,
            stalls,
            trace: TraceRecorder::new(&locks),
            completion_queues: Mutex::default(),
            wait: Arc::clone(&replica.wait),
            read_pool: ReadPool::new(ScheduleLimits::READ_POOL),
            uncached_pool: ReadPool::new(ScheduleLimits::UNCACHED_POOL),
            metadata: replica.metadata,
            watch_server: Arc::new(WatchServer::new(&applier.store, &locks, era)),
            locks,
            leases: Arc::clone(&applier.leases),
            auth: Arc::clone(&applier.auth),
            password_pool: ReadPool::new(ScheduleLimits::password_pool()),
            start: Instant::now(),
            store_dir,
            peer_clients: OnceLock::new(),
            failure: watch::Sender::new(None),
            members: watch::Sender::new(Arc::clone(&replica.members)),
            alarms: ArcSwap::new(Arc::clone(&replica.alarms)),
            leadership: watch::Sender::new(replica.raft().leadership()),
            compacted: watch::Sender::new(0),
            auth_changes: watch::Sender::new(0),
            sizes,
            quota,
            response_memory: Arc::default(),
            disk_space,
            files,
            wal_dir,
            election_timeout,
            can_skip_read_index,
            need_of_renewals,
            era,
        };
        Ok((Arc::new(state), (replica, applier, wal)))
    }

    pub(super) fn fail(&self, error: Error) {
        self.failure.send_if_modified(|failed| {
            let first = failed.is_none();
            failed.get_or_insert_with(|| Arc::new(error));
            first
        });
        self.raft_queue.push([RaftLoopEvent::Stop]);
    }

    /// Publishes a report of the apply loop. Called before the requests of the reported entries are
    /// completed.
    pub(super) fn publish_applied(&self, applied: &ApplyReport) {
        self.status.set_applied(applied.index);
        if let Some(members) = &applied.members {
            self.status.set_members(members, self.metadata.node_id);
            self.members.send_replace(Arc::clone(members));
        }
        if let Some(alarms) = &applied.alarms {
            self.alarms.store(Arc::clone(alarms));
        }
        if applied.has_auth_changed {
            self.auth_changes.send_modify(|changes| *changes += 1);
        }
    }
}
