//! The threads that notify watchers: one delivers changes, one synchronises unsynced watchers.
//!
//! ```text
//!   apply loop        applies, answers writers, then appends to the watchable store's queue
//!   delivery thread   takes it out of the queue ─▶ the channels of the streams that watch the key
//!   net threads       are woken once for all their streams, and send
//! ```
//!
//! Two threads, because a step of synchronising may take a millisecond or more. The bounded queue:
//! [`clearlane_mvcc::watch`], `docs/watch.md`.
//!
//! In the old eras writers notify the watchers, and the threads run etcd's two loops: victims are
//! tried again every 10 ms, unsynced watchers read every 100 ms, or sooner if a round has helped
//! some and left others. Without streams the clock wakes no thread.

use std::time::{Duration, Instant};

use clearlane_backend::Era;
use parking_lot::{Condvar, Mutex};

use super::ServerState;
use crate::error::Result;
use crate::task_labels::{CATCH_UP, WATCH};

/// etcd's pause between two attempts to send to victims.
const VICTIM_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// etcd's pause between two rounds for unsynced watchers.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// A notification that comes while the thread works ends its next wait at once.
#[derive(Debug, Default)]
pub(crate) struct ThreadSignal {
    state: Mutex<SignalState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct SignalState {
    is_set: bool,
    is_closed: bool,
}

impl ThreadSignal {
    pub(crate) fn notify(&self) {
        let was_set = std::mem::replace(&mut self.state.lock().is_set, true);
        if !was_set {
            self.changed.notify_one();
        }
    }

    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// False once it is closed.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if !state.is_set && !state.is_closed {
            match at_most {
                Some(at_most) => drop(self.changed.wait_for(&mut state, at_most)),
                None => self.changed.wait(&mut state),
            }
        }
        state.is_set = false;
        !state.is_closed
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

pub(super) fn deliver(shared: &ServerState) -> Result<()> {
    let _as = WATCH.enter();
    let watching = &shared.watch_server;
    let clock = is_etcd_era(shared).then_some(VICTIM_RETRY_INTERVAL);
    let pause = || clock.filter(|_| watching.has_streams());
    while watching.signals.delivery.wait(pause()) {
        while !watching.signals.delivery.is_closed() && watching.store.get().deliver()? {}
    }
    Ok(())
}

pub(super) fn sync_watchers(shared: &ServerState) -> Result<()> {
    let _as = CATCH_UP.enter();
    if is_etcd_era(shared) { sync_periodically(shared) } else { sync_when_notified(shared) }
}

fn sync_when_notified(shared: &ServerState) -> Result<()> {
    let watching = &shared.watch_server;
    while watching.signals.sync.wait(None) {
        while !watching.signals.sync.is_closed() && watching.store.get().sync_watchers()? {}
    }
    Ok(())
}

/// As etcd does.
fn sync_periodically(shared: &ServerState) -> Result<()> {
    let watching = &shared.watch_server;
    let mut pause = SYNC_INTERVAL;
    while watching.signals.sync.wait(watching.has_streams().then_some(pause)) {
        let behind = watching.store.get().metrics().unsynced;
        pause = SYNC_INTERVAL;
        if behind > 0 {
            let begin = Instant::now();
            watching.store.get().sync_watchers()?;
            let left = watching.store.get().metrics().unsynced;
            if left > 0 && left < behind {
                pause = begin.elapsed();
            }
        }
    }
    Ok(())
}

fn is_etcd_era(shared: &ServerState) -> bool {
    shared.store.load().era() != Era::Clearlane
}
