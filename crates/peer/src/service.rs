//! Serves the calls of other members.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clearlane_proto::etcdserverpb::{
    HashKvRequest, HashKvResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
    LeaseTimeToLiveRequest, LeaseTimeToLiveResponse,
};
use clearlane_proto::peerpb::peer_server::Peer;
use clearlane_proto::peerpb::{
    CopyChunk, CopyDone, Echo, Greeting, MembersReply, MembersRequest, Parcel, PromoteReply,
    PromoteRequest,
};
use clearlane_replica::membership::MemberChange;
use clearlane_server::Server;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{self, Sender};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::headers::{self, PROTOCOL_MAX, PROTOCOL_MIN, PeerHeaders, status_of};
use super::peer_table::UnknownMember;
use super::{PeerContext, hash_kv, snapshot};

const INCOMING_SNAPSHOTS_MAX: usize = 2;
/// Maximum time that a leader waits for a quorum to confirm its leadership, before it replies to a
/// member that starts without data. If no quorum confirms in this time, the reply has the leader
/// term 0.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct PeerService {
    context: PeerContext,
    server: Server,
    unknown_members: Sender<UnknownMember>,
    snapshot_permits: Arc<Semaphore>,
    /// Allows one hash computation at a time.
    hash_permit: Arc<Semaphore>,
}

impl PeerService {
    pub(super) fn new(
        context: &PeerContext,
        member: Server,
        learned: Sender<UnknownMember>,
    ) -> PeerService {
        PeerService {
            context: context.clone(),
            server: member,
            unknown_members: learned,
            snapshot_permits: Arc::new(Semaphore::new(INCOMING_SNAPSHOTS_MAX)),
            hash_permit: Arc::new(Semaphore::new(1)),
        }
    }

    /// Reads and checks the headers of a call. Fails if a header is missing or malformed, or if the
    /// caller may not call this member. A caller that is not in the table of peers is passed to the
    /// table's task.
    fn check_headers(&self, metadata: &MetadataMap) -> Result<PeerHeaders, Status> {
        let own = self.context.threads.metadata();
        let badge = PeerHeaders::read(metadata)?;
        badge.check(own.cluster_id, own.node_id).inspect_err(|status| {
            tracing::error!(why = status.message(), "rejected a call of another member");
        })?;
        self.check_not_removed(badge.from)?;
        if self.context.table.get(badge.from).is_none() {
            // If too many unknown members are queued, this one is skipped. It will call again.
            let _ = self.unknown_members.try_send((badge.from, badge.peer_urls.clone()));
        }
        Ok(badge)
    }

    fn check_not_removed(&self, from: u64) -> Result<(), Status> {
        if self.context.threads.members().is_removed(from) {
            return Err(headers::removed_status());
        }
        match self.context.table.get(from) {
            Some(link) if link.is_cut.load(Relaxed) => {
                Err(Status::unavailable("the connection is cut"))
            }
            _ => Ok(()),
        }
    }

    /// Returns this member's term if it leads and a quorum confirms its leadership within
    /// [`CONFIRMATION_TIMEOUT`]. Returns `None` otherwise, and if the request names neither a
    /// member nor peer URLs.
    async fn confirmed_term(&self, request: &MembersRequest) -> Option<u64> {
        let asks = request.member != 0 || !request.peer_urls.is_empty();
        if !asks || !self.server.is_leader() {
            return None;
        }
        let term = self.context.threads.status().term();
        let confirmed = timeout(CONFIRMATION_TIMEOUT, self.server.linearizable_read_notify()).await;
        matches!(confirmed, Ok(Ok(_))).then_some(term)
    }

    async fn receive_messages(
        self,
        from: u64,
        mut parcels: Streaming<Parcel>,
        echoes: Sender<Result<Echo, Status>>,
    ) {
        let ended = self.receive_until_end(from, &mut parcels, &echoes).await;
        if let Some(peer) = self.context.table.get(from) {
            peer.remove_way_back(&echoes);
        }
        if let Some(status) = ended {
            let _ = echoes.send(Err(status)).await;
        }
    }

    /// Receives messages until the stream ends. Returns the error if this member ends the stream,
    /// or `None` if the caller has ended it or the connection has broken.
    async fn receive_until_end(
        &self,
        from: u64,
        parcels: &mut Streaming<Parcel>,
        echoes: &Sender<Result<Echo, Status>>,
    ) -> Option<Status> {
        let mut members = self.context.threads.watch_members();
        let mut is_new = true;
        loop {
            let parcel = tokio::select! {
                parcel = parcels.message() => parcel,
                // An empty parcel makes the code below check whether the caller was removed.
                _ = members.changed() => Ok(Some(Parcel::default())),
            };
            let Parcel { messages, ping } = match parcel {
                Ok(Some(parcel)) => parcel,
                // The stream has broken, or the other side has ended it.
                Ok(None) | Err(_) => return None,
            };
            let taken = self.check_not_removed(from);
            let taken = taken.and_then(|()| self.context.receive_messages(from, &messages));
            if let Err(status) = taken {
                return Some(status);
            }
            if ping != 0 {
                // A peer that does not read its echoes loses some of them.
                let _ = echoes.try_send(Ok(Echo { ping, messages: Vec::new() }));
                // The caller may not be in the table yet, if it was just added.
                if let Some(peer) = self.context.table.get(from) {
                    peer.set_way_back(echoes, is_new);
                    is_new = false;
                }
            }
            self.context.threads.wait_for_capacity().await;
        }
    }
}

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Peer for PeerService {
    type MessagesStream = ReceiverStream<Result<Echo, Status>>;

    async fn greet(&self, request: Request<Greeting>) -> Reply<Greeting> {
        self.check_headers(request.metadata())?;
        let theirs = request.get_ref();
        headers::check_protocol(theirs.protocol_min, theirs.protocol_max)?;
        Ok(Response::new(Greeting {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_min: PROTOCOL_MIN,
            protocol_max: PROTOCOL_MAX,
        }))
    }

    async fn messages(&self, request: Request<Streaming<Parcel>>) -> Reply<Self::MessagesStream> {
        let badge = self.check_headers(request.metadata())?;
        let (echoes, answer) = mpsc::channel(4);
        tokio::spawn(self.clone().receive_messages(badge.from, request.into_inner(), echoes));
        Ok(Response::new(ReceiverStream::new(answer)))
    }

    async fn copy(&self, request: Request<Streaming<CopyChunk>>) -> Reply<CopyDone> {
        let badge = self.check_headers(request.metadata())?;
        let permit = self.snapshot_permits.try_acquire();
        let _permit = permit.map_err(|_| {
            Status::resource_exhausted("too many raft snapshots are being received")
        })?;
        snapshot::receive(&self.context, &badge, request.into_inner()).await?;
        Ok(Response::new(CopyDone {}))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Reply<MembersReply> {
        let request = request.into_inner();
        let term = self.confirmed_term(&request).await;
        let reply = self.context.threads.report_to(request).await;
        let mut reply = reply.map_err(|_| Status::unavailable("the member is stopping"))?;
        if Some(reply.leader_term) != term {
            reply.leader_term = 0;
        }
        Ok(Response::new(reply))
    }

    async fn promote(&self, request: Request<PromoteRequest>) -> Reply<PromoteReply> {
        self.check_headers(request.metadata())?;
        let id = request.get_ref().learner;
        let promoted = self.server.change_members(MemberChange::Promote { id }).await;
        let members = promoted.map_err(status_of)?;
        Ok(Response::new(PromoteReply { members }))
    }

    async fn renew_lease(
        &self,
        request: Request<LeaseKeepAliveRequest>,
    ) -> Reply<LeaseKeepAliveResponse> {
        self.check_headers(request.metadata())?;
        let id = request.get_ref().id;
        let ttl = self.server.renew_lease(id).await.map_err(status_of)?;
        Ok(Response::new(LeaseKeepAliveResponse { header: None, id, ttl }))
    }

    async fn time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Reply<LeaseTimeToLiveResponse> {
        self.check_headers(request.metadata())?;
        let LeaseTimeToLiveRequest { id, keys } = *request.get_ref();
        // The lease may have very many keys, so the raft loop's thread must not read them. A
        // blocking thread reads a small number of keys itself, and lets the read pool read a large
        // number.
        let (member, here) = (self.server.clone(), tokio::runtime::Handle::current());
        let looking = spawn_blocking(move || here.block_on(member.lease_time_to_live(id, keys)));
        let answer = looking.await.map_err(|error| Status::internal(error.to_string()))?;
        answer.map(Response::new).map_err(status_of)
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Reply<HashKvResponse> {
        self.check_headers(request.metadata())?;
        let revision = request.get_ref().revision;
        hash_kv::handle_hash_kv(&self.server, &self.hash_permit, revision).await.map(Response::new)
    }
}
