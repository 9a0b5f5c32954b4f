//! A switch that ends a load early. The report then has the results so far.

use std::fs;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task;

use crate::{Error, Result};

/// Base of the exit status after a signal. Like a shell, the process adds the signal's number.
const ENDED_BY_SIGNAL: i32 = 128;

#[derive(Clone, Debug, Default)]
pub struct Stop {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_set: AtomicBool,
    changed: Notify,
}

impl Stop {
    pub fn set(&self) {
        self.shared.is_set.store(true, Ordering::Release);
        self.shared.changed.notify_waiters();
    }

    pub fn is_set(&self) -> bool {
        self.shared.is_set.load(Ordering::Acquire)
    }

    /// Returns as soon as the stop is set.
    pub async fn wait(&self) {
        loop {
            // This future is created before the check, so that it is notified if the stop is set
            // right after the check.
            let changed = self.shared.changed.notified();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }

    /// Returns a stop that is set by the first SIGINT (Ctrl-C), SIGTERM or SIGHUP. A second signal
    /// ends the process immediately. If SIGHUP is ignored, as under `nohup`, it stays ignored.
    pub fn at_signals() -> Result<Stop> {
        let (heard, mut signals) = mpsc::channel(1);
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            if kind == SignalKind::hangup() && is_ignored(kind) {
                continue;
            }
            let failed = |error| Error::Local(format!("cannot handle signals: {error}"));
            let (mut signal, heard) = (signal(kind).map_err(failed)?, heard.clone());
            tokio::spawn(async move {
                while signal.recv().await.is_some() && heard.send(kind).await.is_ok() {}
            });
        }
        let stop = Stop::default();
        let of_signals = stop.clone();
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                of_signals.set();
            }
            // If two signals have arrived together, this yield lets waiting tasks end their servers
            // before the second signal ends the process.
            task::yield_now().await;
            if let Some(kind) = signals.recv().await {
                process::exit(ENDED_BY_SIGNAL + kind.as_raw_value());
            }
        });
        Ok(stop)
    }
}

/// A guard that sets a stop when the guard is dropped. So if the future of a load is dropped, the
/// threads of the load send no further requests.
pub(crate) struct StopAtDrop(Option<Stop>);

impl StopAtDrop {
    pub(crate) fn new(stop: &Stop) -> StopAtDrop {
        StopAtDrop(Some(stop.clone()))
    }

    /// Call this when the load has ended normally, so that the stop is not set.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopAtDrop {
    fn drop(&mut self) {
        self.0.iter().for_each(Stop::set);
    }
}

/// Returns whether this process ignores the signal. A process inherits its ignored signals from the
/// process that started it.
fn is_ignored(kind: SignalKind) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    mask >> (kind.as_raw_value() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_waits_hears_it_before_and_after() {
        let stop = Stop::default();
        let early = Duration::from_millis(5);
        assert!(tokio::time::timeout(early, stop.wait()).await.is_err());
        let waiting = tokio::spawn({
            let stop = stop.clone();
            async move { stop.wait().await }
        });
        task::yield_now().await;
        stop.set();
        assert!(waiting.await.is_ok() && stop.is_set());
        stop.wait().await;
    }

    #[test]
    fn a_signal_that_nothing_ignores_is_not_ignored() {
        // The test runtime does not change how SIGWINCH is handled. The standard library ignores
        // SIGPIPE.
        assert!(!is_ignored(SignalKind::window_change()));
        assert!(is_ignored(SignalKind::pipe()));
    }
}
