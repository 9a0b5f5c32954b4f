//! Tests of watchers on a member whose store is replaced by a raft snapshot.

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchRequest};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use crate::test_cluster::{TestCluster, block_on, eventually};

/// Returns a request for a watcher of all keys.
fn everything(start_revision: i64) -> WatchRequest {
    let (key, range_end) = (vec![0].into(), vec![0].into());
    let create = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

/// One watcher starts at the current revision. It is usually created before the raft snapshot
/// arrives, and becomes unsynced when the store is replaced. The other watcher starts at a past
/// revision, and may read the old store or the new one. Each watcher must get every event once.
#[test]
fn no_watcher_misses_what_lies_between_a_store_and_its_copy() {
    let mut cluster = TestCluster::new(&["a", "b", "c"]);
    cluster.tune =
        |start| (start.replica.snapshot_count, start.replica.catch_up_entries) = (50, 10);
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    block_on(async {
        let away = cluster.followers().await.remove(0);
        let leader = cluster.leader().await;
        cluster.put(&leader, "k", "0").await;
        cluster.agree().await;
        let id = cluster.id(&away);
        cluster.kill(&away).await;
        for number in 0..300 {
            cluster.put(&leader, &format!("k{number}"), "v").await;
        }
        cluster.start(&away);
        let mut client = WatchClient::new(cluster.channel(&away).await);
        let (requests, receiver) = mpsc::unbounded_channel();
        for request in [everything(2), everything(0)] {
            requests.send(request).unwrap();
        }
        let response = client.watch(UnboundedReceiverStream::new(receiver)).await;
        let mut stream = response.unwrap().into_inner();
        // The revision of the next event that each watcher must get.
        let mut next = [0, 0];
        cluster.put(&leader, "last", "1").await;
        let last = cluster.node(&leader).store().begin_read().revision();
        while next.iter().any(|next| *next <= last) {
            let response = stream.message().await.unwrap().unwrap();
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
            let figures = cluster.node(&leader).peer_clients().unwrap().traffic();
            let mut links = figures.iter().filter(|link| link.id == id);
            links.any(|link| link.raft_snapshots_sent > 0).then_some(())
        };
        // The follower may serve from the new store before the leader has counted the follower's
        // response to the raft snapshot.
        eventually("that it came with a copy", copied).await;
        drop((stream, requests));
        let watching = cluster.node(&away).watch_server();
        eventually("that nothing is left", || (watching.metrics().streams == 0).then_some(()))
            .await;
    });
}
