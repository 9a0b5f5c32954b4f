//! The registration of a proxy, and its list of proxies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clearlane_proto::etcdserverpb::kv_server::{Kv, KvServer};
use clearlane_proto::etcdserverpb::lease_server::{Lease, LeaseServer};
use clearlane_proto::etcdserverpb::*;
use clearlane_proxy::registration::RegistrationConfig;
use clearlane_proxy::serve::ProxyConfig;
use clearlane_proxy::upstream::UpstreamConfig;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

use crate::member::{Answer, Member, TTL};
use crate::running::{RunningProxy, until};

/// A member that grants leases. Its reads of ranges may fail.
#[derive(Clone, Debug)]
struct Registry {
    member: Member,
    fails: Arc<AtomicBool>,
    failed: Arc<AtomicU64>,
    grants: Arc<AtomicU64>,
    revokes: Arc<AtomicU64>,
}

impl Registry {
    async fn start() -> (Registry, SocketAddr) {
        let (fails, failed, grants, revokes) = Default::default();
        let registry = Registry { member: Member::start().await, fails, failed, grants, revokes };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tonic::transport::Server::builder()
            .add_service(LeaseServer::new(registry.clone()))
            .add_service(KvServer::new(registry.clone()));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        (registry, address)
    }
}

#[tonic::async_trait]
impl Kv for Registry {
    type RangeStreamStream = <Member as Kv>::RangeStreamStream;

    async fn range(&self, request: Request<RangeRequest>) -> Answer<RangeResponse> {
        if !request.get_ref().range_end.is_empty() && self.fails.load(Ordering::SeqCst) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            return Err(Status::resource_exhausted("etcdserver: too many requests"));
        }
        self.member.range(request).await
    }

    async fn put(&self, request: Request<PutRequest>) -> Answer<PutResponse> {
        self.member.put(request).await
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Answer<Self::RangeStreamStream> {
        self.member.range_stream(request).await
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Answer<DeleteRangeResponse> {
        self.member.delete_range(request).await
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Answer<TxnResponse> {
        self.member.txn(request).await
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Answer<CompactionResponse> {
        self.member.compact(request).await
    }
}

#[tonic::async_trait]
impl Lease for Registry {
    type LeaseKeepAliveStream = <Member as Lease>::LeaseKeepAliveStream;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Answer<Self::LeaseKeepAliveStream> {
        self.member.lease_keep_alive(request).await
    }

    async fn lease_grant(&self, _: Request<LeaseGrantRequest>) -> Answer<LeaseGrantResponse> {
        let id = 1 + self.grants.fetch_add(1, Ordering::SeqCst) as i64;
        Ok(Response::new(LeaseGrantResponse { id, ttl: TTL, ..LeaseGrantResponse::default() }))
    }

    async fn lease_revoke(&self, _: Request<LeaseRevokeRequest>) -> Answer<LeaseRevokeResponse> {
        self.revokes.fetch_add(1, Ordering::SeqCst);
        Ok(Response::new(LeaseRevokeResponse::default()))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Answer<LeaseTimeToLiveResponse> {
        self.member.lease_time_to_live(request).await
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Answer<LeaseLeasesResponse> {
        self.member.lease_leases(request).await
    }
}

#[tokio::test]
async fn a_proxy_that_cannot_read_the_list_stays_registered() {
    let (registry, address) = Registry::start().await;
    registry.fails.store(true, Ordering::SeqCst);
    let registration = RegistrationConfig {
        prefix: "proxies".to_owned(),
        ttl_seconds: TTL,
        address: "proxy:2379".to_owned(),
        host_name: "host".to_owned(),
    };
    let endpoints = vec![address.to_string()];
    let config = ProxyConfig {
        upstream: UpstreamConfig { endpoints, ..UpstreamConfig::default() },
        registration: Some(registration),
        ..ProxyConfig::default()
    };
    let proxy = RunningProxy::start(config, None).await;
    until("the list was read twice", || registry.failed.load(Ordering::SeqCst) == 2).await;
    registry.fails.store(false, Ordering::SeqCst);
    let registration = proxy.proxy.services().members.registration.as_ref().unwrap();
    until("the list is read", || !registration.proxies().is_empty()).await;
    assert_eq!(registration.proxies(), [("host".to_owned(), "proxy:2379".to_owned())]);
    assert_eq!(registry.grants.load(Ordering::SeqCst), 1);
    assert_eq!(registry.revokes.load(Ordering::SeqCst), 0);
}
