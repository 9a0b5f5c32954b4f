//! The thread that carries what is pending in the store to the disk, and does what may take long:
//! compactions, and dropping what nobody reads any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clearlane_backend::Retired;
use clearlane_engine::Engine;
use clearlane_mvcc::{CompactionJob, Store};

use super::Shared;
use super::room::{LOOK_INTERVAL, Lookout};
use crate::actors::COMMIT;
use crate::core::{Applier, Compactions, Core, Input, NewStore};
use crate::error::Result;
use crate::progress::Progress;
use crate::recording::Doing;

/// What the loops want to have done.
#[derive(Debug)]
pub(super) enum ToCommit {
    /// What is pending is much: commit now.
    Now,
    Drop(Vec<Retired>),
    Compact(CompactionJob),
    /// A raft snapshot was installed: from here on the jobs are those of this store.
    Replaced(NewStore),
}

struct CommitThread<'s> {
    shared: &'s Shared,
    /// The store that has scheduled `jobs`. It changes by a message, in order with them: the published store
    /// may be another one already, and its compactions are not these.
    store: Arc<dyn Store<Progress>>,
    engine: Arc<dyn Engine>,
    compactions: Compactions,
    begin: Instant,
    jobs: VecDeque<CompactionJob>,
    /// When the job in front had its first step.
    begun: Option<Instant>,
    next_step: Duration,
    /// When the store was last asked whether it is due.
    ticked: Duration,
    lookout: Lookout,
}

/// What the thread begins with.
#[derive(Debug)]
pub(super) struct Commits {
    store: Arc<dyn Store<Progress>>,
    engine: Arc<dyn Engine>,
    batch_interval: Duration,
    compactions: Compactions,
    lookout: Lookout,
}

impl Commits {
    pub(super) fn new(
        core: &Core,
        applier: &Applier,
        batch_interval: Duration,
        compactions: Compactions,
    ) -> Commits {
        let lookout = Lookout::new(core.bytes_to_apply_again());
        let (store, engine) = (Arc::clone(applier.store()), Arc::clone(applier.engine()));
        Commits { store, engine, batch_interval, compactions, lookout }
    }

    /// Works until the loops have gone, and then commits once more.
    pub(super) fn run(self, work: &Receiver<ToCommit>, shared: &Shared) -> Result<()> {
        let _as = COMMIT.enter();
        let Commits { store, engine, batch_interval, compactions, lookout } = self;
        let thread = CommitThread {
            shared,
            store,
            engine,
            compactions,
            begin: Instant::now(),
            jobs: VecDeque::new(),
            begun: None,
            next_step: Duration::ZERO,
            ticked: Duration::ZERO,
            lookout,
        };
        thread.run(work, batch_interval)
    }
}

impl CommitThread<'_> {
    fn run(mut self, work: &Receiver<ToCommit>, batch_interval: Duration) -> Result<()> {
        let shared = self.shared;
        let mut shift = shared.recording.shift(*COMMIT);
        loop {
            // However seldom it commits, it looks at the disk.
            let look = batch_interval.min(LOOK_INTERVAL);
            let pause = match self.jobs.is_empty() {
                true => look,
                false => look.min(self.compactions.pause),
            };
            let wanted = work.recv_timeout(pause);
            shift.over(Doing::Nothing);
            let commits_now = match wanted {
                Ok(wanted) => self.take(wanted)?,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let now = self.begin.elapsed();
            let is_due = now.saturating_sub(self.ticked) >= batch_interval;
            if !self.may_commit(commits_now || is_due) {
                continue;
            }
            if self.compact()? {
                self.lookout.committed();
            }
            shift.over(Doing::Running);
            let commit = Instant::now();
            let has_committed = match (commits_now, is_due) {
                (true, _) => self.store.commit().map(|()| true)?,
                (false, true) => self.tick(now)?,
                // Nobody has just looked.
                (false, false) => false,
            };
            if has_committed {
                self.lookout.committed();
                shift.over(Doing::Disk);
                shared.figures.commits.record(commit.elapsed());
                shared.sizes.are(self.store.sizes()?);
                shared.inbox.push([self.durable()?]);
            }
        }
        match self.may_commit(true) {
            true => Ok(self.store.commit()?),
            // It is in the log.
            false => Ok(()),
        }
    }

    /// What the engine has on disk, for the raft loop.
    fn durable(&self) -> Result<Input> {
        Ok(Input::Committed(Progress::read(&*self.engine.snapshot()?)?))
    }

    /// Whether there is room for a commit. Where one is about to begin, an answer that was right a moment
    /// ago is not enough: others write to the disk, too.
    fn may_commit(&mut self, begins_one: bool) -> bool {
        match begins_one || !self.jobs.is_empty() {
            true => self.lookout.look(self.shared),
            false => self.lookout.may_commit(self.shared),
        }
    }

    /// The interval has passed: commits what the store has, if it has anything.
    fn tick(&mut self, now: Duration) -> Result<bool> {
        self.ticked = now;
        Ok(self.store.tick(now)?)
    }

    /// Says whether to commit now.
    fn take(&mut self, wanted: ToCommit) -> Result<bool> {
        match wanted {
            ToCommit::Now => return Ok(true),
            ToCommit::Drop(retired) => drop(retired),
            ToCommit::Compact(job) => self.jobs.push_back(job),
            ToCommit::Replaced(NewStore { store, engine }) => {
                self.jobs.clear();
                self.begun = None;
                (self.store, self.engine) = (store, engine);
                self.shared.sizes.begin_anew(self.store.sizes()?);
                // What its compactions have left to do, if anything, comes as the next job.
                let compacted = self.store.read().compact_revision();
                self.shared.compacted.send_modify(|done| *done = compacted.max(*done));
            }
        }
        Ok(false)
    }

    /// One step, however often the thread is woken for something else. Says whether it has committed.
    fn compact(&mut self) -> Result<bool> {
        if self.begin.elapsed() < self.next_step {
            return Ok(false);
        }
        let batch = self.lookout.removals(self.shared, self.compactions.batch);
        let Some(job) = self.jobs.front_mut().filter(|_| batch > 0) else { return Ok(false) };
        let at = job.at();
        let step = Instant::now();
        let begun = *self.begun.get_or_insert(step);
        let is_done = self.store.compact_step(job, batch)?;
        self.shared.figures.compaction_steps.record(step.elapsed());
        if is_done {
            let removed = job.removed();
            self.jobs.pop_front();
            self.begun = None;
            self.shared.figures.compaction_ended(begun.elapsed(), removed);
            // Who waits for it looks at the sizes next.
            self.store.commit()?;
            self.shared.sizes.are(self.store.sizes()?);
            let durable = self.durable()?;
            self.shared.inbox.push([durable]);
            self.shared.compacted.send_modify(|done| *done = at.max(*done));
        }
        self.next_step = self.begin.elapsed() + self.compactions.pause;
        Ok(is_done)
    }
}
