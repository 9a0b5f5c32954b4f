//! Watches at a member whose stream upstream was lost.

use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;

use crate::member::Member;
use crate::running::{RunningProxy, WatchStream, config, until};

/// After this number of lost streams, the next one is opened after a second.
const LOST: u64 = 8;

fn create(key: &str) -> RequestUnion {
    let create = WatchCreateRequest { key: key.to_owned().into(), ..WatchCreateRequest::default() };
    RequestUnion::CreateRequest(create)
}

#[tokio::test]
async fn a_watch_that_is_created_during_the_pause_is_created_once() {
    let member = Member::start().await;
    let mut config = config(&member);
    config.cache.on_demand = false;
    let proxy = RunningProxy::start(config, None).await;
    let mut watch = WatchStream::open(proxy.connect().await).await;
    watch.send(create("a")).await;
    assert!(watch.next().await.created);
    let streams = || member.count(|counts| &counts.watch_streams);
    member.state.refuses_watches.store(true, std::sync::atomic::Ordering::SeqCst);
    member.end_watches();
    until("streams are lost", || streams() > LOST).await;
    member.state.refuses_watches.store(false, std::sync::atomic::Ordering::SeqCst);
    let (before, creates) = (streams(), member.count(|counts| &counts.creates));
    watch.send(create("b")).await;
    let created = watch.next().await;
    assert!(created.created && created.watch_id == 1, "{created:?}");
    for (key, id) in [("a", 0), ("b", 1)] {
        member.store(key, b"v");
        let event = watch.next().await;
        assert_eq!((event.watch_id, event.events.len()), (id, 1), "{event:?}");
    }
    assert_eq!(streams(), before + 1, "both watches are on one new stream");
    assert_eq!(member.count(|counts| &counts.creates), creates + 2);
}
