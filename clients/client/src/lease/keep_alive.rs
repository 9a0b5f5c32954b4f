//! Keeping a lease alive in the background.
//!
//! A lease lives at least its whole time from when the last good request was *sent*: the server
//! received it later. When that deadline passes, the lease counts as lost, whatever comes later. So
//! the holder of a lock knows it before another client can have the lock.
//!
//! ```text
//!   sent ╷───────────── ttl ─────────────▶╷ deadline, as the client counts: lost
//!        │ received ╷───────────── ttl ───┼─────▶╷ the server's: gone
//!        ▼          ▼  sent again ╳, ╳, ╳  ▼      ▼
//! ```
//!
//! A third of the time passes between two requests, so two more attempts fit before the deadline;
//! one that fails is repeated at once, at another endpoint.

use std::time::Duration;

use clearlane_proto::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use super::stub;
use crate::Client;
use crate::backoff::Backoff;
use crate::call::OpenStream;
use crate::error::{Error, Result, StatusKind};

const ATTEMPT_TIMEOUT_MIN: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// It has expired or was revoked, and its keys are deleted.
    NotFound,
    /// No endpoint answered before the deadline. The lease may have ended.
    Unreachable,
    /// The server's words.
    Rejected(String),
}

#[derive(Clone, Copy, Debug)]
struct Alive {
    until: Instant,
    ttl: Duration,
}

/// Keeps a lease alive until it is dropped. Dropping does not revoke the lease, so a program may
/// restart within its TTL.
#[derive(Debug)]
pub struct KeepAlive {
    id: i64,
    state: watch::Receiver<std::result::Result<Alive, LeaseEnd>>,
    /// Aborted when it is dropped.
    _task: JoinSet<()>,
}

impl KeepAlive {
    pub fn id(&self) -> i64 {
        self.id
    }

    pub fn is_alive(&self) -> bool {
        self.time_left() > Duration::ZERO
    }

    /// A lower bound, unless a client revokes the lease.
    pub fn time_left(&self) -> Duration {
        let left = |alive: &Alive| alive.until.saturating_duration_since(Instant::now());
        self.state.borrow().as_ref().map_or(Duration::ZERO, left)
    }

    /// The TTL that the server grants with each request.
    pub fn ttl(&self) -> Duration {
        self.state.borrow().as_ref().map_or(Duration::ZERO, |alive| alive.ttl)
    }

    /// Waits until the lease has ended, or may have. May be called again.
    pub async fn ended(&mut self) -> LeaseEnd {
        match self.state.wait_for(std::result::Result::is_err).await.as_deref() {
            Ok(Err(end)) => end.clone(),
            // The task's runtime has ended, so no request is sent any more.
            _ => LeaseEnd::Unreachable,
        }
    }
}

impl Client {
    /// Returns when the first request has succeeded.
    pub async fn keep_alive(&self, id: i64) -> Result<KeepAlive> {
        let mut task = KeepAliveTask { client: self.clone(), id, stream: None };
        // The TTL is not known yet, so the limit is the request time-out.
        let until = Instant::now() + self.options_and_token.options.request_timeout;
        let (sender, state) = watch::channel(Ok(task.keep_alive_until(until).await?));
        let mut tasks = JoinSet::new();
        tasks.spawn(task.run(sender));
        Ok(KeepAlive { id, state, _task: tasks })
    }
}

struct KeepAliveTask {
    client: Client,
    id: i64,
    stream: Option<OpenStream<LeaseKeepAliveRequest, LeaseKeepAliveResponse>>,
}

impl KeepAliveTask {
    async fn run(mut self, sender: watch::Sender<std::result::Result<Alive, LeaseEnd>>) {
        loop {
            let Ok(Alive { until, ttl }) = *sender.borrow() else { return };
            sleep(ttl / 3).await;
            let state = self.keep_alive_until(until).await.map_err(|error| match error {
                Error::LeaseNotFound => LeaseEnd::NotFound,
                Error::TimedOut(_) => LeaseEnd::Unreachable,
                // It lives on for the rest of its TTL, and its keeper is notified now.
                error => LeaseEnd::Rejected(error.to_string()),
            });
            sender.send_modify(|held| *held = state);
        }
    }

    async fn keep_alive_until(&mut self, until: Instant) -> Result<Alive> {
        let mut backoff = Backoff::new();
        loop {
            let sent = Instant::now();
            if sent >= until {
                return Err(Error::TimedOut("a lease was not kept alive".to_owned()));
            }
            // An endpoint that does not answer must not use up the time in which others would.
            let limit = (until - sent).mul_f64(0.4).max(ATTEMPT_TIMEOUT_MIN);
            match timeout_at(until.min(sent + limit), self.keep_alive()).await {
                Ok(Ok(Some(ttl))) => return Ok(Alive { until: sent + ttl, ttl }),
                Ok(Err(error)) => return Err(error),
                // The stream has broken or is silent: another endpoint is asked.
                Ok(Ok(None)) | Err(_) => {}
            }
            if let Some(open) = self.stream.take() {
                open.endpoint.mark_failed();
            }
            sleep_until(until.min(Instant::now() + backoff.next())).await;
        }
    }

    /// One request; `None` if the stream has failed.
    async fn keep_alive(&mut self) -> Result<Option<Duration>> {
        let request = LeaseKeepAliveRequest { id: self.id };
        let open = match &mut self.stream {
            Some(open) => {
                let _ = open.requests.send(request);
                open
            }
            empty => {
                let open = async |channel, requests| stub(channel).lease_keep_alive(requests).await;
                match self.client.open_stream(request, open).await {
                    Ok(opened) => empty.insert(opened),
                    Err(error) if error.is_transient() => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
        };
        match open.responses.message().await {
            Ok(Some(answer)) if answer.ttl <= 0 => Err(Error::LeaseNotFound),
            Ok(Some(answer)) => Ok(Some(Duration::from_secs(answer.ttl as u64))),
            Ok(None) => Ok(None),
            Err(status) => match StatusKind::from_status(&status) {
                StatusKind::Final => Err(Error::from_status(&status)),
                StatusKind::TokenRejected => {
                    self.client.renew_token(Error::from_status(&status)).await.map(|()| None)
                }
                _ => Ok(None),
            },
        }
    }
}
