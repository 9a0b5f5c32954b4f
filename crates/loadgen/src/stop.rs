//! Ends a run early, with the results so far.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Debug, Default)]
pub struct Stop {
    is_set: Arc<AtomicBool>,
}

/// As a shell reports a process that SIGINT has ended.
const INTERRUPTED: i32 = 130;

impl Stop {
    pub fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
    }

    pub fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// Sets it at the first Ctrl-C. The second ends the process.
    pub fn set_at_ctrl_c(&self) {
        let stop = self.clone();
        tokio::spawn(async move {
            if tokio::signal::ctrl_c().await.is_ok() {
                stop.set();
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                process::exit(INTERRUPTED);
            }
        });
    }
}
