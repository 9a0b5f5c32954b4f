//! Growing pauses between attempts.

use std::time::Duration;

use tokio::time::sleep;

use crate::endpoint::with_jitter;

/// The first pause and the longest pause.
const BACKOFF_BOUNDS: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// The next pause, before jitter.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(BACKOFF_BOUNDS.0)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = with_jitter(self.0);
        self.0 = (self.0 * 2).min(BACKOFF_BOUNDS.1);
        pause
    }

    pub(crate) async fn wait(&mut self) {
        sleep(self.next()).await;
    }

    pub(crate) fn reset(&mut self) {
        *self = Backoff::new();
    }
}
