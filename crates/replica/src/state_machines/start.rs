//! Starts a member, for the first time and after each stop. See `docs/copies.md`.
//!
//! The disk has a log, a store, and perhaps stores received from other members. The log has records
//! of positions at which the store, or a received store, was durable. In this table S is the newest
//! of these positions:
//!
//! ```text
//!   S ≤ store                          the store is at S or later: continue after the store
//!   S > store, received store at S     a crash happened during an installation: finish it
//!   S > store, none received at S      entries are missing: an error
//!   log ends before the store          entries are missing: an error; but if etcd wrote the
//!                                      store last, or the options accept the loss, the log
//!                                      restarts after the store
//! ```
//!
//! Entries after the store's position are read from the log, and applied when raft commits them.
//! Some earlier entries are also read, for slow followers.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_auth::{AuthConfig, AuthStore};
use clearlane_backend::{Config, Era};
use clearlane_engine::Engine;
use clearlane_lease::{self as lease, Lessor};
use clearlane_mvcc::{self as mvcc, KeyLeases, WatchableKv};
use clearlane_proto::nested::decode_raft_request;
use clearlane_raft as raft;
use clearlane_raft::read_index;
use clearlane_raft::read_index::{ReadIndexQueue, ReadMode, ReadNeed, RequestIdGenerator};
use clearlane_raft::{RaftNode, RecoveredState};
use clearlane_wal as wal;
use clearlane_wal::files::FileSystem;
use clearlane_wal::{ConfChange, Entry, EntryKind, HardState, Metadata, WalSnapshot};
use clearlane_wal::{Contents, ShortTail, Wal};

use super::reach_store::reach_store;
use super::{Applier, ApplyTimer, Replica, Wait};
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::era_policy::EraPolicy;
use crate::error::Result;
use crate::membership::{AdmittingLeader, Member, MemberChange, Members};
use crate::raft_snapshot::{self, StoreDir};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionConfig {
    pub batch: usize,
    /// The pause between two steps.
    pub pause: Duration,
}

impl Default for CompactionConfig {
    fn default() -> CompactionConfig {
        CompactionConfig { batch: 1000, pause: Duration::from_millis(10) }
    }
}

#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// Raft's settings. The id in them is not used, because the log contains the member's id.
    pub raft: raft::RaftNodeConfig,
    /// The settings for linearizable reads. The id in them is not used either.
    pub read_index: read_index::ReadIndexConfig,
    pub read_mode: ReadMode,
    /// Number of applied entries after which the store's position is recorded and the log
    /// shortened.
    pub snapshot_count: u64,
    /// Bytes of applied entries after which the position is also recorded and the log shortened.
    /// This limits memory, because the entries since the last record are kept in memory.
    pub snapshot_bytes: u64,
    /// Number of entries kept below the recorded position for slow followers.
    pub catch_up_entries: u64,
    /// Maximum bytes of the entries kept for slow followers.
    pub catch_up_bytes: u64,
    /// The quota, in the form that [`Quota`](crate::quota::Quota) takes. The replica does not check
    /// it, but the crate `server` does.
    pub quota_bytes: i64,
    /// Time between checkpoints of leases, or `None` for no checkpoints.
    pub lease_checkpoint_interval: Option<Duration>,
    /// The time of the start, in milliseconds since 1970. New ids are based on this time.
    pub unix_ms: u64,
    /// `Some(true)` if this member joins an existing cluster as a learner, and `Some(false)` if it
    /// joins as a voter, as another member has reported. `None` if this start does not join a
    /// cluster. The replica does not use this, but the crate `server` does.
    pub joins_as_learner: Option<bool>,
    /// Settings of compactions. The replica runs no compaction, but the crate `server` does.
    pub compaction: CompactionConfig,
    pub auth: AuthConfig,
    /// Measures how long entries take to apply. If `None`, slow entries are not reported.
    pub apply_timer: Option<ApplyTimer>,
    /// At startup, a store with at least this number of free bytes is defragmented. If `None`, no
    /// store is defragmented.
    pub defragment_at: Option<u64>,
    /// The condition that a renewal of an existing lease waits for at the leader. etcd's gate
    /// `FastLeaseKeepAlive`, which is on by default, changes the condition to
    /// [`ReadNeed::Confirmed`]. A leader that has not applied an entry of its own term always uses
    /// [`ReadNeed::Applied`].
    pub need_of_renewals: ReadNeed,
    /// If true, the limits for a lagging apply loop are a tenth higher for revocations of leases
    /// than for other proposals: etcd's gate `PriorityRequest`.
    pub prefers_revocations: bool,
}

impl ReplicaConfig {
    pub fn new(seed: u64, unix_ms: u64) -> ReplicaConfig {
        ReplicaConfig {
            raft: raft::RaftNodeConfig::new(0, seed),
            read_index: read_index::ReadIndexConfig::new(0),
            read_mode: ReadMode::ReadIndex,
            snapshot_count: 10_000,
            snapshot_bytes: 64 << 20,
            catch_up_entries: 5_000,
            catch_up_bytes: 64 << 20,
            quota_bytes: 0,
            lease_checkpoint_interval: None,
            unix_ms,
            joins_as_learner: None,
            compaction: CompactionConfig::default(),
            auth: AuthConfig::default(),
            apply_timer: None,
            defragment_at: None,
            need_of_renewals: ReadNeed::Applied,
            prefers_revocations: false,
        }
    }
}

#[derive(Clone, Debug)]
pub struct StorageConfig {
    pub files: Arc<dyn FileSystem>,
    pub wal_dir: PathBuf,
    pub wal: wal::Options,
    pub store_dir: Arc<dyn StoreDir>,
    pub era: Era,
    /// Configures when the store commits.
    pub backend: Config,
    /// Maximum number of learners. It must be the same at all members.
    pub learners_max: usize,
}

impl StorageConfig {
    pub(super) fn open(
        &self,
        engine: &Arc<dyn Engine>,
        leases: &Arc<Lessor>,
        auth: &AuthStore,
    ) -> Result<OpenedStore> {
        let mut progress = AppliedPosition::read(&*engine.snapshot()?)?;
        let config = mvcc::StoreConfig {
            engine: Arc::clone(engine),
            config: self.backend.clone(),
            pre_commit: AppliedPosition::pre_commit(),
            consistent_index: progress.clone(),
            leases: Arc::clone(leases) as Arc<dyn KeyLeases>,
        };
        let (store, opened) = mvcc::open(self.era, config)?;
        leases.restore(&*store.begin_read(), &opened.leases)?;
        auth.restore(&*store.begin_read())?;
        let members = Arc::new(Members::load(&*store.begin_read(), self.learners_max)?);
        // As in etcd, the members in bucket `members` replace the members in bucket `meta`: after
        // `etcdutl snapshot restore`, bucket `meta` still has the members of the old cluster.
        if !members.is_empty() {
            progress.conf_state = Arc::new(members.conf_state());
        }
        let alarms = Arc::new(Alarms::load(&*store.begin_read())?);
        Ok(OpenedStore {
            store: Arc::from(store),
            members,
            alarms,
            progress,
            compaction: opened.compaction,
        })
    }
}

pub(super) struct OpenedStore {
    pub(super) store: Arc<dyn WatchableKv<AppliedPosition>>,
    pub(super) members: Arc<Members>,
    pub(super) alarms: Arc<Alarms>,
    pub(super) progress: AppliedPosition,
    pub(super) compaction: Option<mvcc::CompactionJob>,
}

/// Creates the log of a new member. The first members of a cluster start with the same entries,
/// which add all of them. A member that joins an existing cluster starts without entries, and gets
/// everything from the other members.
pub fn bootstrap(storage: &StorageConfig, metadata: Metadata, first: &[Member]) -> Result<()> {
    bootstrap_admitted(storage, metadata, first, None)
}

/// Creates the log of a new member. If a leader has admitted the member, the log starts in the
/// leader's term, with a vote for the leader.
pub fn bootstrap_admitted(
    storage: &StorageConfig,
    metadata: Metadata,
    first: &[Member],
    admitted_by: Option<AdmittingLeader>,
) -> Result<()> {
    let mut first: Vec<&Member> = first.iter().collect();
    first.sort_by_key(|member| member.id);
    let entries: Vec<Entry> =
        (1..).zip(first).map(|(index, member)| add_member_entry(index, member)).collect();
    let commit = entries.len() as u64;
    let state = match admitted_by {
        Some(AdmittingLeader { id, term }) => Some(HardState { term, vote: id, commit }),
        None => (commit > 0).then_some(HardState { term: 1, vote: 0, commit }),
    };
    let (files, dir) = (Arc::clone(&storage.files), &storage.wal_dir);
    // The log and its entries are created in one step. If a crash left a log without the entries,
    // the member would start and wait for a leader forever.
    let wal = Wal::create(files, dir, metadata, storage.wal, &entries, state.as_ref())?;
    Ok(wal.close()?)
}

fn add_member_entry(index: u64, member: &Member) -> Entry {
    let data = MemberChange::initial_conf_change(member).encode().into();
    Entry { kind: EntryKind::ConfChange, term: 1, index, data }
}

/// Starts a member from the data on its disk.
pub fn start(
    storage: StorageConfig,
    mut settings: ReplicaConfig,
) -> Result<(Replica, Applier, Wal)> {
    let snapshots = wal::valid_snapshots(&*storage.files, &storage.wal_dir)?;
    let newest = snapshots.iter().max_by_key(|snapshot| snapshot.index).cloned();
    let newest = newest.unwrap_or_default();
    let behind = newest.index.saturating_sub(settings.catch_up_entries);
    // Opening the log syncs everything that was read from it. Only after that may a received store
    // replace the current one, because its snapshot record in the log must not be lost.
    let (mut wal, contents) = open_wal(&storage, &snapshots, &newest, behind)?;
    warn_lost_entries(&wal);
    let engine = raft_snapshot::open_at_start(&*storage.store_dir, newest.index)?;
    if let Some(threshold) = settings.defragment_at {
        defragment_above(&*engine, threshold)?;
    }
    let leases = Arc::new(Lessor::new(lease_config(&settings), &storage.backend.locks));
    let auth = Arc::new(AuthStore::new(settings.auth.clone(), &storage.backend.locks));
    let opened = storage.open(&engine, &leases, &auth)?;
    let progress = opened.progress.clone();
    let metadata = contents.metadata;
    let apply_timer = settings.apply_timer;
    (settings.raft.id, settings.read_index.member_id) = (metadata.node_id, metadata.node_id);
    settings.raft.read_index_counts_as_ack = EraPolicy::of(storage.era).shortens_read_index;
    let (state, entries) = reach_store(&progress, &mut wal, contents, &storage.wal)?;
    // Term 1 is the term of the first entries. A member that has neither voted nor seen a later
    // term has supported no leader's lease.
    let was_running = state.vote != 0 || state.term > 1;
    let ids = ids_above(&entries, metadata.node_id, settings.unix_ms);
    let found = RecoveredState { store_position: progress.position(), hard_state: state, entries };
    let mut read_index = ReadIndexQueue::new(settings.read_mode, settings.read_index);
    // Set here, because in an idle cluster no entry is applied, and readers must not wait for one.
    read_index.on_applied(progress.index);
    let mut raft = RaftNode::new(settings.raft, found)?;
    raft.release(raft.release_index_for_bytes(newest.index, settings.catch_up_bytes));
    let wait = Arc::new(Wait::default());
    let replica = Replica {
        metadata,
        store_dir: Arc::clone(&storage.store_dir),
        applied: (progress.index, progress.term),
        conf_state: raft.conf_state(),
        committed_at_start: Some(raft.committed_index()),
        raft,
        members: Arc::clone(&opened.members),
        alarms: Arc::clone(&opened.alarms),
        leases: Arc::clone(&leases),
        auth: Arc::clone(&auth),
        wait: Arc::clone(&wait),
        read_index,
        ids,
        ticks_before_vote: if was_running { settings.raft.election_ticks } else { 0 },
        ticks_before_stop: None,
        recorded_index: newest.index,
        config: settings,
        wal: Default::default(),
        lease_term: None,
        leases_expired: 0,
        now: Duration::ZERO,
        queued_proposals: Default::default(),
        large_proposals: Default::default(),
        held_proposals: Default::default(),
        stalls: Default::default(),
        proposed_alarm: None,
        sole_voter_since: None,
        last_transferee: None,
        pending_read_indexes: Default::default(),
        unrecorded_bytes: 0,
        is_commit_requested: false,
        unapplied: Default::default(),
        unapplied_bytes: 0,
        snapshot_index: 0,
        received_snapshots: Vec::new(),
        offered_snapshots: Default::default(),
        sending_snapshots: Default::default(),
        ready: Default::default(),
    };
    let applier =
        Applier::new(metadata, storage, apply_timer, (engine, opened), (leases, auth), wait);
    Ok((replica, applier, wal))
}

/// Defragments the store if it has at least `threshold_bytes` free bytes. The caller must not have
/// opened the store for reads yet, except to read its applied position.
fn defragment_above(engine: &dyn Engine, threshold_bytes: u64) -> Result<()> {
    const RECORDS_PER_STEP: usize = 10_000;
    let (size, free) = (engine.size_on_disk()?, engine.free_bytes()?);
    if free < threshold_bytes {
        let (size_bytes, free_bytes) = (size, free);
        tracing::info!(size_bytes, free_bytes, threshold_bytes, "Skipping defragmentation");
        return Ok(());
    }
    let mut work = engine.begin_defragment()?;
    while !work.step(RECORDS_PER_STEP)? {}
    work.finish()?;
    let (size_bytes, before) = (engine.size_on_disk()?, size);
    tracing::info!(before, size_bytes, threshold_bytes, "finished defragmenting the store");
    Ok(())
}

fn lease_config(settings: &ReplicaConfig) -> lease::Config {
    let ticks = u32::try_from(settings.raft.election_ticks).unwrap_or(u32::MAX);
    lease::Config {
        election_timeout: settings.read_index.tick_interval * ticks,
        checkpoint_interval: settings.lease_checkpoint_interval,
    }
}

/// Returns a generator whose ids are above the ids of this member's proposals in the log, even if
/// the clock was set back.
fn ids_above(entries: &[Entry], member: u64, unix_ms: u64) -> RequestIdGenerator {
    let id = |entry: &Entry| proposal_id(entry.kind, entry.data.clone());
    let ids = RequestIdGenerator::new(member, unix_ms);
    entries.iter().filter_map(id).fold(ids, RequestIdGenerator::starting_above)
}

pub(super) fn proposal_id(kind: EntryKind, data: Bytes) -> Option<u64> {
    match kind {
        EntryKind::Normal => {
            let request = decode_raft_request(data).ok()?;
            request.header.map(|header| header.id)
        }
        _ => ConfChange::decode(&data).ok().map(|change| change.id),
    }
}

/// Warns if the log has lost acknowledged entries and a flag accepts this loss. Also warns if the
/// last segment is too short, so that entries may be missing.
pub(super) fn warn_lost_entries(wal: &Wal) {
    if let Some(error) = &wal.accepted_loss {
        tracing::warn!(%error, "--unsafe-accept-log-loss: acknowledged entries are lost");
    }
    let Some(ShortTail { path, expected, found, last_index }) = &wal.short_tail else { return };
    tracing::warn!(
        segment = %path.display(),
        "expected-bytes" = expected,
        "found-bytes" = found,
        "last-index" = last_index,
        "the log's last segment is shorter than when it was created; its last entries may be \
         missing"
    );
}

/// Opens the log at an earlier snapshot record than the newest one, so that entries for slow
/// followers are also read: at the last record up to index `behind`, or else at the first record.
/// If the log cannot be opened there, opens it at the newest record.
fn open_wal(
    storage: &StorageConfig,
    snapshots: &[WalSnapshot],
    newest: &WalSnapshot,
    behind: u64,
) -> Result<(Wal, Contents)> {
    use clearlane_wal::Error::{Corrupt, NoSnapshot, Refused};
    let open = |at: &WalSnapshot| {
        let (files, dir) = (Arc::clone(&storage.files), &storage.wal_dir);
        Wal::open(files, dir, (at.index, at.term), storage.wal)
    };
    let far_enough = snapshots.iter().rfind(|snapshot| snapshot.index <= behind);
    let earlier = far_enough.or(snapshots.first()).filter(|at| at.index < newest.index);
    // Opening at the earlier record fails with one of these errors if a raft snapshot was installed
    // between the two records, because the entries have a gap, or if a segment between them was
    // removed. The newest record is used in these cases. Any other error, such as a failed sync, is
    // returned, because another attempt could hide it.
    match earlier.map(open) {
        None | Some(Err(Refused(_) | NoSnapshot { .. } | Corrupt { .. })) => Ok(open(newest)?),
        Some(opened) => Ok(opened?),
    }
}
