//! Ends a run early, with the results so far.

use std::fs;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task;

use crate::{Error, Result};

/// As a shell reports a process that a signal has ended: with its number added.
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

    /// Returns when it is set.
    pub async fn wait(&self) {
        loop {
            // Before the look: it hears what is set after that.
            let changed = self.shared.changed.notified();
            if self.is_set() {
                return;
            }
            changed.await;
        }
    }

    /// Sets it at the first SIGINT (a Ctrl-C), SIGTERM or SIGHUP. The second ends the process.
    /// Under `nohup`, SIGHUP stays ignored.
    pub fn set_at_signals(&self) -> Result<()> {
        let (heard, mut signals) = mpsc::channel(1);
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            if kind == SignalKind::hangup() && is_ignored(kind) {
                continue;
            }
            let failed = |error| Error::Local(format!("signals: {error}"));
            let (mut signal, heard) = (signal(kind).map_err(failed)?, heard.clone());
            tokio::spawn(async move {
                while signal.recv().await.is_some() && heard.send(kind).await.is_ok() {}
            });
        }
        let stop = self.clone();
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                stop.set();
            }
            // What waits for it ends servers first, if both signals came at once.
            task::yield_now().await;
            if let Some(kind) = signals.recv().await {
                process::exit(ENDED_BY_SIGNAL + kind.as_raw_value());
            }
        });
        Ok(())
    }
}

/// By what has started this process.
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
        // The runtime of a test does not change how this one is handled, and the standard library
        // ignores SIGPIPE.
        assert!(!is_ignored(SignalKind::window_change()));
        assert!(is_ignored(SignalKind::pipe()));
    }
}
