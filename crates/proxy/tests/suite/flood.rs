//! A client that creates watches faster than the member answers.

use std::time::Duration;

use clearlane_proto::etcdserverpb::WatchCreateRequest;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use tokio::time::timeout;

use crate::member::Member;
use crate::running::{RunningProxy, WatchStream, config};

const KEY_BYTES: usize = 10_000;
const WATCHES: usize = 1000;
/// 1 MiB of creations in the proxy, 256 KiB in the window of the stream, and as much again in the
/// buffers of both ends. All watches together have 10 MB.
const HELD_BYTES_MAX: usize = 2 << 20;

fn create(number: usize) -> RequestUnion {
    let key = format!("{number:0KEY_BYTES$}").into();
    RequestUnion::CreateRequest(WatchCreateRequest { key, ..WatchCreateRequest::default() })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_watches_is_slowed_down() {
    let member = Member::start().await;
    member.state.ignores_watches.send_replace(true);
    let mut config = config(&member);
    config.cache.on_demand = false;
    let proxy = RunningProxy::start(config, None).await;
    let mut watch = WatchStream::open(proxy.connect().await).await;
    let mut sent = 0;
    while timeout(Duration::from_secs(1), watch.send(create(sent))).await.is_ok() {
        sent += 1;
        assert!(sent * KEY_BYTES <= HELD_BYTES_MAX, "the client is not slowed down");
    }
    // When the member answers again, nothing was dropped.
    member.state.ignores_watches.send_replace(false);
    let mut created = 0;
    while created < WATCHES {
        tokio::select! {
            () = watch.send_later(create(sent)), if sent < WATCHES => sent += 1,
            response = watch.next() => {
                assert!(response.created && !response.canceled, "{response:?}");
                assert_eq!(response.watch_id, created as i64);
                created += 1;
            }
        }
    }
    member.store(&format!("{:0KEY_BYTES$}", WATCHES - 1), b"v");
    assert_eq!(watch.next().await.watch_id, WATCHES as i64 - 1);
}
