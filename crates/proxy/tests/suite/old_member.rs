//! A member of a version whose progress may overtake events.

use std::sync::atomic::Ordering;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{RangeRequest, WatchCreateRequest};

use crate::member::Member;
use crate::running::{RunningProxy, WatchStream, config, until};

#[tokio::test]
async fn nothing_is_cached_from_an_old_member() {
    let member = Member::start().await;
    member.store("c/k", b"v");
    *member.state.version.lock() = "3.5.12";
    let mut config = config(&member);
    config.cache.prefixes = vec![b"c/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    until("the version was read", || member.count(|counts| &counts.statuses) > 0).await;
    let channel = proxy.connect().await;
    let mut watch = WatchStream::open(channel.clone()).await;
    for key in ["c/k", "d/k"] {
        let get = RangeRequest { key: key.into(), ..RangeRequest::default() };
        for _ in 0..20 {
            KvClient::new(channel.clone()).range(get.clone()).await.unwrap();
        }
        let create = WatchCreateRequest { key: key.into(), ..WatchCreateRequest::default() };
        watch.send(RequestUnion::CreateRequest(create)).await;
        assert!(watch.next().await.created);
        member.store(key, b"v");
        assert_eq!(watch.next().await.events.len(), 1);
    }
    let cache = &proxy.proxy.services().cache;
    assert!(cache.scopes().iter().all(|scope| scope.revision() == 0));
    assert_eq!(cache.metrics.hits.load(Ordering::SeqCst), 0);
}
