//! A member's store is replaced by a copy while clients watch it.

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::test_cluster::{TestCluster, block_on, eventually};

/// Of all keys.
fn everything(start_revision: i64) -> WatchRequest {
    let (key, range_end) = (vec![0].into(), vec![0].into());
    let create = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// Watchers from now on are there before the raft snapshot, in all likelihood, and get behind by
/// it; watchers of the past may read it in either store.
#[test]
fn no_watcher_misses_what_lies_between_a_store_and_its_copy() {
    let mut lab = TestCluster::new(&["a", "b", "c"]);
    lab.tune = |start| (start.replica.snapshot_count, start.replica.catch_up_entries) = (50, 10);
    for name in ["a", "b", "c"] {
        lab.start(name);
    }
    block_on(async {
        let away = lab.followers().await.remove(0);
        let leader = lab.leader().await;
        lab.put(&leader, "k", "0").await;
        lab.agree().await;
        let id = lab.id(&away);
        lab.kill(&away).await;
        for number in 0..300 {
            lab.put(&leader, &format!("k{number}"), "v").await;
        }
        lab.start(&away);
        let mut client = WatchClient::new(lab.channel(&away).await);
        let (requests, receiver) = mpsc::unbounded_channel();
        for request in [everything(2), everything(0)] {
            requests.send(request).unwrap();
        }
        let told = client.watch(UnboundedReceiverStream::new(receiver)).await;
        let mut told = told.unwrap().into_inner();
        // The revision that each watcher gets next.
        let mut next = [0, 0];
        lab.put(&leader, "last", "1").await;
        let last = lab.node(&leader).store().begin_read().revision();
        while next.iter().any(|next| *next <= last) {
            let response = told.message().await.unwrap().unwrap();
            assert!(!response.canceled);
            let next = &mut next[response.watch_id as usize];
            if response.created {
                let now = response.header.unwrap().revision;
                *next = if response.watch_id == 0 { 2 } else { now + 1 };
            }
            for event in response.events {
                assert_eq!(event.kv.unwrap().mod_revision, *next, "watcher {}", response.watch_id);
                *next += 1;
            }
        }
        let copied = || {
            let figures = lab.node(&leader).peer_clients().unwrap().traffic();
            let mut links = figures.iter().filter(|link| link.id == id);
            links.any(|link| link.raft_snapshots_sent > 0).then_some(())
        };
        // The follower may serve from the copy before the leader has the answer that it counts.
        eventually("that it came with a copy", copied).await;
        drop((told, requests));
        let watching = lab.node(&away).watch_server();
        eventually("that nothing is left", || (watching.metrics().streams == 0).then_some(()))
            .await;
    });
}
