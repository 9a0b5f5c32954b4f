//! The apply half of a member: committed entries, in order and each once, become states of the
//! store.
//!
//! The apply loop gives the [`Applier`] [work](ToApply) and calls its steps. A step installs a raft
//! snapshot or applies some entries. A request that may take a long time is applied in a separate
//! step, so that earlier requests are answered first. In etcd: `EtcdServer.applyAll`, which answers
//! after each entry.

use std::collections::VecDeque;
use std::sync::Arc;

use clearlane_auth::AuthStore;
use clearlane_engine::Engine;
use clearlane_lease::Lessor;
use clearlane_mvcc::WatchableKv;
use clearlane_raft::LogPosition;
use clearlane_wal::Metadata;

use super::start::OpenedStore;
use super::{ApplyReady, ApplyTimer, NewStore, StorageConfig, ToApply, Wait};
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::era_policy::EraPolicy;
use crate::error::{Error, Result};
use crate::membership::Members;

#[derive(Debug)]
pub struct Applier {
    pub(super) metadata: Metadata,
    pub(super) storage: StorageConfig,
    pub apply_timer: Option<ApplyTimer>,
    pub engine: Arc<dyn Engine>,
    /// The current store. [`ApplyReady::new_store`] reports that it was replaced.
    pub store: Arc<dyn WatchableKv<AppliedPosition>>,
    pub members: Arc<Members>,
    /// The raised alarms. Alarms and members are shared, because they seldom change and other
    /// threads read them.
    pub(super) alarms: Arc<Alarms>,
    pub leases: Arc<Lessor>,
    pub auth: Arc<AuthStore>,
    /// The position of the last applied entry. The newest state of the store has the same position.
    pub applied_position: AppliedPosition,
    pub(super) wait: Arc<Wait>,
    /// The revision of the store of the last installed raft snapshot, or 0 if there was none. A
    /// result of compares that was evaluated at this revision or an earlier one may belong to the
    /// replaced store, so it is not used.
    pub(super) installed_revision: i64,
    /// The id of the proposal that was completed last, or `None` if there was none.
    pub(super) last_completed: Option<u64>,
    queue: VecDeque<ToApply>,
    pub(super) era: EraPolicy,
    pub(super) ready: ApplyReady,
}

impl Applier {
    pub(super) fn new(
        metadata: Metadata,
        storage: StorageConfig,
        apply_timer: Option<ApplyTimer>,
        (engine, opened): (Arc<dyn Engine>, OpenedStore),
        (leases, auth): (Arc<Lessor>, Arc<AuthStore>),
        wait: Arc<Wait>,
    ) -> Applier {
        // Compactions that a crash has interrupted are continued.
        let compactions = opened.compaction.into_iter().collect();
        let mut ready = ApplyReady { compactions, ..ApplyReady::default() };
        // This member may have been removed, and have stopped before the removal was reported.
        ready.report.is_removed = opened.members.is_removed(metadata.node_id);
        let era = EraPolicy::of(storage.era);
        Applier {
            metadata,
            storage,
            apply_timer,
            engine,
            store: opened.store,
            members: opened.members,
            alarms: opened.alarms,
            leases,
            auth,
            applied_position: opened.progress,
            wait,
            installed_revision: 0,
            last_completed: None,
            queue: VecDeque::new(),
            era,
            ready,
        }
    }

    /// Queues work. Consecutive batches of entries are merged.
    pub fn enqueue(&mut self, work: ToApply) {
        match (self.queue.back_mut(), work) {
            (Some(ToApply::Entries(before)), ToApply::Entries(entries)) => before.extend(entries),
            (_, work) => self.queue.push_back(work),
        }
    }

    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Installs a raft snapshot, or applies up to [`EraPolicy::apply_step_max`] entries. Returns
    /// the tasks for the owner. After an error the process stops.
    pub fn step(&mut self) -> Result<ApplyReady> {
        match self.queue.pop_front() {
            Some(ToApply::Entries(mut entries)) => {
                // The entries are read in place and not moved, because there may be many.
                let (next, _) = entries.as_slices();
                let count = self.apply(&next[..next.len().min(self.era.apply_step_max)])?;
                entries.drain(..count);
                if !entries.is_empty() {
                    self.queue.push_front(ToApply::Entries(entries));
                }
            }
            Some(ToApply::Install(position)) => self.install(position)?,
            None => {}
        }
        (self.ready.report.index, self.ready.report.term) =
            (self.applied_position.index, self.applied_position.term);
        Ok(std::mem::take(&mut self.ready))
    }

    /// Replaces the store by the received store at this position. The log on disk already has a
    /// snapshot record of the position.
    fn install(&mut self, position: LogPosition) -> Result<()> {
        let engine = self.storage.store_dir.promote(position.index)?;
        let opened = self.storage.open(&engine, &self.leases, &self.auth)?;
        if opened.progress.position() != position {
            let has = opened.progress.index;
            let why = format!("it should be at entry {}, but is at entry {has}", position.index);
            return Err(Error::damaged("a received store", why));
        }
        self.installed_revision = opened.store.begin_read().revision();
        self.store = Arc::clone(&opened.store);
        self.engine = Arc::clone(&engine);
        self.members = opened.members;
        self.alarms = opened.alarms;
        self.applied_position = opened.progress;
        self.ready.new_store = Some(NewStore { store: opened.store, engine });
        let applied = &mut self.ready.report;
        applied.growth_index = position.index;
        applied.installed = Some(position);
        applied.members = Some(Arc::clone(&self.members));
        applied.alarms = Some(Arc::clone(&self.alarms));
        applied.has_auth_changed = true;
        // The removal of this member may be among the entries that the raft snapshot covers.
        applied.is_removed |= self.members.is_removed(self.metadata.node_id);
        self.ready.compactions = opened.compaction.into_iter().collect();
        Ok(())
    }
}
