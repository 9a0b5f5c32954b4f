//! The service Election: whoever is at the front of a [line](crate::succession) leads, and has a value
//! that others can see.
//!
//! | call | what it does |
//! |---|---|
//! | Campaign | stands in line with a value, and returns when it leads |
//! | Proclaim | changes the leader's value, if it still leads |
//! | Leader | who leads now |
//! | Observe | who leads now, and every change of the leader or of its value |
//! | Resign | gives the place up |

use bytes::Bytes;
use clearlane_member::Trouble;
use clearlane_member::watch::Stream;
use clearlane_mvcc::watch::{Says, WatchedKeys};
use clearlane_proto::etcdserverpb::ResponseHeader;
use clearlane_proto::mvccpb::KeyValue;
use clearlane_proto::v3electionpb::election_server::Election;
use clearlane_proto::v3electionpb::{
    CampaignRequest, CampaignResponse, LeaderKey, LeaderRequest, LeaderResponse, ProclaimRequest,
    ProclaimResponse, ResignRequest, ResignResponse,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::caller::{Led, Who, admit, while_led};
use crate::succession::{Place, Succession, below, next, plain, record_of};

/// So many changes wait for an observer to take them.
const CHANGES_AHEAD: usize = 16;

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct ElectionService {
    line: Succession,
}

type Changes = mpsc::Sender<Result<LeaderResponse, Status>>;

impl ElectionService {
    /// Over these lines.
    pub fn new(line: Succession) -> ElectionService {
        ElectionService { line }
    }

    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        admit(self.line.member(), request.metadata().as_ref(), Who::Voters)
    }

    async fn elected(&self, request: CampaignRequest) -> Result<CampaignResponse, Trouble> {
        let CampaignRequest { name, lease, value } = request;
        let place = self.line.stand(&name, lease, value.clone()).await?;
        // Who stands there already brings a new value.
        if place.old_value.as_ref().is_some_and(|old| *old != value) {
            self.line.change(&place, value).await?;
        }
        self.line.wait(&place).await?;
        let Place { key, created: rev, lease, header, .. } = place;
        Ok(CampaignResponse { header, leader: Some(LeaderKey { name, key, rev, lease }) })
    }

    /// Tells an observer everything, until he goes away.
    async fn tell(&self, name: &Bytes, changes: &Changes) -> Result<(), Trouble> {
        let gone = || Trouble::Stopped;
        loop {
            let (leader, header) = self.line.holder(name).await?;
            let revision = header.revision;
            let Some(leader) = leader else {
                let (from, end) = below(&[&name[..], b"/"].concat());
                let stream = self.line.follow(WatchedKeys::Range(from, end), revision);
                while next(&stream).await?.iter().all(|told| told.says == Says::Created) {}
                continue;
            };
            let key = leader.key.clone();
            changes.send(Ok(told(header, leader))).await.map_err(|_| gone())?;
            let stream = self.line.follow(WatchedKeys::One(key), revision);
            let mut leads = true;
            while leads {
                let values;
                (values, leads) = self.values(&stream).await?;
                for value in values {
                    changes.send(Ok(value)).await.map_err(|_| gone())?;
                }
            }
        }
    }

    /// The next values of a leader, and whether it still leads behind them.
    async fn values(&self, stream: &Stream) -> Result<(Vec<LeaderResponse>, bool), Trouble> {
        let mut values = Vec::new();
        for response in next(stream).await? {
            match response.says {
                Says::Created | Says::Progress => {}
                Says::Events { events, .. } => {
                    for event in events.iter() {
                        let (is_put, record) = record_of(&event.change);
                        if !is_put {
                            return Ok((values, false));
                        }
                        let header =
                            ResponseHeader { revision: response.revision, ..Default::default() };
                        let mut header = Some(header);
                        self.line.member().stamp(&mut header);
                        values.push(told(header.unwrap_or_default(), record.clone()));
                    }
                }
                Says::Refused(_) | Says::Canceled | Says::Compacted(_) => {
                    return Ok((values, false));
                }
            }
        }
        Ok((values, true))
    }
}

fn told(header: ResponseHeader, leader: KeyValue) -> LeaderResponse {
    LeaderResponse { header: Some(header), kv: Some(leader) }
}

/// The place of which a client says that it leads.
fn place(leader: Option<LeaderKey>) -> Result<Place, Status> {
    let missing = || Status::unknown("\"leader\" field must be provided");
    let LeaderKey { key, rev: created, lease, .. } = leader.ok_or_else(missing)?;
    Ok(Place { prefix: Vec::new(), key, created, lease, old_value: None, header: None })
}

#[tonic::async_trait]
impl Election for ElectionService {
    type ObserveStream = Led<ReceiverStream<Result<LeaderResponse, Status>>>;

    async fn campaign(
        &self,
        request: Request<CampaignRequest>,
    ) -> Result<Response<CampaignResponse>, Status> {
        self.admit(&request)?;
        let elected = self.elected(request.into_inner()).await;
        elected.map(Response::new).map_err(|trouble| plain(&trouble))
    }

    async fn proclaim(
        &self,
        request: Request<ProclaimRequest>,
    ) -> Result<Response<ProclaimResponse>, Status> {
        self.admit(&request)?;
        let ProclaimRequest { leader, value } = request.into_inner();
        let place = place(leader)?;
        let (leads, header) =
            self.line.change(&place, value).await.map_err(|trouble| plain(&trouble))?;
        match leads {
            true => Ok(Response::new(ProclaimResponse { header })),
            false => Err(Status::unknown("election: not leader")),
        }
    }

    async fn leader(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<LeaderResponse>, Status> {
        self.admit(&request)?;
        let found = self.line.holder(&request.get_ref().name).await;
        match found.map_err(|trouble| plain(&trouble))? {
            (Some(leader), header) => Ok(Response::new(told(header, leader))),
            (None, _) => Err(Status::unknown("election: no leader")),
        }
    }

    async fn observe(
        &self,
        request: Request<LeaderRequest>,
    ) -> Result<Response<Self::ObserveStream>, Status> {
        self.admit(&request)?;
        let (changes, stream) = mpsc::channel(CHANGES_AHEAD);
        let stream =
            while_led(self.line.member(), request.metadata().as_ref(), ReceiverStream::new(stream));
        let (service, name) = (self.clone(), request.into_inner().name);
        tokio::spawn(async move {
            tokio::select! {
                ended = service.tell(&name, &changes) => {
                    if let Err(trouble) = ended {
                        // To one who has gone this says nothing.
                        let _ = changes.send(Err(plain(&trouble))).await;
                    }
                }
                () = changes.closed() => {}
                () = service.line.stopped() => {}
            }
        });
        Ok(Response::new(stream))
    }

    async fn resign(
        &self,
        request: Request<ResignRequest>,
    ) -> Result<Response<ResignResponse>, Status> {
        self.admit(&request)?;
        let place = place(request.into_inner().leader)?;
        let header = self.line.leave(&place).await.map_err(|trouble| plain(&trouble))?;
        Ok(Response::new(ResignResponse { header }))
    }
}
