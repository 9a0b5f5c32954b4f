//! Watching threads until they stand still: at a place where the test stops them, at a lock, or at
//! their end. What a test says about which thread waits for which, it says at such a moment.

use std::sync::{Condvar, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clearlane_contention::{BlockerState, Registry, TaskLabel, WaitingTask};

/// Nothing here takes long; on a busy machine a thread may have to wait for its turn.
const DEADLINE: Duration = Duration::from_secs(60);

/// A place where threads stand still until it is opened.
#[derive(Debug, Default)]
pub(crate) struct Barrier {
    state: Mutex<BarrierState>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct BarrierState {
    waiting: Vec<TaskLabel>,
    open: bool,
}

impl Barrier {
    pub(crate) fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        state.waiting.push(TaskLabel::current());
        drop(self.opened.wait_while(state, |state| !state.open).unwrap());
    }

    /// Lets all threads go, now and later.
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.opened.notify_all();
    }

    fn has(&self, actor: TaskLabel) -> bool {
        self.state.lock().unwrap().waiting.contains(&actor)
    }
}

/// Opens the barrier at the end of a test, also of one that failed: no thread may be left waiting.
#[derive(Debug)]
pub(crate) struct OpenOnDrop<'b>(pub(crate) &'b Barrier);

impl Drop for OpenOnDrop<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ThreadStatus {
    AtBarrier,
    Finished,
    /// At a lock, behind another thread; in words.
    Blocked(String),
}

/// Waits until the thread that acts as `actor` stands at the barrier, waits for a lock, or is done.
pub(crate) fn watch<T>(
    actor: TaskLabel,
    thread: &ScopedJoinHandle<'_, T>,
    barrier: &Barrier,
    locks: &Registry,
) -> ThreadStatus {
    let started = Instant::now();
    loop {
        if thread.is_finished() {
            return ThreadStatus::Finished;
        }
        if barrier.has(actor) {
            return ThreadStatus::AtBarrier;
        }
        if let Some(waiting) = locks.waiting().into_iter().find(|it| it.waiter.task == actor) {
            return ThreadStatus::Blocked(describe(&waiting));
        }
        assert!(started.elapsed() < DEADLINE, "{actor} runs; waiting are {:?}", locks.waiting());
        thread::yield_now();
    }
}

fn describe(WaitingTask { lock, blocker, .. }: &WaitingTask) -> String {
    match blocker.state {
        BlockerState::Holding => format!("waits for {lock}, held by {}", blocker.task),
        BlockerState::Waiting => format!("waits for {lock}, behind {}", blocker.task),
    }
}
