//! Keep-alives: the streams of all clients share one stream upstream, or more if it is slow.
//!
//! ```text
//!   client a ── renew 7 ─▶ ┐                        ┌── renew 7, once ─▶ member
//!   client b ── renew 7 ─▶ ├─ renewals in flight ──┤
//!   client c ── renew 9 ─▶ ┘  7: a, b   9: c        └── renew 9 ───────▶
//! ```
//!
//! A request goes upstream at once, unless a renewal of the same lease is in flight, or too many
//! others are. In the first case it gets the answer of that renewal. So a client usually has its
//! answer after one round trip, and the proxy never renews a lease for which no client has asked.
//! If the clients of a lease stop asking, it ends after its TTL. A client gets its answers in the
//! order in which the members send them.
//!
//! A member checks the token of a stream. So callers with different tokens never share a stream,
//! and all clients without a token share theirs. [`pipeline`] decides which renewal is sent on
//! which stream, and which client an error is about.

pub mod pipeline;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};

use self::pipeline::{End, IN_FLIGHT_MAX, Pipeline, STREAMS_MAX, Work};
use crate::identity::Caller;
use crate::small_buffers::Boxed;
use crate::status;
use crate::upstream::{Member, Upstream, is_transport_error};

/// A renewal fails if no renewal of the group was answered for this time, over several connections
/// if necessary.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest time that a renewal waits for its answer.
const PATIENCE_MAX: Duration = Duration::from_secs(20);
/// If a renewal has no answer after this time, and renewals still wait for a place on a stream,
/// another stream is opened.
const RELIEVED_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of requests of one client that are in flight.
const CLIENT_RENEWALS_MAX: usize = 1024;
const RECONNECT_DELAY: Duration = Duration::from_millis(50);
/// After this time without an answer, a stream that was opened because the others were slow is
/// closed if it has no work. A stream with renewals in flight is replaced.
const QUIET_TIME: Duration = Duration::from_secs(10);

type Answer = Result<LeaseKeepAliveResponse, Status>;

/// The streams upstream, by the callers that share them.
#[derive(Debug)]
pub struct KeepAlives {
    upstream: Arc<Upstream>,
    /// The runtime of the streams. The threads of connections have their own runtimes, which end
    /// earlier.
    runtime: Handle,
    groups: Mutex<HashMap<Caller, Weak<KeepAliveGroup>>>,
}

impl KeepAlives {
    /// Must be called on the runtime of the streams.
    pub fn new(upstream: Arc<Upstream>) -> KeepAlives {
        KeepAlives { upstream, runtime: Handle::current(), groups: Mutex::default() }
    }

    /// Returns the group of callers with this token or login. Its streams end when nobody holds it
    /// any more.
    pub(crate) fn group_of(&self, caller: &Caller) -> Arc<KeepAliveGroup> {
        let caller = &caller.of_keep_alives();
        let mut groups = self.groups.lock();
        if let Some(group) = groups.get(caller).and_then(Weak::upgrade) {
            return group;
        }
        groups.retain(|_, group| group.strong_count() > 0);
        let renewals = Arc::new(Renewals {
            upstream: Arc::clone(&self.upstream),
            caller: caller.clone(),
            pipeline: Mutex::default(),
            wakes: Default::default(),
            begin: Instant::now(),
            answered_ms: AtomicU64::new(0),
        });
        let (runtime, tasks) = (self.runtime.clone(), Mutex::default());
        let group = Arc::new(KeepAliveGroup { renewals, runtime, tasks });
        groups.insert(caller.clone(), Arc::downgrade(&group));
        group
    }

    /// Renews a lease without a token.
    pub(crate) async fn renew(&self, lease: i64) -> Answer {
        self.group_of(&Caller::default()).renew(lease).await
    }
}

/// Merges the renewals of callers with the same token.
#[derive(Debug)]
pub(crate) struct KeepAliveGroup {
    renewals: Arc<Renewals>,
    runtime: Handle,
    /// The tasks of the streams. Dropping the group ends them.
    tasks: Mutex<JoinSet<()>>,
}

impl KeepAliveGroup {
    /// Renews a lease, and returns the member's answer.
    async fn renew(&self, lease: i64) -> Answer {
        let answer = self.join(lease);
        let mut waiting = Waiting { renewals: &self.renewals, lease, answer, is_answered: false };
        let begin = Instant::now();
        let deadline = begin + PATIENCE_MAX;
        let mut relieve_at = Some(begin + RELIEVED_AFTER);
        let mut check_at = begin + PATIENCE;
        loop {
            match timeout_at(relieve_at.unwrap_or(check_at), &mut waiting.answer).await {
                Ok(Ok(answer)) => {
                    waiting.is_answered = true;
                    return answer;
                }
                Ok(Err(_)) => break,
                Err(_) if relieve_at.take().is_some() => self.relieve(),
                Err(_) => {
                    // While others are answered, it waits for its turn.
                    let patient_until = deadline.min(self.renewals.answered_at() + PATIENCE);
                    if patient_until <= check_at {
                        break;
                    }
                    check_at = patient_until;
                }
            }
        }
        Err(Status::unavailable("etcdserver: request timed out"))
    }

    fn join(&self, lease: i64) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let work = self.renewals.pipeline.lock().join(lease, sender);
        self.start(work);
        answer
    }

    fn relieve(&self) {
        let work = self.renewals.pipeline.lock().relieve();
        self.start(work);
    }

    fn start(&self, work: Work) {
        match work {
            Work::Nothing => {}
            Work::Wake(stream) => self.renewals.wakes[stream].notify_one(),
            Work::Open(stream) => {
                let mut tasks = self.tasks.lock();
                while tasks.try_join_next().is_some() {}
                tasks.spawn_on(Arc::clone(&self.renewals).serve(stream), &self.runtime);
            }
        }
    }
}

/// A client that waits for the renewal of a lease. Dropping it gives the renewal up, also when the
/// client leaves.
struct Waiting<'a> {
    renewals: &'a Renewals,
    lease: i64,
    answer: oneshot::Receiver<Answer>,
    is_answered: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.answer.close();
            self.renewals.pipeline.lock().give_up(self.lease, |client| !client.is_closed());
        }
    }
}

#[derive(Debug)]
struct Renewals {
    upstream: Arc<Upstream>,
    caller: Caller,
    pipeline: Mutex<Pipeline<oneshot::Sender<Answer>>>,
    /// Wake the tasks of the streams.
    wakes: [Notify; STREAMS_MAX],
    begin: Instant,
    /// The time of the last answer of a member, in milliseconds after `begin`.
    answered_ms: AtomicU64,
}

/// How the connection of a stream has ended.
enum Ended {
    Lost,
    /// The member has rejected the token of the proxy's login, and there will be a new one.
    TokenExpired,
    Rejected(Status),
    Failed(Status),
    /// There is no member, or the login has failed.
    NotOpened(Status),
    /// The stream had nothing to do.
    Idle,
}

impl Renewals {
    /// Serves a stream until it is closed. The first stream stays open.
    async fn serve(self: Arc<Self>, stream: usize) {
        let mut is_token_rejected = false;
        loop {
            while !self.pipeline.lock().has_work(stream) {
                if stream > 0 && self.pipeline.lock().close(stream) {
                    return;
                }
                self.wakes[stream].notified().await;
            }
            let ended = self.serve_connection(stream, &mut is_token_rejected).await;
            let (end, status, delay) = match ended {
                Ended::Idle => continue,
                Ended::Lost => (End::Lost, None, RECONNECT_DELAY),
                Ended::TokenExpired => (End::Lost, None, Duration::ZERO),
                Ended::Rejected(status) => {
                    self.note_answer();
                    (End::Rejected, Some(status), Duration::ZERO)
                }
                Ended::Failed(status) => (End::Failed, Some(status), RECONNECT_DELAY),
                Ended::NotOpened(status) => (End::NotOpened, Some(status), RECONNECT_DELAY),
            };
            let failed = self.pipeline.lock().ended(stream, end);
            for client in failed {
                let status = status.clone().unwrap_or_else(status::connection_lost);
                let _ = client.send(Err(status));
            }
            sleep(delay).await;
        }
    }

    /// `is_token_rejected` is true if the last connection has ended because of the login's token.
    async fn serve_connection(&self, stream: usize, is_token_rejected: &mut bool) -> Ended {
        let Some(member) = self.upstream.wait_and_pick().await else {
            return Ended::NotOpened(status::no_member());
        };
        let Some((channel, generation)) = member.connection() else { return Ended::Lost };
        let (metadata, token) = match self.caller.credentials(&self.upstream).await {
            Ok(credentials) => credentials,
            Err(status) => return Ended::NotOpened(status),
        };
        let (requests, receiver) = mpsc::channel(IN_FLIGHT_MAX);
        self.send_unsent(stream, &requests);
        // The clients may have given up in the meantime.
        if !self.pipeline.lock().is_waiting(stream) {
            return Ended::Idle;
        }
        let mut request = Request::new(ReceiverStream::new(receiver));
        *request.metadata_mut() = metadata;
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let renewing = self.renew_over(channel, request, stream, &requests, is_token_rejected);
        let ended: Result<Ended, Status> = tokio::select! {
            ended = renewing => ended,
            () = self.upstream.lost(&member, generation) => Ok(Ended::Lost),
        };
        match ended {
            Ok(ended) => ended,
            Err(status) => {
                if !status::is_token_rejection(status.message()) {
                    return after_error(status, &member);
                }
                // If the next token is rejected also, the cause is not the age of the token.
                match self.caller.login() {
                    Some(login) if !std::mem::replace(is_token_rejected, true) => {
                        login.reject(token.as_ref()).await;
                        Ended::TokenExpired
                    }
                    _ => Ended::Failed(status),
                }
            }
        }
    }

    /// Sends the renewals of a stream over one call, and passes the answers on.
    async fn renew_over(
        &self,
        channel: Channel,
        request: Request<ReceiverStream<LeaseKeepAliveRequest>>,
        stream: usize,
        requests: &mpsc::Sender<LeaseKeepAliveRequest>,
        is_token_rejected: &mut bool,
    ) -> Result<Ended, Status> {
        let mut client = LeaseClient::new(channel);
        let mut opening = std::pin::pin!(client.lease_keep_alive(request));
        let mut quiet_at = Instant::now() + QUIET_TIME;
        // The member answers the call when it answers its first request.
        let mut answers = loop {
            tokio::select! {
                opened = opening.as_mut() => break opened?.into_inner(),
                () = self.wakes[stream].notified() => {
                    self.send_unsent(stream, requests);
                }
                () = sleep_until(quiet_at) => return Ok(Ended::Lost),
            }
        };
        loop {
            tokio::select! {
                answer = answers.message() => match answer? {
                    Some(answer) => {
                        *is_token_rejected = false;
                        self.answer(stream, answer);
                        self.send_unsent(stream, requests);
                        quiet_at = Instant::now() + QUIET_TIME;
                    }
                    None => return Ok(Ended::Lost),
                },
                () = self.wakes[stream].notified() => {
                    if self.send_unsent(stream, requests) {
                        quiet_at = Instant::now() + QUIET_TIME;
                    }
                }
                () = sleep_until(quiet_at) => {
                    let pipeline = self.pipeline.lock();
                    if pipeline.is_waiting(stream) {
                        return Ok(Ended::Lost);
                    }
                    if stream > 0 && !pipeline.has_work(stream) {
                        return Ok(Ended::Idle);
                    }
                    quiet_at = Instant::now() + QUIET_TIME;
                }
            }
        }
    }

    /// Sends all renewals that have a place on the stream. Returns true if none was in flight
    /// before.
    fn send_unsent(&self, stream: usize, requests: &mpsc::Sender<LeaseKeepAliveRequest>) -> bool {
        let mut pipeline = self.pipeline.lock();
        let was_quiet = !pipeline.is_waiting(stream);
        // The channel has room for all renewals in flight. Sending fails only if the stream has
        // ended, and then they are sent again.
        while let Some(id) = pipeline.next_to_send(stream) {
            let _ = requests.try_send(LeaseKeepAliveRequest { id });
        }
        was_quiet
    }

    fn note_answer(&self) {
        let ms = u64::try_from(self.begin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.answered_ms.store(ms, Ordering::Relaxed);
    }

    fn answered_at(&self) -> Instant {
        self.begin + Duration::from_millis(self.answered_ms.load(Ordering::Relaxed))
    }

    fn answer(&self, stream: usize, answer: LeaseKeepAliveResponse) {
        self.note_answer();
        let clients = self.pipeline.lock().answered(stream, answer.id);
        for client in clients {
            let _ = client.send(Ok(answer));
        }
    }
}

/// Returns how a connection has ended with an error that is not about a token.
fn after_error(status: Status, member: &Member) -> Ended {
    if is_transport_error(&status) {
        member.doubt();
        return Ended::Lost;
    }
    // A member has sent this status.
    if status::is_no_leader(&status) {
        member.doubt();
        return Ended::Failed(status);
    }
    Ended::Rejected(status)
}

/// Serves one client's stream. Many requests may be in flight. When the proxy stops, the requests
/// in flight are answered before the stream ends.
pub(crate) async fn serve_client(
    group: Arc<KeepAliveGroup>,
    requests: Streaming<LeaseKeepAliveRequest>,
    responses: mpsc::Sender<Boxed<LeaseKeepAliveResponse>>,
    stopped: watch::Receiver<bool>,
) {
    let mut stops = stopped.clone();
    let mut answers = requests
        .take_until(Box::pin(async move { drop(stops.wait_for(|stopped| *stopped).await) }))
        .map(|request| {
            let group = Arc::clone(&group);
            async move { group.renew(request?.id).await }
        })
        .buffer_unordered(CLIENT_RENEWALS_MAX);
    loop {
        let answer = tokio::select! {
            answer = answers.next() => answer,
            () = responses.closed() => return,
        };
        // As in etcd, the end of the requests ends the stream, and so does an error.
        let Some(answer) = answer else {
            if *stopped.borrow() {
                let _ = responses.send(Err(status::stopped())).await;
            }
            return;
        };
        let is_error = answer.is_err();
        if responses.send(answer.map(Box::new)).await.is_err() || is_error {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::upstream::UpstreamConfig;

    #[tokio::test]
    async fn only_a_token_or_a_login_separates_callers() {
        let keep_alives = KeepAlives::new(Upstream::start(&UpstreamConfig::default()));
        let group_with = |header: &'static str, value: &'static str| {
            let mut head = HeaderMap::new();
            head.insert(header, HeaderValue::from_static(value));
            keep_alives.group_of(&Caller::new(&head, None))
        };
        let group = keep_alives.group_of(&Caller::default());
        assert!(Arc::ptr_eq(&group, &group_with("hasleader", "true")));
        assert!(Arc::ptr_eq(&group, &group_with("client-api-version", "3.6")));
        assert!(!Arc::ptr_eq(&group, &group_with("token", "simple.1")));
    }

    #[tokio::test]
    async fn a_client_that_leaves_gives_up_its_renewals() {
        let upstream = Upstream::start(&UpstreamConfig::default());
        let group = KeepAlives::new(upstream).group_of(&Caller::default());
        for lease in 0..10 {
            // The client leaves after the first poll.
            assert!(group.renew(lease).now_or_never().is_none());
        }
        let mut waiting = std::pin::pin!(group.renew(7));
        assert!(waiting.as_mut().now_or_never().is_none());
        let clients = group.renewals.pipeline.lock().ended(0, End::Failed);
        assert_eq!(clients.len(), 1, "only one client waits");
    }
}
