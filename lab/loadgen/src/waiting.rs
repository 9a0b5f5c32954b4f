//! Waits for a response, or until something has happened, but only for a limited time.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::{Error, Result, TextResult};

/// Waits for a response. Fails if the call fails or has no response within `limit`. `what` is the
/// name of the call in the error.
pub(crate) async fn answered<T>(
    what: &str,
    limit: Duration,
    answer: impl Future<Output = TextResult<T>>,
) -> Result<T> {
    let late = |_| Err(format!("no response within {} s", limit.as_secs()));
    let answer = timeout(limit, answer).await.unwrap_or_else(late);
    answer.map_err(|why| Error::Server(format!("{what} failed: {why}")))
}

/// Reads a value again and again until it is as expected. After `limit` it returns the last value,
/// which is then not as expected.
pub(crate) async fn read_until<T>(
    limit: Duration,
    pause: Duration,
    is_expected: impl Fn(&T) -> bool,
    mut read: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let deadline = Instant::now() + limit;
    loop {
        let value = read().await?;
        if is_expected(&value) || Instant::now() >= deadline {
            return Ok(value);
        }
        sleep(pause).await;
    }
}
