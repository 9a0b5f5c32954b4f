//! The revision in a reply's header is that of the reply's content, also beside a writer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clearlane::data;
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::response_op::Response as Done;
use clearlane_proto::etcdserverpb::{
    HashKvRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp,
    TxnRequest,
};
use clearlane_rpc::serve::RpcServer;
use clearlane_server::apply::Limits;
use clearlane_server::threads::ServerThreads;
use tonic::transport::{Channel, Endpoint};

const LEASE: i64 = 7;
const ROUNDS: usize = 300;

/// Asks while a key is put with each revision, the first one with revision 2.
fn beside_a_writer<F: Future<Output = ()>>(ask: impl Fn(Channel, Era) -> F) {
    for era in Era::DISTINCT_STORES {
        let dir = tempfile::tempdir().unwrap();
        let (node, server) = start(dir.path(), era);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let asked = runtime.block_on(async {
            let address = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
            let channel = address.connect().await.unwrap();
            let grant = LeaseGrantRequest { id: LEASE, ttl: 600 };
            LeaseClient::new(channel.clone()).lease_grant(grant).await.unwrap();
            let over = Arc::new(AtomicBool::new(false));
            let writer = tokio::spawn(write(channel.clone(), Arc::clone(&over)));
            let asked = tokio::time::timeout(Duration::from_secs(60), ask(channel, era)).await;
            over.store(true, Ordering::Relaxed);
            writer.await.unwrap();
            asked
        });
        asked.unwrap();
        server.stop().unwrap();
        node.stop();
    }
}

fn start(dir: &Path, era: Era) -> (Arc<ServerThreads>, RpcServer) {
    let node = data::open_single_member(dir, era, "default", "http://localhost:2380");
    let node = Arc::new(node.unwrap());
    let address = "127.0.0.1:0".parse().unwrap();
    let server = RpcServer::start(&node, address, 2, Limits::default()).unwrap();
    (node, server)
}

async fn write(channel: Channel, over: Arc<AtomicBool>) {
    let mut kv = KvClient::new(channel);
    for number in 2.. {
        let key = format!("k{number:06}").into();
        let put = PutRequest { key, lease: LEASE, ..PutRequest::default() };
        assert_eq!(kv.put(put).await.unwrap().into_inner().header.unwrap().revision, number);
        if over.load(Ordering::Relaxed) {
            return;
        }
    }
}

fn all() -> RangeRequest {
    let (key, range_end) = ("k".into(), "l".into());
    RangeRequest { key, range_end, count_only: true, ..RangeRequest::default() }
}

#[test]
fn of_a_range_and_of_each_range_in_a_transaction() {
    beside_a_writer(|channel, era| async move {
        let mut kv = KvClient::new(channel);
        for _ in 0..ROUNDS {
            let found = kv.range(all()).await.unwrap().into_inner();
            assert_eq!(found.header.unwrap().revision, 1 + found.count, "{era:?}");
            let op = RequestOp { request: Some(Op::RequestRange(all())) };
            let txn = TxnRequest { success: vec![op.clone(), op], ..TxnRequest::default() };
            let done = kv.txn(txn).await.unwrap().into_inner();
            let revision = done.header.unwrap().revision;
            for response in done.responses {
                let Some(Done::ResponseRange(found)) = response.response else { panic!() };
                let header = found.header.unwrap().revision;
                assert_eq!((header, 1 + found.count), (revision, revision), "{era:?}");
            }
        }
    });
}

#[test]
fn of_a_hash() {
    beside_a_writer(|channel, era| async move {
        let mut maintenance = MaintenanceClient::new(channel);
        for _ in 0..ROUNDS {
            let request = HashKvRequest { revision: 0 };
            let sum = maintenance.hash_kv(request).await.unwrap().into_inner();
            assert_eq!(sum.header.unwrap().revision, sum.hash_revision, "{era:?}");
        }
    });
}

/// The keys may be those of a later revision: a watcher from the next revision on gets these again.
#[test]
fn of_the_keys_of_a_lease() {
    beside_a_writer(|channel, era| async move {
        let mut lease = LeaseClient::new(channel);
        for _ in 0..ROUNDS {
            let request = LeaseTimeToLiveRequest { id: LEASE, keys: true };
            let told = lease.lease_time_to_live(request).await.unwrap().into_inner();
            let revision = told.header.unwrap().revision;
            let keys = told.keys.len() as i64;
            assert!(keys >= revision - 1, "{era:?}: {keys} keys at {revision}");
        }
    });
}
