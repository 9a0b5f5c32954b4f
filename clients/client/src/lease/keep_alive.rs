//! Keeps a lease alive in the background.
//!
//! After a successful request, a lease exists at least for its TTL from the time when the request
//! was *sent*, because the server received the request later. The end of this time is the client's
//! deadline. At the deadline the client considers the lease lost, even if a response arrives later.
//! So the holder of a lock knows of the loss before another client can get the lock.
//!
//! ```text
//!   sent ╷───────────── ttl ─────────────▶╷ deadline of the client: lost
//!        │ received ╷───────────── ttl ───┼─────▶╷ deadline of the server: removed
//!        ▼          ▼  sent again ╳, ╳, ╳  ▼      ▼
//! ```
//!
//! The next request is sent a third of the TTL after the previous response, so nearly two thirds of
//! the TTL remain for further attempts. A failed request is repeated at another endpoint, after a
//! short pause.

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

/// The reason why a lease is no longer kept alive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseEnd {
    /// The lease has expired or was revoked, and its keys are deleted.
    NotFound,
    /// No endpoint responded before the deadline. The lease may have ended.
    Unreachable,
    /// The server rejected the request. The text is the server's message.
    Rejected(String),
}

#[derive(Clone, Copy, Debug)]
struct Alive {
    until: Instant,
    ttl: Duration,
}

/// Keeps a lease alive until this value is dropped. Dropping does not revoke the lease, so a
/// program may restart within its TTL.
#[derive(Debug)]
pub struct KeepAlive {
    id: i64,
    state: watch::Receiver<std::result::Result<Alive, LeaseEnd>>,
    /// The background task. It is aborted when the `KeepAlive` is dropped.
    _task: JoinSet<()>,
}

impl KeepAlive {
    /// Returns the lease's id.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Returns false once the client knows that the lease has ended, or once its deadline has
    /// passed. A lease that was just revoked may still count as alive.
    pub fn is_alive(&self) -> bool {
        self.time_left() > Duration::ZERO
    }

    /// Returns the remaining time. It is a lower bound, unless a client revokes the lease.
    pub fn time_left(&self) -> Duration {
        let left = |alive: &Alive| alive.until.saturating_duration_since(Instant::now());
        self.state.borrow().as_ref().map_or(Duration::ZERO, left)
    }

    /// Returns the TTL that the server grants with each request, or 0 once the lease is no longer
    /// kept alive.
    pub fn ttl(&self) -> Duration {
        self.state.borrow().as_ref().map_or(Duration::ZERO, |alive| alive.ttl)
    }

    /// Waits until the lease is no longer kept alive. Returns the reason, also when called again.
    pub async fn ended(&mut self) -> LeaseEnd {
        match self.state.wait_for(std::result::Result::is_err).await.as_deref() {
            Ok(Err(end)) => end.clone(),
            // The task's runtime has ended, so no more requests are sent.
            _ => LeaseEnd::Unreachable,
        }
    }
}

impl Client {
    /// Keeps a lease alive. Returns when the first request has succeeded. Fails if that takes
    /// longer than the [request timeout](crate::Options::request_timeout).
    pub async fn keep_alive(&self, id: i64) -> Result<KeepAlive> {
        let mut task = KeepAliveTask { client: self.clone(), id, stream: None };
        // The TTL is not known yet, so the limit is the request timeout.
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
                // The lease may exist for the rest of its TTL, but its holder is notified now.
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
                return Err(Error::TimedOut("the lease was not renewed in time".to_owned()));
            }
            // An endpoint that does not respond must leave time for attempts at other endpoints.
            let limit = (until - sent).mul_f64(0.4).max(ATTEMPT_TIMEOUT_MIN);
            match timeout_at(until.min(sent + limit), self.keep_alive()).await {
                Ok(Ok(Some(ttl))) => return Ok(Alive { until: sent + ttl, ttl }),
                Ok(Err(error)) => return Err(error),
                // The stream has failed or is silent, or the token was renewed. A new stream is
                // opened.
                Ok(Ok(None)) | Err(_) => {}
            }
            if let Some(open) = self.stream.take() {
                open.endpoint.mark_failed();
            }
            sleep_until(until.min(Instant::now() + backoff.next())).await;
        }
    }

    /// Sends one request and waits for its response. Returns the granted TTL. Returns `None` if a
    /// new stream is needed: there was a temporary failure, or the token was rejected and renewed.
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
