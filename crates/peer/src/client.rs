//! Short requests to other members, such as promotions, lease renewals and hashes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use clearlane_proto::etcdserverpb::{
    HashKvRequest, LeaseKeepAliveRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use clearlane_proto::peerpb::PromoteRequest;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_replica::RequestError;
use clearlane_replica::apply::RequestRejection;
use clearlane_replica::membership::{Member, MembershipRejection};
use clearlane_server::observe::corruption::MemberHash;
use clearlane_server::threads::{PeerClients, PeerFuture, PeerTraffic};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::headers::PeerHeaders;
use super::peer_table::PeerTable;
use super::{MESSAGE_BYTES_MAX, PeerContext, hash_kv};

/// Calls other members over the urgent connections, because the requests are short. A call fails
/// with [`RequestError::NoLeader`] if this member has no urgent connection to the called member, or
/// if a test has cut the network to it.
#[derive(Debug)]
pub(super) struct GrpcPeerClients {
    table: Arc<PeerTable>,
    /// The headers of each call. `request` fills in the receiver, which is 0 here.
    headers: PeerHeaders,
}

impl GrpcPeerClients {
    pub(super) fn new(context: &PeerContext) -> GrpcPeerClients {
        GrpcPeerClients { table: Arc::clone(&context.table), headers: context.headers(0) }
    }

    /// Returns a client for the member `to`, and a request with this member's headers.
    fn request<T>(
        &self,
        to: u64,
        question: T,
    ) -> Result<(PeerClient<Channel>, Request<T>), RequestError> {
        let link = self.table.get(to).filter(|link| !link.is_cut.load(Relaxed));
        let channel = link.and_then(|link| link.channel()).ok_or(RequestError::NoLeader)?;
        let mut request = Request::new(question);
        PeerHeaders { to, ..self.headers.clone() }.write(request.metadata_mut());
        // A response to `time_to_live` may contain all keys of a lease, so it may be large.
        Ok((PeerClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX), request))
    }
}

/// Returns the error that another member has reported with this status. The message of the status
/// identifies the error. An unknown message becomes [`RequestError::NoLeader`].
pub(super) fn error_from_status(status: Status) -> RequestError {
    let known = [
        RequestError::NotLeader,
        RequestRejection::Compacted.into(),
        RequestRejection::FutureRevision.into(),
    ];
    match MembershipRejection::from_message(status.message()) {
        Some(refused) => RequestError::Membership(refused),
        None => {
            let is_same = |error: &RequestError| error.to_string() == status.message();
            known.into_iter().find(is_same).unwrap_or(RequestError::NoLeader)
        }
    }
}

impl PeerClients for GrpcPeerClients {
    fn active_since(&self, id: u64) -> Option<Instant> {
        self.table.get(id)?.active_since()
    }

    fn traffic(&self) -> Vec<PeerTraffic> {
        self.table.traffic()
    }

    fn promote(&self, leader: u64, learner: u64) -> PeerFuture<'_, Vec<Member>> {
        Box::pin(async move {
            let (mut client, request) = self.request(leader, PromoteRequest { learner })?;
            let reply = client.promote(request).await.map_err(error_from_status)?;
            Ok(reply.into_inner().members)
        })
    }

    fn renew_lease(&self, leader: u64, lease: i64) -> PeerFuture<'_, i64> {
        Box::pin(async move {
            let (mut client, request) =
                self.request(leader, LeaseKeepAliveRequest { id: lease })?;
            let reply = client.renew_lease(request).await.map_err(error_from_status)?;
            Ok(reply.into_inner().ttl)
        })
    }

    fn lease_time_to_live(
        &self,
        leader: u64,
        request: LeaseTimeToLiveRequest,
    ) -> PeerFuture<'_, LeaseTimeToLiveResponse> {
        Box::pin(async move {
            let (mut client, request) = self.request(leader, request)?;
            let reply = client.time_to_live(request).await.map_err(error_from_status)?;
            Ok(reply.into_inner())
        })
    }

    fn hash_kv(&self, member: u64, revision: i64) -> PeerFuture<'_, MemberHash> {
        Box::pin(async move {
            let (mut client, request) = self.request(member, HashKvRequest { revision })?;
            let reply = client.hash_kv(request).await.map_err(error_from_status)?;
            Ok(hash_kv::member_hash(reply.get_ref()))
        })
    }
}
