//! The memory of all cached ranges together.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proxy::cache::range::Span;
use clearlane_proxy::cache::scope::Scope;
use clearlane_proxy::serve::ProxyConfig;
use tonic::transport::Channel;

use crate::member::Member;
use crate::running::{RunningProxy, WatchStream, config, until};

const BYTES_MAX: usize = 300_000;
const VALUE_BYTES: usize = 10_000;

/// Stores ten keys of a directory, about 100 KB.
fn fill(member: &Member, directory: &str) {
    for number in 0..10 {
        member.store(&format!("{directory}{number}"), &[7; VALUE_BYTES]);
    }
}

fn proxy_config(member: &Member) -> ProxyConfig {
    let mut config = config(member);
    config.cache.bytes_max = BYTES_MAX;
    // Any scope without watchers may be displaced.
    config.cache.in_use_time = Duration::ZERO;
    config
}

fn scope(proxy: &RunningProxy, directory: &str) -> Option<Arc<Scope>> {
    let span = Span::of_prefix(directory.as_bytes());
    let scopes = proxy.proxy.services().cache.scopes();
    scopes.iter().find(|scope| scope.span == span).cloned()
}

fn is_loaded(proxy: &RunningProxy, directory: &str) -> bool {
    scope(proxy, directory).is_some_and(|scope| scope.revision() != 0)
}

fn used_bytes(proxy: &RunningProxy) -> usize {
    proxy.proxy.services().cache.scopes().iter().map(|scope| scope.bytes()).sum()
}

fn dropped(proxy: &RunningProxy) -> u64 {
    proxy.proxy.services().cache.metrics.dropped.load(Ordering::SeqCst)
}

async fn read(channel: &Channel, key: &str) {
    let get = RangeRequest { key: key.to_owned().into(), ..RangeRequest::default() };
    let found = KvClient::new(channel.clone()).range(get).await.unwrap().into_inner();
    assert_eq!(found.kvs[0].value.len(), VALUE_BYTES, "{key}");
}

/// Reads until the directory is cached.
async fn read_until_cached(proxy: &RunningProxy, channel: &Channel, directory: &str) {
    while scope(proxy, directory).is_none() {
        read(channel, &format!("{directory}1")).await;
    }
    until("the directory is cached", || is_loaded(proxy, directory)).await;
}

#[tokio::test]
async fn the_least_recently_used_range_makes_room() {
    let member = Member::start().await;
    ["/a/", "/b/", "/c/"].iter().for_each(|directory| fill(&member, directory));
    for number in 0..5 {
        member.store(&format!("/fixed/{number}"), &[7; VALUE_BYTES]);
    }
    let mut config = proxy_config(&member);
    config.cache.prefixes = vec![b"/fixed/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    let channel = proxy.connect().await;
    read_until_cached(&proxy, &channel, "/a/").await;
    read_until_cached(&proxy, &channel, "/b/").await;
    assert!(used_bytes(&proxy) <= BYTES_MAX);
    // Times of use are compared in milliseconds.
    tokio::time::sleep(Duration::from_millis(5)).await;
    read(&channel, "/a/1").await;
    read_until_cached(&proxy, &channel, "/c/").await;
    assert!(is_loaded(&proxy, "/a/") && is_loaded(&proxy, "/fixed/"));
    assert!(scope(&proxy, "/b/").is_none(), "it was not used for the longest time");
    assert_eq!(dropped(&proxy), 1);
    assert!(used_bytes(&proxy) <= BYTES_MAX);
    // It is read from the member, and is not cached again for now.
    for _ in 0..20 {
        read(&channel, "/b/1").await;
    }
    assert!(scope(&proxy, "/b/").is_none());
    // A configured prefix displaces all others.
    for number in 0..10 {
        member.store(&format!("/fixed/{}", number % 5), &[8; VALUE_BYTES]);
    }
    until("the other ranges were dropped", || dropped(&proxy) == 3).await;
    assert!(is_loaded(&proxy, "/fixed/"));
    assert!(used_bytes(&proxy) <= BYTES_MAX);
}

#[tokio::test]
async fn clients_of_a_dropped_range_miss_nothing() {
    let member = Member::start().await;
    ["/a/", "/b/", "/c/"].iter().for_each(|directory| fill(&member, directory));
    let mut config = proxy_config(&member);
    config.cache.prefixes = vec![b"/b/".to_vec(), b"/c/".to_vec()];
    config.cache.bytes_max = 400_000;
    let proxy = RunningProxy::start(config, None).await;
    until("the prefixes are cached", || is_loaded(&proxy, "/b/") && is_loaded(&proxy, "/c/")).await;
    let mut watch = WatchStream::open(proxy.connect().await).await;
    let create = WatchCreateRequest {
        key: "/a/".into(),
        range_end: "/a0".into(),
        ..WatchCreateRequest::default()
    };
    watch.send(RequestUnion::CreateRequest(create)).await;
    assert!(watch.next().await.created);
    assert!(is_loaded(&proxy, "/a/"));
    // The range under watch grows, and is the only one that may be dropped.
    let count = 30;
    for number in 0..count {
        let revision = member.store("/a/1", &[number; VALUE_BYTES]);
        loop {
            let events = watch.next().await.events;
            if let Some(event) = events.first() {
                assert_eq!((events.len(), event.kv.as_ref().unwrap().mod_revision), (1, revision));
                break;
            }
        }
    }
    assert!(scope(&proxy, "/a/").is_none());
    assert!(is_loaded(&proxy, "/b/") && is_loaded(&proxy, "/c/"));
}

#[tokio::test]
async fn a_range_that_is_too_large_is_forwarded() {
    let member = Member::start().await;
    ["/big/a", "/big/b", "/big/c", "/big/d"].iter().for_each(|prefix| fill(&member, prefix));
    fill(&member, "/small/");
    let mut config = proxy_config(&member);
    config.cache.prefixes = vec![b"/small/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    until("the prefix is cached", || is_loaded(&proxy, "/small/")).await;
    let channel = proxy.connect().await;
    while dropped(&proxy) == 0 {
        read(&channel, "/big/a1").await;
    }
    for _ in 0..50 {
        read(&channel, "/big/a1").await;
    }
    assert_eq!(dropped(&proxy), 1, "it is not tried again for now");
    assert!(is_loaded(&proxy, "/small/"));
}
