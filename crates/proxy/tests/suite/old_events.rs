//! Watches that start before the history of a cached range. The member sends old events slowly.

use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use tokio::time::{Instant, sleep};

use crate::member::Member;
use crate::running::{RunningProxy, TIMEOUT, WatchStream, config, until};

/// A new watch waits half a second for old events, and these take longer.
const WRITES: i64 = 100;

/// Creates a watch from the first write on, and returns its stream.
async fn watch_all(proxy: &RunningProxy) -> WatchStream {
    let mut watch = WatchStream::open(proxy.connect().await).await;
    let create = WatchCreateRequest {
        key: "c/k".into(),
        start_revision: 2,
        ..WatchCreateRequest::default()
    };
    watch.send(RequestUnion::CreateRequest(create)).await;
    assert!(watch.next().await.created);
    watch
}

async fn check_all(mut watch: WatchStream) {
    let mut next = 2;
    while next < 2 + WRITES {
        for event in watch.next().await.events {
            assert_eq!(event.kv.unwrap().mod_revision, next);
            next += 1;
        }
    }
}

#[tokio::test]
async fn old_events_are_read_once_although_they_take_long() {
    let member = Member::start().await;
    member.state.has_slow_history.store(true, Ordering::SeqCst);
    while member.store("c/k", b"v") <= WRITES {}
    let mut config = config(&member);
    config.cache.prefixes = vec![b"c/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    let cache = &proxy.proxy.services().cache;
    until("the prefix is cached", || cache.scopes()[0].revision() != 0).await;
    let creates = || member.count(|counts| &counts.creates);
    until("the prefix is watched", || creates() == 1).await;
    let first = watch_all(&proxy).await;
    assert_eq!(creates(), 3, "the scope reads old events, and the watch does also");
    // Watches go to the member until the scope has the events.
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let before = creates();
        let watch = watch_all(&proxy).await;
        if creates() == before {
            check_all(watch).await;
            break;
        }
        assert!(Instant::now() < deadline, "the scope never has the old events");
        sleep(Duration::from_millis(50)).await;
    }
    check_all(first).await;
}
