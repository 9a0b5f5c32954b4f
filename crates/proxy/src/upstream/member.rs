//! One member of the cluster: its connection, and whether it answers.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use clearlane_net::tls::{ConnectionRules, Dialer};
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{PROBE_INTERVAL, PROBE_TIMEOUT, local};
use crate::hops;

/// Maximum time for a member to acknowledge data on a connection of a network thread.
const LOCAL_WRITE_TIMEOUT: Duration = Duration::from_secs(2);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const RECONNECT_DELAY_MIN: Duration = Duration::from_millis(50);
const RECONNECT_DELAY_MAX: Duration = Duration::from_secs(1);
/// After this number of unanswered probes in a row, a new connection is opened: the old one may
/// lead nowhere. A stopped process gets its old connection back if it continues earlier.
const UNANSWERED_MAX: u32 = 3;
/// The bytes that a member may send on a connection before the proxy reads them. All calls share a
/// connection, so slow clients must not use up this window: it is the largest possible one.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum length of the head of a response. gRPC for Go, and so etcd's proxy, has the same limit.
const RESPONSE_HEAD_BYTES_MAX: u32 = 16 << 20;

/// Pings of HTTP/2 to the members. A connection without an answer is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PingConfig {
    pub interval: Duration,
    pub timeout: Duration,
    /// If true, connections without calls are pinged also.
    pub without_calls: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// There is no connection.
    Down,
    /// There is a new connection. Its first probe is not answered yet.
    Connected,
    /// The last probe was not answered, or the member cannot serve.
    Suspect,
    Ready,
}

#[derive(Debug)]
pub struct Member {
    url: String,
    dialer: Dialer,
    pings: Option<PingConfig>,
    channel: ArcSwapOption<Channel>,
    state: watch::Sender<MemberState>,
    /// Number of connections so far.
    generation: AtomicU64,
    /// Wakes the task before the next probe is due.
    doubted: Notify,
    is_stopped: watch::Sender<bool>,
    changed: watch::Sender<u64>,
}

impl Member {
    pub(super) fn start(
        url: String,
        dialer: Dialer,
        pings: Option<PingConfig>,
        changed: watch::Sender<u64>,
    ) -> Arc<Member> {
        let member = Arc::new(Member {
            url,
            dialer,
            pings,
            channel: ArcSwapOption::empty(),
            state: watch::channel(MemberState::Down).0,
            generation: AtomicU64::new(0),
            doubted: Notify::new(),
            is_stopped: watch::channel(false).0,
            changed,
        });
        let (task, mut stopped) = (Arc::clone(&member), member.is_stopped.subscribe());
        tokio::spawn(async move {
            tokio::select! {
                () = task.run() => {}
                _ = stopped.wait_for(|stopped| *stopped) => task.set_state(MemberState::Down),
            }
        });
        member
    }

    /// The URL without a trailing slash.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn state(&self) -> MemberState {
        *self.state.borrow()
    }

    /// Returns a number that changes with each new connection.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    pub fn channel(&self) -> Option<Channel> {
        self.channel.load().as_deref().cloned()
    }

    /// Returns the channel, and its generation for [`lost`](super::Upstream::lost).
    pub(crate) fn connection(&self) -> Option<(Channel, u64)> {
        // The generation is read first. If the connection is replaced in between, this generation
        // is too old, and a call that waits with it is repeated.
        let generation = self.generation();
        self.channel().map(|channel| (channel, generation))
    }

    /// Returns the channel for calls of this thread: on a network thread one of its own, or else
    /// [`channel`](Member::channel), and the generation. A call on it wakes no other thread. The
    /// task's probes do not use it, so if only this connection breaks, the caller sees an error
    /// after at most [`LOCAL_WRITE_TIMEOUT`], and the next call connects again. Idle connections
    /// are kept alive by TCP.
    pub(crate) fn connection_of_thread(self: &Arc<Self>) -> Option<(Channel, u64)> {
        let (channel, generation) = self.connection()?;
        let local = local::channel_of(self, generation, || {
            let rules =
                ConnectionRules { write_timeout: LOCAL_WRITE_TIMEOUT, ..self.dialer.rules() };
            let dialer = self.dialer.clone().with_rules(rules);
            dialer.connect_lazily(&self.url, |endpoint| tune(endpoint, self.pings)).ok()
        });
        Some((local.unwrap_or(channel), generation))
    }

    /// Lets the next probe start at once. The caller has seen an error of the connection.
    pub fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Ends the task. Calls in flight may end, because they have the connection.
    pub(super) fn stop(&self) {
        self.is_stopped.send_replace(true);
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.is_stopped.borrow()
    }

    fn set_state(&self, state: MemberState) {
        let is_new = self.state.send_if_modified(|old| std::mem::replace(old, state) != state);
        if is_new {
            self.changed.send_modify(|changes| *changes += 1);
        }
    }

    async fn run(&self) {
        let mut attempts = Attempts::default();
        loop {
            let connecting =
                self.dialer.connect_with(&self.url, |endpoint| tune(endpoint, self.pings));
            match timeout(CONNECT_TIMEOUT, connecting).await {
                Ok(Ok(channel)) => self.probe_until_lost(&channel, &mut attempts).await,
                failed => {
                    let error = failed
                        .map_or_else(|_| NO_ANSWER.to_owned(), |it| it.err().unwrap_or_default());
                    attempts.note_failed(&self.url, CANNOT_CONNECT, &error);
                }
            }
            self.channel.store(None);
            self.set_state(MemberState::Down);
            sleep(attempts.next_delay()).await;
        }
    }

    /// A connection counts as made when its first probe is answered. Otherwise a server that is no
    /// member would get a new connection after each shortest delay, and nothing would be logged.
    async fn probe_until_lost(&self, channel: &Channel, attempts: &mut Attempts) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.channel.store(Some(Arc::new(channel.clone())));
        self.set_state(MemberState::Connected);
        let (mut unanswered, mut is_answered) = (0, false);
        while unanswered < UNANSWERED_MAX {
            let state = match timeout(PROBE_TIMEOUT, probe(channel)).await {
                Ok(ProbeResult::Serves) => MemberState::Ready,
                Ok(ProbeResult::CannotServe) => MemberState::Suspect,
                Ok(ProbeResult::Disconnected(error)) => {
                    if !is_answered {
                        attempts.note_failed(&self.url, CANNOT_USE, &error);
                    }
                    return;
                }
                Err(_) => {
                    unanswered += 1;
                    self.set_state(MemberState::Suspect);
                    let _ = timeout(PROBE_INTERVAL, self.doubted.notified()).await;
                    continue;
                }
            };
            unanswered = 0;
            if !std::mem::replace(&mut is_answered, true) {
                attempts.note_answered(&self.url);
            }
            self.set_state(state);
            let _ = timeout(PROBE_INTERVAL, self.doubted.notified()).await;
        }
        if !is_answered {
            attempts.note_failed(&self.url, CANNOT_USE, NO_ANSWER);
        }
    }
}

const CANNOT_CONNECT: &str = "cannot connect to the member";
const CANNOT_USE: &str = "connected, but the endpoint does not answer as a member";
const NO_ANSWER: &str = "no answer";

/// The attempts to connect since the last answer of the member.
#[derive(Debug)]
struct Attempts {
    /// The delay before the next attempt.
    delay: Duration,
    /// The warnings that were logged. Each is logged only once.
    logged: Vec<&'static str>,
}

impl Default for Attempts {
    fn default() -> Attempts {
        Attempts { delay: RECONNECT_DELAY_MIN, logged: Vec::new() }
    }
}

impl Attempts {
    fn note_failed(&mut self, endpoint: &str, warning: &'static str, error: &str) {
        if !self.logged.contains(&warning) {
            self.logged.push(warning);
            tracing::warn!(endpoint, error, "{warning}");
        }
    }

    fn note_answered(&mut self, endpoint: &str) {
        if !std::mem::take(self).logged.is_empty() {
            tracing::info!(endpoint, "connected to the member again");
        }
    }

    fn next_delay(&mut self) -> Duration {
        let next = (self.delay * 2).min(RECONNECT_DELAY_MAX);
        std::mem::replace(&mut self.delay, next)
    }
}

fn tune(endpoint: Endpoint, pings: Option<PingConfig>) -> Endpoint {
    let endpoint = endpoint
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .http2_max_header_list_size(RESPONSE_HEAD_BYTES_MAX)
        .connect_timeout(CONNECT_TIMEOUT);
    match pings {
        None => endpoint,
        Some(pings) => endpoint
            .http2_keep_alive_interval(pings.interval)
            .keep_alive_timeout(pings.timeout)
            .keep_alive_while_idle(pings.without_calls),
    }
}

enum ProbeResult {
    Serves,
    /// The member answers, but cannot serve now: it has no leader, or it is a learner.
    CannotServe,
    /// The connection cannot be used. The text is the cause.
    Disconnected(String),
}

/// Makes a linearizable read that counts at most one key.
async fn probe(channel: &Channel) -> ProbeResult {
    let request = RangeRequest { key: vec![0].into(), count_only: true, ..RangeRequest::default() };
    match KvClient::new(channel.clone()).range(request).await {
        Ok(_) => ProbeResult::Serves,
        Err(status) if is_transport_error(&status) => ProbeResult::Disconnected(cause(&status)),
        Err(status) if hops::is_loop(&status) => {
            ProbeResult::Disconnected(status.message().to_owned())
        }
        // A learner rejects reads with a failed precondition.
        Err(status) if matches!(status.code(), Code::Unavailable | Code::FailedPrecondition) => {
            ProbeResult::CannotServe
        }
        // With auth, the probe has no user. etcd refuses it only after the read's quorum.
        Err(_) => ProbeResult::Serves,
    }
}

/// Returns true if the call has failed because of the connection. A status that a member has sent
/// has no source.
pub(crate) fn is_transport_error(status: &Status) -> bool {
    status.source().is_some()
}

/// Returns the text of the innermost error. The outer errors only say that the transport failed.
fn cause(status: &Status) -> String {
    let mut error: &dyn Error = status;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::super::{Upstream, UpstreamConfig};
    use super::*;

    /// The connection is replaced after a call has taken it, and before the call waits.
    #[tokio::test]
    async fn a_call_notices_a_connection_that_was_replaced_before_it_waits() {
        // Nothing listens on port 1.
        let endpoints = vec!["127.0.0.1:1".to_owned()];
        let upstream = Upstream::start(&UpstreamConfig { endpoints, ..UpstreamConfig::default() });
        let member = Arc::clone(&upstream.members()[0]);
        let generation = member.generation();
        member.set_state(MemberState::Ready);
        assert!(upstream.lost(&member, generation).now_or_never().is_none());
        member.generation.fetch_add(1, Ordering::AcqRel);
        assert!(upstream.lost(&member, generation).now_or_never().is_some());
        assert!(upstream.lost(&member, member.generation()).now_or_never().is_none());
    }
}
