//! The service Maintenance: alarms, sizes, sums, snapshots; and the leader.
//!
//! | call | done by | how long it may take |
//! |---|---|---|
//! | Alarm | the cluster, through the log | as a write |
//! | Status | this member, whatever state it is in | short |
//! | MoveLeader | the leader | an election |
//! | Downgrade | the cluster, through the log | as a write |
//! | Defragment, Hash, HashKV, Snapshot | this member, from its store | as reading all of it |
//!
//! The last four run on separate threads. Few run at a time, so that they do not fill the machine,
//! and more requests wait. A [snapshot] lasts until its client has taken it, so
//! snapshots have their own permits and the other three do not wait for them.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::downgrade_request::DowngradeAction;
use clearlane_proto::etcdserverpb::maintenance_server::Maintenance;
use clearlane_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, DefragmentRequest, DefragmentResponse,
    DowngradeRequest, DowngradeResponse, HashKvRequest, HashKvResponse, HashRequest, HashResponse,
    MoveLeaderRequest, MoveLeaderResponse, SnapshotRequest, SnapshotResponse, StatusRequest,
    StatusResponse,
};
use clearlane_proto::membershippb::DowngradeInfoSetRequest;
use clearlane_server::corruption::MemberHash;
use clearlane_server::downgrade::{self, downgrade_info, validate};
use clearlane_server::{RequestError, Server, checksums};
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::client_info::{as_large_response, client_of};
use crate::context::propose;
use crate::credentials::server_for;
use crate::interceptors::{RequiredRole, check_member_can_serve, require_leader};
use crate::snapshot::{self, SnapshotPermits};
use crate::status::{self, Reply};

/// The version of etcd whose API this is.
pub const ETCD_VERSION: &str = "3.7.1";
/// The version of etcd whose records these are.
pub const STORAGE_VERSION: &str = "3.7.0";

/// A store that has not committed yet has a page all the same: `etcdctl` divides by its size.
const DB_SIZE_MIN: u64 = 4096;

/// Maximum number of calls of Defragment, Hash and HashKV that one network thread runs at a time.
const BLOCKING_CALLS_MAX: usize = 4;
/// etcd's time for a request: 5 s, and two election time-outs.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct MaintenanceService {
    server: Server,
    /// The permits of Defragment, Hash and HashKV.
    permits: Arc<Semaphore>,
    snapshot_permits: SnapshotPermits,
}

impl MaintenanceService {
    pub(crate) fn new(server: Server) -> MaintenanceService {
        let permits = Arc::new(Semaphore::new(BLOCKING_CALLS_MAX));
        MaintenanceService { server, permits, snapshot_permits: SnapshotPermits::default() }
    }

    fn check_can_serve<T>(&self, request: &Request<T>, role: RequiredRole) -> Result<(), Status> {
        check_member_can_serve(&self.server, request.metadata().as_ref(), role)
    }

    /// The call's user has the role `root`, if authentication is enabled.
    async fn require_admin<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let server = server_for(&self.server, request);
        server.require(|user| user.admin()).await.map_err(status::from_error)
    }

    async fn require_user<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let server = server_for(&self.server, request);
        server.require(|user| user.user()).await.map_err(status::from_error)
    }

    async fn run_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Server) -> Result<T, RequestError> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = Arc::clone(&self.permits).acquire_owned().await;
        let member = self.server.clone();
        let done = tokio::task::spawn_blocking(move || {
            // Given back when the work is done, also if no request waits for it any more.
            let _turn = turn;
            work(&member)
        });
        match done.await {
            Ok(done) => done.map_err(status::from_error),
            Err(error) => Err(Status::internal(format!("the work was given up: {error}"))),
        }
    }

    /// The target's full version.
    async fn validate(&self, target: &str) -> Result<String, RequestError> {
        self.server.linearizable_read_notify().await?;
        let target = target.to_owned();
        Ok(self.server.read_store(move |read| validate(read, &target)).await???)
    }

    async fn is_downgrade_enabled(&self) -> Result<bool, RequestError> {
        let look = |read: &(dyn ReadTxn + '_)| downgrade_info(read);
        Ok(self.server.read_store(look).await??.enabled)
    }

    async fn handle_downgrade(
        &self,
        request: &DowngradeRequest,
    ) -> Result<DowngradeResponse, RequestError> {
        let change = match request.action() {
            DowngradeAction::Validate => {
                self.validate(&request.version).await?;
                None
            }
            DowngradeAction::Enable => {
                let ver = self.validate(&request.version).await?;
                tracing::warn!(
                    "target-version" = ver,
                    "the downgrade is only announced: no store is rewritten for it, and the older \
                     etcd does not start on this data; start etcd 3.7 on it, which rewrites it"
                );
                Some(DowngradeInfoSetRequest { enabled: true, ver })
            }
            // If there is nothing to cancel, there is nothing to put into the log.
            DowngradeAction::Cancel => {
                self.is_downgrade_enabled().await?.then(DowngradeInfoSetRequest::default)
            }
        };
        let mut response = match change {
            Some(change) => self.server.propose(change).await?,
            None => {
                let header = self.server.header_at(self.server.store_revision().await?);
                DowngradeResponse { header, ..DowngradeResponse::default() }
            }
        };
        let look = |read: &(dyn ReadTxn + '_)| downgrade::cluster_version(read);
        let version = self.server.read_store(look).await??;
        response.version = format!("{}.{}", version.major, version.minor);
        Ok(response)
    }

    fn errors(&self) -> Vec<String> {
        let node = self.server.threads();
        let leaderless = (node.status().leader() == 0).then(|| RequestError::NoLeader.to_string());
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

    async fn alarm(&self, request: Request<AlarmRequest>) -> Reply<AlarmResponse> {
        self.check_can_serve(&request, RequiredRole::Voter)?;
        match request.get_ref().action() {
            AlarmAction::Get => self.require_user(&request).await?,
            AlarmAction::Activate | AlarmAction::Deactivate => self.require_admin(&request).await?,
        }
        propose(&self.server, request.into_inner()).await.map(Response::new)
    }

    async fn status(&self, request: Request<StatusRequest>) -> Reply<StatusResponse> {
        self.check_can_serve(&request, RequiredRole::Any)?;
        self.require_user(&request).await?;
        let node = self.server.threads();
        let look = |read: &(dyn ReadTxn + '_)| (downgrade_info(read), read.revision());
        let (info, revision) = self.server.read_store(look).await.map_err(status::from_error)?;
        let downgrade_info = info.map_err(status::from_error)?;
        let (status, sizes) = (node.status(), node.sizes());
        Ok(Response::new(StatusResponse {
            header: self.server.header_at(revision),
            version: ETCD_VERSION.to_owned(),
            db_size: sizes.size().max(DB_SIZE_MIN) as i64,
            leader: status.leader(),
            raft_index: status.committed(),
            raft_term: status.term(),
            raft_applied_index: status.applied(),
            errors: self.errors(),
            db_size_in_use: sizes.in_use().max(DB_SIZE_MIN) as i64,
            is_learner: node.status().is_learner(),
            storage_version: STORAGE_VERSION.to_owned(),
            db_size_quota: node.quota().bytes(),
            downgrade_info: Some(downgrade_info),
        }))
    }

    async fn defragment(&self, request: Request<DefragmentRequest>) -> Reply<DefragmentResponse> {
        self.check_can_serve(&request, RequiredRole::Voter)?;
        self.require_admin(&request).await?;
        let work = |member: &Server| {
            // It is written anew beside the old one.
            member.threads().require_disk_space(member.threads().sizes().in_use())?;
            Ok(member.threads().defragment()?)
        };
        self.run_blocking(work).await?;
        Ok(Response::new(DefragmentResponse::default()))
    }

    async fn hash(&self, request: Request<HashRequest>) -> Reply<HashResponse> {
        self.check_can_serve(&request, RequiredRole::Voter)?;
        self.require_admin(&request).await?;
        let work = |member: &Server| {
            member.threads().require_disk_space(0)?;
            Ok(checksums::hash(&*member.threads().store())?)
        };
        let (hash, revision) = self.run_blocking(work).await?;
        Ok(Response::new(HashResponse { header: self.server.header_at(revision), hash }))
    }

    async fn hash_kv(&self, request: Request<HashKvRequest>) -> Reply<HashKvResponse> {
        self.check_can_serve(&request, RequiredRole::Voter)?;
        self.require_admin(&request).await?;
        let at = request.get_ref().revision;
        let work = move |member: &Server| checksums::hash_kv(&*member.threads().store(), at);
        let MemberHash { hash_kv, revision } = self.run_blocking(work).await?;
        Ok(Response::new(HashKvResponse {
            header: self.server.header_at(revision),
            hash: hash_kv.hash,
            compact_revision: hash_kv.compact_revision,
            hash_revision: hash_kv.hash_revision,
        }))
    }

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Reply<Self::SnapshotStream> {
        self.check_can_serve(&request, RequiredRole::Any)?;
        self.require_admin(&request).await?;
        // It begins with a commit.
        self.server.threads().require_disk_space(0).map_err(status::from_error)?;
        let client = client_of(request.extensions());
        let permit = self.snapshot_permits.acquire(&client).await;
        // The permit may have arrived late.
        self.require_admin(&request).await?;
        let stream = snapshot::start(&self.server, client, permit)?;
        let stream = as_large_response(stream, request.extensions());
        let stream = require_leader(&self.server, request.metadata().as_ref(), stream);
        Ok(Response::new(Box::pin(stream)))
    }

    async fn move_leader(&self, request: Request<MoveLeaderRequest>) -> Reply<MoveLeaderResponse> {
        self.check_can_serve(&request, RequiredRole::Voter)?;
        self.require_admin(&request).await?;
        let patience = REQUEST_TIMEOUT + 2 * self.server.threads().election_timeout();
        let moved = self.server.move_leader(request.get_ref().target_id);
        match tokio::time::timeout(patience, moved).await {
            Ok(Ok(())) => Ok(Response::new(MoveLeaderResponse::default())),
            Ok(Err(trouble)) => Err(status::from_error(trouble)),
            Err(_) => {
                let why = "etcdserver: request timed out, leader transfer took too long";
                Err(Status::unknown(why))
            }
        }
    }

    async fn downgrade(&self, request: Request<DowngradeRequest>) -> Reply<DowngradeResponse> {
        self.check_can_serve(&request, RequiredRole::Voter)?;
        self.require_admin(&request).await?;
        if DowngradeAction::try_from(request.get_ref().action).is_err() {
            return Err(Status::unknown("etcdserver: unknown method"));
        }
        let done = self.handle_downgrade(request.get_ref()).await;
        done.map(Response::new).map_err(status::from_error)
    }
}
