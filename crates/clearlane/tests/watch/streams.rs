//! Tests of the exact messages of a stream, in every era.

use std::time::Duration;

use clearlane_backend::Era;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, PutRequest, RequestOp, TxnRequest, WatchCreateRequest,
};
use tonic::Code;

use crate::client::{lines, of_key, of_letter};
use crate::support::{TestServer, block_on, in_eras, in_every_era};

#[test]
fn the_past_and_then_the_present() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        for value in ["1", "2", "3"] {
            client.put("a", value).await;
        }
        let mut stream = client.stream().await;
        stream.create(WatchCreateRequest { start_revision: 3, ..of_key("a") });
        let created = stream.next().await;
        let header = created.header.unwrap();
        assert!(created.created && header.cluster_id != 0 && header.member_id != 0);
        assert_eq!((created.watch_id, header.revision, header.raft_term), (0, 4, 2));
        let past = stream.next().await;
        assert_eq!(lines(&past.events), ["put a=2 @3", "put a=3 @4"]);
        client.put("b", "1").await;
        client.put("a", "4").await;
        let now = stream.next().await;
        assert_eq!(
            (lines(&now.events), now.header.unwrap().revision),
            (vec!["put a=4 @6".into()], 6)
        );
    });
}

#[test]
fn a_transaction_is_one_response_and_says_what_was_before() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        client.put("k1", "old").await;
        let mut stream =
            client.watcher(WatchCreateRequest { prev_kv: true, ..of_letter(b'k') }).await;
        let put = |key: &str| {
            let (key, value) = (key.to_owned().into(), "new".into());
            Op::RequestPut(PutRequest { key, value, ..PutRequest::default() })
        };
        let delete = DeleteRangeRequest { key: "k1".into(), ..Default::default() };
        let ops = [put("k2"), Op::RequestDeleteRange(delete), put("x")];
        let success = ops.into_iter().map(|op| RequestOp { request: Some(op) }).collect();
        client.kv.txn(TxnRequest { success, ..TxnRequest::default() }).await.unwrap();
        client.put("k2", "newer").await;
        let response = stream.next().await;
        assert_eq!(lines(&response.events), ["put k2=new @3", "delete k1 @3 (was old)"]);
        let gone = response.events[1].kv.clone().unwrap();
        assert_eq!((gone.create_revision, gone.version, gone.value.len()), (0, 0, 0));
        assert_eq!(lines(&stream.next().await.events), ["put k2=newer @4 (was new)"]);
    });
}

#[test]
fn filters_leave_out_and_unknown_ones_do_not() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        let mut stream = client.stream().await;
        for (watch_id, filters) in [(1, vec![0]), (2, vec![1]), (3, vec![0, 1]), (4, vec![9])] {
            stream.create(WatchCreateRequest { watch_id, filters, ..of_key("a") });
            assert_eq!(stream.next().await.watch_id, watch_id);
        }
        client.put("a", "1").await;
        client
            .kv
            .delete_range(DeleteRangeRequest { key: "a".into(), ..Default::default() })
            .await
            .unwrap();
        let mut received = Vec::new();
        for _ in 0..4 {
            let response = stream.next().await;
            received.push((response.watch_id, lines(&response.events)[0].clone()));
        }
        received.sort();
        let expected =
            [(1, "delete a @3"), (2, "put a=1 @2"), (4, "delete a @3"), (4, "put a=1 @2")];
        assert_eq!(received, expected.map(|(id, line)| (id, line.to_owned())));
    });
}

#[test]
fn numbers_are_chosen_by_either_side() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        let mut stream = client.stream().await;
        for (asked, given) in [(0, 0), (7, 7), (1, 1), (0, 2), (-3, -3)] {
            stream.create(WatchCreateRequest { watch_id: asked, ..of_key("a") });
            let created = stream.next().await;
            assert_eq!((created.watch_id, created.created, created.canceled), (given, true, false));
        }
        let wrong = [
            (
                WatchCreateRequest { watch_id: 7, ..of_key("a") },
                "mvcc: duplicate watch ID provided on the WatchStream",
            ),
            (
                WatchCreateRequest { range_end: "a".into(), ..of_key("z") },
                "mvcc: watcher range is empty",
            ),
            (
                WatchCreateRequest { start_revision: -3, ..of_key("a") },
                "etcdserver: mvcc: required revision has been compacted",
            ),
        ];
        for (request, words) in wrong {
            stream.create(request);
            let refused = stream.next().await;
            assert!(refused.created && refused.canceled, "{words}");
            assert_eq!((refused.watch_id, refused.cancel_reason.as_str()), (-1, words));
        }
        // The stream ignores a request to cancel an unknown watcher, and an empty request.
        stream.cancel(99);
        stream.say_nothing();
        stream.cancel(7);
        let canceled = stream.next().await;
        assert_eq!((canceled.watch_id, canceled.canceled), (7, true));
        assert_eq!(server.figures().watchers, 4);
    });
}

#[test]
fn all_keys_and_the_key_nul() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        let mut stream = client.stream().await;
        let no_end = vec![0];
        let asked = [(1, "", vec![]), (2, "", no_end.clone()), (3, "b", no_end)];
        for (watch_id, key, end) in asked {
            stream.create(WatchCreateRequest { watch_id, range_end: end.into(), ..of_key(key) });
            stream.next().await;
        }
        let mut received = Vec::new();
        for (key, count) in [("\0", 2), ("a", 1), ("c", 2)] {
            client.put(key, "1").await;
            for _ in 0..count {
                let response = stream.next().await;
                received.push((key, response.watch_id));
            }
        }
        received.sort();
        assert_eq!(received, [("\0", 1), ("\0", 2), ("a", 2), ("c", 2), ("c", 3)]);
    });
}

#[test]
fn what_is_wrong_twice_is_refused_for_etcds_first_reason() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        for _ in 0..5 {
            client.put("a", "1").await;
        }
        client.kv.compact(CompactionRequest { revision: 4, physical: false }).await.unwrap();
        let mut stream = client.watcher(WatchCreateRequest { watch_id: 7, ..of_key("x") }).await;
        let (negative, empty, duplicate) = (
            "etcdserver: mvcc: required revision has been compacted",
            "mvcc: watcher range is empty",
            "mvcc: duplicate watch ID provided on the WatchStream",
        );
        for (end, watch_id, start_revision) in ["", "y", "x", "a"].into_iter().flat_map(|end| {
            [0, 7].into_iter().flat_map(move |id| [-3, -1, 0, 2, 99].map(|at| (end, id, at)))
        }) {
            let create = WatchCreateRequest {
                range_end: end.into(),
                watch_id,
                start_revision,
                ..of_key("x")
            };
            let reason = match (start_revision, end, watch_id) {
                (..0, _, _) => negative,
                (_, "x" | "a", _) => empty,
                (_, _, 7) => duplicate,
                _ => continue,
            };
            stream.create(create);
            let refused = stream.next().await;
            let about = format!("x..{end} {watch_id} {start_revision}");
            assert!(refused.created && refused.canceled, "{about}");
            assert_eq!((refused.watch_id, &refused.cancel_reason[..]), (-1, reason), "{about}");
        }
        assert_eq!(server.figures().watchers, 1);
    });
}

#[test]
fn what_is_compacted_ends_a_watcher_after_it_was_made() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        for _ in 0..5 {
            client.put("a", "1").await;
        }
        client.kv.compact(CompactionRequest { revision: 4, physical: false }).await.unwrap();
        let mut stream =
            client.watcher(WatchCreateRequest { start_revision: 3, ..of_key("a") }).await;
        let ended = stream.next().await;
        assert!(ended.canceled && ended.cancel_reason.is_empty());
        assert_eq!((ended.compact_revision, ended.header.unwrap().revision), (4, 0));
        assert_eq!(server.figures().watchers, 0);
        stream.create(WatchCreateRequest { start_revision: 4, ..of_key("a") });
        assert!(stream.next().await.created);
        assert_eq!(lines(&stream.next().await.events), ["put a=1 @4", "put a=1 @5", "put a=1 @6"]);
    });
}

#[test]
fn a_watcher_from_a_future_revision_gets_nothing_before() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        let mut stream =
            client.watcher(WatchCreateRequest { start_revision: 4, ..of_key("a") }).await;
        // The watcher starts at a future revision, so the stream does not respond to this progress
        // request. A stream without watchers does not respond either.
        stream.progress();
        for value in ["1", "2", "3"] {
            client.put("a", value).await;
        }
        assert_eq!(lines(&stream.next().await.events), ["put a=3 @4"]);
        stream.progress();
        let progress = stream.next().await;
        assert_eq!((progress.watch_id, progress.header.unwrap().revision), (-1, 4));
        assert!(progress.events.is_empty() && !progress.canceled && !progress.created);
    });
}

#[test]
fn a_client_that_has_no_more_to_ask_may_listen() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        let mut stream = client.watcher(of_key("a")).await.half_close();
        for value in ["1", "2"] {
            let revision = client.put("a", value).await;
            stream.revisions(revision, revision).await;
        }
    });
}

#[test]
fn notices_of_progress_follow_the_store() {
    in_eras([Era::Clearlane, Era::V3_5], async |server| {
        server.node.watch_server().set_progress_interval(Duration::from_millis(100));
        let mut client = server.client().await;
        let mut stream = client.stream().await;
        stream.create(of_key("a"));
        stream.create(WatchCreateRequest { progress_notify: true, ..of_key("a") });
        assert!(stream.next().await.created && stream.next().await.created);
        for expected in [1, 2, 3] {
            // A notice that was in flight may have the previous revision.
            loop {
                let notice = stream.next().await;
                assert_eq!((notice.watch_id, notice.events.len()), (1, 0));
                if notice.header.unwrap().revision == expected {
                    break;
                }
            }
            client.put("other", "1").await;
        }
    });
}

/// One delete removes three records of 700 kB. The watch response contains the previous value of
/// each, and exceeds the maximum size of a message. The response is divided if the client allows
/// fragments.
#[test]
fn a_long_response_is_cut_if_the_client_takes_fragments() {
    in_every_era(async |server| {
        let mut client = server.client().await;
        for key in ["f1", "f2", "f3"] {
            client.put(key, vec![7; 700_000]).await;
        }
        let (mut whole, mut cut) = (client.stream().await, client.stream().await);
        for (stream, fragment) in [(&mut whole, false), (&mut cut, true)] {
            stream.create(WatchCreateRequest { prev_kv: true, fragment, ..of_letter(b'f') });
            assert!(stream.next().await.created);
        }
        let (key, range_end) = ("f".into(), "g".into());
        let delete = DeleteRangeRequest { key, range_end, ..Default::default() };
        assert_eq!(client.kv.delete_range(delete).await.unwrap().into_inner().deleted, 3);
        let response = whole.next().await;
        assert_eq!((response.events.len(), response.fragment), (3, false));
        let (first, last) = (cut.next().await, cut.next().await);
        assert_eq!((first.events.len(), first.fragment), (2, true));
        assert_eq!((last.events.len(), last.fragment), (1, false));
        assert_eq!(first.header, last.header);
        assert_eq!([first.events, last.events].concat(), response.events);
    });
}

#[test]
fn a_stream_ends_when_the_server_stops() {
    let dir = tempfile::tempdir().unwrap();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = server.client().await;
        let mut stream = client.watcher(of_key("a")).await;
        let stopping = std::thread::spawn(move || server.stop());
        let status = stream.end().await;
        let expected = (Code::Unavailable, "etcdserver: server stopped");
        assert_eq!((status.code(), status.message()), expected);
        drop((client, stream));
        stopping.join().unwrap();
    });
}

#[test]
fn it_goes_on_behind_a_restart() {
    for era in Era::DISTINCT_STORES {
        let dir = tempfile::tempdir().unwrap();
        let server = TestServer::start(dir.path(), era);
        block_on(async {
            let mut client = server.client().await;
            let mut stream = client.watcher(of_key("a")).await;
            for revision in 2..=20 {
                assert_eq!(client.put("a", "1").await, revision);
            }
            stream.revisions(2, 10).await;
        });
        server.stop();
        let server = TestServer::start(dir.path(), era);
        block_on(async {
            let mut client = server.client().await;
            let create = WatchCreateRequest { start_revision: 11, ..of_key("a") };
            let mut stream = client.watcher(create).await;
            stream.revisions(11, 20).await;
            client.put("a", "2").await;
            stream.revisions(21, 21).await;
        });
        server.stop();
    }
}
