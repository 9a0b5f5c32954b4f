//! The apply half of a member: committed entries, in order and each once, become states of the
//! store.
//!
//! The apply loop gives it [work](ToApply) and lets it take steps. A step ends before a request
//! that may take long, so that earlier requests are answered first. etcd's counterpart is
//! `EtcdServer.applyAll`, which answers after each entry.

use std::collections::VecDeque;
use std::sync::Arc;

use clearlane_auth::AuthStore;
use clearlane_backend::Era;
use clearlane_engine::Engine;
use clearlane_lease::Lessor;
use clearlane_mvcc::WatchableKv;
use clearlane_raft::LogPosition;
use clearlane_wal::Metadata;

use super::start::OpenedStore;
use super::{ApplyReady, ApplyTimer, NewStore, StorageConfig, ToApply, Wait};
use crate::alarms::Alarms;
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result};
use crate::membership::Members;

/// Completions leave at the end of a step.
const STEP_MAX: usize = 4096;
/// In the old eras each entry waits for the locks of the era: as in etcd, its completion does not
/// wait for those of later entries.
const OLD_ERA_STEP_MAX: usize = 1;

#[derive(Debug)]
pub struct Applier {
    pub(super) metadata: Metadata,
    pub(super) storage: StorageConfig,
    pub(crate) apply_timer: Option<ApplyTimer>,
    pub engine: Arc<dyn Engine>,
    /// Changes with [`ApplyReady::new_store`].
    pub store: Arc<dyn WatchableKv<AppliedPosition>>,
    pub members: Arc<Members>,
    /// Shared, like the members: they seldom change, and other threads read them.
    pub(super) alarms: Arc<Alarms>,
    pub leases: Arc<Lessor>,
    pub auth: Arc<AuthStore>,
    /// The store has the same in its newest state.
    pub applied_position: AppliedPosition,
    pub(super) wait: Arc<Wait>,
    /// That of the store of a raft snapshot when it was installed; 0 if there was none. What was
    /// evaluated at this revision or before may come from the store that it has replaced.
    pub(super) installed_revision: i64,
    /// The proposal that was completed last.
    pub(super) last_completed: Option<u64>,
    queue: VecDeque<ToApply>,
    step_max: usize,
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
        // Compactions that a crash has interrupted go on.
        let compactions = opened.compaction.into_iter().collect();
        let mut ready = ApplyReady { compactions, ..ApplyReady::default() };
        // The member may have stopped before the removal was reported.
        ready.report.is_removed = opened.members.is_removed(metadata.node_id);
        let step_max = if storage.era == Era::Clearlane { STEP_MAX } else { OLD_ERA_STEP_MAX };
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
            step_max,
            ready,
        }
    }

    /// Merges entries that follow each other.
    pub fn enqueue(&mut self, work: ToApply) {
        match (self.queue.back_mut(), work) {
            (Some(ToApply::Entries(before)), ToApply::Entries(entries)) => before.extend(entries),
            (_, work) => self.queue.push_back(work),
        }
    }

    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Does a part of the work, and returns what the owner has to do then. After an error the
    /// process stops.
    pub fn step(&mut self) -> Result<ApplyReady> {
        match self.queue.pop_front() {
            Some(ToApply::Entries(mut entries)) => {
                // The rest of the queue is not moved: it may be long.
                let (next, _) = entries.as_slices();
                let count = self.apply(&next[..next.len().min(self.step_max)])?;
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

    /// Replaces the store by the copy at this position, of which the log has a record.
    fn install(&mut self, position: LogPosition) -> Result<()> {
        let engine = self.storage.store_dir.promote(position.index)?;
        let opened = self.storage.open(&engine, &self.leases, &self.auth)?;
        if opened.progress.position() != position {
            let has = opened.progress.index;
            let why = format!("it was to be at entry {}, and is at {has}", position.index);
            return Err(Error::damaged("a copy of the store", why));
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
        // The removal may be among the entries that the copy covers.
        applied.is_removed |= self.members.is_removed(self.metadata.node_id);
        self.ready.compactions = opened.compaction.into_iter().collect();
        Ok(())
    }
}
