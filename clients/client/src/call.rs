//! How a request finds an endpoint that responds: attempts, retries, and when to stop.
//!
//! A read that has failed is sent again to another endpoint, unless the error of the server is
//! final. A write is sent again only if it certainly was not carried out. If it may have been
//! carried out, it fails with [`Error::OutcomeUnknown`]. There are two exceptions: `unlock` and
//! `resign` are sent again like reads, because repeating them does no harm. `docs/client.md` has
//! the table.
//!
//! After all endpoints have been tried, there is a short pause and another round, until the time
//! limit of the request. So a request can wait for the end of an election, or for the restart of
//! the only server. There is only one round in three cases: for a request about one member, for the
//! opening of a stream, and if each endpoint has responded that another member is needed.
//!
//! Requests carry `hasleader: true`, except serializable reads and requests about one member.
//! Because of this header, a member without a leader rejects a write before any work. So the client
//! knows that the write was not carried out.

use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::AuthenticateRequest;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use crate::Client;
use crate::backoff::Backoff;
use crate::endpoint::{Endpoint, Endpoints};
use crate::error::{Error, Result, StatusKind, describe_status, is_token_refused};

type CallResult<R> = std::result::Result<Response<R>, Status>;

pub(crate) type Token = MetadataValue<Ascii>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct CallPolicy {
    /// If true, the request carries `hasleader: true`.
    requires_leader: bool,
    /// If true, two executions have the same effect as one. So the request may be sent again after
    /// a failure that leaves its outcome unknown.
    is_retryable: bool,
    /// If true, `Options::request_timeout` limits the request.
    has_timeout: bool,
    /// If true, another round over the endpoints starts when all of them have failed.
    waits_for_endpoint: bool,
}

impl CallPolicy {
    pub(crate) const READ: CallPolicy = CallPolicy {
        requires_leader: true,
        is_retryable: true,
        has_timeout: true,
        waits_for_endpoint: true,
    };
    /// The policy for a read to which a member without a leader can respond.
    pub(crate) const LOCAL: CallPolicy = CallPolicy { requires_leader: false, ..CallPolicy::READ };
    pub(crate) const WRITE: CallPolicy = CallPolicy { is_retryable: false, ..CallPolicy::READ };
    /// The policy for a write without a time limit, such as the wait for a lock. The client does
    /// not repeat such a wait after a failure that leaves its outcome unknown. The repeated request
    /// would use the same place in the queue, because it has the same lease. But the member that
    /// received the first request may still notice that the client has stopped waiting, and may
    /// then remove this place.
    pub(crate) const LONG_WRITE: CallPolicy =
        CallPolicy { has_timeout: false, ..CallPolicy::WRITE };
    /// The policy for a read of the state of the member that responds.
    pub(crate) const MEMBER: CallPolicy =
        CallPolicy { waits_for_endpoint: false, ..CallPolicy::LOCAL };
    pub(crate) const MEMBER_WORK: CallPolicy =
        CallPolicy { has_timeout: false, is_retryable: false, ..CallPolicy::MEMBER };
    /// The policy for opening a stream. The owner of the stream has its own retry loop.
    pub(crate) const STREAM: CallPolicy =
        CallPolicy { waits_for_endpoint: false, ..CallPolicy::READ };

    fn set_metadata(self, head: &mut MetadataMap, token: Option<&Token>) {
        if self.requires_leader {
            head.insert("hasleader", MetadataValue::from_static("true"));
        }
        if let Some(token) = token {
            head.insert("token", token.clone());
        }
    }
}

pub(crate) struct OpenStream<Q, R> {
    pub(crate) endpoint: Arc<Endpoint>,
    /// Sends requests on the stream. If the stream is broken, sending may report no error, but
    /// reading `responses` does.
    pub(crate) requests: mpsc::UnboundedSender<Q>,
    pub(crate) responses: Streaming<R>,
}

struct Attempts<'a> {
    endpoints: &'a Endpoints,
    policy: CallPolicy,
    timeout: Duration,
    give_up_at: Instant,
    tried: Vec<bool>,
    backoff: Backoff,
    last_error: Option<Error>,
    /// If true, each error so far in this round has shown that another member is needed.
    is_hopeless: bool,
}

impl<'a> Attempts<'a> {
    fn new(client: &'a Client, policy: CallPolicy) -> Attempts<'a> {
        let timeout = client.options_and_token.options.request_timeout;
        Attempts {
            endpoints: &client.endpoints,
            policy,
            timeout,
            give_up_at: Instant::now() + timeout,
            tried: Vec::new(),
            backoff: Backoff::new(),
            last_error: None,
            is_hopeless: true,
        }
    }

    async fn next(&mut self) -> Result<Arc<Endpoint>> {
        loop {
            if let Some(endpoint) = self.endpoints.next(&mut self.tried) {
                return Ok(endpoint);
            }
            let next = Instant::now() + self.backoff.next();
            if next >= self.give_up_at || self.is_hopeless || !self.policy.waits_for_endpoint {
                let no_endpoint = || Error::Unavailable("no endpoint was tried".to_owned());
                return Err(self.last_error.take().unwrap_or_else(no_endpoint));
            }
            sleep_until(next).await;
            self.tried.clear();
            self.is_hopeless = true;
        }
    }

    /// Classifies the failure of an attempt that started at `began`. Returns `Ok` if another
    /// attempt may follow. Otherwise returns the error with which the request fails.
    fn on_failure(
        &mut self,
        endpoint: &Arc<Endpoint>,
        began: Instant,
        status: &Status,
    ) -> Result<()> {
        let words = || format!("{}: {}", endpoint.url, describe_status(status));
        let error = match StatusKind::from_status(status) {
            StatusKind::Final | StatusKind::TokenRejected => {
                return Err(Error::from_status(status));
            }
            StatusKind::WrongMember => Error::from_status(status),
            StatusKind::NotSent => Error::Unavailable(words()),
            StatusKind::Unknown if self.policy.is_retryable => Error::Unavailable(words()),
            StatusKind::Unknown => {
                endpoint.mark_failed();
                return Err(Error::OutcomeUnknown(words()));
            }
        };
        if !matches!(error, Error::NotLeader) {
            endpoint.mark_failed();
        }
        // `NotLeader` and `FailedPrecondition` show that the member is not the leader, or that it
        // is a learner. Another round would return the same errors, so no round follows if this one
        // has only such errors.
        self.is_hopeless &= matches!(error, Error::NotLeader | Error::FailedPrecondition(_));
        self.last_error = Some(error);
        if !self.policy.has_timeout && began.elapsed() >= self.timeout {
            // After a long wait has failed, a new time limit for reaching an endpoint starts now.
            self.give_up_at = Instant::now() + self.timeout;
        }
        Ok(())
    }

    fn timed_out(&self, endpoint: &Arc<Endpoint>) -> Error {
        endpoint.mark_failed();
        let words = format!("{} in {:?}", endpoint.url, self.timeout);
        if self.policy.is_retryable {
            Error::TimedOut(words)
        } else {
            Error::OutcomeUnknown(format!("no response from {words}"))
        }
    }
}

impl Client {
    pub(crate) async fn call<Q: Clone, R, A: Future<Output = CallResult<R>>>(
        &self,
        policy: CallPolicy,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> A,
    ) -> Result<R> {
        self.call_at(policy, request, send).await.map(|(_, reply)| reply)
    }

    /// Like `call`, but also returns the endpoint that has responded.
    async fn call_at<Q: Clone, R, A: Future<Output = CallResult<R>>>(
        &self,
        policy: CallPolicy,
        request: Q,
        send: impl Fn(Channel, Request<Q>) -> A,
    ) -> Result<(Arc<Endpoint>, R)> {
        let token = self.token(None).await?;
        match self.call_with_token(policy, token.as_ref(), &request, &send).await {
            Err(Error::Unauthenticated(words))
                if self.has_credentials() && is_token_refused(&words) =>
            {
                let token = self.token(Some(token)).await?;
                self.call_with_token(policy, token.as_ref(), &request, &send).await
            }
            done => done,
        }
    }

    /// Opens a stream on which `first` is already sent, because some servers send no headers before
    /// they have received a request.
    pub(crate) async fn open_stream<Q: Clone, R, A: Future<Output = CallResult<Streaming<R>>>>(
        &self,
        first: Q,
        open: impl Fn(Channel, Request<UnboundedReceiverStream<Q>>) -> A,
    ) -> Result<OpenStream<Q, R>> {
        let send = |channel, head: Request<()>| {
            let (requests, receiver) = mpsc::unbounded_channel();
            let _ = requests.send(first.clone());
            let (metadata, extensions, ()) = head.into_parts();
            let outgoing = UnboundedReceiverStream::new(receiver);
            let opened = open(channel, Request::from_parts(metadata, extensions, outgoing));
            async move { Ok(opened.await?.map(|responses| (requests, responses))) }
        };
        let (endpoint, (requests, responses)) = self.call_at(CallPolicy::STREAM, (), send).await?;
        Ok(OpenStream { endpoint, requests, responses })
    }

    async fn call_with_token<Q: Clone, R, A: Future<Output = CallResult<R>>>(
        &self,
        policy: CallPolicy,
        token: Option<&Token>,
        request: &Q,
        send: &impl Fn(Channel, Request<Q>) -> A,
    ) -> Result<(Arc<Endpoint>, R)> {
        let mut attempts = Attempts::new(self, policy);
        loop {
            let endpoint = attempts.next().await?;
            let mut message = Request::new(request.clone());
            policy.set_metadata(message.metadata_mut(), token);
            let began = Instant::now();
            let reply = send(endpoint.channel.clone(), message);
            let reply = if policy.has_timeout {
                let reply = timeout_at(attempts.give_up_at, reply).await;
                reply.map_err(|_| attempts.timed_out(&endpoint))?
            } else {
                reply.await
            };
            match reply {
                Ok(reply) => {
                    endpoint.mark_healthy();
                    return Ok((endpoint, reply.into_inner()));
                }
                Err(status) => attempts.on_failure(&endpoint, began, &status)?,
            }
        }
    }

    pub(crate) fn has_credentials(&self) -> bool {
        self.options_and_token.options.credentials.is_some()
    }

    /// Fetches a new token after a stream has ended with `error`. Fails with `error` if there are
    /// no credentials.
    pub(crate) async fn renew_token(&self, error: Error) -> Result<()> {
        if !self.has_credentials() {
            return Err(error);
        }
        let token = self.token(None).await?;
        self.token(Some(token)).await.map(drop)
    }

    /// Returns the token for a request, or `None` if requests need no token. Fetches a token if
    /// there is none yet, or if the current token is `refused`, which a server has rejected.
    pub(crate) async fn token(&self, refused: Option<Option<Token>>) -> Result<Option<Token>> {
        let Some(credentials) = &self.options_and_token.options.credentials else {
            return Ok(None);
        };
        // If another call is fetching a token, this call waits here and finds the new token.
        let mut held = self.options_and_token.token.lock().await;
        if held.is_none() || *held == refused {
            let (name, password) = (credentials.name.clone(), credentials.password.clone());
            let request = AuthenticateRequest { name, password };
            let send =
                async |channel, request| AuthClient::new(channel).authenticate(request).await;
            let is_no_text = |_| Error::Unexpected("the token is not ASCII text");
            *held = match self.call_with_token(CallPolicy::READ, None, &request, &send).await {
                Ok((_, reply)) => Some(Some(reply.token.parse().map_err(is_no_text)?)),
                // A client with a password is also accepted by a server without authentication.
                Err(Error::AuthNotEnabled) => Some(None),
                Err(error) => return Err(error),
            };
        }
        Ok(held.clone().flatten())
    }
}
