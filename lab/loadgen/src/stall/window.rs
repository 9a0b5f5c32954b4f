//! The time window of a row's requests, and their results.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout_at};

use super::plan::{HeldCalls, Opened, Repetition};
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::{Connection, Endpoints, open_within};
use crate::requests::Call;
use crate::response_scanner::ResponseStats;
use crate::run::DRAIN;

/// Pause after a failed request.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) start: Instant,
    length: Duration,
    pub(super) metrics: Arc<Mutex<ClassMetrics>>,
}

/// A value that keeps something open until it is dropped: a connection, or both halves of a stream.
type Kept = Box<dyn Send>;

impl Window {
    pub(super) fn start(length: Duration) -> Window {
        Window { start: Instant::now(), length, metrics: Arc::default() }
    }

    pub(super) async fn wait_for_end(&self) {
        sleep_until((self.start + self.length).into()).await;
    }

    /// Sends the call again and again until the window has ended, or once. A call without a
    /// response within [`DRAIN`] after the window is recorded as failed.
    pub(super) async fn send(self, connection: Connection, call: Call, repetition: Repetition) {
        let deadline = self.start + self.length + DRAIN;
        loop {
            let sent = self.start.elapsed();
            let result = timeout_at(deadline.into(), connection.call(&call)).await;
            let result = result.unwrap_or_else(|_| Err(no_answer()));
            let has_failed = result.is_err();
            self.add(sent, self.start.elapsed(), result);
            if repetition == Repetition::Once || self.start.elapsed() >= self.length {
                return;
            }
            if has_failed {
                sleep(PAUSE).await;
            }
        }
    }

    /// Opens all calls at once, and keeps them until the end. A latency is the time from when a
    /// call was tried until it was [opened](Opened).
    pub(super) async fn hold(&self, held: HeldCalls, endpoint: Endpoints) {
        let limit = self.length + DRAIN;
        let mut shared = Vec::new();
        for _ in 0..held.connections {
            match open_within(&endpoint, limit).await {
                Ok(connection) => shared.push(connection),
                Err(text) => return self.metrics.lock().add_failures(text, held.count),
            }
        }
        let mut opening = JoinSet::new();
        for number in 0..held.count {
            let shared = shared.get((number % held.connections.max(1)) as usize).cloned();
            let (endpoint, call, start) = (endpoint.clone(), held.call.clone(), self.start);
            opening.spawn(async move {
                let sent = start.elapsed();
                let opened = async {
                    let connection = match shared {
                        Some(connection) => connection,
                        None => open_within(&endpoint, limit).await?,
                    };
                    open(held.opened, connection, &call).await
                };
                let opened = opened.await;
                (sent, start.elapsed(), opened)
            });
        }
        let mut kept = Vec::new();
        let deadline = self.start + limit;
        while let Ok(Some(opened)) = timeout_at(deadline.into(), opening.join_next()).await {
            let (sent, answered, opened) = opened.expect("it neither panics nor is stopped");
            let result = opened.map(|(held, stats)| {
                kept.push(held);
                stats
            });
            self.add(sent, answered, result);
        }
        if !opening.is_empty() {
            self.metrics.lock().add_failures(no_answer(), opening.len() as u64);
        }
        self.wait_for_end().await;
    }

    fn add(&self, sent: Duration, answered: Duration, result: Result<ResponseStats, String>) {
        self.metrics.lock().add(CompletedRequest { due: sent, sent, answered, result });
    }
}

fn no_answer() -> String {
    format!("no response within {} s after the end", DRAIN.as_secs())
}

/// Opens a call. Returns the value that keeps it open until the value is dropped, and the counts of
/// the response so far.
async fn open(
    opened: Opened,
    connection: Connection,
    call: &Call,
) -> Result<(Kept, ResponseStats), String> {
    if opened == Opened::Answered {
        let stats = connection.call(call).await?;
        return Ok((Box::new(connection), stats));
    }
    let open = connection.begin(call, false).await?;
    if opened == Opened::FirstBytes {
        let (bytes, stream) = open.first_bytes().await?;
        return Ok((Box::new(stream), ResponseStats { keys: 0, bytes }));
    }
    connection.ready().await?;
    Ok((Box::new(open), ResponseStats::default()))
}
