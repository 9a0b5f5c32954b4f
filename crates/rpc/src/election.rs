//! The service Election: the first candidate of a [queue](crate::lock_queue) leads. The leader has
//! a value that other clients can read.
//!
//! Campaign puts a candidate with a value into the queue, and returns when this candidate leads.
//! Proclaim changes the leader's value. Observe sends the leader's key and value, and sends both
//! again after each change. When a leadership ends, Observe reads the newest state, so it may skip
//! leaders and values. Resign removes the candidate from the queue.

use bytes::Bytes;
use clearlane_auth::AuthRejection;
use clearlane_mvcc::Change;
use clearlane_mvcc::watch::{ResponseKind, WatchRequest, WatchedKeys};
use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::mvccpb::KeyValue;
use clearlane_proto::v3electionpb::election_server::Election;
use clearlane_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use clearlane_replica::RequestError;
use clearlane_replica::apply::RequestRejection;
use clearlane_server::watch::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::interceptors::{RequireLeaderStream, require_leader};
use crate::lock_queue::{
    LockQueue, LockQueueEntry, client_error, next_responses, prefix_range, wait_for_change,
};
use crate::status::{self, Reply};

const OBSERVE_BUFFER_LEN: usize = 16;

#[derive(Clone)]
pub(crate) struct ElectionService {
    pub(crate) queue: LockQueue,
}

type ObserveSender = mpsc::Sender<Result<LeaderResponse, Status>>;

impl ElectionService {
    /// Returns a copy of the service that acts with the credentials of this request.
    fn of<T>(&self, request: &Request<T>) -> ElectionService {
        ElectionService { queue: self.queue.of(request) }
    }

    async fn campaign_until_elected(
        &self,
        request: CampaignRequest,
    ) -> Result<CampaignResponse, RequestError> {
        let CampaignRequest { name, lease, value } = request;
        let place = self.queue.enqueue(&name, lease, value.clone()).await?;
        // A candidate that is already in the queue may have a new value.
        if place.old_value.as_ref().is_some_and(|old| *old != value) {
            self.queue.update_value(&place, value).await?;
        }
        self.queue.wait_until_first(&place).await?;
        let LockQueueEntry { key, create_revision: rev, lease, header, .. } = place;
        Ok(CampaignResponse { header, leader: Some(LeaderKey { name, key, rev, lease }) })
    }

    async fn observe_until_closed(
        &self,
        name: &Bytes,
        changes: &ObserveSender,
    ) -> Result<(), RequestError> {
        loop {
            let (leader, header) = self.queue.holder(name).await?;
            let revision = header.revision;
            let Some(leader) = leader else {
                let (from, end) = prefix_range(&[&name[..], b"/"].concat());
                let keys = WatchedKeys::Range(from, end);
                let mut stream = self.queue.watch_after(revision, WatchRequest::new(keys));
                wait_for_change(&mut stream).await?;
                continue;
            };
            let key = leader.key.clone();
            let keys = WatchedKeys::Single(key.clone());
            let user = self.queue.server.permit_watch(&key, &[]).map_err(RequestError::from)?;
            send(changes, Some(header), leader).await?;
            let mut stream = self.queue.watch_after(revision, WatchRequest::new(keys));
            let may_read = || {
                let server = &self.queue.server;
                user.as_ref().is_none_or(|user| server.may_still_read(user, &key, &[]))
            };
            while self.send_next_values(&mut stream, &may_read, changes).await? {}
        }
    }

    /// Sends the next values of the leader. Returns false if the leader's key was deleted or the
    /// watcher has ended; the caller then reads the queue again. Fails if the observer may no
    /// longer read the key, or has left.
    async fn send_next_values(
        &self,
        stream: &mut Stream,
        may_read: &(dyn Fn() -> bool + Sync),
        changes: &ObserveSender,
    ) -> Result<bool, RequestError> {
        for response in next_responses(stream).await? {
            if !may_read() {
                return Err(AuthRejection::PermissionDenied.into());
            }
            match response.kind {
                ResponseKind::Created | ResponseKind::Progress => {}
                ResponseKind::Events { events, .. } => {
                    for event in events.iter() {
                        let Change::Put(record) = &event.change else { return Ok(false) };
                        let header = self.queue.server.header_at(response.revision);
                        send(changes, header, record.clone()).await?;
                    }
                }
                ResponseKind::Rejected(_) | ResponseKind::Canceled | ResponseKind::Compacted(_) => {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Sends a response. Fails if the observer has left.
async fn send(
    changes: &ObserveSender,
    header: Option<ResponseHeader>,
    leader: KeyValue,
) -> Result<(), RequestError> {
    let response = LeaderResponse { header, kv: Some(leader) };
    changes.send(Ok(response)).await.map_err(|_| RequestError::Stopped)
}

fn is_about_users(error: &RequestError) -> bool {
    matches!(error, RequestError::Rejected(RequestRejection::Auth(_)))
}

fn entry_of(leader: Option<LeaderKey>) -> Result<LockQueueEntry, Status> {
    let missing = || Status::unknown("\"leader\" field must be provided");
    let LeaderKey { key, rev: create_revision, lease, .. } = leader.ok_or_else(missing)?;
    Ok(LockQueueEntry { key, create_revision, lease, ..LockQueueEntry::default() })
}

#[tonic::async_trait]
impl Election for ElectionService {
    type ObserveStream = RequireLeaderStream<ReceiverStream<Result<LeaderResponse, Status>>>;

    async fn campaign(&self, request: Request<CampaignRequest>) -> Reply<CampaignResponse> {
        let this = self.of(&request);
        let elected = this.campaign_until_elected(request.into_inner()).await;
        elected.map(Response::new).map_err(client_error)
    }

    async fn proclaim(&self, request: Request<ProclaimRequest>) -> Reply<ProclaimResponse> {
        let this = self.of(&request);
        let ProclaimRequest { leader, value } = request.into_inner();
        let place = entry_of(leader)?;
        match this.queue.update_value(&place, value).await.map_err(client_error)? {
            (true, header) => Ok(Response::new(ProclaimResponse { header })),
            (false, _) => Err(Status::unknown("election: not leader")),
        }
    }

    async fn leader(&self, request: Request<LeaderRequest>) -> Reply<LeaderResponse> {
        let found = self.of(&request).queue.holder(&request.get_ref().name).await;
        match found.map_err(client_error)? {
            (None, _) => Err(Status::unknown("election: no leader")),
            (kv, header) => Ok(Response::new(LeaderResponse { header: Some(header), kv })),
        }
    }

    async fn observe(&self, request: Request<LeaderRequest>) -> Reply<Self::ObserveStream> {
        let (changes, stream) = mpsc::channel(OBSERVE_BUFFER_LEN);
        let stream = ReceiverStream::new(stream);
        let stream = require_leader(&self.queue.server, request.metadata().as_ref(), stream);
        let (service, name) = (self.of(&request), request.into_inner().name);
        tokio::spawn(async move {
            tokio::select! {
                ended = service.observe_until_closed(&name, &changes) => {
                    // As in etcd, the stream of an observer that may not read the queue ends
                    // without an error. An observer that has left receives nothing.
                    if let Err(error) = ended && !is_about_users(&error) {
                        let _ = changes.send(Err(client_error(error))).await;
                    }
                }
                () = changes.closed() => {}
                () = service.queue.wait_until_stopped() => {
                    let stopped = status::from_error(RequestError::Stopped);
                    let _ = changes.send(Err(stopped)).await;
                }
            }
        });
        Ok(Response::new(stream))
    }

    async fn resign(&self, request: Request<ResignRequest>) -> Reply<ResignResponse> {
        let this = self.of(&request);
        let place = entry_of(request.into_inner().leader)?;
        let header = this.queue.release(&place).await.map_err(client_error)?;
        Ok(Response::new(ResignResponse { header }))
    }
}
