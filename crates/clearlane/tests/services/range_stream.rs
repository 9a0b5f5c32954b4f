//! Tests of a range that is sent in pages while others write.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, RangeRequest, RangeResponse, WatchCreateRequest, WatchRequest,
};
use clearlane_replica::RequestError;
use clearlane_replica::apply::{Limits, RequestRejection};
use clearlane_server::Server;
use clearlane_server::read::range_stream::RangeStream;
use tonic::Code;
use tonic::transport::Channel;

use crate::support::{TestServer, in_eras, in_every_era, put, put_all, with_server};

impl TestServer {
    /// Opens a stream whose pages the test reads.
    fn pages(&self, request: RangeRequest) -> Result<RangeStream, RequestError> {
        let member = Server::new(&self.node, Limits::default());
        tokio::spawn(member.requests().clone().run());
        RangeStream::open(member, request)
    }
}

fn all() -> RangeRequest {
    RangeRequest { key: "k".into(), range_end: "l".into(), ..RangeRequest::default() }
}

fn revision(response: &RangeResponse) -> i64 {
    response.header.as_ref().unwrap().revision
}

/// Joins the remaining pages of a stream into one response. Returns the response and the number of
/// pages.
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
    in_every_era(async |server| {
        let mut client = KvClient::new(server.channel().await);
        put_all(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "old"))).await;
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
            let mut pages = server.pages(request.clone()).unwrap();
            let mut kvs = pages.next_page().await.unwrap().unwrap().kvs;
            let (mut header, mut count, mut more) = (None, 0, false);
            for number in 0.. {
                client.put(put(format!("k{:02}", number % 100), "new")).await.unwrap();
                client.put(put(format!("kz{number}"), "new")).await.unwrap();
                let Some(page) = pages.next_page().await.unwrap() else { break };
                assert!(header.is_none(), "only the last page has a header");
                kvs.extend(page.kvs);
                (header, count, more) = (page.header, page.count, page.more);
            }
            let joined = RangeResponse { header, kvs, more, count };
            assert_eq!(joined, whole, "{request:?}");
        }
    });
}

/// If a stream reads an old revision, its header has the revision that the store had at the start
/// of the read.
#[test]
fn a_stream_of_the_past_has_the_header_of_its_first_page() {
    in_every_era(async |server| {
        let mut client = KvClient::new(server.channel().await);
        put_all(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "old"))).await;
        put_all(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "new"))).await;
        let mut pages = server.pages(RangeRequest { revision: 2, ..all() }).unwrap();
        let first = pages.next_page().await.unwrap().unwrap();
        client.put(put("k", "newest")).await.unwrap();
        let (rest, number) = joined(pages).await;
        assert!(number > 1, "{number} pages behind the first");
        let values = first.kvs.iter().chain(&rest.kvs).map(|record| &record.value);
        assert!(values.clone().all(|value| value == "old") && values.count() == 100);
        assert_eq!((revision(&rest), rest.count, rest.more), (3, 100, false));
    });
}

/// A compaction between two pages ends the stream with an error.
#[test]
fn a_stream_ends_where_its_revision_is_compacted() {
    in_every_era(async |server| {
        let mut client = KvClient::new(server.channel().await);
        put_all(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "old"))).await;
        let mut pages = server.pages(all()).unwrap();
        assert_eq!(pages.next_page().await.unwrap().unwrap().kvs.len(), 10);
        put_all(&mut client, (0..100).map(|number| put(format!("k{number:02}"), "new"))).await;
        let compaction = CompactionRequest { revision: 3, physical: true };
        client.compact(compaction).await.unwrap();
        let trouble = pages.next_page().await.unwrap_err();
        assert!(
            matches!(trouble, RequestError::Rejected(RequestRejection::Compacted)),
            "{trouble:?}"
        );
        assert!(pages.next_page().await.unwrap().is_none(), "it is over");
    });
}

/// A client that lists keys and then watches from the next revision gets all changes, even if
/// others write at the same time.
#[test]
fn a_list_and_a_watch_behind_it_miss_nothing() {
    in_eras([Era::Clearlane, Era::V3_4, Era::V3_1], async |server| {
        let mut client = KvClient::new(server.channel().await);
        put_all(&mut client, (0..2000).map(|number| put(format!("k{number:04}"), "0"))).await;
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
            watch(server.channel().await, &mut records, listed, revision(&now)).await;
            let is = now.kvs.iter().map(|it| (it.key.to_vec(), it.mod_revision));
            assert!(is.eq(records), "listed at {listed}");
        }
    });
}

/// Lists all keys in pages, each with the revision of its last change. Also returns the listed
/// revision.
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

/// Updates the listed records with the events after the listed revision.
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

/// A request with a sort target but no order succeeds. The response has each key once, in the order
/// in which a plain range returns the keys.
#[test]
fn a_sort_target_without_an_order_is_served_as_by_range() {
    in_every_era(async |server| {
        let mut client = KvClient::new(server.channel().await);
        // The keys are put in random order, and many of them more than once.
        let keys = (0..150).map(|number| number * 7919 % 100);
        put_all(&mut client, keys.map(|key| put(format!("k{key:02}"), format!("{}", key % 13))))
            .await;
        for (target, limit) in
            TARGETS.iter().flat_map(|it| [0, 1, 10, 30, 99, 100, 101].map(|limit| (*it, limit)))
        {
            for keys_only in [false, true] {
                let request = sorted_by(target, SortOrder::None);
                let request = RangeRequest { limit, keys_only, ..request };
                let whole = client.range(request.clone()).await.unwrap().into_inner();
                let (joined, pages) = joined(server.pages(request.clone()).unwrap()).await;
                assert_eq!(joined, whole, "{request:?}");
                assert_eq!(pages > 1, whole.kvs.len() > 10, "{request:?}");
            }
            let request = sorted_by(target, SortOrder::None);
            let counted = RangeRequest { count_only: true, limit, ..request };
            let (joined, pages) = joined(server.pages(counted).unwrap()).await;
            assert_eq!((joined.count, joined.more, pages), (100, false, 1));
        }
    });
}

/// As in etcd, a stream accepts only requests without an order, or in ascending order of the keys.
#[test]
fn any_other_order_is_refused() {
    with_server(async |server| {
        let mut client = KvClient::new(server.channel().await);
        for target in TARGETS {
            for order in [SortOrder::None, SortOrder::Ascend, SortOrder::Descend] {
                let answer = client.range_stream(sorted_by(target, order)).await;
                let is_served = order == SortOrder::None
                    || (target, order) == (SortTarget::Key, SortOrder::Ascend);
                let result = answer.map(drop).map_err(|it| (it.code(), it.message().to_owned()));
                let words = "RangeStream does not support custom sort orders".to_owned();
                let refused = Err((Code::Unimplemented, words));
                assert_eq!(
                    result,
                    if is_served { Ok(()) } else { refused },
                    "{target:?} {order:?}"
                );
            }
        }
        // The order is checked before the filter. Errors that a plain range may also have are
        // checked before the order and the filter.
        let filtered = RangeRequest { min_mod_revision: 1, ..all() };
        let error = client.range_stream(filtered.clone()).await.unwrap_err();
        assert_eq!(error.message(), "RangeStream does not support revision filters");
        let both = RangeRequest { sort_order: SortOrder::Descend as i32, ..filtered };
        let error = client.range_stream(both.clone()).await.unwrap_err();
        assert_eq!(error.message(), "RangeStream does not support custom sort orders");
        let unknown = RangeRequest { sort_target: 9, ..both };
        let error = client.range_stream(unknown).await.unwrap_err();
        assert_eq!(error.message(), "etcdserver: invalid sort option");
    });
}
