//! One member and what it runs on: a disk, stores, a clock, and perhaps the power to run.
//!
//! The member is the real one: the core that the server runs, its write-ahead log, its store. What
//! is simulated is below and around it. When it crashes, core and log are dropped as a process
//! would drop them, in the midst of whatever they were about. Of the disk remains what was synced
//! and some of the rest ([`SimulatedDisk`]); of the store what was committed; the clock goes on.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Config;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{CompactionJob, HashKv, RangeOptions, Store};
use clearlane_raft::read_index;
use clearlane_raft::{Leadership, Role};
use clearlane_server::AppliedPosition;
use clearlane_server::membership::{LEARNERS_MAX, Member};
use clearlane_server::raft_snapshot::{MemoryStoreDir, StoreDir};
use clearlane_server::replica::{
    Applier, ApplyReport, Completions, Replica, ReplicaConfig, ReplicaInput, RequestQueue,
    StorageConfig, bootstrap, start,
};
use clearlane_wal::files::{Fault, SimulatedDisk};
use clearlane_wal::group_commit::{Batch, BatchResult};
use clearlane_wal::{Entry, Metadata, Wal};

use crate::bugs::PlantedBug;
use crate::checkers::requests::RequestChecker;
use crate::event_queue::{Clock, MILLISECOND, Micros};
use crate::history::{Record, StoreModel};
use crate::lease_model::{LEASE_KEY_PREFIX, LEASE_KEYS_END};
use crate::run_config::RunConfig;

const WAL_DIR: &str = "/member/wal";
const CLUSTER_ID: u64 = 0xc1ea;
/// When simulated time begins, in milliseconds since 1970.
const START_UNIX_MS: u64 = 1_795_219_200_000;

/// A member, whether it runs or not.
#[derive(Debug)]
pub struct Machine {
    /// The member's id.
    pub id: u64,
    /// Counts starts and crashes. What was planned for another life does not happen.
    pub incarnation: u64,
    /// What runs, if it does.
    pub running: Option<RunningMember>,
    /// What it takes for the time.
    pub clock: Clock,
    /// Until then its process is stopped.
    pub paused_until: Micros,
    /// Until when its disk is slow, and how slow.
    pub slow_disk: (Micros, Micros),
    /// For how long it will be down when the power fails that was planned to fail.
    pub planned_power_cut: Option<Micros>,
    /// For how long it will be down when its disk has reported the error that was planned.
    pub planned_disk_error: Option<Micros>,
    /// It has left, and will not run again.
    pub is_removed: bool,
    disk: SimulatedDisk,
    store_dir: Arc<MemoryStoreDir>,
}

/// What a crash ends.
#[derive(Debug)]
pub struct RunningMember {
    /// The member's raft half.
    pub replica: Replica,
    /// Its apply half.
    pub applier: Applier,
    /// What is wrong with it.
    pub planted_bug: PlantedBug,
    /// Entries that the apply half has got and not applied.
    pub unapplied: VecDeque<Entry>,
    /// The requests of its clients.
    pub requests: RequestQueue,
    /// What the raft loop takes with its next turn.
    pub raft_loop_events: Vec<ReplicaInput>,
    /// And what the apply loop has done, in front of it.
    pub unreported_applied: Option<Box<ApplyReport>>,
    /// Outcomes that the net thread has not taken.
    pub completions: Completions,
    /// What has become of requests.
    pub request_checker: RequestChecker,
    /// A turn of the apply loop is planned.
    pub is_apply_planned: bool,
    /// A turn of the net thread is planned.
    pub is_net_planned: bool,
    /// Whether reads need ask no other member.
    pub can_read_locally: bool,
    /// This member was removed, and stops.
    pub is_stopping: bool,
    /// Its log.
    pub wal: Wal,
    /// A batch is on its way to the disk.
    pub is_writing: bool,
    /// The log is to be shortened when the disk is idle.
    pub pending_purge: Option<u64>,
    /// A poll is planned.
    pub is_poll_planned: bool,
    /// When the ReadIndex queue is to be polled.
    pub wake_at: Option<Micros>,
    /// Compactions to be run.
    pub compactions: VecDeque<CompactionJob>,
}

/// How the table of members describes one.
pub fn member_description(id: u64) -> Member {
    let peer_urls = vec![peer_url(id)];
    Member { id, peer_urls, name: format!("m{id}"), ..Member::default() }
}

/// Where a member is reached.
pub fn peer_url(id: u64) -> String {
    format!("http://10.0.0.{id}:2380")
}

impl Machine {
    /// A machine with the log of a new member on its disk: one of the first, or one that joins.
    pub fn new(id: u64, first: &[Member], terms: &RunConfig) -> clearlane_server::Result<Machine> {
        let machine = Machine {
            id,
            incarnation: 0,
            running: None,
            clock: Clock::new(id * 1000 * MILLISECOND),
            paused_until: 0,
            slow_disk: (0, 0),
            planned_power_cut: None,
            planned_disk_error: None,
            is_removed: false,
            disk: SimulatedDisk::new(["/", "/member"]),
            store_dir: Arc::new(MemoryStoreDir::new()),
        };
        let metadata = Metadata { node_id: id, cluster_id: CLUSTER_ID };
        bootstrap(&machine.storage_config(terms), metadata, first)?;
        Ok(machine)
    }

    fn storage_config(&self, terms: &RunConfig) -> StorageConfig {
        StorageConfig {
            files: Arc::new(self.disk.clone()),
            wal_dir: Path::new(WAL_DIR).to_owned(),
            wal: terms.wal,
            store_dir: self.store_dir(),
            era: terms.era,
            backend: Config::default(),
            learners_max: LEARNERS_MAX,
        }
    }

    /// Where its stores are.
    pub fn store_dir(&self) -> Arc<dyn StoreDir> {
        Arc::clone(&self.store_dir) as Arc<dyn StoreDir>
    }

    /// Starts the member.
    pub fn start(&mut self, now: Micros, terms: &RunConfig) -> clearlane_server::Result<()> {
        let planted_bug = PlantedBug::new(terms.bug);
        let mut settings = ReplicaConfig {
            raft: terms.raft,
            read_index: read_index::ReadIndexConfig::new(0),
            read_mode: terms.read_mode,
            snapshot_count: terms.snapshot_count,
            snapshot_bytes: u64::MAX,
            catch_up_entries: terms.catch_up_entries,
            catch_up_bytes: u64::MAX,
            lease_checkpoint_interval: terms.lease_checkpoint_interval.map(Duration::from_micros),
            ..ReplicaConfig::new(0, START_UNIX_MS + self.clock.read(now) / MILLISECOND)
        };
        planted_bug.alter_config(&mut settings);
        let (mut core, applier, wal) = start(self.storage_config(terms), settings)?;
        planted_bug.after_start(&mut core, terms.raft.election_ticks);
        self.incarnation += 1;
        self.running = Some(RunningMember {
            replica: core,
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
            is_stopping: false,
            is_writing: false,
            pending_purge: None,
            is_poll_planned: false,
            wake_at: None,
            compactions: VecDeque::new(),
        });
        Ok(())
    }

    /// Ends the member, and if `power` is a seed, what was not synced goes with it.
    pub fn crash(&mut self, power: Option<u64>) {
        self.running = None;
        self.incarnation += 1;
        self.planned_power_cut = None;
        self.planned_disk_error = None;
        self.paused_until = 0;
        self.disk = match power {
            Some(seed) => self.disk.after_power_cut(seed),
            None => self.disk.after_kill(),
        };
    }

    /// Lets the power fail before the n-th operation of the disk from now.
    pub fn plan_power_cut(&mut self, operation: u64, down: Micros) {
        self.disk.fail_at(operation, Fault::PowerCut);
        self.planned_power_cut = Some(down);
    }

    /// Lets the n-th operation of the disk from now fail. What it did is not known.
    pub fn plan_disk_error(&mut self, operation: u64, down: Micros) {
        self.disk.fail_at(operation, Fault::Error);
        self.planned_disk_error = Some(down);
    }

    /// Whether the planned moment has come.
    pub fn has_power(&self) -> bool {
        self.disk.has_power()
    }

    /// What the disk's operations since the last call took.
    pub fn take_disk_cost(&mut self) -> Micros {
        self.disk.take_cost()
    }

    /// Writes a batch, if the member runs.
    pub fn write(&mut self, batch: Batch) -> Option<BatchResult> {
        let RunningMember { wal, planted_bug, .. } = self.running.as_mut()?;
        if !planted_bug.skips_sync(&batch) {
            return Some(batch.write(wal));
        }
        self.disk.skip_syncs(1);
        let written = batch.write(wal);
        self.disk.skip_syncs(u64::MAX);
        Some(written)
    }

    /// The longest time that a batch takes to get to the disk.
    pub fn longest_write(&self, now: Micros, terms: &RunConfig) -> Micros {
        let (until, slow) = self.slow_disk;
        if now < until { slow.max(terms.disk_write_max) } else { terms.disk_write_max }
    }

    /// Its raft half, if it runs.
    pub fn replica(&self) -> Option<&Replica> {
        self.running.as_ref().map(|running| &running.replica)
    }

    /// Its apply half, if it runs.
    pub fn applier(&self) -> Option<&Applier> {
        self.running.as_ref().map(|running| &running.applier)
    }

    /// The leader, as far as it knows; none if it does not run.
    pub fn leadership(&self) -> Leadership {
        self.replica().map(Replica::leadership).unwrap_or_default()
    }

    /// Whether it runs and takes itself for the leader.
    pub fn is_leader(&self) -> bool {
        self.leadership().role == Role::Leader
    }
}

/// What a store holds of the keys that clients use.
pub fn client_records(store: &dyn Store<AppliedPosition>) -> clearlane_mvcc::Result<StoreModel> {
    let read = store.begin_read();
    let found = read.range(KeyRange::new(b"k", b"l"), RangeOptions::default())?;
    let records = found.records.iter().map(to_record).map(|record| (record.key.clone(), record));
    Ok(StoreModel { revision: read.revision(), records: records.collect() })
}

/// On which lease each key of the lease clients hangs, as the records in a store say.
pub fn lease_keys(
    store: &dyn Store<AppliedPosition>,
) -> clearlane_mvcc::Result<BTreeMap<String, i64>> {
    let keys = KeyRange::new(LEASE_KEY_PREFIX.as_bytes(), LEASE_KEYS_END.as_bytes());
    let found = store.begin_read().range(keys, RangeOptions::default())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(found.records.iter().map(|record| (text(&record.key), record.lease)).collect())
}

/// A record, as the history has it.
pub fn to_record(found: &clearlane_proto::mvccpb::KeyValue) -> Record {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Record {
        key: text(&found.key),
        value: text(&found.value),
        create_revision: found.create_revision,
        mod_revision: found.mod_revision,
        version: found.version,
    }
}

/// The hash of a store as it is now.
pub fn hash_kv(store: &dyn Store<AppliedPosition>) -> clearlane_mvcc::Result<HashKv> {
    let mut job = store.hash(0)?;
    loop {
        if let Some(hash) = job.step(usize::MAX)? {
            return Ok(hash);
        }
    }
}
