//! The service Lease: granted, revoked, kept alive.
//!
//! A keep-alive is a stream: for each request one answer, in their order, as long as the client
//! asks. A lease that is not there is answered with 0 seconds, and the stream goes on; anything
//! that goes wrong ends it.
//!
//! What only the leader knows is asked of it over the peers' connections, until a member answers or
//! the time is over.

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
use clearlane_server::{RequestError, Server};
use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::context::propose;
use crate::credentials::server_for;
use crate::status::{self, Reply};

const REQUEST_TIMEOUT: Duration = Duration::from_secs(7);
pub(crate) const LEADER_RETRY_DELAY: Duration = Duration::from_millis(50);
const KEEP_ALIVE_BUFFER_LEN: usize = 16;
/// Maximum number of requests of a stream that are handled in one [turn](BulkTurns) of the thread.
/// Their bytes are bounded by [`request_turns`](crate::request_turns).
const KEEP_ALIVES_PER_TURN: usize = 16;

#[derive(Clone)]
pub(crate) struct LeaseService {
    pub(crate) server: Server,
    pub(crate) turns: BulkTurns,
}

/// Renews a lease at the leader, and returns its time to live. 0 if there is no such lease.
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

    /// Bounds the wait for a leader, too.
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

    /// The header has the revision from before the renewal.
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

    /// There is a user, and it may do this with the keys of the lease.
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

    /// For the user of a call.
    fn of<T>(&self, request: &Request<T>) -> LeaseService {
        LeaseService { server: server_for(&self.server, request), turns: self.turns.clone() }
    }

    async fn header(&self) -> Result<Option<ResponseHeader>, Status> {
        let revision = self.server.store_revision().await.map_err(status::from_error)?;
        Ok(self.server.header_at(revision))
    }

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

/// Asks again when the member that was asked has stepped down meanwhile, or has gone.
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
    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

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
        tokio::spawn(this.run_keep_alive_stream(request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(receiver)))
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
            // The leader has listed the keys, and this member may be behind.
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
