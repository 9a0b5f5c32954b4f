//! The peer port of a member that has no data and does not know yet whether it may start.
//!
//! The members of a new cluster wait for each other. So each member serves its peer port before its
//! threads run, and replies to the call `members` that it is new. All other calls fail, and the
//! callers repeat them.
//!
//! If another of the cluster's first members sends the request `members`, that member is new
//! itself. The port keeps the ID of that member, because this member may be unable to connect to
//! it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use clearlane_net::listener::Listener;
use clearlane_net::tls::ConnectionRules;
use clearlane_proto::etcdserverpb::{
    HashKvRequest, HashKvResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use clearlane_proto::peerpb::peer_server::{Peer, PeerServer};
use clearlane_proto::peerpb::{
    CopyChunk, CopyDone, Echo, Greeting, MembersReply, MembersRequest, Parcel, PromoteReply,
    PromoteRequest,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::listener;

/// Serves the peer port until this value is dropped.
#[derive(Debug)]
pub struct WaitingPort {
    _listeners: JoinSet<()>,
    member: WaitingMember,
}

impl WaitingPort {
    /// Starts to serve clones of the listeners, so the caller's listeners stay bound. It must be
    /// called on the runtime that serves the port. `first` has the IDs of the members with which
    /// the cluster starts.
    pub fn start(
        listeners: &[Listener],
        cluster_id: u64,
        member_id: u64,
        first: &[u64],
    ) -> io::Result<WaitingPort> {
        let clones = listeners.iter().map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let (first, asked) = (first.into(), Arc::default());
        let member = WaitingMember { cluster_id, member_id, first, asked };
        let service = PeerServer::new(member.clone());
        let mut tasks = JoinSet::new();
        for serving in listener::serve_all(clones, service, ConnectionRules::default())? {
            tasks.spawn(serving);
        }
        Ok(WaitingPort { _listeners: tasks, member })
    }

    /// Returns one reply for each other first member that has sent a request. The reply reports
    /// that the other member is new, as that member itself would have replied at the time of its
    /// request.
    pub fn replies_of_asking(&self) -> Vec<MembersReply> {
        let asked = self.member.asked.lock();
        asked.iter().map(|id| is_new(self.member.cluster_id, *id)).collect()
    }
}

#[derive(Clone, Debug)]
struct WaitingMember {
    cluster_id: u64,
    member_id: u64,
    first: Arc<[u64]>,
    /// The first members of the same cluster that have sent a request.
    asked: Arc<Mutex<BTreeSet<u64>>>,
}

fn is_new(cluster_id: u64, from: u64) -> MembersReply {
    MembersReply { cluster_id, from, is_new: true, ..MembersReply::default() }
}

fn not_started<T>() -> Result<Response<T>, Status> {
    Err(Status::unavailable("this member has not started yet: it waits for other members"))
}

#[tonic::async_trait]
impl Peer for WaitingMember {
    type MessagesStream = ReceiverStream<Result<Echo, Status>>;

    async fn members(
        &self,
        request: Request<MembersRequest>,
    ) -> Result<Response<MembersReply>, Status> {
        let MembersRequest { member, new_cluster, .. } = request.into_inner();
        let is_first = new_cluster == self.cluster_id && self.first.contains(&member);
        if is_first && member != self.member_id {
            self.asked.lock().insert(member);
        }
        Ok(Response::new(is_new(self.cluster_id, self.member_id)))
    }

    async fn greet(&self, _: Request<Greeting>) -> Result<Response<Greeting>, Status> {
        not_started()
    }

    async fn messages(
        &self,
        _: Request<Streaming<Parcel>>,
    ) -> Result<Response<Self::MessagesStream>, Status> {
        not_started()
    }

    async fn copy(&self, _: Request<Streaming<CopyChunk>>) -> Result<Response<CopyDone>, Status> {
        not_started()
    }

    async fn promote(&self, _: Request<PromoteRequest>) -> Result<Response<PromoteReply>, Status> {
        not_started()
    }

    async fn renew_lease(
        &self,
        _: Request<LeaseKeepAliveRequest>,
    ) -> Result<Response<LeaseKeepAliveResponse>, Status> {
        not_started()
    }

    async fn time_to_live(
        &self,
        _: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        not_started()
    }

    async fn hash_kv(&self, _: Request<HashKvRequest>) -> Result<Response<HashKvResponse>, Status> {
        not_started()
    }
}
