//! Tests which requests wait for others in the default era, and which do not. See
//! `docs/appendix-locks.md`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clearlane_contention::YieldPoints;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    HashKvRequest, LeaseGrantRequest, LeaseLeasesRequest, PutRequest, RangeRequest, RangeResponse,
    SnapshotRequest, StatusRequest, TxnRequest, WatchCreateRequest, WatchRequest,
};
use clearlane_replica::applied_position::AppliedPosition;
use clearlane_server::threads::JobKind;
use prost::Message;
use tokio::sync::oneshot;
use tokio::task::JoinHandle as Task;
use tokio::time::timeout;

use crate::client::{Client, Reply, frame, with_server};
use crate::support::{TestServer, get, op, put};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const HASH_KV: &str = "/etcdserverpb.Maintenance/HashKV";
const SNAPSHOT: &str = "/etcdserverpb.Maintenance/Snapshot";

/// Jobs that occupy all slots of the read pool until this value is dropped. They have no yield
/// points.
pub(crate) struct BusyReadPool {
    jobs: Vec<oneshot::Receiver<()>>,
    holds: Vec<mpsc::Sender<()>>,
}

impl BusyReadPool {
    pub(crate) fn of(server: &TestServer) -> BusyReadPool {
        let mut busy = BusyReadPool { jobs: Vec::new(), holds: Vec::new() };
        busy.fill(server, JobKind::Continued);
        busy.fill(server, JobKind::Short);
        busy
    }

    fn fill(&mut self, server: &TestServer, kind: JobKind) {
        loop {
            let (hold, holds) = mpsc::channel::<()>();
            let (sender, receiver) = mpsc::channel();
            self.holds.push(hold);
            self.jobs.push(server.node.read_pool().submit(kind, move || {
                let _ = sender.send(());
                let _ = holds.recv();
            }));
            // Stops at the first job that gets no slot.
            if receiver.recv_timeout(Duration::from_millis(500)).is_err() {
                return;
            }
        }
    }

    pub(crate) async fn release(self) {
        drop(self.holds);
        for job in self.jobs {
            let _ = job.await;
        }
    }
}

/// Returns a range that runs in the read pool, because it is not sorted by key.
pub(crate) fn sorted() -> RangeRequest {
    RangeRequest {
        key: vec![0].into(),
        range_end: vec![0].into(),
        sort_target: 4,
        sort_order: 1,
        ..RangeRequest::default()
    }
}

/// An open write transaction of the store. A separate thread keeps it open until it is released.
struct OpenWrite {
    hold: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl OpenWrite {
    /// Opens the transaction. The caller must ensure that no entry is in flight to the apply loop.
    fn of(server: &TestServer) -> OpenWrite {
        let ((hold, held), (opened, is_open)) = (mpsc::channel(), mpsc::channel());
        let node = server.node.clone();
        let thread = thread::spawn(move || {
            let store = node.store();
            let position = AppliedPosition::read(&**store.snapshot().unwrap().snapshot()).unwrap();
            let txn = store.begin_write().unwrap();
            assert_eq!(position.index, node.status().applied(), "the transaction keeps it");
            opened.send(()).unwrap();
            let _ = held.recv();
            drop(txn.end(position).unwrap());
        });
        is_open.recv().unwrap();
        OpenWrite { hold, thread }
    }

    fn release(self) {
        drop(self.hold);
        self.thread.join().unwrap();
    }
}

fn spawn_call(client: &Client, path: &'static str, message: &impl Message) -> Task<Reply> {
    let (mut client, body) = (client.clone(), frame(0, &message.encode_to_vec()));
    tokio::spawn(async move { client.raw(path, &[], body).await })
}

/// Returns calls that read a key, a range, a key and a range in a transaction, an old revision, or
/// data other than keys.
fn reading_calls() -> Vec<(&'static str, Vec<u8>)> {
    let all = RangeRequest { range_end: vec![0].into(), ..get("k") };
    let ops = [get("k"), all.clone()].map(|range| op(Request::RequestRange(range)));
    let txn = TxnRequest { success: ops.to_vec(), ..TxnRequest::default() };
    vec![
        (RANGE, get("k").encode_to_vec()),
        (RANGE, RangeRequest { serializable: true, ..get("k") }.encode_to_vec()),
        (RANGE, all.encode_to_vec()),
        (RANGE, RangeRequest { revision: 2, ..all }.encode_to_vec()),
        (TXN, txn.encode_to_vec()),
        ("/etcdserverpb.Maintenance/Status", StatusRequest::default().encode_to_vec()),
        (HASH_KV, HashKvRequest::default().encode_to_vec()),
        ("/etcdserverpb.Lease/LeaseLeases", LeaseLeasesRequest::default().encode_to_vec()),
        ("/grpc.health.v1.Health/Check", Vec::new()),
    ]
}

async fn all_are_answered(client: &mut Client, calls: Vec<(&'static str, Vec<u8>)>) {
    for (path, message) in calls {
        let reply = client.raw(path, &[], frame(0, &message)).await;
        assert_eq!(reply.code, "0", "{path}: {}", reply.message);
    }
}

/// Creates a watcher that starts at revision 1, and waits for its first event.
async fn a_watcher_gets_the_past(client: &mut Client) {
    let create =
        WatchCreateRequest { key: "k".into(), start_revision: 1, ..WatchCreateRequest::default() };
    let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let (watched, mut sends) = client.open("/etcdserverpb.Watch/Watch", &[]);
    sends.send_data(frame(0, &create.encode_to_vec()), false).unwrap();
    let mut body = watched.await.unwrap().into_body();
    let mut seen = Vec::new();
    while !seen.windows(5).any(|bytes| bytes == b"value") {
        let data = body.data().await.unwrap().unwrap();
        let _ = body.flow_control().release_capacity(data.len());
        seen.extend_from_slice(&data);
    }
}

/// An open write transaction blocks writes in the same way as a slow entry, or a long step of a
/// compaction. Reads and watchers must not wait for it.
#[test]
fn a_write_that_stands_still_holds_up_writes_alone() {
    with_server(async |server| {
        let mut client = server.client().await;
        for _ in 0..2 {
            assert_eq!(client.call(PUT, &[], &put("k", "value")).await.code, "0");
        }
        let open = OpenWrite::of(server);
        let waiting = [
            spawn_call(&client, PUT, &put("k", "other")),
            spawn_call(
                &client,
                "/etcdserverpb.Lease/LeaseGrant",
                &LeaseGrantRequest { ttl: 60, ..LeaseGrantRequest::default() },
            ),
        ];
        while !server.node.locks().waiting().iter().any(|waits| waits.lock == "store") {
            tokio::task::yield_now().await;
        }
        all_are_answered(&mut client, reading_calls()).await;
        a_watcher_gets_the_past(&mut client).await;
        assert!(waiting.iter().all(|call| !call.is_finished()), "writes wait");
        open.release();
        for call in waiting {
            assert_eq!(call.await.unwrap().code, "0");
        }
    });
}

#[test]
fn a_busy_read_pool_holds_up_expensive_reads_alone() {
    with_server(async |server| {
        let mut client = server.client().await;
        let value = PutRequest { value: vec![7; 1000].into(), ..put("k", "") };
        for _ in 0..2 {
            assert_eq!(client.call(PUT, &[], &value).await.code, "0");
        }
        let busy = BusyReadPool::of(server);
        let waits = spawn_call(&client, RANGE, &sorted());
        let mut calls = reading_calls();
        // A transaction with a range would also wait for the read pool, so it is excluded.
        calls.retain(|(path, _)| !path.ends_with("/Txn"));
        all_are_answered(&mut client, calls).await;
        assert_eq!(client.call(PUT, &[], &value).await.code, "0");
        assert!(!waits.is_finished(), "it is the pool's turn");
        busy.release().await;
        assert_eq!(waits.await.unwrap().code, "0");
    });
}

/// Puts the keys `k0000` and so on, a hundred in each revision.
pub(crate) async fn put_keys(client: &mut Client, count: usize) {
    for first in (0..count).step_by(100) {
        let puts = (first..count.min(first + 100)).map(|number| {
            op(Request::RequestPut(put(format!("k{number:04}"), (number % 7).to_string())))
        });
        let txn = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
        assert_eq!(client.call(TXN, &[], &txn).await.code, "0");
    }
}

/// Eight long jobs with yield points run until the end of the test. Ranges of 1,000 keys must be
/// answered while they run.
#[test]
fn long_reads_do_not_hold_up_a_medium_one() {
    with_server(async |server| {
        let mut client = server.client().await;
        put_keys(&mut client, 1000).await;
        let (done, (begins, begun)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let sorts = (0..8).map(|_| {
            let (done, begins) = (Arc::clone(&done), begins.clone());
            server.node.read_pool().submit(JobKind::Long, move || {
                begins.send(()).unwrap();
                let mut steps = YieldPoints::default();
                while !done.load(Ordering::Relaxed) {
                    steps.advance(YieldPoints::BYTES_PER_STEP);
                }
            })
        });
        let sorts: Vec<_> = sorts.collect();
        // Three long jobs have started, although only two may run at a time. So both
        // places for running long jobs are taken. The other long jobs are suspended or not started.
        assert_eq!(begun.iter().take(3).count(), 3);
        let all = RangeRequest { range_end: vec![0].into(), ..get("k") };
        for range in [
            all.clone(),
            RangeRequest { sort_target: 4, sort_order: 1, ..all.clone() },
            RangeRequest { keys_only: true, ..all.clone() },
            RangeRequest { min_mod_revision: 5, ..all.clone() },
            RangeRequest { revision: 5, ..all },
        ] {
            let txn = op(Request::RequestRange(range.clone()));
            let txn = TxnRequest { success: vec![txn], ..TxnRequest::default() };
            assert_eq!(client.call(RANGE, &[], &range).await.code, "0");
            assert_eq!(client.call(TXN, &[], &txn).await.code, "0");
        }
        done.store(true, Ordering::Relaxed);
        for sort in sorts {
            sort.await.unwrap();
        }
    });
}

/// Counting keys at an old revision is expensive, because the index must check for each key whether
/// it existed at that revision. So these counts must run in the read pool, and counts of few keys
/// or of the newest revision must not.
#[test]
fn many_keys_of_the_past_are_counted_in_the_read_pool() {
    with_server(async |server| {
        let mut client = server.client().await;
        put_keys(&mut client, 2000).await;
        let past = RangeRequest { range_end: vec![0].into(), revision: 7, ..get("k") };
        let count = RangeRequest { count_only: true, ..past.clone() };
        let page = RangeRequest { limit: 10, ..past.clone() };
        let busy = BusyReadPool::of(server);
        let waiting = [&count, &page].map(|range| spawn_call(&client, RANGE, range));
        let few = RangeRequest { range_end: "k0500".into(), ..past };
        for range in [RangeRequest { revision: 0, ..count }, RangeRequest { revision: 0, ..page }] {
            assert_eq!(client.call(RANGE, &[], &range).await.code, "0");
        }
        assert_eq!(client.call(RANGE, &[], &RangeRequest { limit: 5, ..few }).await.code, "0");
        assert!(waiting.iter().all(|call| !call.is_finished()));
        busy.release().await;
        for call in waiting {
            let reply = call.await.unwrap();
            assert_eq!(reply.code, "0");
            let found = RangeResponse::decode(&reply.body[5..]).unwrap();
            assert_eq!(found.count, 600, "six revisions of a hundred keys");
            assert!(found.kvs.is_empty() || found.kvs.len() == 10 && found.more);
        }
    });
}

/// Each network thread sends up to four snapshots at the same time, and each of them waits for its
/// client. So four clients that do not read their snapshots block only the clients of other
/// snapshots.
#[test]
fn snapshots_that_are_not_taken_hold_up_other_snapshots_alone() {
    with_server(async |server| {
        let mut client = server.client().await;
        // More data than the client's windows allow.
        let value = PutRequest { value: vec![7; 1 << 20].into(), ..put("k", "") };
        for number in 0..24 {
            let key = format!("a{number}").into();
            let put = PutRequest { key, ..value.clone() };
            assert_eq!(client.call(PUT, &[], &put).await.code, "0");
        }
        let mut lazy = Vec::new();
        for _ in 0..4 {
            let mut own = server.client().await;
            let (answer, mut sends) = own.open(SNAPSHOT, &[]);
            sends.send_data(frame(0, &SnapshotRequest::default().encode_to_vec()), true).unwrap();
            lazy.push((answer.await.unwrap().into_body(), own));
        }
        let mut fifth = spawn_call(&client, SNAPSHOT, &SnapshotRequest::default());
        assert!(timeout(Duration::from_millis(500), &mut fifth).await.is_err(), "a fifth waits");
        all_are_answered(&mut client, reading_calls()).await;
        assert_eq!(client.call(PUT, &[], &put("k", "value")).await.code, "0");
        for path in ["Hash", "HashKV", "Defragment"] {
            let path = format!("/etcdserverpb.Maintenance/{path}");
            assert_eq!(client.raw(&path, &[], frame(0, b"")).await.code, "0", "{path}");
        }
        assert!(!fifth.is_finished());
        drop(lazy.pop());
        assert_eq!(fifth.await.unwrap().code, "0");
    });
}
