//! A proxy of this process, and its clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clearlane_net::tls::TlsAcceptor;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchRequest, WatchResponse};
use clearlane_proxy::serve::{Proxy, ProxyConfig, listen};
use clearlane_proxy::upstream::UpstreamConfig;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use crate::member::Member;

/// Time limit of a test that would otherwise wait forever.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) struct RunningProxy {
    pub(crate) proxy: Arc<Proxy>,
    pub(crate) address: SocketAddr,
}

impl RunningProxy {
    pub(crate) async fn start(config: ProxyConfig, tls: Option<Arc<TlsAcceptor>>) -> RunningProxy {
        RunningProxy::start_on(listen("127.0.0.1:0".parse().unwrap()).unwrap(), config, tls)
    }

    /// Must be called on a runtime.
    pub(crate) fn start_on(
        listener: TcpListener,
        config: ProxyConfig,
        tls: Option<Arc<TlsAcceptor>>,
    ) -> RunningProxy {
        let address = listener.local_addr().unwrap();
        let proxy = Arc::new(Proxy::start(config));
        let served = Arc::clone(&proxy);
        tokio::spawn(async move { served.serve(listener, tls).await });
        RunningProxy { proxy, address }
    }

    pub(crate) async fn connect(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).unwrap();
        endpoint.connect().await.unwrap()
    }
}

/// Returns the configuration of a proxy for one member.
pub(crate) fn config(member: &Member) -> ProxyConfig {
    let endpoints = vec![member.address.to_string()];
    let upstream = UpstreamConfig { endpoints, ..UpstreamConfig::default() };
    ProxyConfig { upstream, ..ProxyConfig::default() }
}

/// Waits until a condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(TIMEOUT, waits).await.is_ok(), "not in time: {what}");
}

/// A client's stream of watches.
pub(crate) struct WatchStream {
    requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
}

impl WatchStream {
    pub(crate) async fn open(channel: Channel) -> WatchStream {
        WatchStream::open_with(channel, None).await
    }

    pub(crate) async fn open_with(channel: Channel, token: Option<&str>) -> WatchStream {
        let (requests, receiver) = mpsc::channel(16);
        let mut client = WatchClient::new(channel);
        let mut request = tonic::Request::new(ReceiverStream::new(receiver));
        if let Some(token) = token {
            request.metadata_mut().insert("token", token.parse().unwrap());
        }
        let responses = client.watch(request).await.unwrap().into_inner();
        WatchStream { requests, responses }
    }

    pub(crate) async fn send(&self, request: RequestUnion) {
        self.requests.send(WatchRequest { request_union: Some(request) }).await.unwrap();
    }

    /// Returns when the request was sent. Does not borrow the stream.
    pub(crate) fn send_later(&self, request: RequestUnion) -> impl Future<Output = ()> + use<> {
        let requests = self.requests.clone();
        async move {
            requests.send(WatchRequest { request_union: Some(request) }).await.unwrap();
        }
    }

    pub(crate) async fn next(&mut self) -> WatchResponse {
        let next = tokio::time::timeout(TIMEOUT, self.responses.message()).await;
        next.expect("a response in time").unwrap().expect("the stream is open")
    }
}
