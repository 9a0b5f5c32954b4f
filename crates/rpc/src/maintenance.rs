//! The service Maintenance: alarms, sizes, hashes, snapshots, and the leader.
//!
//! | call | executed by | duration |
//! |---|---|---|
//! | Alarm | the cluster, through the log | a write |
//! | Status | this member, in any state | short |
//! | MoveLeader | the leader | an election |
//! | Downgrade | the cluster, through the log | a write |
//! | Defragment, Hash, HashKV, Snapshot | this member, from its store | a read of the store |
//!
//! The last four calls run on separate threads. For each network thread, a limited number of these
//! calls runs at a time, so that they do not occupy the whole machine. Further calls wait. A
//! [snapshot] lasts until its client has taken it, or has taken nothing for a minute. So snapshots
//! have separate permits, and the other three calls do not wait for them.

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
use clearlane_replica::RequestError;
use clearlane_replica::downgrade::{self, downgrade_info, validate};
use clearlane_server::Server;
use clearlane_server::observe::checksums;
use clearlane_server::observe::corruption::MemberHash;
use tokio::sync::Semaphore;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::client_info::{as_large_response, client_of};
use crate::context::propose;
use crate::credentials::server_for;
use crate::health::ServingState;
use crate::interceptors::{RequiredRole, check_member_can_serve, require_leader};
use crate::snapshot::{self, SnapshotPermits};
use crate::status::{self, Reply};

/// The version of etcd whose API this server implements.
pub const ETCD_VERSION: &str = "3.7.1";
/// The version of etcd whose record format this server uses.
pub const STORAGE_VERSION: &str = "3.7.0";

/// Minimum reported size of the store, in bytes. `etcdctl` divides by the size, so a store without
/// a commit reports one page.
const DB_SIZE_MIN: u64 = 4096;

/// Maximum number of calls of Defragment, Hash and HashKV that one network thread runs at a time.
const BLOCKING_CALLS_MAX: usize = 4;
/// Time limit of MoveLeader, without the two election time-outs that are added to it. The sum
/// equals etcd's `ReqTimeout`, although etcd does not use it for MoveLeader: there, only the
/// client's deadline limits the call.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct MaintenanceService {
    server: Server,
    /// The permits of Defragment, Hash and HashKV.
    permits: Arc<Semaphore>,
    snapshot_permits: SnapshotPermits,
    serving: ServingState,
}

impl MaintenanceService {
    pub(crate) fn new(server: Server, serving: ServingState) -> MaintenanceService {
        let permits = Arc::new(Semaphore::new(BLOCKING_CALLS_MAX));
        let snapshot_permits = SnapshotPermits::default();
        MaintenanceService { server, permits, snapshot_permits, serving }
    }

    fn check_can_serve<T>(&self, request: &Request<T>, role: RequiredRole) -> Result<(), Status> {
        check_member_can_serve(&self.server, request.metadata().as_ref(), role)
    }

    /// Fails unless the call's user has the role `root`. Succeeds if auth is disabled.
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
            // The permit is held until the work is done, even if the client cancels the request
            // earlier.
            let _turn = turn;
            work(&member)
        });
        match done.await {
            Ok(done) => done.map_err(status::from_error),
            Err(error) => Err(Status::internal(format!("the work was not completed: {error}"))),
        }
    }

    /// Validates a downgrade. Returns the full version of the target.
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
            // If no downgrade is enabled, nothing is proposed.
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

/// Returns the alarm as etcd prints it.
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
        let serving = self.serving.clone();
        let work = move |member: &Server| {
            let _run = serving.on_defragment();
            // The store is rewritten into a new file next to the old file. So the disk needs space
            // for all data in use.
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
        // A snapshot starts with a commit, which may need disk space.
        self.server.threads().require_disk_space(0).map_err(status::from_error)?;
        let client = client_of(request.extensions());
        let permit = self.snapshot_permits.acquire(&client).await;
        // The permission may have changed while the call waited for the permit.
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
