//! A server of one member on a free port, for tests that call it like any client.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(dead_code, reason = "each test file uses another part of it")]

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::RpcServer;
use clearlane_server::threads::ServerThreads;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// Time limit of a test that would otherwise wait forever. It is much longer than any operation
/// takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct TestServer {
    pub(crate) node: Arc<ServerThreads>,
    pub(crate) server: RpcServer,
}

/// Returns a configuration with etcd's default name and address, and therefore etcd's ids.
pub(crate) fn member_config(dir: &Path, era: Era) -> MemberConfig {
    MemberConfig::new("default", dir, "http://localhost:2380", era)
}

impl TestServer {
    pub(crate) fn start(dir: &Path, era: Era) -> TestServer {
        TestServer::with(&member_config(dir, era), 2, Limits::default())
    }

    pub(crate) fn with(config: &MemberConfig, net_threads: usize, limits: Limits) -> TestServer {
        let node = Arc::new(config.open_alone().unwrap());
        let address = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(&node, address, net_threads, limits).unwrap();
        // Waits for a leader, because a read during an election may fail.
        while node.status().leader() == 0 && node.failure().borrow().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        TestServer { node, server }
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(self.server.address()).await
    }

    pub(crate) fn stop(self) {
        self.server.stop().unwrap();
        self.node.stop();
        assert!(self.node.failure().borrow().is_none());
    }
}

/// Connects to `host:port`.
pub(crate) async fn connect(address: impl std::fmt::Display) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    block_on_for(TIMEOUT, work)
}

pub(crate) fn block_on_for<T>(limit: Duration, work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(limit, work).await.expect("in time") })
}

/// Runs `work` with a new server of the default era, and stops the server afterwards.
pub(crate) fn with_server(work: impl AsyncFn(&TestServer)) {
    in_eras([Era::Clearlane], work);
}

pub(crate) fn in_every_era(work: impl AsyncFn(&TestServer)) {
    in_eras(Era::DISTINCT_STORES, work);
}

#[allow(clippy::print_stdout, reason = "a test that fails shows its era")]
pub(crate) fn in_eras(eras: impl IntoIterator<Item = Era>, work: impl AsyncFn(&TestServer)) {
    for era in eras {
        println!("{era:?}");
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::start(dir.path(), era);
        block_on(work(&server));
        server.stop();
    }
}

pub(crate) fn put(key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> PutRequest {
    let (key, value) = [key.as_ref(), value.as_ref()].map(Bytes::copy_from_slice).into();
    PutRequest { key, value, ..PutRequest::default() }
}

pub(crate) fn get(key: impl AsRef<[u8]>) -> RangeRequest {
    RangeRequest { key: Bytes::copy_from_slice(key.as_ref()), ..RangeRequest::default() }
}

pub(crate) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// Puts keys, a hundred in each transaction. Returns the revision of the last transaction, or 0
/// without keys.
pub(crate) async fn put_all(
    client: &mut KvClient<Channel>,
    puts: impl IntoIterator<Item = PutRequest>,
) -> i64 {
    let mut revision = 0;
    let ops: Vec<_> = puts.into_iter().map(|put| op(Request::RequestPut(put))).collect();
    for success in ops.chunks(100) {
        let txn = TxnRequest { success: success.to_vec(), ..TxnRequest::default() };
        revision = client.txn(txn).await.unwrap().into_inner().header.unwrap().revision;
    }
    revision
}

/// Sends a GET request, and reads until the server closes the connection.
pub(crate) fn http_get(address: impl ToSocketAddrs, path: &str) -> String {
    String::from_utf8(http_get_bytes(address, path)).unwrap()
}

pub(crate) fn http_get_bytes(address: impl ToSocketAddrs, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

pub(crate) fn code_and_message(status: &Status) -> (Code, &str) {
    (status.code(), status.message())
}
