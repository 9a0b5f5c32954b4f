//! The apply half of a member: committed entries, in order and each once, become states of the
//! store.
//!
//! The apply loop gives it [work](ToApply) and lets it take a step; a step ends where a request may
//! take long, so that what stands before such a request is answered first, and what stands behind
//! it waits for nothing but it. etcd's counterpart is `EtcdServer.applyAll`, which answers after
//! each entry.

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

/// Entries of one step: their outcomes leave at its end.
const STEP_MAX: usize = 4096;
/// In the old eras, where each entry waits for the locks of the era: as in etcd, its outcome does
/// not wait for those of the entries behind it.
const OLD_ERA_STEP_MAX: usize = 1;

/// The apply half of a member.
#[derive(Debug)]
pub struct Applier {
    pub(super) metadata: Metadata,
    pub(super) storage: StorageConfig,
    pub(super) apply_timer: Option<ApplyTimer>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) store: Arc<dyn WatchableKv<AppliedPosition>>,
    pub(super) members: Arc<Members>,
    /// Shared, like the members: they seldom change, and may be looked at at any time.
    pub(super) alarms: Arc<Alarms>,
    pub(super) leases: Arc<Lessor>,
    /// What is applied. The store says the same of its newest state.
    pub(super) applied_position: AppliedPosition,
    pub(super) wait: Arc<Wait>,
    /// The proposal whose outcome was the last.
    pub(super) last_completed: Option<u64>,
    queue: VecDeque<ToApply>,
    /// Entries of one step.
    step_max: usize,
    pub(super) ready: ApplyReady,
}

impl Applier {
    pub(super) fn new(
        metadata: Metadata,
        ground: StorageConfig,
        stopwatch: Option<ApplyTimer>,
        (engine, opened): (Arc<dyn Engine>, OpenedStore),
        leases: Arc<Lessor>,
        wait: Arc<Wait>,
    ) -> Applier {
        let OpenedStore { store, members, alarms, progress, compaction } = opened;
        // Jobs that a crash has interrupted go on.
        let compactions = compaction.into_iter().collect();
        let mut out = ApplyReady { compactions, ..ApplyReady::default() };
        // It may have stopped before it could be told.
        out.report.is_removed = members.is_removed(metadata.node_id);
        let step_max = match ground.era {
            Era::Clearlane => STEP_MAX,
            _ => OLD_ERA_STEP_MAX,
        };
        Applier {
            metadata,
            storage: ground,
            apply_timer: stopwatch,
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

    /// Takes work in. Entries that follow on others become one piece with them.
    pub fn enqueue(&mut self, work: ToApply) {
        match (self.queue.back_mut(), work) {
            (Some(ToApply::Entries(before)), ToApply::Entries(entries)) => before.extend(entries),
            (_, work) => self.queue.push_back(work),
        }
    }

    /// Whether there is work.
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Does some of the work, and says what the owner has to do then. After an error the process
    /// stops.
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

    /// The store of this position takes the place of the one at hand. The log has a record of it.
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
        // Its removal may be among what it did not see.
        applied.is_removed |= self.members.is_removed(self.metadata.node_id);
        self.ready.compactions = compaction.into_iter().collect::<Vec<CompactionJob>>();
        Ok(())
    }

    /// The store. It is another one after [`ApplyReady::new_store`].
    pub fn store(&self) -> &Arc<dyn WatchableKv<AppliedPosition>> {
        &self.store
    }

    /// The engine below the store.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// What is applied.
    pub fn applied_position(&self) -> &AppliedPosition {
        &self.applied_position
    }

    /// The members, as far as this member has applied the log.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The leases, as far as this member has applied the log.
    pub fn leases(&self) -> &Arc<Lessor> {
        &self.leases
    }

    /// How long an entry may take; no time at all if nothing is to be reported.
    pub fn slow_limit(&self) -> Duration {
        self.apply_timer.map_or(Duration::ZERO, |watch| watch.limit)
    }
}
