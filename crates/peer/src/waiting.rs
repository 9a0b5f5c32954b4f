//! The peer port of a member that has no data and does not know yet whether it may start.
//!
//! The members of a new cluster wait for each other. So each answers on its peer port, before its
//! threads run, that it is new. All other calls fail, and the callers repeat them.

use std::io;

use clearlane_net::listener::Listener;
use clearlane_proto::etcdserverpb::{
    HashKvRequest, HashKvResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use clearlane_proto::peerpb::peer_server::{Peer, PeerServer};
use clearlane_proto::peerpb::{
    CopyChunk, CopyDone, Echo, Greeting, MembersReply, MembersRequest, Parcel, PromoteReply,
    PromoteRequest,
};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::listener;

/// Serves the peer port until it is dropped.
#[derive(Debug)]
pub struct WaitingPort {
    _listeners: JoinSet<()>,
}

impl WaitingPort {
    /// Must be called on the runtime that serves it. The caller keeps the listeners bound.
    pub fn start(
        listeners: &[Listener],
        cluster_id: u64,
        member_id: u64,
    ) -> io::Result<WaitingPort> {
        let clones = listeners.iter().map(Listener::try_clone).collect::<io::Result<Vec<_>>>()?;
        let service = PeerServer::new(WaitingMember { cluster_id, member_id });
        let mut tasks = JoinSet::new();
        for serving in listener::serve_all(clones, service)? {
            tasks.spawn(serving);
        }
        Ok(WaitingPort { _listeners: tasks })
    }
}

#[derive(Clone, Debug)]
struct WaitingMember {
    cluster_id: u64,
    member_id: u64,
}

fn not_started<T>() -> Result<Response<T>, Status> {
    Err(Status::unavailable("this member has not started yet: it waits for other members"))
}

#[tonic::async_trait]
impl Peer for WaitingMember {
    type MessagesStream = ReceiverStream<Result<Echo, Status>>;

    async fn members(&self, _: Request<MembersRequest>) -> Result<Response<MembersReply>, Status> {
        Ok(Response::new(MembersReply {
            cluster_id: self.cluster_id,
            from: self.member_id,
            is_new: true,
            ..MembersReply::default()
        }))
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
