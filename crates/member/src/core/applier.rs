//! The apply half of a member: committed entries, in order and each once, become states of the store.
//!
//! The apply loop gives it [work](ToApply) and lets it take a step; a step ends where a request may take long,
//! so that what stands before such a request is answered first, and what stands behind it waits for nothing but
//! it. etcd's counterpart is `EtcdServer.applyAll`, which answers after each entry.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Design;
use clearlane_engine::Engine;
use clearlane_lease::Lessor;
use clearlane_mvcc::{CompactionJob, Store};
use clearlane_raft_log::{Metadata, Position};

#[cfg(feature = "planted-bugs")]
use super::bugs;
use super::start::OpenedStore;
use super::{ApplyOutputs, Ground, NewStore, Stopwatch, ToApply, Wait};
use crate::alarms::Alarms;
use crate::error::{Error, Result};
use crate::membership::Members;
use crate::progress::Progress;

/// Entries of one step: their outcomes leave at its end.
const STEP_MAX: usize = 4096;
/// In the old eras, where each entry waits for the locks of the era: as in etcd, its outcome does not wait for those
/// of the entries behind it.
const OLD_ERA_STEP_MAX: usize = 1;

/// The apply half of a member.
#[derive(Debug)]
pub struct Applier {
    pub(super) metadata: Metadata,
    pub(super) ground: Ground,
    pub(super) stopwatch: Option<Stopwatch>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) store: Arc<dyn Store<Progress>>,
    pub(super) members: Arc<Members>,
    /// Shared, like the members: they seldom change, and may be looked at at any time.
    pub(super) alarms: Arc<Alarms>,
    pub(super) leases: Arc<Lessor>,
    /// What is applied. The store says the same of its newest state.
    pub(super) progress: Progress,
    pub(super) wait: Arc<Wait>,
    /// The proposal whose outcome was the last.
    pub(super) answered: Option<u64>,
    queue: VecDeque<ToApply>,
    /// Entries of one step.
    step_max: usize,
    pub(super) out: ApplyOutputs,
    #[cfg(feature = "planted-bugs")]
    pub(super) planted: bugs::Planted,
}

impl Applier {
    pub(super) fn new(
        metadata: Metadata,
        ground: Ground,
        stopwatch: Option<Stopwatch>,
        (engine, opened): (Arc<dyn Engine>, OpenedStore),
        leases: Arc<Lessor>,
        wait: Arc<Wait>,
    ) -> Applier {
        let OpenedStore { store, members, alarms, progress, compaction } = opened;
        // Jobs that a crash has interrupted go on.
        let compactions = compaction.into_iter().collect();
        let mut out = ApplyOutputs { compactions, ..ApplyOutputs::default() };
        // It may have stopped before it could be told.
        out.applied.removed = members.is_removed(metadata.node_id);
        let step_max = match ground.parts.design {
            Design::SnapshotReadTx => STEP_MAX,
            _ => OLD_ERA_STEP_MAX,
        };
        Applier {
            metadata,
            ground,
            stopwatch,
            engine,
            store,
            members,
            alarms,
            leases,
            progress,
            wait,
            answered: None,
            queue: VecDeque::new(),
            step_max,
            out,
            #[cfg(feature = "planted-bugs")]
            planted: bugs::Planted::default(),
        }
    }

    /// Takes work in. Entries that follow on others become one piece with them.
    pub fn give(&mut self, work: ToApply) {
        self.answer_early(&work);
        match (self.queue.back_mut(), work) {
            (Some(ToApply::Entries(before)), ToApply::Entries(entries)) => before.extend(entries),
            (_, work) => self.queue.push_back(work),
        }
    }

    /// Whether there is work.
    pub fn has_work(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Does some of the work, and says what the owner has to do then. After an error the process stops.
    pub fn step(&mut self) -> Result<ApplyOutputs> {
        let work = if self.replies_first() { None } else { self.queue.pop_front() };
        match work {
            Some(ToApply::Entries(mut entries)) => {
                // The rest of the queue is not moved: it may be long.
                let (next, _) = entries.as_slices();
                let count = self.apply(&next[..next.len().min(self.step_max)])?;
                let applied = entries.drain(..count);
                #[cfg(feature = "planted-bugs")]
                self.out.entries.extend(applied);
                #[cfg(not(feature = "planted-bugs"))]
                drop(applied);
                if !entries.is_empty() {
                    self.queue.push_front(ToApply::Entries(entries));
                }
            }
            Some(ToApply::Install(position)) => self.install(position)?,
            None => {}
        }
        (self.out.applied.index, self.out.applied.term) = (self.progress.index, self.progress.term);
        Ok(std::mem::take(&mut self.out))
    }

    /// The store of this position takes the place of the one at hand. The log has a record of it.
    fn install(&mut self, position: Position) -> Result<()> {
        let engine = self.ground.vault.promote(position.index)?;
        let opened = self.ground.open(&engine, &self.leases)?;
        if opened.progress.position() != position {
            let has = opened.progress.index;
            let why = format!("it was to be at entry {}, and is at {has}", position.index);
            return Err(Error::damaged("a copy of the store", why));
        }
        let OpenedStore { store, members, alarms, progress, compaction } = opened;
        (self.engine, self.store, self.members, self.progress) = (engine, store, members, progress);
        self.alarms = alarms;
        let (store, engine) = (Arc::clone(&self.store), Arc::clone(&self.engine));
        self.out.replaced = Some(NewStore { store, engine });
        let applied = &mut self.out.applied;
        applied.installed = Some(position);
        applied.members = Some(Arc::clone(&self.members));
        applied.alarms = Some(Arc::clone(&self.alarms));
        // Its removal may be among what it did not see.
        applied.removed |= self.members.is_removed(self.metadata.node_id);
        self.out.compactions = compaction.into_iter().collect::<Vec<CompactionJob>>();
        Ok(())
    }

    /// The store. It is another one after [`ApplyOutputs::replaced`].
    pub fn store(&self) -> &Arc<dyn Store<Progress>> {
        &self.store
    }

    /// The engine below the store.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// What is applied.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The members, as far as this member has applied the log.
    pub fn members(&self) -> &Arc<Members> {
        &self.members
    }

    /// The alarms that are raised, as far as this member has applied the log.
    pub fn alarms(&self) -> &Arc<Alarms> {
        &self.alarms
    }

    /// The leases, as far as this member has applied the log.
    pub fn leases(&self) -> &Arc<Lessor> {
        &self.leases
    }

    /// How long an entry may take; no time at all if nothing is to be reported.
    pub fn slow_limit(&self) -> Duration {
        self.stopwatch.map_or(Duration::ZERO, |watch| watch.limit)
    }
}
