//! The service Maintenance: alarms, sizes, sums, copies; and who leads.
//!
//! | call | who does it | how long it may take |
//! |---|---|---|
//! | Alarm | the cluster, through the log | as a write |
//! | Status | this member, whatever state it is in | a moment |
//! | MoveLeader | the leader | an election |
//! | Downgrade | the cluster, through the log | as a write |
//! | Defragment, Hash, HashKV, Snapshot | this member, from its own store | as long as reading all of it |
//!
//! The last four run on threads of their own, so few at a time that they do not fill the machine: who
//! comes then waits.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clearlane_member::downgrade::{self, announced, validate};
use clearlane_member::requests::Reply;
use clearlane_member::snapshot_file::Writer;
use clearlane_member::{Handle, Trouble, checksums};
use clearlane_proto::etcdserverpb::downgrade_request::DowngradeAction;
use clearlane_proto::etcdserverpb::maintenance_server::Maintenance;
use clearlane_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    InternalRaftRequest, MoveLeaderRequest, MoveLeaderResponse, ResponseHeader, SnapshotRequest,
    SnapshotResponse, StatusRequest, StatusResponse,
};
use clearlane_proto::membershippb::DowngradeInfoSetRequest;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::caller::{self, Who, admit};
use crate::status;

/// The version of etcd whose API this is.
pub const VERSION: &str = "3.7.1";
/// The version of etcd whose records these are.
pub const STORAGE_VERSION: &str = "3.7.0";

/// A store that has not committed yet has a page all the same: `etcdctl` divides by its size.
const SIZE_MIN: u64 = 4096;

/// So many long calls run at a time on behalf of one network thread.
const LONG_CALLS_MAX: usize = 4;
/// So many pieces of a snapshot wait for a slow client.
const PIECES_AHEAD: usize = 4;
/// etcd's time for a request: 5 s, and two election time-outs.
const PATIENCE: Duration = Duration::from_secs(5);

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct MaintenanceService {
    member: Handle,
    turns: Arc<Semaphore>,
}

type Answer<T> = Result<Response<T>, Status>;

impl MaintenanceService {
    /// In front of a member.
    pub fn new(member: Handle) -> MaintenanceService {
        MaintenanceService { member, turns: Arc::new(Semaphore::new(LONG_CALLS_MAX)) }
    }

    fn admit(&self, head: &MetadataMap, who: Who) -> Result<(), Status> {
        admit(&self.member, head.as_ref(), who)
    }

    /// Runs what takes long on another thread.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Handle) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let member = self.member.clone();
        let done = tokio::task::spawn_blocking(move || {
            // Given back when the work is done, also if nobody waits for it any more.
            let _turn = turn;
            work(&member)
        });
        match done.await {
            Ok(done) => done.map_err(|trouble| status::of(&trouble)),
            Err(error) => Err(Status::internal(format!("the work was given up: {error}"))),
        }
    }

    fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let mut header = Some(ResponseHeader { revision, ..ResponseHeader::default() });
        self.member.stamp(&mut header);
        header
    }

    /// Announces a downgrade, or calls it off.
    async fn announce(&self, enabled: bool, ver: String) -> Result<DowngradeResponse, Status> {
        let downgrade_info_set = Some(DowngradeInfoSetRequest { enabled, ver });
        let request = InternalRaftRequest { downgrade_info_set, ..Default::default() };
        match self.member.write(request).await.map_err(|trouble| status::of(&trouble))? {
            Reply::Downgrade(response) => Ok(response),
            reply => Err(status::mismatch(&reply)),
        }
    }

    /// The full version of a target that would do.
    async fn validate(&self, target: &str) -> Result<String, Trouble> {
        self.member.fresh().await?;
        let store = self.member.store();
        Ok(validate(&*store.read(), target)??)
    }

    /// Whether a downgrade is announced.
    fn is_downgraded(&self) -> Result<bool, Status> {
        let announced = announced(&*self.member.store().read());
        Ok(announced.map_err(|error| status::of(&error.into()))?.enabled)
    }

    fn without_change(&self) -> DowngradeResponse {
        let header = self.header(self.member.store().read().revision());
        DowngradeResponse { header, ..DowngradeResponse::default() }
    }

    async fn downgraded(&self, request: &DowngradeRequest) -> Result<DowngradeResponse, Status> {
        let told = |trouble: Trouble| status::of(&trouble);
        let mut response = match DowngradeAction::try_from(request.action) {
            Ok(DowngradeAction::Validate) => {
                self.validate(&request.version).await.map_err(told)?;
                self.without_change()
            }
            Ok(DowngradeAction::Enable) => {
                let target = self.validate(&request.version).await.map_err(told)?;
                self.announce(true, target).await?
            }
            Ok(DowngradeAction::Cancel) if self.is_downgraded()? => {
                self.announce(false, String::new()).await?
            }
            // There is nothing to call off, and nothing to put into the log.
            Ok(DowngradeAction::Cancel) => self.without_change(),
            Err(_) => return Err(Status::unknown("etcdserver: unknown method")),
        };
        let store = self.member.store();
        let version = downgrade::cluster_version(&*store.read());
        let version = version.map_err(|error| told(error.into()))?;
        response.version = format!("{}.{}", version.major, version.minor);
        Ok(response)
    }

    /// What is wrong with this member or its cluster.
    fn errors(&self) -> Vec<String> {
        let node = self.member.node();
        let leaderless = (node.status().leader() == 0).then(|| Trouble::NoLeader.to_string());
        leaderless.into_iter().chain(node.alarms().iter().map(|alarm| text(&alarm))).collect()
    }
}

/// As etcd prints it.
fn text(alarm: &AlarmMember) -> String {
    let kind = match AlarmType::try_from(alarm.alarm) {
        Ok(kind) => kind.as_str_name().to_owned(),
        Err(_) => alarm.alarm.to_string(),
    };
    format!("memberID:{} alarm:{kind}", alarm.member_id)
}

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<SnapshotResponse, Status>> + Send>>;

    async fn alarm(&self, request: Request<AlarmRequest>) -> Answer<AlarmResponse> {
        self.admit(request.metadata(), Who::Voters)?;
        let alarm = Some(request.into_inner());
        let request = InternalRaftRequest { alarm, ..Default::default() };
        match self.member.write(request).await.map_err(|trouble| status::of(&trouble))? {
            Reply::Alarm(response) => Ok(Response::new(response)),
            reply => Err(status::mismatch(&reply)),
        }
    }

    async fn status(&self, request: Request<StatusRequest>) -> Answer<StatusResponse> {
        self.admit(request.metadata(), Who::Anybody)?;
        let (node, store) = (self.member.node(), self.member.store());
        let read = store.read();
        let downgrade_info = announced(&*read).map_err(|error| status::of(&error.into()))?;
        let (status, sizes) = (node.status(), node.sizes());
        Ok(Response::new(StatusResponse {
            header: self.header(read.revision()),
            version: VERSION.to_owned(),
            db_size: sizes.size().max(SIZE_MIN) as i64,
            leader: status.leader(),
            raft_index: status.committed(),
            raft_term: status.term(),
            raft_applied_index: status.applied(),
            errors: self.errors(),
            db_size_in_use: sizes.in_use().max(SIZE_MIN) as i64,
            is_learner: node.status().is_learner(),
            storage_version: STORAGE_VERSION.to_owned(),
            db_size_quota: node.quota().bytes(),
            downgrade_info: Some(downgrade_info),
        }))
    }

    async fn defragment(&self, request: Request<DefragmentRequest>) -> Answer<DefragmentResponse> {
        self.admit(request.metadata(), Who::Voters)?;
        let work = |member: &Handle| {
            // It is written anew beside the old one.
            member.node().require_room(member.node().sizes().in_use())?;
            Ok(member.node().defragment()?)
        };
        self.aside(work).await?;
        Ok(Response::new(DefragmentResponse::default()))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Answer<HashResponse> {
        self.admit(request.metadata(), Who::Voters)?;
        let work = |member: &Handle| {
            member.node().require_room(0)?;
            Ok(checksums::hash(&*member.store())?)
        };
        let (hash, revision) = self.aside(work).await?;
        Ok(Response::new(HashResponse { header: self.header(revision), hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Answer<HashKvResponse> {
        self.admit(request.metadata(), Who::Voters)?;
        let at = request.get_ref().revision;
        let (sum, revision) =
            self.aside(move |member| checksums::hash_kv(&*member.store(), at)).await?;
        Ok(Response::new(HashKvResponse {
            header: self.header(revision),
            hash: sum.hash,
            compact_revision: sum.compact_revision,
            hash_revision: sum.hash_revision,
        }))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Answer<Self::SnapshotStream> {
        self.admit(request.metadata(), Who::Anybody)?;
        // It begins with a commit.
        self.member.node().require_room(0).map_err(|refused| status::of(&refused.into()))?;
        let (to_client, pieces) = mpsc::channel(PIECES_AHEAD);
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let store = self.member.store();
        tokio::task::spawn_blocking(move || {
            let _turn = turn;
            // A client that has gone ends it.
            let send = |piece| to_client.blocking_send(piece).is_ok();
            let mut writer = match Writer::new(&*store) {
                Ok(writer) => writer,
                Err(error) => {
                    send(Err(status::of(&error.into())));
                    return;
                }
            };
            while let Some(piece) = writer.next_piece().transpose() {
                let piece = piece.map_err(|error| status::of(&error.into()));
                let is_last = piece.is_err();
                let message = piece.map(|blob| SnapshotResponse {
                    remaining_bytes: writer.left(),
                    blob,
                    version: STORAGE_VERSION.to_owned(),
                    ..SnapshotResponse::default()
                });
                if !send(message) || is_last {
                    return;
                }
            }
        });
        let stream = ReceiverStream::new(pieces);
        let stream = caller::while_led(&self.member, request.metadata().as_ref(), stream);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Answer<MoveLeaderResponse> {
        self.admit(request.metadata(), Who::Voters)?;
        let patience = PATIENCE + 2 * self.member.node().election_timeout();
        let moved = self.member.move_leader(request.get_ref().target_id);
        match tokio::time::timeout(patience, moved).await {
            Ok(Ok(())) => Ok(Response::new(MoveLeaderResponse::default())),
            Ok(Err(trouble)) => Err(status::of(&trouble)),
            Err(_) => {
                let words = "etcdserver: request timed out, leader transfer took too long";
                Err(Status::unknown(words))
            }
        }
    }

    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Answer<DowngradeResponse> {
        self.admit(request.metadata(), Who::Voters)?;
        self.downgraded(request.get_ref()).await.map(Response::new)
    }
}
