//! A machine: disk, stores, clock, and the process of one member while it runs.
//!
//! The member's two halves (the raft half, [`Replica`], and the apply half, [`Applier`]), its
//! write-ahead log and its store are the server's code. The disk, engine and clock are simulated.
//!
//! A crash drops both halves and the log, as the end of a process would. The disk keeps its synced
//! data, and after a power cut some of the unsynced data ([`SimulatedDisk`]). The store keeps its
//! committed data.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane_auth::{AuthConfig, TokenConfig};
use clearlane_backend::Config;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{CompactionJob, HashKv, RangeOptions, Store};
use clearlane_proto::peerpb::MembersReply;
use clearlane_raft::read_index;
use clearlane_raft::{Leadership, Role};
use clearlane_replica::membership::{AdmittingLeader, LEARNERS_MAX, Member};
use clearlane_replica::raft_snapshot::{MemoryStoreDir, StoreDir};
use clearlane_replica::{
    AppliedPosition, Applier, ApplyReport, Completions, Replica, ReplicaConfig, ReplicaInput,
    RequestQueue, StorageConfig, bootstrap_admitted, start,
};
use clearlane_wal::files::{Fault, FileSystem as _, SimulatedDisk, read_short};
use clearlane_wal::group_commit::{Batch, BatchResult};
use clearlane_wal::{DURABLE_END_FILE, Entry, Metadata, Wal};

use crate::auth_proposals::BCRYPT_COST;
use crate::bugs::PlantedBug;
use crate::checkers::requests::RequestChecker;
use crate::event_queue::{Clock, MILLISECOND, Micros};
use crate::history::{Record, StoreModel};
use crate::lease_model::{LEASE_KEY_PREFIX, LEASE_KEYS_END};
use crate::proposals::{CLIENT_KEY_PREFIX, CLIENT_KEYS_END};
use crate::run_config::RunConfig;

const WAL_DIR: &str = "/member/wal";
pub const CLUSTER_ID: u64 = 0xc1ea;
/// The wall-clock time of a clock that shows 0, in milliseconds since 1970.
const START_UNIX_MS: u64 = 1_795_219_200_000;

/// A member's disk, store and clock, and its process while it runs.
#[derive(Debug)]
pub struct Machine {
    pub id: u64,
    /// Number of starts and crashes so far. Steps that were planned in another incarnation are
    /// dropped.
    pub incarnation: u64,
    pub running: Option<RunningMember>,
    pub clock: Clock,
    /// The process is paused until this time.
    pub paused_until: Micros,
    /// The first value is the time until which the disk is slow. The second value is the longest
    /// time that the write of a batch takes until then.
    pub slow_disk: (Micros, Micros),
    /// No write to the disk completes before this time.
    pub disk_stalled_until: Micros,
    /// The time when the stalled disk started to block the current write. `None` if it blocks no
    /// write.
    pub write_held_since: Option<Micros>,
    /// How long the member will be down after the planned power cut. `None` if none is planned.
    pub planned_power_cut: Option<Micros>,
    /// How long the member will be down after the planned disk error. `None` if none is planned.
    pub planned_disk_error: Option<Micros>,
    /// If true, the member was removed, and it does not start again.
    pub is_removed: bool,
    /// `Some` while the member has a wiped disk and is not yet allowed to start.
    pub wiped: Option<WipedDisk>,
    /// If true, the member's disk was wiped at least once.
    pub was_wiped: bool,
    pub disk: SimulatedDisk,
    pub store_dir: Arc<dyn StoreDir>,
}

/// The state of a member with a wiped disk before it may start.
#[derive(Debug, Default)]
pub struct WipedDisk {
    /// The member starts to query the other members at this time.
    pub start_at: Micros,
    pub is_asking: bool,
    /// The reply of each member to the last query, by member.
    pub replies: BTreeMap<u64, MembersReply>,
}

fn empty_disk() -> SimulatedDisk {
    SimulatedDisk::new(["/", "/member"])
}

/// The state of the process. A crash drops it.
#[derive(Debug)]
pub struct RunningMember {
    pub replica: Replica,
    pub applier: Applier,
    pub planted_bug: PlantedBug,
    /// Entries that the apply half has received but not yet applied.
    pub unapplied: VecDeque<Entry>,
    pub requests: RequestQueue,
    /// The inputs of the raft loop's next turn.
    pub raft_loop_events: Vec<ReplicaInput>,
    /// The apply loop's report that the raft loop has not received yet. The raft loop receives it
    /// before `raft_loop_events`.
    pub unreported_applied: Option<Box<ApplyReport>>,
    /// Completions that the network thread has not taken yet.
    pub completions: Completions,
    pub request_checker: RequestChecker,
    pub is_apply_planned: bool,
    pub is_net_planned: bool,
    /// If true, the member serves linearizable reads without a ReadIndex request.
    pub can_read_locally: bool,
    pub wal: Wal,
    pub is_writing: bool,
    /// The log will be purged up to this index once the current batch is written.
    pub pending_purge: Option<u64>,
    pub is_poll_planned: bool,
    /// The time of the next poll that was planned because a timer of the replica is due then, such
    /// as a timer of its ReadIndex requests.
    pub wake_at: Option<Micros>,
    pub compactions: VecDeque<CompactionJob>,
}

fn auth_config(config: &RunConfig) -> AuthConfig {
    let Some(ttl) = config.token_ttl else { return AuthConfig::default() };
    let tokens = TokenConfig::Simple { ttl: Duration::from_micros(ttl) };
    AuthConfig { tokens, bcrypt_cost: BCRYPT_COST }
}

pub fn member_description(id: u64) -> Member {
    let peer_urls = vec![peer_url(id)];
    Member { id, peer_urls, name: format!("m{id}"), ..Member::default() }
}

pub fn peer_url(id: u64) -> String {
    format!("http://10.0.0.{id}:2380")
}

impl Machine {
    /// Creates a machine whose disk has the log of a new member. `first` lists the members of a new
    /// cluster. It is empty for a member that joins later.
    pub fn new(
        id: u64,
        first: &[Member],
        config: &RunConfig,
    ) -> clearlane_replica::Result<Machine> {
        let machine = Machine {
            id,
            incarnation: 0,
            running: None,
            clock: Clock::new(id * 1000 * MILLISECOND),
            paused_until: 0,
            slow_disk: (0, 0),
            disk_stalled_until: 0,
            write_held_since: None,
            planned_power_cut: None,
            planned_disk_error: None,
            is_removed: false,
            wiped: None,
            was_wiped: false,
            disk: empty_disk(),
            store_dir: Arc::new(MemoryStoreDir::default()),
        };
        machine.create_log(first, config, None)?;
        Ok(machine)
    }

    pub fn create_log(
        &self,
        first: &[Member],
        config: &RunConfig,
        admitted_by: Option<AdmittingLeader>,
    ) -> clearlane_replica::Result<()> {
        let metadata = Metadata { node_id: self.id, cluster_id: CLUSTER_ID };
        bootstrap_admitted(&self.storage_config(config), metadata, first, admitted_by)
    }

    /// Replaces the disk and the stores with empty ones. The member must not be running.
    pub fn wipe(&mut self, start_at: Micros) {
        self.disk = empty_disk();
        self.store_dir = Arc::new(MemoryStoreDir::default());
        self.was_wiped = true;
        self.wiped = Some(WipedDisk { start_at, ..WipedDisk::default() });
    }

    fn storage_config(&self, config: &RunConfig) -> StorageConfig {
        StorageConfig {
            files: Arc::new(self.disk.clone()),
            wal_dir: Path::new(WAL_DIR).to_owned(),
            wal: config.wal,
            store_dir: Arc::clone(&self.store_dir),
            era: config.era,
            backend: Config::default(),
            learners_max: LEARNERS_MAX,
        }
    }

    pub fn start(&mut self, now: Micros, config: &RunConfig) -> clearlane_replica::Result<()> {
        let planted_bug = PlantedBug::new(config.bug);
        let mut replica_config = ReplicaConfig {
            raft: config.raft,
            read_index: read_index::ReadIndexConfig::new(0),
            read_mode: config.read_mode,
            snapshot_count: config.snapshot_count,
            snapshot_bytes: u64::MAX,
            catch_up_entries: config.catch_up_entries,
            catch_up_bytes: u64::MAX,
            lease_checkpoint_interval: config.lease_checkpoint_interval.map(Duration::from_micros),
            auth: auth_config(config),
            ..ReplicaConfig::new(0, START_UNIX_MS + self.clock.read(now) / MILLISECOND)
        };
        planted_bug.alter_config(&mut replica_config);
        let (mut replica, applier, wal) = start(self.storage_config(config), replica_config)?;
        planted_bug.after_start(&mut replica, config.raft.election_ticks);
        self.incarnation += 1;
        self.running = Some(RunningMember {
            replica,
            applier,
            planted_bug,
            unapplied: VecDeque::new(),
            wal,
            requests: RequestQueue::new(0),
            raft_loop_events: Vec::new(),
            unreported_applied: None,
            completions: Vec::new(),
            request_checker: RequestChecker::default(),
            is_apply_planned: false,
            is_net_planned: false,
            can_read_locally: false,
            is_writing: false,
            pending_purge: None,
            is_poll_planned: false,
            wake_at: None,
            compactions: VecDeque::new(),
        });
        Ok(())
    }

    /// Ends the process. If `power` is a seed, the machine loses its power, and unsynced data is
    /// lost. If it is `None`, the process is only killed.
    pub fn crash(&mut self, power: Option<u64>) {
        self.running = None;
        self.incarnation += 1;
        self.planned_power_cut = None;
        self.planned_disk_error = None;
        self.paused_until = 0;
        self.write_held_since = None;
        self.disk = match power {
            Some(seed) => self.disk.after_power_cut(seed),
            None => self.disk.after_kill(),
        };
    }

    /// Plans a power cut before the operation with this number, counted from now.
    pub fn plan_power_cut(&mut self, operation: u64, down: Micros) {
        self.disk.fail_at(operation, Fault::PowerCut);
        self.planned_power_cut = Some(down);
    }

    /// Plans an error of the operation with this number, counted from now. The effect of the
    /// operation on the disk is undefined.
    pub fn plan_disk_error(&mut self, operation: u64, down: Micros) {
        self.disk.fail_at(operation, Fault::Error);
        self.planned_disk_error = Some(down);
    }

    /// Writes a batch to the log. Returns `None` if the member is not running.
    pub fn write(&mut self, batch: Batch) -> Option<BatchResult> {
        let RunningMember { wal, planted_bug, .. } = self.running.as_mut()?;
        if !planted_bug.skips_sync(&batch) {
            return Some(batch.write(wal));
        }
        // A program that skips the sync would not record a durable end either. So the file with the
        // durable end gets its old contents back.
        let durable = Path::new(WAL_DIR).join(DURABLE_END_FILE);
        let before = read_short(&self.disk, &durable, u64::MAX);
        self.disk.skip_syncs(1);
        let written = batch.write(wal);
        self.disk.skip_syncs(u64::MAX);
        if let (Ok(before), Ok(mut file)) = (before, self.disk.open(&durable)) {
            let _ = file.write_at(0, &before);
        }
        Some(written)
    }

    pub fn longest_write(&self, now: Micros, config: &RunConfig) -> Micros {
        let (until, slow) = self.slow_disk;
        if now < until { slow.max(config.disk_write_max) } else { config.disk_write_max }
    }

    pub fn replica(&self) -> Option<&Replica> {
        self.running.as_ref().map(|running| &running.replica)
    }

    pub fn applier(&self) -> Option<&Applier> {
        self.running.as_ref().map(|running| &running.applier)
    }

    /// Returns the member's leadership. If the member is not running, returns the default, which
    /// has no leader.
    pub fn leadership(&self) -> Leadership {
        self.replica().map(|replica| replica.raft().leadership()).unwrap_or_default()
    }

    pub fn is_leader(&self) -> bool {
        self.leadership().role == Role::Leader
    }
}

/// Returns the records of the clients' keys, without the keys of lease clients.
pub fn client_records(store: &dyn Store<AppliedPosition>) -> clearlane_mvcc::Result<StoreModel> {
    let read = store.begin_read();
    let keys = KeyRange::new(CLIENT_KEY_PREFIX, CLIENT_KEYS_END);
    let found = read.range(keys, RangeOptions::default())?;
    let records = found.records.iter().map(to_record).map(|record| (record.key.clone(), record));
    Ok(StoreModel { revision: read.revision(), records: records.collect() })
}

/// Returns the lease of each key of the lease clients.
pub fn lease_keys(
    store: &dyn Store<AppliedPosition>,
) -> clearlane_mvcc::Result<BTreeMap<String, i64>> {
    let keys = KeyRange::new(LEASE_KEY_PREFIX.as_bytes(), LEASE_KEYS_END.as_bytes());
    let found = store.begin_read().range(keys, RangeOptions::default())?;
    Ok(found.records.iter().map(|record| (text(&record.key), record.lease)).collect())
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn to_record(found: &clearlane_proto::mvccpb::KeyValue) -> Record {
    Record {
        key: text(&found.key),
        value: text(&found.value),
        create_revision: found.create_revision,
        mod_revision: found.mod_revision,
        version: found.version,
    }
}

pub fn hash_kv(store: &dyn Store<AppliedPosition>) -> clearlane_mvcc::Result<HashKv> {
    let mut job = store.hash(0)?;
    loop {
        if let Some(hash) = job.step(usize::MAX)? {
            return Ok(hash);
        }
    }
}
