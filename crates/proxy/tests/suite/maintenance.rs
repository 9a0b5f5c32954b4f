//! The errors of members, and calls of the Maintenance service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clearlane_proto::etcdserverpb::kv_server::KvServer;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::maintenance_server::{Maintenance, MaintenanceServer};
use clearlane_proto::etcdserverpb::*;
use clearlane_proxy::namespace::Namespace;
use clearlane_proxy::serve::ProxyConfig;
use clearlane_proxy::upstream::{MemberState, UpstreamConfig};
use http::Request as HttpRequest;
use http_body::Body as _;
use http_body_util::Full;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tower_service::Service as _;

use crate::member::{Answer, Member};
use crate::running::{RunningProxy, TIMEOUT, config, until};

/// What a member does with calls about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Leader,
    Follower,
    /// Calls get no response. Probes get one.
    Hangs,
}

/// A member with the Maintenance service. It ends with its runtime.
struct Maintained {
    address: String,
    moves: Arc<AtomicU64>,
    runtime: Option<Runtime>,
}

impl Maintained {
    async fn start(role: Role) -> Maintained {
        let member = Member::start().await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let moves = Arc::<AtomicU64>::default();
        let service = MaintenanceServer::new(Upkeep { role, moves: Arc::clone(&moves) });
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = TcpListenerStream::new(TcpListener::from_std(listener).unwrap());
            let server = tonic::transport::Server::builder()
                .add_service(KvServer::new(member))
                .add_service(service);
            server.serve_with_incoming(listener).await
        });
        Maintained { address, moves, runtime: Some(runtime) }
    }

    /// Ends the member and its connections.
    fn kill(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

impl Drop for Maintained {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn config_of(members: &[&Maintained]) -> ProxyConfig {
    let endpoints = members.iter().map(|member| member.address.clone()).collect();
    let upstream = UpstreamConfig { endpoints, ..UpstreamConfig::default() };
    ProxyConfig { upstream, ..ProxyConfig::default() }
}

#[derive(Debug)]
struct Upkeep {
    role: Role,
    moves: Arc<AtomicU64>,
}

type Snapshots = ReceiverStream<Result<SnapshotResponse, Status>>;

#[tonic::async_trait]
impl Maintenance for Upkeep {
    type SnapshotStream = Snapshots;

    async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
        let (member_id, leader) = match self.role {
            Role::Leader => (1, 1),
            Role::Follower => (2, 1),
            Role::Hangs => std::future::pending().await,
        };
        let header = Some(ResponseHeader { member_id, ..ResponseHeader::default() });
        Ok(Response::new(StatusResponse { header, leader, ..StatusResponse::default() }))
    }

    async fn move_leader(&self, _: Request<MoveLeaderRequest>) -> Answer<MoveLeaderResponse> {
        self.moves.fetch_add(1, Ordering::SeqCst);
        match self.role {
            Role::Leader => Ok(Response::new(MoveLeaderResponse::default())),
            Role::Follower | Role::Hangs => {
                Err(Status::failed_precondition("etcdserver: not leader"))
            }
        }
    }

    /// A leader sends one part, and nothing after it.
    async fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<Snapshots> {
        if self.role != Role::Leader {
            return Err(Status::permission_denied("etcdserver: permission denied"));
        }
        let (parts, receiver) = tokio::sync::mpsc::channel(1);
        let part = SnapshotResponse { blob: "part".into(), ..SnapshotResponse::default() };
        parts.send(Ok(part)).await.unwrap();
        tokio::spawn(async move { parts.closed().await });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn alarm(&self, _: Request<AlarmRequest>) -> Answer<AlarmResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn defragment(&self, _: Request<DefragmentRequest>) -> Answer<DefragmentResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn hash(&self, _: Request<HashRequest>) -> Answer<HashResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn hash_kv(&self, _: Request<HashKvRequest>) -> Answer<HashKvResponse> {
        Err(Status::unimplemented("not here"))
    }

    async fn downgrade(&self, _: Request<DowngradeRequest>) -> Answer<DowngradeResponse> {
        Err(Status::unimplemented("not here"))
    }
}

/// Makes a call with an empty message, which must fail. gRPC for Go takes the status from the head
/// of the response only if this head ends the stream.
async fn expect_error(proxy: &RunningProxy, path: &str, code: Code) {
    let mut channel: Channel = proxy.connect().await;
    let request = HttpRequest::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Body::new(Full::from(&[0; 5][..])))
        .unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let response = channel.call(request).await.unwrap();
    let status = Status::from_header_map(response.headers()).expect(path);
    assert_eq!(status.code(), code, "{path}");
    assert!(response.body().is_end_stream(), "{path}: the head does not end the stream");
}

#[tokio::test]
async fn an_error_is_one_frame() {
    let member = Member::start().await;
    member.state.has_auth.store(true, Ordering::SeqCst);
    for namespace in [None, Namespace::new("inside/")] {
        let config = ProxyConfig { namespace, ..config(&member) };
        let proxy = RunningProxy::start(config, None).await;
        for (path, code) in [
            ("/etcdserverpb.KV/Put", Code::InvalidArgument),
            ("/etcdserverpb.KV/Txn", Code::Unimplemented),
            ("/etcdserverpb.KV/RangeStream", Code::Unimplemented),
        ] {
            expect_error(&proxy, path, code).await;
        }
    }
    let follower = Maintained::start(Role::Follower).await;
    let proxy = RunningProxy::start(config_of(&[&follower]), None).await;
    expect_error(&proxy, "/etcdserverpb.Maintenance/Snapshot", Code::PermissionDenied).await;
}

#[tokio::test]
async fn a_stream_of_a_member_that_dies_ends_with_a_status() {
    let mut member = Maintained::start(Role::Leader).await;
    let proxy = RunningProxy::start(config_of(&[&member]), None).await;
    let mut client = MaintenanceClient::new(proxy.connect().await);
    let mut parts = client.snapshot(SnapshotRequest {}).await.unwrap().into_inner();
    assert_eq!(parts.message().await.unwrap().unwrap().blob, "part");
    member.kill();
    let end = tokio::time::timeout(TIMEOUT, parts.message()).await.unwrap().unwrap_err();
    // Clients of etcd repeat reads after this code.
    assert_eq!(end.code(), Code::Unavailable, "{end:?}");
    assert!(end.message().starts_with("etcdserver: request timed out"), "{end:?}");
}

#[tokio::test]
async fn the_leader_is_found_next_to_a_member_that_hangs() {
    let hanging = Maintained::start(Role::Hangs).await;
    let (follower, leader) =
        (Maintained::start(Role::Follower).await, Maintained::start(Role::Leader).await);
    let proxy = RunningProxy::start(config_of(&[&hanging, &follower, &leader]), None).await;
    let members = proxy.proxy.services().upstream.members();
    until("all members are ready", || {
        members.iter().all(|member| member.state() == MemberState::Ready)
    })
    .await;
    let mut client = MaintenanceClient::new(proxy.connect().await);
    for _ in 0..3 {
        client.move_leader(MoveLeaderRequest { target_id: 2 }).await.unwrap();
    }
    assert_eq!(leader.moves.load(Ordering::SeqCst), 3);
    for other in [&hanging, &follower] {
        assert_eq!(other.moves.load(Ordering::SeqCst), 0);
    }
}
