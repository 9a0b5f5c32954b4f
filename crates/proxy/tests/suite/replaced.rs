//! A cluster that is replaced by its backup, so that its revision falls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{RangeRequest, ResponseHeader, WatchCreateRequest};
use clearlane_proxy::cache::contents::HistoryLimits;
use clearlane_proxy::cache::range::Span;
use clearlane_proxy::cache::scope::Scope;
use clearlane_proxy::watch::queue::SessionQueue;
use clearlane_proxy::watch::watcher::{CATCH_UP_BYTES, Watcher};
use tonic::transport::Channel;

use crate::member::Member;
use crate::running::{RunningProxy, WatchStream, config, until};

const BACKUP: i64 = 5;
const OLD: i64 = 30;

/// Starts a member with some writes, and a proxy that caches the prefix `c/`.
async fn start() -> (Member, RunningProxy) {
    let member = Member::start().await;
    while member.store("c/k", b"old") < OLD {}
    let mut config = config(&member);
    config.cache.prefixes = vec![b"c/".to_vec()];
    config.cache.on_demand = false;
    let proxy = RunningProxy::start(config, None).await;
    until("the prefix is cached", || revision(&proxy) == OLD).await;
    (member, proxy)
}

fn revision(proxy: &RunningProxy) -> i64 {
    proxy.proxy.services().cache.scopes()[0].revision()
}

fn hits(proxy: &RunningProxy) -> u64 {
    proxy.proxy.services().cache.metrics.hits.load(Ordering::SeqCst)
}

async fn get(channel: &Channel, serializable: bool) -> i64 {
    let request = RangeRequest { key: "c/k".into(), serializable, ..RangeRequest::default() };
    let found = KvClient::new(channel.clone()).range(request).await.unwrap().into_inner();
    found.header.unwrap().revision
}

fn create(key: &str) -> WatchCreateRequest {
    WatchCreateRequest { key: key.to_owned().into(), ..WatchCreateRequest::default() }
}

#[tokio::test]
async fn watches_and_reads_continue_at_the_new_revisions() {
    let (member, proxy) = start().await;
    let channel = proxy.connect().await;
    let mut watch = WatchStream::open(channel.clone()).await;
    watch.send(RequestUnion::CreateRequest(create("c/k"))).await;
    assert!(watch.next().await.created);
    assert_eq!(get(&channel, false).await, OLD);
    member.restore(BACKUP);
    // A linearizable read makes a probe, which notices that the revision is lower.
    assert_eq!(get(&channel, false).await, BACKUP);
    let ended = watch.next().await;
    assert!(ended.canceled && ended.cancel_reason.contains("replaced"), "{ended:?}");
    until("the prefix is cached again", || revision(&proxy) == BACKUP).await;
    watch.send(RequestUnion::CreateRequest(create("c/k"))).await;
    let created = watch.next().await;
    assert!(created.created && !created.canceled, "{created:?}");
    assert_eq!(created.header.unwrap().revision, BACKUP);
    let stored = member.store("c/k", b"new");
    let event = watch.next().await;
    assert_eq!(event.events.len(), 1, "{event:?}");
    assert_eq!(event.events[0].kv.as_ref().unwrap().mod_revision, stored);
    // The connection has seen a newer revision of the old cluster, which does not count.
    assert_eq!(get(&channel, false).await, stored);
    let before = hits(&proxy);
    assert_eq!(get(&channel, true).await, stored);
    assert_eq!(hits(&proxy), before + 1, "the read is forwarded");
}

#[tokio::test]
async fn a_watch_that_a_member_serves_ends_also() {
    let (member, proxy) = start().await;
    let channel = proxy.connect().await;
    let mut watch = WatchStream::open(channel.clone()).await;
    watch.send(RequestUnion::CreateRequest(create("not cached"))).await;
    assert!(watch.next().await.created);
    member.restore(BACKUP);
    assert_eq!(get(&channel, false).await, BACKUP);
    let ended = watch.next().await;
    assert!(ended.canceled && ended.cancel_reason.contains("replaced"), "{ended:?}");
}

#[test]
fn a_lagging_watch_does_not_join_the_contents_of_a_new_epoch() {
    let scope = Scope::new(Span::of_prefix(b""), HistoryLimits::default(), Arc::default());
    let load = |revision, epoch| {
        let header = ResponseHeader { revision, ..ResponseHeader::default() };
        scope.load(scope.new_contents(Vec::new(), revision), &header, epoch);
    };
    load(990, 0);
    let (mut watcher, queue) = (Watcher::new(1, create("k")), Arc::new(SessionQueue::default()));
    assert!(watcher.attach(1, &scope, &queue, 0, 0, CATCH_UP_BYTES).is_some());
    watcher.set_lagging(991);
    scope.start_epoch(1);
    load(1000, 0);
    assert_eq!(scope.revision(), 0, "the list has started before the epoch");
    load(500, 1);
    assert!(watcher.catch_up(CATCH_UP_BYTES).is_none());
    assert!(watcher.attach(1, &scope, &queue, 0, 0, CATCH_UP_BYTES).is_none());
    assert!(Watcher::new(2, create("k")).attach(2, &scope, &queue, 1, 0, CATCH_UP_BYTES).is_some());
}
