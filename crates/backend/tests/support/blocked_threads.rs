//! Watches threads until each thread is paused at a barrier, waits for a lock, or has finished.
//! When all threads are in one of these states, a test can determine which thread waits for which.

use std::sync::{Condvar, Mutex};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use clearlane_contention::{BlockerState, Registry, TaskLabel, WaitingTask};

/// Longest wait for a thread. No operation takes long, but on a busy machine a thread may have to
/// wait for a processor.
const DEADLINE: Duration = Duration::from_secs(60);

/// A place where threads wait until it is opened.
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

    /// Lets all waiting threads pass, and all threads that arrive later.
    pub(crate) fn open(&self) {
        self.state.lock().unwrap().open = true;
        self.opened.notify_all();
    }

    fn has(&self, actor: TaskLabel) -> bool {
        self.state.lock().unwrap().waiting.contains(&actor)
    }
}

/// Opens the barrier when it is dropped, so that no thread keeps waiting if the test fails.
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
    /// The thread waits for a lock because of another thread. The text names the lock and the other
    /// thread.
    Blocked(String),
}

/// Waits until the thread labelled `actor` is at the barrier, waits for a lock, or has finished.
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
