//! The apply half of a member: committed entries, in order and each once, become states of the
//! store.
//!
//! The apply loop gives it [work](ToApply) and lets it take steps. A step ends before a request
//! that may take long, so that earlier requests are answered first. etcd's counterpart is
//! `EtcdServer.applyAll`, which answers after each entry.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_engine::Engine;
use clearlane_lease::Lessor;
use clearlane_mvcc::{CompactionJob, WatchableKv};
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
    pub(super) apply_timer: Option<ApplyTimer>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) store: Arc<dyn WatchableKv<AppliedPosition>>,
    pub(super) members: Arc<Members>,
    /// Shared, like the members: they seldom change, and other threads read them.
    pub(super) alarms: Arc<Alarms>,
    pub(super) leases: Arc<Lessor>,
    /// The store has the same in its newest state.
    pub(super) applied_position: AppliedPosition,
    pub(super) wait: Arc<Wait>,
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
        leases: Arc<Lessor>,
        wait: Arc<Wait>,
    ) -> Applier {
        let OpenedStore { store, members, alarms, progress, compaction } = opened;
        // Compactions that a crash has interrupted go on.
        let compactions = compaction.into_iter().collect();
        let mut out = ApplyReady { compactions, ..ApplyReady::default() };
        // The member may have stopped before the removal was reported.
        out.report.is_removed = members.is_removed(metadata.node_id);
        let step_max = match storage.era {
            Era::Clearlane => STEP_MAX,
            _ => OLD_ERA_STEP_MAX,
        };
        Applier {
            metadata,
            storage,
            apply_timer,
            engine,
            store,
            members,
            alarms,
            leases,
            applied_position: progress,
            wait,
            last_completed: None,
            queue: VecDeque::new(),
            step_max,
            ready: out,
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
        let opened = self.storage.open(&engine, &self.leases)?;
        if opened.progress.position() != position {
            let has = opened.progress.index;
            let why = format!("it was to be at entry {}, and is at {has}", position.index);
            return Err(Error::damaged("a copy of the store", why));
        }
        let OpenedStore { store, members, alarms, progress, compaction } = opened;
        (self.engine, self.store, self.members, self.applied_position) =
            (engine, store, members, progress);
        self.alarms = alarms;
        let (store, engine) = (Arc::clone(&self.store), Arc::clone(&self.engine));
        self.ready.new_store = Some(NewStore { store, engine });
        let applied = &mut self.ready.report;
        applied.installed = Some(position);
        applied.members = Some(Arc::clone(&self.members));
        applied.alarms = Some(Arc::clone(&self.alarms));
        // The removal may be among the entries that the copy covers.
        applied.is_removed |= self.members.is_removed(self.metadata.node_id);
        self.ready.compactions = compaction.into_iter().collect::<Vec<CompactionJob>>();
        Ok(())
    }

    /// Changes with [`ApplyReady::new_store`].
    pub fn store(&self) -> &Arc<dyn WatchableKv<AppliedPosition>> {
        &self.store
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub fn applied_position(&self) -> &AppliedPosition {
        &self.applied_position
    }

    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    pub fn leases(&self) -> &Arc<Lessor> {
        &self.leases
    }

    /// Zero if slow entries are not reported.
    pub fn slow_limit(&self) -> Duration {
        self.apply_timer.map_or(Duration::ZERO, |watch| watch.limit)
    }
}
