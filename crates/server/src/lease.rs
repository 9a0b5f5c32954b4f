//! The service Lease: granted, revoked, kept alive.
//!
//! A keep-alive is a stream: for each request one answer, in their order, as long as the client asks. A
//! lease that is not there is answered with 0 seconds, and the stream goes on; anything that goes wrong
//! ends it.
//!
//! What only the leader knows is asked of the [member](clearlane_member::Handle), which says
//! [`NotLeader`](clearlane_member::Trouble::NotLeader) if it is another. Then that one is asked, over the
//! [peers' connections](crate::peer), until somebody answers or the time is over.

use std::time::Duration;

use clearlane_member::requests::Reply;
use clearlane_member::{Handle, Trouble};
use clearlane_proto::etcdserverpb::lease_server::Lease;
use clearlane_proto::etcdserverpb::{
    InternalRaftRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest,
    LeaseKeepAliveResponse, LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest,
    LeaseRevokeResponse, LeaseStatus, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
    ResponseHeader,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{peer, status};

/// A request may take so long.
const PATIENCE: Duration = Duration::from_secs(7);
/// Between two looks for a leader.
const PAUSE: Duration = Duration::from_millis(50);
/// So many answers of a stream may wait for the client to take them.
const ANSWERS_MAX: usize = 16;

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct LeaseService {
    member: Handle,
}

impl LeaseService {
    /// In front of a member.
    pub fn new(member: Handle) -> LeaseService {
        LeaseService { member }
    }

    async fn write(&self, request: InternalRaftRequest) -> Result<Reply, Status> {
        self.member.write(request).await.map_err(|trouble| status::of(&trouble))
    }

    async fn renew(&self, id: i64) -> Result<i64, Trouble> {
        loop {
            let renewed = match peer::leader(&self.member) {
                Some((others, leader)) => others.renew(leader, id).await,
                None => self.member.renew(id).await,
            };
            match renewed {
                // It has stepped down meanwhile, or has gone.
                Err(Trouble::NotLeader | Trouble::NoLeader) => sleep(PAUSE).await,
                done => return done,
            }
        }
    }

    async fn time_to_live(
        &self,
        request: &LeaseTimeToLiveRequest,
    ) -> Result<LeaseTimeToLiveResponse, Trouble> {
        loop {
            let told = match peer::leader(&self.member) {
                Some((others, leader)) => others.time_to_live(leader, *request).await,
                None => self.member.time_to_live(request.id, request.keys).await,
            };
            match told {
                Err(Trouble::NotLeader | Trouble::NoLeader) => sleep(PAUSE).await,
                Ok(mut response) => {
                    self.member.stamp(&mut response.header);
                    return Ok(response);
                }
                failed => return failed,
            }
        }
    }

    /// Without a leader there is no answer, and who asks waits for one no longer than this.
    async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Status> {
        let done = timeout(PATIENCE, work).await.unwrap_or(Err(Trouble::NoLeader));
        done.map_err(|trouble| status::of(&trouble))
    }

    /// The revision is of before the renewal: what the client knows then is true at least.
    async fn keep_alive(
        &self,
        request: &LeaseKeepAliveRequest,
    ) -> Result<LeaseKeepAliveResponse, Status> {
        let header = Some(self.header());
        let ttl = self.in_time(self.renew(request.id)).await?;
        Ok(LeaseKeepAliveResponse { header, id: request.id, ttl })
    }

    fn header(&self) -> ResponseHeader {
        let revision = self.member.store().read().revision();
        let mut header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        self.member.stamp(&mut header);
        header.unwrap_or_default()
    }

    /// Answers until the client has no more to ask, goes away, or something is wrong.
    async fn keep_alive_all(
        self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        answers: mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
    ) {
        loop {
            let answer = tokio::select! {
                request = requests.message() => match request {
                    Ok(Some(request)) => self.keep_alive(&request).await,
                    Ok(None) => return,
                    Err(status) => Err(status),
                },
                () = answers.closed() => return,
            };
            let is_last = answer.is_err();
            if answers.send(answer).await.is_err() || is_last {
                return;
            }
        }
    }
}

fn mismatch(reply: &Reply) -> Status {
    Status::internal(format!("{reply:?} answers another request"))
}

#[tonic::async_trait]
impl Lease for LeaseService {
    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let lease_grant = Some(request.into_inner());
        match self.write(InternalRaftRequest { lease_grant, ..Default::default() }).await? {
            Reply::LeaseGrant(response) => Ok(Response::new(response)),
            reply => Err(mismatch(&reply)),
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let lease_revoke = Some(request.into_inner());
        match self.write(InternalRaftRequest { lease_revoke, ..Default::default() }).await? {
            Reply::LeaseRevoke(response) => Ok(Response::new(response)),
            reply => Err(mismatch(&reply)),
        }
    }

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        tokio::spawn(self.clone().keep_alive_all(request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        self.in_time(self.time_to_live(request.get_ref())).await.map(Response::new)
    }

    async fn lease_leases(
        &self,
        _request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let header = Some(self.header());
        let leases = self.member.leases().into_iter().map(|id| LeaseStatus { id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header, leases }))
    }
}
