//! The service Election: the candidate at the front of a [queue](crate::lock_queue) leads, and has
//! a value that other clients can read.
//!
//! Campaign waits in the queue with a value, and returns when it leads. Proclaim changes the value
//! of a leader, Observe sends the leader and each change, and Resign leaves the queue.

use bytes::Bytes;
use clearlane_mvcc::watch::{ResponseKind, WatchedKeys};
use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::mvccpb::KeyValue;
use clearlane_proto::v3electionpb::election_server::Election;
use clearlane_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use clearlane_server::RequestError;
use clearlane_server::watch::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::interceptors::{
    RequireLeaderStream, RequiredRole, check_member_can_serve, require_leader,
};
use crate::lock_queue::{
    LockQueue, LockQueueEntry, change_record, client_error, next_responses, prefix_range,
};

const OBSERVE_BUFFER_LEN: usize = 16;

#[derive(Clone, Debug)]
pub struct ElectionService {
    queue: LockQueue,
}

type ObserveSender = mpsc::Sender<Result<LeaderResponse, Status>>;

impl ElectionService {
    pub fn new(line: LockQueue) -> ElectionService {
        ElectionService { queue: line }
    }

    fn check_can_serve<T>(&self, request: &Request<T>) -> Result<(), Status> {
        check_member_can_serve(
            self.queue.server(),
            request.metadata().as_ref(),
            RequiredRole::Voter,
        )
    }

    async fn campaign_until_elected(
        &self,
        request: CampaignRequest,
    ) -> Result<CampaignResponse, RequestError> {
        let CampaignRequest { name, lease, value } = request;
        let place = self.queue.enqueue(&name, lease, value.clone()).await?;
        // A candidate that is in the queue already brings a new value.
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
        let gone = || RequestError::Stopped;
        loop {
            let (leader, header) = self.queue.holder(name).await?;
            let revision = header.revision;
            let Some(leader) = leader else {
                let (from, end) = prefix_range(&[&name[..], b"/"].concat());
                let mut stream = self.queue.watch_after(WatchedKeys::Range(from, end), revision);
                while next_responses(&mut stream)
                    .await?
                    .iter()
                    .all(|told| told.kind == ResponseKind::Created)
                {}
                continue;
            };
            let key = leader.key.clone();
            changes.send(Ok(leader_response(header, leader))).await.map_err(|_| gone())?;
            let mut stream = self.queue.watch_after(WatchedKeys::Single(key), revision);
            let mut leads = true;
            while leads {
                let values;
                (values, leads) = self.next_values(&mut stream).await?;
                for value in values {
                    changes.send(Ok(value)).await.map_err(|_| gone())?;
                }
            }
        }
    }

    /// The leader's next values, and whether it still leads after them.
    async fn next_values(
        &self,
        stream: &mut Stream,
    ) -> Result<(Vec<LeaderResponse>, bool), RequestError> {
        let mut values = Vec::new();
        for response in next_responses(stream).await? {
            match response.kind {
                ResponseKind::Created | ResponseKind::Progress => {}
                ResponseKind::Events { events, .. } => {
                    for event in events.iter() {
                        let (is_put, record) = change_record(&event.change);
                        if !is_put {
                            return Ok((values, false));
                        }
                        let header =
                            ResponseHeader { revision: response.revision, ..Default::default() };
                        let mut header = Some(header);
                        self.queue.server().fill_header(&mut header);
                        values.push(leader_response(header.unwrap_or_default(), record.clone()));
                    }
                }
                ResponseKind::Rejected(_) | ResponseKind::Canceled | ResponseKind::Compacted(_) => {
                    return Ok((values, false));
                }
            }
        }
        Ok((values, true))
    }
}

fn leader_response(header: ResponseHeader, leader: KeyValue) -> LeaderResponse {
    LeaderResponse { header: Some(header), kv: Some(leader) }
}

fn entry_of(leader: Option<LeaderKey>) -> Result<LockQueueEntry, Status> {
    let missing = || Status::unknown("\"leader\" field must be provided");
    let LeaderKey { key, rev: created, lease, .. } = leader.ok_or_else(missing)?;
    Ok(LockQueueEntry {
        prefix: Vec::new(),
        key,
        create_revision: created,
        lease,
        old_value: None,
        header: None,
    })
}

#[tonic::async_trait]
impl Election for ElectionService {
    type ObserveStream = RequireLeaderStream<ReceiverStream<Result<LeaderResponse, Status>>>;

    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        self.check_can_serve(&request)?;
        let elected = self.campaign_until_elected(request.into_inner()).await;
        elected.map(Response::new).map_err(|trouble| client_error(&trouble))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        self.check_can_serve(&request)?;
        let ProclaimRequest { leader, value } = request.into_inner();
        let place = entry_of(leader)?;
        let (leads, header) = self
            .queue
            .update_value(&place, value)
            .await
            .map_err(|trouble| client_error(&trouble))?;
        if leads {
            Ok(Response::new(ProclaimResponse { header }))
        } else {
            Err(Status::unknown("election: not leader"))
        }
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        self.check_can_serve(&request)?;
        let found = self.queue.holder(&request.get_ref().name).await;
        match found.map_err(|trouble| client_error(&trouble))? {
            (Some(leader), header) => Ok(Response::new(leader_response(header, leader))),
            (None, _) => Err(Status::unknown("election: no leader")),
        }
    }

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        self.check_can_serve(&request)?;
        let (changes, stream) = mpsc::channel(OBSERVE_BUFFER_LEN);
        let stream = require_leader(
            self.queue.server(),
            request.metadata().as_ref(),
            ReceiverStream::new(stream),
        );
        let (service, name) = (self.clone(), request.into_inner().name);
        tokio::spawn(async move {
            tokio::select! {
                ended = service.observe_until_closed(&name, &changes) => {
                    if let Err(trouble) = ended {
                        // An observer that has gone does not get this.
                        let _ = changes.send(Err(client_error(&trouble))).await;
                    }
                }
                () = changes.closed() => {}
                () = service.queue.wait_until_stopped() => {}
            }
        });
        Ok(Response::new(stream))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        self.check_can_serve(&request)?;
        let place = entry_of(request.into_inner().leader)?;
        let header = self.queue.release(&place).await.map_err(|trouble| client_error(&trouble))?;
        Ok(Response::new(ResignResponse { header }))
    }
}
