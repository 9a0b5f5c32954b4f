//! What other members ask of this one.

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
use clearlane_raft::Message;
use clearlane_server::Server;
use clearlane_server::membership::MemberChange;
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
/// Longest wait of a leader for a quorum, before it answers a member that starts without data.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub(super) struct PeerService {
    context: PeerContext,
    server: Server,
    unknown_members: Sender<UnknownMember>,
    snapshot_permits: Arc<Semaphore>,
    /// One hash is computed at a time.
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

    /// Fails if the caller may not call.
    fn check_headers(&self, metadata: &MetadataMap) -> Result<PeerHeaders, Status> {
        let own = self.context.threads.metadata();
        let badge = PeerHeaders::read(metadata)?;
        badge.check(own.cluster_id, own.node_id).inspect_err(|status| {
            tracing::error!(why = status.message(), "another member's call is refused");
        })?;
        self.check_not_removed(badge.from)?;
        if self.context.table.get(badge.from).is_none() {
            // If too many are waiting to be noticed, it calls again.
            let _ = self.unknown_members.try_send((badge.from, badge.peer_urls.clone()));
        }
        Ok(badge)
    }

    fn check_not_removed(&self, from: u64) -> Result<(), Status> {
        if self.context.threads.members().is_removed(from) {
            return Err(headers::removed_status());
        }
        match self.context.table.get(from) {
            Some(link) if link.is_cut.load(Relaxed) => Err(Status::unavailable("the way is cut")),
            _ => Ok(()),
        }
    }

    /// Returns this member's term if it leads and a quorum confirms that. The quorum is asked only
    /// if the request names a member.
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
        let mut members = self.context.threads.watch_members();
        let ended = loop {
            let parcel = tokio::select! {
                parcel = parcels.message() => parcel,
                _ = members.changed() => Ok(Some(Parcel::default())),
            };
            let taken = match parcel {
                Ok(Some(parcel)) => {
                    self.check_not_removed(from).and_then(|()| self.handle_messages(from, &parcel))
                }
                // It has broken, or the other side ends it.
                Ok(None) | Err(_) => return,
            };
            match taken {
                Ok(0) => {}
                // A peer that does not take echoes does not get them.
                Ok(ping) => drop(echoes.try_send(Ok(Echo { ping }))),
                Err(status) => break status,
            }
            self.context.threads.wait_for_capacity().await;
        };
        let _ = echoes.send(Err(ended)).await;
    }

    /// Returns the ping of the parcel.
    fn handle_messages(&self, from: u64, parcel: &Parcel) -> Result<u64, Status> {
        let mut messages = Vec::with_capacity(parcel.messages.len());
        for bytes in &parcel.messages {
            let message = Message::decode(bytes);
            let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
            if message.from() != from {
                let words = format!("a message of {:x} in a stream of {from:x}", message.from());
                return Err(Status::invalid_argument(words));
            }
            messages.push(message);
        }
        if !messages.is_empty() {
            if let Some(link) = self.context.table.get(from) {
                let bytes = parcel.messages.iter().map(|bytes| bytes.len() as u64).sum();
                link.received_bytes.fetch_add(bytes, Relaxed);
            }
            self.context.threads.receive(messages);
        }
        Ok(parcel.ping)
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
        let _permit =
            permit.map_err(|_| Status::resource_exhausted("other copies are coming in"))?;
        snapshot::receive(&self.context, &badge, request.into_inner()).await?;
        Ok(Response::new(CopyDone {}))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Reply<MembersReply> {
        let request = request.into_inner();
        let term = self.confirmed_term(&request).await;
        let reply = self.context.threads.report_to(request).await;
        let mut reply = reply.map_err(|_| Status::unavailable("the member stops"))?;
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
        // A lease may have very many keys.
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
