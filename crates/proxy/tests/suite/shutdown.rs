//! The end of a proxy: what its clients notice, and how long it takes.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clearlane_net::tls::TlsAcceptor;
use clearlane_net::tls::config::{SelfSignedConfig, TlsInfo};
use clearlane_net::tls::protocol::ProtocolConfig;
use clearlane_proto::etcdserverpb::LeaseKeepAliveRequest;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proxy::serve::{Proxy, ProxyConfig, listen};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::Endpoint;

use crate::member::{Member, TTL};
use crate::running::{TIMEOUT, config, until};

/// The time after which a proxy that stops gives up calls in progress.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

struct Stopping {
    proxy: Arc<Proxy>,
    address: SocketAddr,
    served: JoinHandle<std::io::Result<()>>,
}

impl Stopping {
    fn start(member: &Member, tls: Option<Arc<TlsAcceptor>>) -> Stopping {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        // One thread serves the connections in their order.
        let config = ProxyConfig { threads: NonZeroUsize::MIN, ..config(member) };
        let proxy = Arc::new(Proxy::start(config));
        let serving = Arc::clone(&proxy);
        let served = tokio::spawn(async move { serving.serve(listener, tls).await });
        Stopping { proxy, address, served }
    }

    /// Stops the proxy, and returns how long its end takes.
    async fn stop(self) -> Duration {
        let begin = Instant::now();
        self.proxy.stop();
        timeout(TIMEOUT, self.served).await.unwrap().unwrap().unwrap();
        begin.elapsed()
    }
}

#[tokio::test]
async fn silent_connections_do_not_delay_the_end() {
    let member = Member::start().await;
    let dir = tempfile::tempdir().unwrap();
    let self_signed = SelfSignedConfig {
        flag: "auto-tls",
        dir: dir.path().to_owned(),
        hosts: vec!["127.0.0.1".to_owned()],
        years: 1,
    };
    let info = TlsInfo { self_signed: Some(self_signed), ..TlsInfo::default() };
    let tls = TlsAcceptor::new("client", &info, &ProtocolConfig::default()).unwrap();
    for tls in [None, Some(Arc::new(tls))] {
        let stopping = Stopping::start(&member, tls);
        let _silent = TcpStream::connect(stopping.address).await.unwrap();
        // The proxy rejects the second connection after it has accepted the first one.
        let mut second = TcpStream::connect(stopping.address).await.unwrap();
        second.write_all(b"no protocol\r\n\r\n").await.unwrap();
        let _ = timeout(TIMEOUT, second.read_to_end(&mut Vec::new())).await.unwrap();
        let time = stopping.stop().await;
        assert!(time < DRAIN_TIMEOUT, "{time:?}");
    }
}

#[tokio::test]
async fn keep_alives_in_flight_are_answered() {
    let member = Member::start().await;
    let stopping = Stopping::start(&member, None);
    let url = format!("http://{}", stopping.address);
    let channel = Endpoint::from_shared(url).unwrap().connect().await.unwrap();
    let (requests, receiver) = mpsc::channel(16);
    let mut client = LeaseClient::new(channel);
    requests.send(LeaseKeepAliveRequest { id: 1 }).await.unwrap();
    let answers = client.lease_keep_alive(ReceiverStream::new(receiver)).await.unwrap();
    let mut answers = answers.into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().id, 1);
    *member.state.renewal_time.lock() = Duration::from_secs(1);
    requests.send(LeaseKeepAliveRequest { id: 2 }).await.unwrap();
    let renewals = &member.state.counts.renewals_started;
    until("the member renews the second lease", || renewals.load(Ordering::SeqCst) == 2).await;
    let stopped = tokio::spawn(stopping.stop());
    let answer = timeout(TIMEOUT, answers.message()).await.unwrap().unwrap().unwrap();
    assert_eq!((answer.id, answer.ttl), (2, TTL));
    let end = timeout(TIMEOUT, answers.message()).await.unwrap().unwrap_err();
    assert_eq!((end.code(), end.message()), (Code::Unavailable, "etcdserver: server stopped"));
    let time = stopped.await.unwrap();
    assert!(time < DRAIN_TIMEOUT, "{time:?}");
}
