//! Tests that the revision in a reply's header belongs to the reply's content, even while others
//! write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::response_op::Response as Done;
use clearlane_proto::etcdserverpb::{
    HashKvRequest, LeaseGrantRequest, LeaseTimeToLiveRequest, PutRequest, RangeRequest, TxnRequest,
};
use tonic::transport::Channel;

use crate::support::{in_every_era, op};

const LEASE: i64 = 7;
const ROUNDS: usize = 300;

/// Runs `ask` while a writer puts a new key at each revision, starting at revision 2.
fn beside_a_writer(ask: impl AsyncFn(Channel)) {
    in_every_era(async |server| {
        let channel = server.channel().await;
        let grant = LeaseGrantRequest { id: LEASE, ttl: 600 };
        LeaseClient::new(channel.clone()).lease_grant(grant).await.unwrap();
        let over = Arc::new(AtomicBool::new(false));
        let writer = tokio::spawn(write(channel.clone(), Arc::clone(&over)));
        ask(channel).await;
        over.store(true, Ordering::Relaxed);
        writer.await.unwrap();
    });
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
    beside_a_writer(async |channel| {
        let mut kv = KvClient::new(channel);
        for _ in 0..ROUNDS {
            let found = kv.range(all()).await.unwrap().into_inner();
            assert_eq!(found.header.unwrap().revision, 1 + found.count);
            let op = op(Op::RequestRange(all()));
            let txn = TxnRequest { success: vec![op.clone(), op], ..TxnRequest::default() };
            let done = kv.txn(txn).await.unwrap().into_inner();
            let revision = done.header.unwrap().revision;
            for response in done.responses {
                let Some(Done::ResponseRange(found)) = response.response else { panic!() };
                let header = found.header.unwrap().revision;
                assert_eq!((header, 1 + found.count), (revision, revision));
            }
        }
    });
}

#[test]
fn of_a_hash() {
    beside_a_writer(async |channel| {
        let mut maintenance = MaintenanceClient::new(channel);
        for _ in 0..ROUNDS {
            let request = HashKvRequest { revision: 0 };
            let sum = maintenance.hash_kv(request).await.unwrap().into_inner();
            assert_eq!(sum.header.unwrap().revision, sum.hash_revision);
        }
    });
}

/// The reply must contain all keys up to the revision in its header. It may also contain keys that
/// were put later. A watcher that starts at the revision after the header gets the events of these
/// keys again.
#[test]
fn of_the_keys_of_a_lease() {
    beside_a_writer(async |channel| {
        let mut lease = LeaseClient::new(channel);
        for _ in 0..ROUNDS {
            let request = LeaseTimeToLiveRequest { id: LEASE, keys: true };
            let response = lease.lease_time_to_live(request).await.unwrap().into_inner();
            let revision = response.header.unwrap().revision;
            let keys = response.keys.len() as i64;
            assert!(keys >= revision - 1, "{keys} keys at {revision}");
        }
    });
}
