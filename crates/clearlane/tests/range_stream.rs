//! A range that is sent in pages, beside writers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clearlane::data;
use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest,
    WatchCreateRequest, WatchRequest,
};
use clearlane_rpc::serve::RpcServer;
use clearlane_server::apply::{Limits, RequestRejection};
use clearlane_server::range_stream::RangeStream;
use clearlane_server::threads::ServerThreads;
use clearlane_server::{RequestError, Server};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

struct Running {
    node: Arc<ServerThreads>,
    server: RpcServer,
}

impl Running {
    fn start(dir: &Path, era: Era) -> Running {
        let node = data::open_single_member(dir, era, "default", "http://localhost:2380");
        let node = Arc::new(node.unwrap());
        let address = "127.0.0.1:0".parse().unwrap();
        let server = RpcServer::start(&node, address, 2, Limits::default()).unwrap();
        Running { node, server }
    }

    async fn channel(&self) -> Channel {
        let address = Endpoint::from_shared(format!("http://{}", self.server.address()));
        address.unwrap().connect().await.unwrap()
    }

    /// The test reads its pages.
    fn pages(&self, request: RangeRequest) -> Result<RangeStream, RequestError> {
        let member = Server::new(&self.node, Limits::default());
        tokio::spawn(member.requests().clone().run());
        RangeStream::open(member, request)
    }

    fn stop(self) {
        self.server.stop().unwrap();
        self.node.stop();
        assert!(self.node.failure().borrow().is_none());
    }
}

fn put(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> PutRequest {
    PutRequest { key: key.into().into(), value: value.into().into(), ..PutRequest::default() }
}

/// A hundred in a transaction.
async fn load(client: &mut KvClient<Channel>, puts: impl IntoIterator<Item = PutRequest>) {
    let ops = puts.into_iter().map(|put| RequestOp { request: Some(Op::RequestPut(put)) });
    for success in ops.collect::<Vec<_>>().chunks(100) {
        let txn = TxnRequest { success: success.to_vec(), ..TxnRequest::default() };
        client.txn(txn).await.unwrap();
    }
}

fn all() -> RangeRequest {
    RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), work).await.unwrap() })
}

fn revision(response: &RangeResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

/// Joins the pages that are left.
async fn joined(mut pages: RangeStream) -> (RangeResponse, usize) {
    let (mut joined, mut number) = (RangeResponse::default(), 0);
    while let Some(page) = pages.next_page().await.unwrap() {
        assert!(joined.header.is_none(), "only the last page has a header");
        joined.kvs.extend(page.kvs);
        joined = RangeResponse { kvs: joined.kvs, ..page };
        number += 1;
    }
    (joined, number)
}

/// Writes between the pages change neither the records nor the count on the last page.
#[test]
fn a_stream_is_of_its_first_pages_revision() {
    for era in Era::DISTINCT_STORES {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), era);
        block_on(async {
            let mut client = KvClient::new(running.channel().await);
            load(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "old"))).await;
            let by_value = SortTarget::Value as i32;
            let requests = [
                all(),
                RangeRequest { limit: 30, ..all() },
                RangeRequest { revision: -1, ..all() },
                RangeRequest { keys_only: true, ..all() },
                RangeRequest { sort_target: by_value, ..all() },
            ];
            for request in requests {
                let whole = client.range(request.clone()).await.unwrap().into_inner();
                let mut pages = running.pages(request.clone()).unwrap();
                let mut kvs = pages.next_page().await.unwrap().unwrap().kvs;
                let (mut header, mut count, mut more) = (None, 0, false);
                for number in 0.. {
                    client.put(put(format!("k{:02}", number % 100), "new")).await.unwrap();
                    client.put(put(format!("kz{number}"), "new")).await.unwrap();
                    let Some(page) = pages.next_page().await.unwrap() else { break };
                    assert!(header.is_none(), "{era:?}: only the last page has a header");
                    kvs.extend(page.kvs);
                    (header, count, more) = (page.header, page.count, page.more);
                }
                let joined = RangeResponse { header, kvs, more, count };
                assert_eq!(joined, whole, "{era:?}: {request:?}");
            }
        });
        running.stop();
    }
}

/// A read of an old revision has in its header the store's revision at its beginning.
#[test]
fn a_stream_of_the_past_has_the_header_of_its_first_page() {
    for era in Era::DISTINCT_STORES {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), era);
        block_on(async {
            let mut client = KvClient::new(running.channel().await);
            load(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "old"))).await;
            load(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "new"))).await;
            let mut pages = running.pages(RangeRequest { revision: 2, ..all() }).unwrap();
            let first = pages.next_page().await.unwrap().unwrap();
            client.put(put("k", "newest")).await.unwrap();
            let (rest, number) = joined(pages).await;
            assert!(number > 1, "{number} pages behind the first");
            let values = first.kvs.iter().chain(&rest.kvs).map(|record| &record.value);
            assert!(values.clone().all(|value| value == "old") && values.count() == 100);
            assert_eq!((revision(&rest), rest.count, rest.more), (3, 100, false), "{era:?}");
        });
        running.stop();
    }
}

/// A compaction between two pages ends the stream with an error.
#[test]
fn a_stream_ends_where_its_revision_is_compacted() {
    for era in Era::DISTINCT_STORES {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), era);
        block_on(async {
            let mut client = KvClient::new(running.channel().await);
            load(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "old"))).await;
            let mut pages = running.pages(all()).unwrap();
            assert_eq!(pages.next_page().await.unwrap().unwrap().kvs.len(), 10);
            load(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "new"))).await;
            let compaction = CompactionRequest { revision: 3, physical: true };
            client.compact(compaction).await.unwrap();
            let trouble = pages.next_page().await.unwrap_err();
            assert!(
                matches!(trouble, RequestError::Rejected(RequestRejection::Compacted)),
                "{trouble:?}"
            );
            assert!(pages.next_page().await.unwrap().is_none(), "it is over");
        });
        running.stop();
    }
}

/// A client that lists and watches from the next revision on knows all there is, however many write
/// meanwhile.
#[test]
fn a_list_and_a_watch_behind_it_miss_nothing() {
    for era in [Era::Clearlane, Era::V3_4, Era::V3_1] {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), era);
        block_on(async {
            let mut client = KvClient::new(running.channel().await);
            load(&mut client, (0..2000).map(|number| put(format!("k{number:04}"), "0"))).await;
            let over = Arc::new(AtomicBool::new(false));
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let (mut client, over) = (client.clone(), Arc::clone(&over));
                    tokio::spawn(async move {
                        for number in (writer..).step_by(4) {
                            let key = format!("k{:04}", number * 7 % 2000);
                            client.put(put(key, number.to_string())).await.unwrap();
                            if over.load(Ordering::Relaxed) {
                                break;
                            }
                        }
                    })
                })
                .collect();
            let mut known = Vec::new();
            for _ in 0..10 {
                known.push(list(&mut client).await);
            }
            over.store(true, Ordering::Relaxed);
            for writer in writers {
                writer.await.unwrap();
            }
            let now = client.range(all()).await.unwrap().into_inner();
            for (mut records, listed) in known {
                watch(running.channel().await, &mut records, listed, revision(&now)).await;
                let is = now.kvs.iter().map(|it| (it.key.to_vec(), it.mod_revision));
                assert!(is.eq(records), "{era:?}: listed at {listed}");
            }
        });
        running.stop();
    }
}

/// Lists all keys, each with the revision of its last change, in pages.
async fn list(client: &mut KvClient<Channel>) -> (BTreeMap<Vec<u8>, i64>, i64) {
    let mut pages = client.range_stream(all()).await.unwrap().into_inner();
    let (mut records, mut listed) = (BTreeMap::new(), 0);
    while let Some(page) = pages.message().await.unwrap() {
        let page = page.range_response.unwrap();
        records.extend(page.kvs.iter().map(|it| (it.key.to_vec(), it.mod_revision)));
        listed = page.header.map_or(0, |header| header.revision);
    }
    (records, listed)
}

/// Brings what was listed up to date, by the events behind it.
async fn watch(channel: Channel, records: &mut BTreeMap<Vec<u8>, i64>, listed: i64, until: i64) {
    if listed == until {
        return;
    }
    let create = WatchCreateRequest {
        key: "k".into(),
        range_end: "l".into(),
        start_revision: listed + 1,
        ..WatchCreateRequest::default()
    };
    let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let requests = futures_util::StreamExt::chain(
        tokio_stream::once(request),
        tokio_stream::pending::<WatchRequest>(),
    );
    let mut responses = WatchClient::new(channel).watch(requests).await.unwrap().into_inner();
    let mut seen = listed;
    while seen < until {
        for event in responses.message().await.unwrap().unwrap().events {
            let record = event.kv.unwrap();
            seen = record.mod_revision;
            records.insert(record.key.to_vec(), seen);
        }
    }
}

fn sorted_by(sort_target: SortTarget, sort_order: SortOrder) -> RangeRequest {
    RangeRequest { sort_target: sort_target as i32, sort_order: sort_order as i32, ..all() }
}

const TARGETS: [SortTarget; 5] =
    [SortTarget::Key, SortTarget::Version, SortTarget::Create, SortTarget::Mod, SortTarget::Value];

/// A target without an order is served, each key once, and in the order in which a range has it.
#[test]
fn a_sort_target_without_an_order_is_served_as_by_range() {
    for era in Era::DISTINCT_STORES {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), era);
        block_on(async {
            let mut client = KvClient::new(running.channel().await);
            // In no order at all; many are changed more than once.
            let keys = (0..150).map(|number| number * 7919 % 100);
            load(&mut client, keys.map(|key| put(format!("k{key:02}"), format!("{}", key % 13))))
                .await;
            for (target, limit) in
                TARGETS.iter().flat_map(|it| [0, 1, 10, 30, 99, 100, 101].map(|limit| (*it, limit)))
            {
                for keys_only in [false, true] {
                    let request = sorted_by(target, SortOrder::None);
                    let request = RangeRequest { limit, keys_only, ..request };
                    let whole = client.range(request.clone()).await.unwrap().into_inner();
                    let (joined, pages) = joined(running.pages(request.clone()).unwrap()).await;
                    assert_eq!(joined, whole, "{era:?}: {request:?}");
                    assert_eq!(pages > 1, whole.kvs.len() > 10, "{era:?}: {request:?}");
                }
                let request = sorted_by(target, SortOrder::None);
                let counted = RangeRequest { count_only: true, limit, ..request };
                let (joined, pages) = joined(running.pages(counted).unwrap()).await;
                assert_eq!((joined.count, joined.more, pages), (100, false, 1));
            }
        });
        running.stop();
    }
}

/// etcd's check: no order at all, or the keys' ascending.
#[test]
fn any_other_order_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let running = Running::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = KvClient::new(running.channel().await);
        for target in TARGETS {
            for order in [SortOrder::None, SortOrder::Ascend, SortOrder::Descend] {
                let answer = client.range_stream(sorted_by(target, order)).await;
                let is_served = order == SortOrder::None
                    || (target, order) == (SortTarget::Key, SortOrder::Ascend);
                let told = answer.map(drop).map_err(|it| (it.code(), it.message().to_owned()));
                let words = "RangeStream does not support custom sort orders".to_owned();
                let refused = Err((Code::Unimplemented, words));
                assert_eq!(told, if is_served { Ok(()) } else { refused }, "{target:?} {order:?}");
            }
        }
        // The order is looked at before the filter, and what no range may be before both.
        let filtered = RangeRequest { min_mod_revision: 1, ..all() };
        let told = client.range_stream(filtered.clone()).await.unwrap_err();
        assert_eq!(told.message(), "RangeStream does not support revision filters");
        let both = RangeRequest { sort_order: SortOrder::Descend as i32, ..filtered };
        let told = client.range_stream(both.clone()).await.unwrap_err();
        assert_eq!(told.message(), "RangeStream does not support custom sort orders");
        let unknown = RangeRequest { sort_target: 9, ..both };
        let told = client.range_stream(unknown).await.unwrap_err();
        assert_eq!(told.message(), "etcdserver: invalid sort option");
    });
    running.stop();
}
