//! Tests that read values from disk, because the values are not in memory. These reads must return
//! the right values, and must not run on network threads.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/committed.rs"]
mod committed;

use std::fs::File;
use std::io::{IoSliceMut, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_engine::EngineKind;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::RpcServer;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use tonic::transport::{Channel, Endpoint};

use crate::committed::committed;

const KEYS: u32 = 192;
const VALUE: usize = 64 << 10;

fn key(number: u32) -> Vec<u8> {
    format!("key-{number:04}").into_bytes()
}

fn value(number: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(VALUE / 4)
}

/// Returns the path of the store's file, the largest file outside the log.
fn store_of(dir: &Path) -> PathBuf {
    let mut found = Vec::new();
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in dir.read_dir().unwrap() {
            let entry = entry.unwrap().path();
            match entry.is_dir() {
                true if entry.ends_with("wal") => {}
                true => left.push(entry),
                false => found.push(entry),
            }
        }
    }
    found.into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap()
}

/// Drops the cached pages of a file from memory. Returns false if the file system keeps these pages
/// in memory.
fn forgets(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let mut byte = [0; 1];
    let into = &mut [IoSliceMut::new(&mut byte)];
    let answer = preadv2(&file, into, 0, ReadWriteFlags::NOWAIT);
    if answer != Err(Errno::AGAIN) {
        // Writes directly to standard error, because the harness shows captured output only if the
        // test fails.
        let words = format!("SKIPPED: no page of this file system was cold: {answer:?}\n");
        std::io::stderr().write_all(words.as_bytes()).unwrap();
    }
    answer == Err(Errno::AGAIN)
}

fn one(number: u32) -> RangeRequest {
    RangeRequest { key: key(number).into(), serializable: true, ..RangeRequest::default() }
}

/// The number of ways to read: a plain range, a sorted range, and a range in a transaction.
const WAYS: usize = 3;

async fn read(client: &mut KvClient<Channel>, number: u32) -> Vec<u8> {
    let range = match number as usize % WAYS {
        0 => client.range(one(number)).await.unwrap().into_inner(),
        1 => {
            let (sort_order, sort_target) = (SortOrder::Descend.into(), SortTarget::Mod.into());
            let sorted = RangeRequest { sort_order, sort_target, ..one(number) };
            client.range(sorted).await.unwrap().into_inner()
        }
        _ => {
            let success = vec![RequestOp { request: Some(Request::RequestRange(one(number))) }];
            let txn = TxnRequest { success, ..TxnRequest::default() };
            let mut done = client.txn(txn).await.unwrap().into_inner().responses;
            let Some(Response::ResponseRange(range)) = done.remove(0).response else {
                panic!("a range was asked for");
            };
            range
        }
    };
    assert_eq!((range.count, range.kvs.len()), (1, 1));
    range.kvs[0].value.to_vec()
}

#[tokio::test]
async fn what_is_cold_is_read_by_others() {
    let dir = tempfile::tempdir().unwrap();
    let parts = Era::Clearlane;
    let mut start = MemberConfig::new("m", dir.path(), "http://localhost:2380", parts);
    start.engine_kind = EngineKind::Bolt;
    start.engine.cache_bytes = 1 << 20;
    let opened = start.open().unwrap();
    let node = &opened.threads;
    let address = "127.0.0.1:0".parse().unwrap();
    let server = RpcServer::start(node, address, 2, Limits::default()).unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    let mut client = KvClient::new(endpoint.connect().await.unwrap());

    for number in 0..KEYS {
        let (key, value) = (key(number).into(), value(number).into());
        client.put(PutRequest { key, value, ..PutRequest::default() }).await.unwrap();
    }
    committed(node).await;
    if forgets(&store_of(dir.path())) {
        let cold = || node.metrics().uncached_reads.load(Ordering::Relaxed);
        let mut found = [0; WAYS];
        // The operating system does not read ahead for reads in this order.
        for number in (0..KEYS).map(|step| step * 67 % KEYS) {
            let before = cold();
            assert_eq!(read(&mut client, number).await, value(number), "key {number}");
            found[number as usize % WAYS] += cold() - before;
        }
        assert!(found.iter().all(|found| *found > 0), "of each way so many were cold: {found:?}");
    }
    // The client's connection runs on this thread, and the server waits until the connection has
    // ended. So the server is stopped on another thread.
    drop(client);
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
    node.stop();
    assert!(node.failure().borrow().is_none());
}
