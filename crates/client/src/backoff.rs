//! Pauses that get longer, for what is tried until it works.

use std::time::Duration;

use tokio::time::sleep;

use crate::endpoint::with_jitter;

/// At first and at most.
const BACKOFF_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The next pause.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(BACKOFF_BOUNDS.0)
    }

    /// How long the next one is; the one after that is longer.
    pub(crate) fn next(&mut self) -> Duration {
        let pause = with_jitter(self.0);
        self.0 = (self.0 * 2).min(BACKOFF_BOUNDS.1);
        pause
    }

    pub(crate) async fn wait(&mut self) {
        sleep(self.next()).await;
    }

    /// It has worked.
    pub(crate) fn reset(&mut self) {
        *self = Backoff::new();
    }
}
