//! Tests of a server on a free port. The client uses only etcd's API.

use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::response_op::Response as Done;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse,
    TxnRequest,
};
use tonic::Code;

use crate::support::{
    TestServer, block_on, code_and_message, connect, get, in_eras, in_every_era, op, put, put_all,
    with_server,
};

#[test]
fn every_era_serves_the_same() {
    in_every_era(async |server| {
        let mut client = KvClient::new(server.channel().await);
        let header = client.put(put("a", "1")).await.unwrap().into_inner().header.unwrap();
        let (cluster, member) = (0xcdf8_1819_4e3a_8c32, 0x8e9e_05c5_2164_694d);
        assert_eq!((header.cluster_id, header.member_id), (cluster, member), "etcd's ids");
        assert_eq!((header.revision, header.raft_term), (2, 2));
        let found = client.range(get("a")).await.unwrap().into_inner();
        assert_eq!((found.count, &found.kvs[0].value[..]), (1, &b"1"[..]));

        let is_one = Compare {
            key: "a".into(),
            target: CompareTarget::Value as i32,
            result: CompareResult::Equal as i32,
            target_union: Some(TargetUnion::Value("1".into())),
            ..Compare::default()
        };
        let then = op(Op::RequestPut(put("b", "2")));
        let txn = TxnRequest { compare: vec![is_one], success: vec![then], failure: vec![] };
        let done = client.txn(txn).await.unwrap().into_inner();
        assert!(done.succeeded);
        assert!(matches!(done.responses[0].response, Some(Done::ResponsePut(_))));

        let delete = DeleteRangeRequest { key: "a".into(), ..Default::default() };
        assert_eq!(client.delete_range(delete).await.unwrap().into_inner().deleted, 1);
        let compact = CompactionRequest { revision: 4, physical: false };
        client.compact(compact).await.unwrap();
        let old = RangeRequest { revision: 2, ..get("a") };
        let status = client.range(old).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange);
        let words = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(status.message(), words);
    });
}

#[test]
fn what_was_acknowledged_is_there_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let address = server.server.address();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..32 {
            writers.spawn(async move {
                let mut client = KvClient::new(connect(address).await);
                for number in 0..20 {
                    let key = format!("{writer}/{number}");
                    client.put(put(&key, "v")).await.unwrap();
                    let read = client.range(get(&key)).await.unwrap().into_inner();
                    assert_eq!(read.count, 1, "a read sees what was acknowledged before");
                }
            });
        }
        while let Some(done) = writers.join_next().await {
            done.unwrap();
        }
    });
    server.stop();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = KvClient::new(server.channel().await);
        let all = RangeRequest { range_end: vec![0].into(), count_only: true, ..get("\0") };
        let found = client.range(all).await.unwrap().into_inner();
        assert_eq!((found.count, found.header.unwrap().revision), (640, 641));
    });
    server.stop();
}

#[test]
fn what_is_wrong_is_told_in_etcds_words_and_codes() {
    with_server(async |server| {
        let mut client = KvClient::new(server.channel().await);
        let no_key = client.put(put("", "1")).await.unwrap_err();
        let words = "etcdserver: key is not provided";
        assert_eq!(code_and_message(&no_key), (Code::InvalidArgument, words));
        let no_lease = client.put(PutRequest { lease: 7, ..put("a", "1") }).await.unwrap_err();
        let words = "etcdserver: requested lease not found";
        assert_eq!(code_and_message(&no_lease), (Code::NotFound, words));
        let too_large = put("a", "v".repeat(3 << 19));
        let too_large = client.put(too_large).await.unwrap_err();
        let words = "etcdserver: request is too large";
        assert_eq!(code_and_message(&too_large), (Code::InvalidArgument, words));
        let future = RangeRequest { revision: 9, ..get("a") };
        let future = client.range(future).await.unwrap_err();
        let words = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(code_and_message(&future), (Code::OutOfRange, words));
        let oldest = RangeRequest { min_mod_revision: 2, ..get("a") };
        let stream = client.range_stream(oldest).await.unwrap_err();
        assert_eq!(stream.code(), Code::Unimplemented);
    });
}

/// If clients give up their requests, the slots of these requests become free. A later request in
/// such a slot must get its own response.
#[test]
fn a_client_that_goes_away_costs_no_other_request() {
    with_server(async |server| {
        let mut client = KvClient::new(server.channel().await);
        for number in 0..200 {
            let mut going = client.clone();
            let request = put("gone", number.to_string());
            let task = tokio::spawn(async move { going.put(request).await });
            tokio::task::yield_now().await;
            task.abort();
            let key = format!("k{number}");
            client.put(put(&key, "v")).await.unwrap();
            let read = client.range(get(&key)).await.unwrap().into_inner();
            assert_eq!(read.kvs[0].key, key);
        }
    });
}

/// Ranges of several sizes are sent in one chunk, in several chunks, or read while they are sent.
/// Each must have the same records as a RangeStream.
#[test]
fn a_range_is_the_same_however_large_it_is() {
    in_eras([Era::Clearlane, Era::V3_2], async |server| {
        let mut client =
            KvClient::new(server.channel().await).max_decoding_message_size(usize::MAX);
        let value = |number: usize| format!("{number}").repeat(1 + number % 900);
        let puts = (0..3000).map(|number| put(format!("k{number:05}"), value(number)));
        put_all(&mut client, puts).await;
        for limit in [0, 1, 100, 128, 129, 500, 1000, 2999, 3000, 3001] {
            let request = RangeRequest { range_end: "l".into(), limit, ..get("k") };
            let whole = client.range(request.clone()).await.unwrap().into_inner();
            let found = if limit == 0 { 3000 } else { limit.min(3000) as usize };
            assert_eq!((whole.kvs.len(), whole.count), (found, 3000), "limit {limit}");
            assert_eq!(whole.more, found < 3000, "limit {limit}");
            for (number, record) in whole.kvs.iter().enumerate() {
                assert_eq!(record.key, format!("k{number:05}"));
                assert_eq!(record.value, value(number), "limit {limit}");
            }
            let mut pages = client.range_stream(request).await.unwrap().into_inner();
            let mut joined = RangeResponse::default();
            while let Some(page) = pages.message().await.unwrap() {
                let page = page.range_response.unwrap();
                assert!(joined.header.is_none(), "only the last page has a header");
                joined.kvs.extend(page.kvs);
                joined = RangeResponse { kvs: joined.kvs, ..page };
            }
            assert_eq!(joined, whole, "limit {limit}");
        }
        // Read a range at an old revision, whose records have other lengths than the newest
        // records.
        let all = RangeRequest { range_end: "l".into(), ..get("k") };
        let before = client.range(all.clone()).await.unwrap().into_inner();
        let revision = before.header.unwrap().revision;
        put_all(&mut client, (0..3000).map(|number| put(format!("k{number:05}"), "new"))).await;
        let then = client.range(RangeRequest { revision, ..all }).await.unwrap().into_inner();
        assert!(then.kvs == before.kvs && then.count == before.count);
    });
}

/// A range that is being sent keeps the state of its start. A client that stops reading delays no
/// other request.
#[test]
fn a_long_range_is_of_one_revision() {
    with_server(async |server| {
        let mut writer = KvClient::new(server.channel().await);
        let mut reader =
            KvClient::new(server.channel().await).max_decoding_message_size(usize::MAX);
        // The range is larger than the data that a response may keep in memory, so it is read while
        // it is sent.
        let value = "a".repeat(9000);
        put_all(&mut writer, (0..4000).map(|number| put(format!("k{number:05}"), &value))).await;
        let all = RangeRequest { range_end: "l".into(), ..get("k") };
        for round in 0..10 {
            let reading = tokio::spawn({
                let (mut reader, all) = (reader.clone(), all.clone());
                async move { reader.range(all).await.unwrap().into_inner() }
            });
            if round % 2 == 1 {
                tokio::task::yield_now().await;
                reading.abort();
            }
            for number in 0..40 {
                writer.put(put(format!("k{number:05}"), round.to_string())).await.unwrap();
            }
            let Ok(found) = reading.await else { continue };
            let seen = found.header.unwrap().revision;
            assert_eq!(found.kvs.len(), 4000);
            assert!(found.kvs.iter().all(|record| record.mod_revision <= seen));
            let newest = found.kvs.iter().map(|record| record.mod_revision).max();
            assert_eq!(newest, Some(seen), "everything up to its revision");
        }
        assert_eq!(reader.range(all).await.unwrap().into_inner().count, 4000);
    });
}
