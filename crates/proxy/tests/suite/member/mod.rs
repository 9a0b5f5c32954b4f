//! A member of a cluster, as far as these tests of the proxy need one. It has keys, a history
//! without compaction, one user, and leases. It counts what reaches it.

mod maintenance;
mod watches;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use clearlane_proto::etcdserverpb::auth_server::{Auth, AuthServer};
use clearlane_proto::etcdserverpb::kv_server::{Kv, KvServer};
use clearlane_proto::etcdserverpb::lease_server::{Lease, LeaseServer};
use clearlane_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use clearlane_proto::etcdserverpb::watch_server::WatchServer;
use clearlane_proto::etcdserverpb::*;
use clearlane_proto::mvccpb::{Event, KeyValue};
use clearlane_proxy::cache::range::Span;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

pub(crate) type Answer<T> = Result<Response<T>, Status>;

pub(crate) const USER: &str = "app";
pub(crate) const PASSWORD: &str = "pass word";
pub(crate) const TTL: i64 = 60;

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) logins: AtomicU64,
    pub(crate) ranges: AtomicU64,
    /// Reads of keys, and the maximum number of them at once.
    pub(crate) lists: AtomicU64,
    pub(crate) lists_max: AtomicU64,
    pub(crate) puts: AtomicU64,
    pub(crate) watch_streams: AtomicU64,
    pub(crate) statuses: AtomicU64,
    pub(crate) creates: AtomicU64,
    pub(crate) renewals: AtomicU64,
    /// Number of renewals that were received.
    pub(crate) renewals_started: AtomicU64,
    pub(crate) keep_alive_streams: AtomicUsize,
    pub(crate) keep_alive_streams_max: AtomicUsize,
}

#[derive(Debug, Default)]
struct Store {
    keys: BTreeMap<Vec<u8>, KeyValue>,
    /// The events, in the order of their revisions.
    events: Vec<Event>,
    revision: i64,
}

#[derive(Debug)]
pub(crate) struct MemberState {
    pub(crate) counts: Counts,
    pub(crate) has_auth: AtomicBool,
    pub(crate) version: Mutex<&'static str>,
    /// The token that is valid.
    token: Mutex<Option<String>>,
    store: Mutex<Store>,
    revision: watch::Sender<i64>,
    /// Changes when all open streams of watches must end.
    pub(crate) watch_generation: watch::Sender<u64>,
    /// If true, reads of keys wait.
    pub(crate) holds_lists: watch::Sender<bool>,
    open_lists: AtomicU64,
    /// If true, watches find that their start is compacted.
    pub(crate) is_compacted: AtomicBool,
    /// If true, a watch that starts in the past gets one revision at a time, and requests for
    /// progress are dropped until then.
    pub(crate) has_slow_history: AtomicBool,
    /// If true, each stream of watches ends at once.
    pub(crate) refuses_watches: AtomicBool,
    /// If true, the requests of watch streams are not read.
    pub(crate) ignores_watches: watch::Sender<bool>,
    /// Renewals of these leases end their stream.
    pub(crate) rejected_leases: Mutex<BTreeSet<i64>>,
    /// Time of one renewal. The renewals of a stream are made one after the other.
    pub(crate) renewal_time: Mutex<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) state: Arc<MemberState>,
    pub(crate) address: SocketAddr,
}

impl Member {
    pub(crate) async fn start() -> Member {
        Member::start_on(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn start_on(listener: TcpListener) -> Member {
        let state = Arc::new(MemberState {
            counts: Counts::default(),
            has_auth: AtomicBool::new(false),
            version: Mutex::new("3.7.1"),
            token: Mutex::default(),
            store: Mutex::new(Store { revision: 1, ..Store::default() }),
            revision: watch::channel(1).0,
            watch_generation: watch::channel(0).0,
            holds_lists: watch::channel(false).0,
            open_lists: AtomicU64::new(0),
            is_compacted: AtomicBool::new(false),
            has_slow_history: AtomicBool::new(false),
            refuses_watches: AtomicBool::new(false),
            ignores_watches: watch::channel(false).0,
            rejected_leases: Mutex::default(),
            renewal_time: Mutex::default(),
        });
        let member = Member { state, address: listener.local_addr().unwrap() };
        let server = tonic::transport::Server::builder()
            .http2_max_header_list_size(1 << 20)
            .add_service(AuthServer::new(member.clone()))
            .add_service(WatchServer::new(member.clone()))
            .add_service(MaintenanceServer::new(member.clone()))
            .add_service(LeaseServer::new(member.clone()))
            .add_service(KvServer::new(member.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        member
    }

    /// Makes all tokens invalid.
    pub(crate) fn expire_tokens(&self) {
        *self.state.token.lock() = None;
    }

    pub(crate) fn count(&self, of: impl Fn(&Counts) -> &AtomicU64) -> u64 {
        of(&self.state.counts).load(Ordering::SeqCst)
    }

    /// Puts a key, without a client.
    pub(crate) fn store(&self, key: &str, value: &[u8]) -> i64 {
        let mut store = self.state.store.lock();
        store.revision += 1;
        let revision = store.revision;
        let old = store.keys.get(key.as_bytes());
        let record = KeyValue {
            key: key.to_owned().into(),
            value: value.to_vec().into(),
            create_revision: old.map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: old.map_or(1, |old| old.version + 1),
            lease: 0,
        };
        store.keys.insert(key.into(), record.clone());
        store.events.push(Event { kv: Some(record), ..Event::default() });
        self.state.revision.send_replace(revision);
        revision
    }

    /// Replaces the cluster by a backup that was made at this revision.
    pub(crate) fn restore(&self, revision: i64) {
        let mut store = self.state.store.lock();
        store.events.retain(|event| event.kv.as_ref().unwrap().mod_revision <= revision);
        let records = store.events.iter().map(|event| event.kv.clone().unwrap());
        store.keys = records.map(|record| (record.key.to_vec(), record)).collect();
        store.revision = revision;
        self.state.revision.send_replace(revision);
        self.end_watches();
    }

    /// Ends all open streams of watches.
    pub(crate) fn end_watches(&self) {
        self.state.watch_generation.send_modify(|generation| *generation += 1);
    }

    fn header(&self) -> ResponseHeader {
        let revision = *self.state.revision.borrow();
        ResponseHeader { cluster_id: 1, member_id: 1, revision, raft_term: 1 }
    }

    fn check<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let token = request.metadata().get("token").map(|token| token.to_str().unwrap());
        self.check_token(token)
    }

    fn check_token(&self, token: Option<&str>) -> Result<(), Status> {
        match token {
            _ if !self.state.has_auth.load(Ordering::SeqCst) => Ok(()),
            None => Err(Status::invalid_argument("etcdserver: user name is empty")),
            Some(token) if self.state.token.lock().as_deref() == Some(token) => Ok(()),
            Some(_) => Err(Status::unauthenticated("etcdserver: invalid auth token")),
        }
    }

    /// Serves one stream of keep-alives: one renewal after the other, as etcd does.
    async fn renew_all(
        self,
        mut requests: Streaming<LeaseKeepAliveRequest>,
        answers: mpsc::Sender<Result<LeaseKeepAliveResponse, Status>>,
    ) {
        let counts = &self.state.counts;
        let open = counts.keep_alive_streams.fetch_add(1, Ordering::SeqCst) + 1;
        counts.keep_alive_streams_max.fetch_max(open, Ordering::SeqCst);
        while let Ok(Some(LeaseKeepAliveRequest { id })) = requests.message().await {
            counts.renewals_started.fetch_add(1, Ordering::SeqCst);
            let time = *self.state.renewal_time.lock();
            if !time.is_zero() {
                tokio::time::sleep(time).await;
            }
            counts.renewals.fetch_add(1, Ordering::SeqCst);
            if self.state.rejected_leases.lock().contains(&id) {
                let _ = answers.send(Err(Status::permission_denied("permission denied"))).await;
                break;
            }
            let header = Some(self.header());
            let answer = LeaseKeepAliveResponse { header, id, ttl: TTL };
            if answers.send(Ok(answer)).await.is_err() {
                break;
            }
        }
        counts.keep_alive_streams.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tonic::async_trait]
impl Kv for Member {
    type RangeStreamStream = tokio_stream::Empty<Result<RangeStreamResponse, Status>>;

    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        self.check(&request)?;
        self.state.counts.ranges.fetch_add(1, Ordering::SeqCst);
        let request = request.into_inner();
        if !request.count_only {
            let (counts, open) = (&self.state.counts, &self.state.open_lists);
            counts.lists.fetch_add(1, Ordering::SeqCst);
            counts.lists_max.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let mut held = self.state.holds_lists.subscribe();
            let _ = held.wait_for(|held| !*held).await;
            open.fetch_sub(1, Ordering::SeqCst);
        }
        let span = Span::of_request(&request.key, &request.range_end);
        let store = self.state.store.lock();
        let found = store.keys.iter().filter(|(key, _)| {
            key[..] >= span.from[..] && span.to.as_ref().is_none_or(|to| key[..] < to[..])
        });
        let mut kvs: Vec<KeyValue> = found.map(|(_, record)| record.clone()).collect();
        let count = kvs.len();
        let limit = if request.limit > 0 { request.limit as usize } else { usize::MAX };
        kvs.truncate(if request.count_only { 0 } else { limit });
        let more = !request.count_only && kvs.len() < count;
        let header = Some(ResponseHeader { revision: store.revision, ..self.header() });
        Ok(Response::new(RangeResponse { header, kvs, more, count: count as i64 }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        self.check(&request)?;
        self.state.counts.puts.fetch_add(1, Ordering::SeqCst);
        let echo = request.metadata().get("test-echo").cloned();
        let PutRequest { key, value, .. } = request.into_inner();
        self.store(std::str::from_utf8(&key).unwrap(), &value);
        let header = Some(self.header());
        let mut response = Response::new(PutResponse { header, ..Default::default() });
        if let Some(echo) = echo {
            response.metadata_mut().insert("test-echo", echo);
        }
        Ok(response)
    }

    async fn range_stream(&self, _: Request<RangeRequest>) -> Answer<Self::RangeStreamStream> {
        Err(Status::unimplemented("not here"))
    }

    async fn delete_range(&self, _: Request<DeleteRangeRequest>) -> Answer<DeleteRangeResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn txn(&self, _: Request<TxnRequest>) -> Answer<TxnResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn compact(&self, _: Request<CompactionRequest>) -> Answer<CompactionResponse> {
        Err(Status::unimplemented("not here"))
    }
}

#[tonic::async_trait]
impl Lease for Member {
    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        self.check(&request)?;
        let (answers, receiver) = mpsc::channel(16);
        tokio::spawn(self.clone().renew_all(request.into_inner(), answers));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn lease_grant(&self, _: Request<LeaseGrantRequest>) -> Answer<LeaseGrantResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn lease_revoke(&self, _: Request<LeaseRevokeRequest>) -> Answer<LeaseRevokeResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn lease_time_to_live(
        &self,
        _: Request<LeaseTimeToLiveRequest>,
    ) -> Answer<LeaseTimeToLiveResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn lease_leases(&self, _: Request<LeaseLeasesRequest>) -> Answer<LeaseLeasesResponse> {
        Err(Status::unimplemented("not here"))
    }
}

macro_rules! auth {
    ($($name:ident $request:ident $response:ident),+) => {
        #[tonic::async_trait]
        impl Auth for Member {
            async fn authenticate(
                &self,
                request: Request<AuthenticateRequest>,
            ) -> Answer<AuthenticateResponse> {
                if !self.state.has_auth.load(Ordering::SeqCst) {
                    let why = "etcdserver: authentication is not enabled";
                    return Err(Status::failed_precondition(why));
                }
                let AuthenticateRequest { name, password } = request.into_inner();
                let number = self.state.counts.logins.fetch_add(1, Ordering::SeqCst);
                if (&name[..], &password[..]) != (USER, PASSWORD) {
                    let why = "etcdserver: authentication failed, invalid user ID or password";
                    return Err(Status::invalid_argument(why));
                }
                let token = format!("token.{number}");
                *self.state.token.lock() = Some(token.clone());
                Ok(Response::new(AuthenticateResponse { token, ..Default::default() }))
            }

            $(async fn $name(&self, _: Request<$request>) -> Answer<$response> {
                Err(Status::unimplemented("not here"))
            })+
        }
    };
}

auth!(
    auth_enable AuthEnableRequest AuthEnableResponse,
    auth_disable AuthDisableRequest AuthDisableResponse,
    auth_status AuthStatusRequest AuthStatusResponse,
    user_add AuthUserAddRequest AuthUserAddResponse,
    user_get AuthUserGetRequest AuthUserGetResponse,
    user_list AuthUserListRequest AuthUserListResponse,
    user_delete AuthUserDeleteRequest AuthUserDeleteResponse,
    user_change_password AuthUserChangePasswordRequest AuthUserChangePasswordResponse,
    user_grant_role AuthUserGrantRoleRequest AuthUserGrantRoleResponse,
    user_revoke_role AuthUserRevokeRoleRequest AuthUserRevokeRoleResponse,
    role_add AuthRoleAddRequest AuthRoleAddResponse,
    role_get AuthRoleGetRequest AuthRoleGetResponse,
    role_list AuthRoleListRequest AuthRoleListResponse,
    role_delete AuthRoleDeleteRequest AuthRoleDeleteResponse,
    role_grant_permission AuthRoleGrantPermissionRequest AuthRoleGrantPermissionResponse,
    role_revoke_permission AuthRoleRevokePermissionRequest AuthRoleRevokePermissionResponse
);
