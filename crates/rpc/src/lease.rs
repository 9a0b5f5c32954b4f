//! The service Lease: leases are granted, revoked and kept alive.
//!
//! Keep-alives use a stream. Each request gets one response, in order. For a lease that does not
//! exist, the response has a TTL of 0, and the stream continues. Any error ends the stream, and so
//! does the end of the client's requests. A stream with `hasleader: true`, which etcd's clients
//! send, also ends if this member has no leader for too long.
//!
//! Only the leader knows expiry times. Other members ask the leader over the peers' connections,
//! until the leader responds or [`REQUEST_TIMEOUT`] has passed.

use std::time::Duration;

use clearlane_auth::checks::{CheckResult, Checker, LeaseKeys};
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_proto::etcdserverpb::lease_server::Lease;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse, LeaseStatus,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, ResponseHeader,
};
use clearlane_raft::read_index::ReadIndexError;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::context::propose;
use crate::credentials::server_for;
use crate::interceptors::{RequireLeaderStream, require_leader};
use crate::status::{self, Reply};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);
pub(crate) const LEADER_RETRY_DELAY: Duration = Duration::from_millis(50);
const KEEP_ALIVE_BUFFER_LEN: usize = 16;
/// Maximum number of requests of a stream that are handled in one [turn](BulkTurns) of the thread.
/// Their bytes are limited by [`request_turns`](crate::request_turns).
const KEEP_ALIVES_PER_TURN: usize = 16;

#[derive(Clone)]
pub(crate) struct LeaseService {
    pub(crate) server: Server,
    pub(crate) turns: BulkTurns,
}

/// Renews a lease at the leader. Returns its TTL in seconds, or 0 if there is no such lease. Waits
/// for a leader without a time limit.
pub(crate) async fn renew(server: &Server, id: i64) -> Result<i64, RequestError> {
    let renew = || async {
        match server.remote_leader() {
            Some((others, leader)) => others.renew_lease(leader, id).await,
            None => server.renew_lease(id).await,
        }
    };
    until_leader_answers(renew).await
}

impl LeaseService {
    async fn time_to_live(
        &self,
        request: &LeaseTimeToLiveRequest,
    ) -> Result<LeaseTimeToLiveResponse, RequestError> {
        let ask = || async {
            match self.server.remote_leader() {
                Some((others, leader)) => others.lease_time_to_live(leader, *request).await,
                None => self.server.lease_time_to_live(request.id, request.keys).await,
            }
        };
        let mut response = until_leader_answers(ask).await?;
        self.server.fill_header(&mut response.header);
        Ok(response)
    }

    /// Runs `work`, which may include the wait for a leader, for at most [`REQUEST_TIMEOUT`]. After
    /// this time it fails with `NoLeader` if this member knows no leader, and otherwise with
    /// `TimedOut`.
    async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, Status> {
        let done = timeout(REQUEST_TIMEOUT, work).await.unwrap_or_else(|_| {
            let has_leader = self.server.threads().status().leader() != 0;
            Err(if has_leader { RequestError::TimedOut } else { RequestError::NoLeader })
        });
        done.map_err(status::from_error)
    }

    /// Renews a lease. Fails if the user may not write the keys of the lease. The header has the
    /// store's revision from before the renewal.
    async fn keep_alive(
        &self,
        request: &LeaseKeepAliveRequest,
    ) -> Result<LeaseKeepAliveResponse, Status> {
        let id = request.id;
        self.require_for_lease(id, |id, user, keys| user.write_lease(id, keys)).await?;
        let header = self.header().await?;
        let ttl = self.with_timeout(renew(&self.server, request.id)).await?;
        Ok(LeaseKeepAliveResponse { header, id: request.id, ttl })
    }

    /// Fails unless the call has a user and `check` accepts this user for the keys of the lease.
    /// Succeeds if auth is disabled.
    async fn require_for_lease(
        &self,
        id: i64,
        check: impl Fn(i64, Checker<'_>, &LeaseKeys<'_>) -> CheckResult + Send + 'static,
    ) -> Result<(), Status> {
        let check = move |user: Checker<'_>, keys: &LeaseKeys<'_>| {
            user.user()?;
            check(id, user, keys)
        };
        self.server.require_for_lease(id, check).await.map_err(status::from_error)
    }

    async fn require_user(&self) -> Result<(), Status> {
        self.server.require(|user| user.user()).await.map_err(status::from_error)
    }

    /// Returns a copy of the service that acts with the credentials of a call.
    fn of<T>(&self, request: &Request<T>) -> LeaseService {
        LeaseService { server: server_for(&self.server, request), turns: self.turns.clone() }
    }

    async fn header(&self) -> Result<Option<ResponseHeader>, Status> {
        let revision = self.server.store_revision().await.map_err(status::from_error)?;
        Ok(self.server.header_at(revision))
    }

    /// Renews the leases of a stream's requests in order. An expired or missing lease gets a
    /// response with TTL 0. An error of a renewal is sent to the client, and ends the stream.
    async fn run_keep_alive_stream(
        self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        answers: mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
    ) {
        let mut without_a_pause = 0;
        loop {
            let request = match requests.message().now_or_never() {
                Some(request) => {
                    without_a_pause += 1;
                    request
                }
                None => {
                    without_a_pause = 0;
                    tokio::select! {
                        request = requests.message() => request,
                        () = answers.closed() => return,
                    }
                }
            };
            let answer = match request {
                Ok(Some(request)) => self.keep_alive(&request).await,
                Ok(None) => return,
                Err(status) => Err(status),
            };
            if without_a_pause == KEEP_ALIVES_PER_TURN {
                without_a_pause = 0;
                self.turns.request().await;
            }
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
        }
    }
}

/// Repeats a request while there is no leader, or while the member that receives the request is not
/// the leader or cannot be reached. There is no time limit.
async fn until_leader_answers<T, F: Future<Output = Result<T, RequestError>>>(
    ask: impl Fn() -> F,
) -> Result<T, RequestError> {
    loop {
        match ask().await {
            Err(
                RequestError::NotLeader
                | RequestError::NoLeader
                | RequestError::ReadIndex(ReadIndexError::LeaderChanged),
            ) => sleep(LEADER_RETRY_DELAY).await,
            done => return done,
        }
    }
}

#[tonic::async_trait]
impl Lease for LeaseService {
    type LeaseKeepAliveStream =
        RequireLeaderStream<ReceiverStream<Result<LeaseKeepAliveResponse, Status>>>;

    async fn lease_grant(&self, request: Request<LeaseGrantRequest>) -> Reply<LeaseGrantResponse> {
        let this = self.of(&request);
        this.require_user().await?;
        propose(&this.server, request.into_inner()).await.map(Response::new)
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Reply<LeaseRevokeResponse> {
        let this = self.of(&request);
        this.require_user().await?;
        propose(&this.server, request.into_inner()).await.map(Response::new)
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Reply<Self::LeaseKeepAliveStream> {
        let (answers, receiver) = mpsc::channel(KEEP_ALIVE_BUFFER_LEN);
        let this = self.of(&request);
        let responses = ReceiverStream::new(receiver);
        let responses = require_leader(&this.server, request.metadata().as_ref(), responses);
        tokio::spawn(this.run_keep_alive_stream(request.into_inner(), answers));
        Ok(Response::new(responses))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Reply<LeaseTimeToLiveResponse> {
        let (this, request) = (self.of(&request), request.into_inner());
        this.require_user().await?;
        let read = |id, user: Checker<'_>, keys: &LeaseKeys<'_>| user.read_lease(id, keys);
        if request.keys {
            this.require_for_lease(request.id, read).await?;
        }
        let response = this.with_timeout(this.time_to_live(&request)).await?;
        if request.keys {
            // The check above covers the keys that this member knows. The leader, which has listed
            // the keys, may know more keys. So check the permission for the listed keys as well.
            let keys = response.keys.clone();
            this.server.require_read_of(keys).await.map_err(status::from_error)?;
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Reply<LeaseLeasesResponse> {
        let this = self.of(&request);
        this.server.require_for_leases().await.map_err(status::from_error)?;
        let header = this.header().await?;
        let ids = this.server.lease_ids().await.map_err(status::from_error)?;
        let leases = ids.into_iter().map(|id| LeaseStatus { id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}
