//! The thread that carries what is pending in the store to the disk, and does what may take long:
//! compactions, and dropping what nobody reads any more.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clearlane_backend::Retired;
use clearlane_mvcc::{CompactionJob, Store};

use super::Shared;
use super::inbox::Input;
use crate::error::Result;
use crate::progress::Progress;

/// So many keys or records a compaction does in one step, and how long it rests behind each: etcd's.
const COMPACTION_BATCH: usize = 1000;
const COMPACTION_PAUSE: Duration = Duration::from_millis(10);

/// What the raft thread wants to have done.
#[derive(Debug)]
pub(super) enum ToCommit {
    /// What is pending is much: commit now.
    Now,
    Drop(Vec<Retired>),
    Compact(CompactionJob),
    /// The store is another one: what was begun on the old one is of no use.
    Replaced,
}

struct CommitThread<'s> {
    shared: &'s Shared,
    begin: Instant,
    jobs: VecDeque<CompactionJob>,
    next_step: Duration,
}

/// Works until the raft thread has gone, and then commits once more.
pub(super) fn run(
    work: &Receiver<ToCommit>,
    batch_interval: Duration,
    shared: &Shared,
) -> Result<()> {
    let (begin, jobs) = (Instant::now(), VecDeque::new());
    let mut thread = CommitThread { shared, begin, jobs, next_step: Duration::ZERO };
    loop {
        let pause = if thread.jobs.is_empty() { batch_interval } else { COMPACTION_PAUSE };
        let commits_now = match work.recv_timeout(pause) {
            Ok(wanted) => thread.take(wanted)?,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let store = shared.store.load_full();
        thread.compact(&**store)?;
        let commit = Instant::now();
        let has_committed = match commits_now {
            true => store.commit().map(|()| true)?,
            false => store.tick(thread.begin.elapsed())?,
        };
        if has_committed {
            shared.figures.commits.record(commit.elapsed());
            shared.sizes.are(store.sizes()?);
            shared.inbox.push([Input::Committed]);
        }
    }
    Ok(shared.store.load().commit()?)
}

impl CommitThread<'_> {
    /// Says whether to commit now.
    fn take(&mut self, wanted: ToCommit) -> Result<bool> {
        match wanted {
            ToCommit::Now => return Ok(true),
            ToCommit::Drop(retired) => drop(retired),
            ToCommit::Compact(job) => self.jobs.push_back(job),
            ToCommit::Replaced => {
                self.jobs.clear();
                let store = self.shared.store.load();
                self.shared.sizes.begin_anew(store.sizes()?);
                // What its compactions have left to do, if anything, comes as the next job.
                let compacted = store.read().compact_revision();
                self.shared.compacted.send_modify(|done| *done = compacted.max(*done));
            }
        }
        Ok(false)
    }

    /// One step, however often the thread is woken for something else.
    fn compact(&mut self, store: &dyn Store<Progress>) -> Result<()> {
        if self.begin.elapsed() < self.next_step {
            return Ok(());
        }
        let Some(job) = self.jobs.front_mut() else { return Ok(()) };
        let at = job.at();
        let step = Instant::now();
        let is_done = store.compact_step(job, COMPACTION_BATCH)?;
        self.shared.figures.compaction_steps.record(step.elapsed());
        if is_done {
            self.jobs.pop_front();
            self.shared.figures.compaction_ended();
            // Who waits for it looks at the sizes next.
            store.commit()?;
            self.shared.sizes.are(store.sizes()?);
            self.shared.inbox.push([Input::Committed]);
            self.shared.compacted.send_modify(|done| *done = at.max(*done));
        }
        self.next_step = self.begin.elapsed() + COMPACTION_PAUSE;
        Ok(())
    }
}
