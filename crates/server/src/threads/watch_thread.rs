//! The threads that notify watchers: the delivery thread delivers changes, and the sync thread
//! syncs unsynced watchers.
//!
//! ```text
//!   apply loop        applies, completes requests, then appends to the watchable store's queue
//!   delivery thread   takes changes from the queue ─▶ channels of the streams that watch the key
//!   network threads   are woken once for all their streams, and send
//! ```
//!
//! There are two threads, so that a step of the sync, which may take a millisecond or more, does
//! not delay a delivery. [`clearlane_mvcc::watch`] and `docs/watch.md` describe the limited queue.
//!
//! In the old eras writers notify the watchers, and the threads run etcd's two loops. Victims are
//! watchers with a full channel; every 10 ms the delivery thread tries to send to them again.
//! Unsynced watchers read every 100 ms, or sooner if a pass has synced some watchers but not all.
//! If there are no streams, no timer wakes the threads.

use std::time::{Duration, Instant};

use clearlane_replica::Result;
use parking_lot::{Condvar, Mutex};

use super::ServerState;
use crate::observe::task_labels::{CATCH_UP, WATCH};

/// etcd's pause between two attempts to send to victims.
const VICTIM_RETRY_INTERVAL: Duration = Duration::from_millis(10);
/// etcd's pause between two passes over unsynced watchers.
const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// A notification for one thread. If it arrives while the thread is working, the thread's next wait
/// ends immediately.
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

    /// Waits for a notification, at most for `at_most`, or without a limit if `at_most` is `None`.
    /// Returns false once the signal is closed.
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
    let clock = shared.era.syncs_watchers_periodically.then_some(VICTIM_RETRY_INTERVAL);
    let pause = || clock.filter(|_| watching.has_streams());
    while watching.signals.delivery.wait(pause()) {
        while !watching.signals.delivery.is_closed() && watching.store.get().deliver()? {}
    }
    Ok(())
}

pub(super) fn sync_watchers(shared: &ServerState) -> Result<()> {
    let _as = CATCH_UP.enter();
    if shared.era.syncs_watchers_periodically {
        sync_periodically(shared)
    } else {
        sync_when_notified(shared)
    }
}

fn sync_when_notified(shared: &ServerState) -> Result<()> {
    let watching = &shared.watch_server;
    while watching.signals.sync.wait(None) {
        while !watching.signals.sync.is_closed() && watching.store.get().sync_watchers()? {}
    }
    Ok(())
}

/// Syncs watchers periodically, as etcd does.
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
