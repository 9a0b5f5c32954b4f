//! The thread that carries what is pending in the store to the disk, and does what may take long:
//! compactions, and dropping what nobody reads any more.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clearlane_backend::Retired;
use clearlane_mvcc::CompactionJob;

use super::Shared;
use super::inbox::Input;
use crate::error::Result;

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
}

/// Works until the raft thread has gone, and then commits once more.
pub(super) fn run(
    work: &Receiver<ToCommit>,
    batch_interval: Duration,
    shared: &Shared,
) -> Result<()> {
    let begin = Instant::now();
    let mut jobs: VecDeque<CompactionJob> = VecDeque::new();
    let mut next_step = Duration::ZERO;
    loop {
        let pause = if jobs.is_empty() { batch_interval } else { COMPACTION_PAUSE };
        let commits_now = match work.recv_timeout(pause) {
            Ok(ToCommit::Now) => true,
            Ok(ToCommit::Drop(retired)) => {
                drop(retired);
                false
            }
            Ok(ToCommit::Compact(job)) => {
                jobs.push_back(job);
                false
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => break,
        };
        let store = shared.store.load();
        if begin.elapsed() >= next_step
            && let Some(job) = jobs.front_mut()
        {
            let step = Instant::now();
            let is_done = store.compact_step(job, COMPACTION_BATCH)?;
            shared.figures.compaction_steps.record(step.elapsed());
            if is_done {
                jobs.pop_front();
                shared.figures.compaction_ended();
            }
            // However often it is woken for something else.
            next_step = begin.elapsed() + COMPACTION_PAUSE;
        }
        let commit = Instant::now();
        let has_committed = match commits_now {
            true => store.commit().map(|()| true)?,
            false => store.tick(begin.elapsed())?,
        };
        if has_committed {
            shared.figures.commits.record(commit.elapsed());
            shared.inbox.push([Input::Committed]);
        }
    }
    Ok(shared.store.load().commit()?)
}
