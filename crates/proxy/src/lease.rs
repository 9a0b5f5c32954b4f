//! Keep-alives: the streams of all clients share one stream upstream.
//!
//! ```text
//!   client a ── renew 7 ─▶ ┐                        ┌── renew 7, once ─▶ member
//!   client b ── renew 7 ─▶ ├─ renewals in flight ──┤
//!   client c ── renew 9 ─▶ ┘  7: a, b   9: c        └── renew 9 ───────▶
//! ```
//!
//! A request goes upstream at once, unless a renewal of the same lease is in flight. Then it gets
//! the answer of that renewal. So a client has its answer after one round trip, and the proxy never
//! renews a lease for which no client has asked. If the clients of a lease stop asking, it ends
//! after its TTL.
//!
//! A member checks the token of a stream. So there is one stream upstream for each token that
//! clients use, and one for all clients without a token.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{LeaseKeepAliveRequest, LeaseKeepAliveResponse};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Request, Status, Streaming};

use crate::identity::Caller;
use crate::status;
use crate::upstream::{Upstream, is_transport_error};

/// Longest time that a renewal waits for its answer, over several connections if necessary.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of requests of one client that are in flight.
const CLIENT_RENEWALS_MAX: usize = 1024;
const RECONNECT_DELAY: Duration = Duration::from_millis(50);

type Answer = Result<LeaseKeepAliveResponse, Status>;

/// The streams upstream, by the callers that share them.
#[derive(Debug)]
pub struct KeepAlives {
    upstream: Arc<Upstream>,
    streams: Mutex<HashMap<Caller, Weak<KeepAliveStream>>>,
}

impl KeepAlives {
    pub fn new(upstream: Arc<Upstream>) -> KeepAlives {
        KeepAlives { upstream, streams: Mutex::default() }
    }

    /// Returns the stream of these callers. Must be called on a runtime. The stream ends when
    /// nobody holds it any more.
    pub(crate) fn stream_of(&self, caller: &Caller) -> Arc<KeepAliveStream> {
        let mut streams = self.streams.lock();
        if let Some(stream) = streams.get(caller).and_then(Weak::upgrade) {
            return stream;
        }
        streams.retain(|_, stream| stream.strong_count() > 0);
        let stream = KeepAliveStream::start(Arc::clone(&self.upstream), caller.clone());
        streams.insert(caller.clone(), Arc::downgrade(&stream));
        stream
    }

    /// Renews a lease without a token.
    pub(crate) async fn renew(&self, lease: i64) -> Answer {
        self.stream_of(&Caller::default()).renewals.renew(lease).await
    }
}

/// Merges the renewals of callers with the same token.
#[derive(Debug)]
pub(crate) struct KeepAliveStream {
    renewals: Arc<Renewals>,
    task: JoinHandle<()>,
}

impl KeepAliveStream {
    fn start(upstream: Arc<Upstream>, caller: Caller) -> Arc<KeepAliveStream> {
        let (pending, added) = Default::default();
        let renewals = Arc::new(Renewals { upstream, caller, pending, added });
        let serving = Arc::clone(&renewals);
        let task = tokio::spawn(async move {
            let mut is_token_rejected = false;
            loop {
                serving.added.notified().await;
                serving.serve(&mut is_token_rejected).await;
            }
        });
        Arc::new(KeepAliveStream { renewals, task })
    }
}

impl Drop for KeepAliveStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Renewals {
    upstream: Arc<Upstream>,
    caller: Caller,
    pending: Mutex<HashMap<i64, Renewal>>,
    /// Wakes the task that holds the stream.
    added: Notify,
}

#[derive(Debug, Default)]
struct Renewal {
    waiting: Vec<oneshot::Sender<Answer>>,
    is_sent: bool,
}

impl Renewals {
    /// Renews a lease, and returns the member's answer.
    async fn renew(&self, lease: i64) -> Answer {
        let answer = self.join(lease);
        match timeout_at(Instant::now() + PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => {
                self.give_up(lease);
                Err(Status::unavailable("etcdserver: request timed out"))
            }
        }
    }

    /// Adds a client to the renewal of a lease, which starts if none is in flight.
    fn join(&self, lease: i64) -> oneshot::Receiver<Answer> {
        let (sender, answer) = oneshot::channel();
        let mut pending = self.pending.lock();
        let renewal = pending.entry(lease).or_default();
        renewal.waiting.push(sender);
        if renewal.waiting.len() == 1 {
            self.added.notify_one();
        }
        answer
    }

    /// Forgets a renewal if all its clients have given up.
    fn give_up(&self, lease: i64) {
        let mut pending = self.pending.lock();
        if let Some(renewal) = pending.get_mut(&lease) {
            renewal.waiting.retain(|waiting| !waiting.is_closed());
            if renewal.waiting.is_empty() {
                pending.remove(&lease);
            }
        }
    }

    /// Serves renewals until none is pending and the stream has ended. `is_token_rejected` is true
    /// if the last stream has ended because of the login's token.
    async fn serve(&self, is_token_rejected: &mut bool) {
        let member = self.upstream.wait_and_pick().await;
        let Some((member, channel)) =
            member.and_then(|member| member.channel().map(|channel| (member, channel)))
        else {
            return self.fail_all(&status::no_member());
        };
        let (metadata, token) = match self.caller.credentials(&self.upstream).await {
            Ok(credentials) => credentials,
            Err(status) => return self.fail_all(&status),
        };
        let (requests, receiver) = mpsc::unbounded_channel();
        self.pending.lock().values_mut().for_each(|renewal| renewal.is_sent = false);
        self.send_unsent(&requests);
        let mut request = Request::new(UnboundedReceiverStream::new(receiver));
        *request.metadata_mut() = metadata;
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut client = LeaseClient::new(channel);
        let renewing = async {
            let opening = client.lease_keep_alive(request);
            let mut opening = std::pin::pin!(opening);
            // The member answers the call when it answers its first request.
            let mut answers = loop {
                tokio::select! {
                    opened = opening.as_mut() => break opened?.into_inner(),
                    () = self.added.notified() => self.send_unsent(&requests),
                }
            };
            loop {
                tokio::select! {
                    answer = answers.message() => match answer? {
                        Some(answer) => {
                            *is_token_rejected = false;
                            self.answer(answer);
                        }
                        None => return Ok(()),
                    },
                    () = self.added.notified() => self.send_unsent(&requests),
                }
            }
        };
        let ended: Result<(), Status> = tokio::select! {
            ended = renewing => ended,
            () = self.upstream.lost(&member) => Ok(()),
        };
        if let Err(status) = ended {
            let login = self.caller.login();
            if let Some(login) = login.filter(|_| status::is_token_rejection(status.message()))
                && !std::mem::replace(is_token_rejected, true)
            {
                login.reject(token.as_ref()).await;
            } else if !is_transport_error(&status) {
                // A member has sent this status: it has no leader, or rejects the token.
                self.fail_all(&status);
                member.doubt();
            } else {
                member.doubt();
            }
        }
        if !self.pending.lock().is_empty() {
            sleep(RECONNECT_DELAY).await;
            self.added.notify_one();
        }
    }

    fn send_unsent(&self, requests: &mpsc::UnboundedSender<LeaseKeepAliveRequest>) {
        for (lease, renewal) in self.pending.lock().iter_mut() {
            if !std::mem::replace(&mut renewal.is_sent, true) {
                // This fails only if the stream has ended. A new stream sends it again.
                let _ = requests.send(LeaseKeepAliveRequest { id: *lease });
            }
        }
    }

    fn answer(&self, answer: LeaseKeepAliveResponse) {
        let Some(renewal) = self.pending.lock().remove(&answer.id) else { return };
        for waiting in renewal.waiting {
            let _ = waiting.send(Ok(answer));
        }
    }

    fn fail_all(&self, status: &Status) {
        for (_, renewal) in self.pending.lock().drain() {
            for waiting in renewal.waiting {
                let _ = waiting.send(Err(status.clone()));
            }
        }
    }
}

/// Serves one client's stream. Many requests may be in flight, and are answered in their order.
pub(crate) async fn serve_client(
    stream: Arc<KeepAliveStream>,
    requests: Streaming<LeaseKeepAliveRequest>,
    responses: mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
) {
    let mut answers = requests
        .map(|request| {
            let renewals = Arc::clone(&stream.renewals);
            async move { renewals.renew(request?.id).await }
        })
        .buffered(CLIENT_RENEWALS_MAX);
    loop {
        let answer = tokio::select! {
            answer = answers.next() => answer,
            () = responses.closed() => return,
        };
        // As in etcd, the end of the requests ends the stream, and so does an error.
        let Some(answer) = answer else { return };
        let is_error = answer.is_err();
        if responses.send(answer).await.is_err() || is_error {
            return;
        }
    }
}
