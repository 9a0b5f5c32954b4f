//! A function that waits until all data of a store in this process is on disk.

use std::time::{Duration, Instant};

use clearlane_server::threads::ServerThreads;

/// Waits until the store has committed all puts.
pub(crate) async fn committed(threads: &ServerThreads) {
    let end = Instant::now() + Duration::from_secs(60);
    while threads.store().sizes().unwrap().pending_ops > 0 {
        assert!(Instant::now() < end, "nothing is committed");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
