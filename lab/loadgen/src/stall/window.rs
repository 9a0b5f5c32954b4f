//! The time window of a row's requests, and their results.

use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::plan::{HeldCalls, Opened, Repetition};
use crate::class_metrics::LoopMetrics;
use crate::connection::{Connection, Endpoints, open_within};
use crate::requests::Call;
use crate::response_scanner::ResponseStats;
use crate::run::DRAIN;

/// Pause after a failed request.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(super) struct Window {
    length: Duration,
    pub(super) metrics: LoopMetrics,
}

/// A value that keeps something open until it is dropped: a connection, or both halves of a stream.
type Kept = Box<dyn Send>;

impl Window {
    pub(super) fn start(length: Duration) -> Window {
        Window { length, metrics: LoopMetrics::start() }
    }

    pub(super) async fn wait_for_end(&self) {
        sleep_until((self.metrics.start + self.length).into()).await;
    }

    /// Returns the time until which requests may be answered.
    fn deadline(&self) -> Instant {
        (self.metrics.start + self.length + DRAIN).into()
    }

    /// Sends the call again and again until the window has ended, or once. A call without a
    /// response within [`DRAIN`] after the window is recorded as failed.
    pub(super) async fn send(self, connection: Connection, call: Call, repetition: Repetition) {
        loop {
            let answer = timeout_at(self.deadline(), connection.call(&call));
            let answer = answer.map(|answer| answer.unwrap_or_else(|_| Err(no_answer())));
            let is_answered = self.metrics.add(answer).await;
            if repetition == Repetition::Once || self.metrics.start.elapsed() >= self.length {
                return;
            }
            if !is_answered {
                sleep(PAUSE).await;
            }
        }
    }

    /// Opens all calls at the same time, and keeps them open until the end. A latency is the time
    /// from when a call was tried until it was [opened](Opened).
    pub(super) async fn hold(&self, held: HeldCalls, endpoint: Endpoints) {
        let limit = self.length + DRAIN;
        let mut shared = Vec::new();
        for _ in 0..held.connections {
            match open_within(&endpoint, limit).await {
                Ok(connection) => shared.push(connection),
                Err(text) => return self.metrics.add_failures(text, held.count),
            }
        }
        let mut opening = JoinSet::new();
        for number in 0..held.count {
            let shared = shared.get((number % held.connections.max(1)) as usize).cloned();
            let (endpoint, call, metrics) =
                (endpoint.clone(), held.call.clone(), self.metrics.clone());
            opening.spawn(async move {
                let mut kept = None;
                let opened = async {
                    let connection = match shared {
                        Some(connection) => connection,
                        None => open_within(&endpoint, limit).await?,
                    };
                    let (open, stats) = open(held.opened, connection, &call).await?;
                    kept = Some(open);
                    Ok(stats)
                };
                metrics.add(opened).await;
                kept
            });
        }
        let mut kept = Vec::new();
        while let Ok(Some(opened)) = timeout_at(self.deadline(), opening.join_next()).await {
            kept.push(opened.expect("it neither panics nor is stopped"));
        }
        if !opening.is_empty() {
            self.metrics.add_failures(no_answer(), opening.len() as u64);
        }
        self.wait_for_end().await;
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
