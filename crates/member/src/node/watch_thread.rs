//! The threads that tell watchers: one hands on what was written, one reads what somebody missed.
//!
//! # The way of a change
//!
//! ```text
//!   apply loop        applies, answers writers, then publishes: an append to the hub's queue
//!   delivery thread   takes it out of the queue ─▶ the outboxes of all who watch the key
//!   net threads       are woken once for all their streams, and send
//! ```
//!
//! The apply loop does not wait for the others. The queue is the hub's own, and bounded: when
//! delivery is so far behind that it would grow beyond that, what waits is thrown away and everybody
//! reads it in the store, which is the second thread's work. See [`clearlane_mvcc::watch`].
//!
//! Two threads, because a step of catching up may take a millisecond or more, and those who are up to
//! date should not wait for those who are not.
//!
//! # The clock of the old eras
//!
//! There, writers tell the watchers themselves, and what is left are etcd's two loops: victims are
//! tried again every 10 ms, and those who are behind are synchronised every 100 ms. When a round has
//! helped somebody and others are left, the next one comes as soon as the round took long itself.
//! Without streams nobody is woken.

use std::time::{Duration, Instant};

use clearlane_backend::Design;
use clearlane_mvcc::watch::WatchHub as _;
use parking_lot::{Condvar, Mutex};

use super::Shared;
use crate::actors::{CATCH_UP, WATCH};
use crate::error::Result;

/// etcd's: so often victims are tried again.
const RETRY: Duration = Duration::from_millis(10);
/// etcd's: so often those who are behind are synchronised.
const SYNCHRONISE: Duration = Duration::from_millis(100);

/// Wakes a thread. It remembers that it was rung.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    state: Mutex<State>,
    rung: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rung: bool,
    /// The thread is to end.
    over: bool,
}

impl Bell {
    pub(crate) fn ring(&self) {
        let was_rung = std::mem::replace(&mut self.state.lock().rung, true);
        if !was_rung {
            self.rung.notify_one();
        }
    }

    /// Rings for the last time.
    pub(crate) fn end(&self) {
        self.state.lock().over = true;
        self.rung.notify_one();
    }

    /// Waits until it rings, or for so long. Says no when it is over.
    fn wait(&self, at_most: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        if !state.rung && !state.over {
            match at_most {
                Some(at_most) => drop(self.rung.wait_for(&mut state, at_most)),
                None => self.rung.wait(&mut state),
            }
        }
        state.rung = false;
        !state.over
    }

    fn is_over(&self) -> bool {
        self.state.lock().over
    }
}

/// Hands on what was written, until the member ends.
pub(super) fn deliver(shared: &Shared) -> Result<()> {
    let _as = WATCH.enter();
    let watching = &shared.watching;
    let clock = is_old(shared).then_some(RETRY);
    let pause = || clock.filter(|_| watching.has_streams());
    while watching.bells.delivery.wait(pause()) {
        while watching.hub.deliver()? {
            if watching.bells.delivery.is_over() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Reads what somebody missed, until the member ends.
pub(super) fn catch_up(shared: &Shared) -> Result<()> {
    let _as = CATCH_UP.enter();
    match is_old(shared) {
        true => synchronise(shared),
        false => catch_up_when_woken(shared),
    }
}

fn catch_up_when_woken(shared: &Shared) -> Result<()> {
    let watching = &shared.watching;
    while watching.bells.catch_up.wait(None) {
        while watching.hub.catch_up()? {
            if watching.bells.catch_up.is_over() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// A round now and then, as in etcd.
fn synchronise(shared: &Shared) -> Result<()> {
    let watching = &shared.watching;
    let mut pause = SYNCHRONISE;
    while watching.bells.catch_up.wait(watching.has_streams().then_some(pause)) {
        let behind = watching.hub.figures().behind;
        pause = SYNCHRONISE;
        if behind > 0 {
            let begin = Instant::now();
            watching.hub.catch_up()?;
            let left = watching.hub.figures().behind;
            if left > 0 && left < behind {
                pause = begin.elapsed();
            }
        }
    }
    Ok(())
}

fn is_old(shared: &Shared) -> bool {
    shared.store.load().design() != Design::SnapshotReadTx
}
