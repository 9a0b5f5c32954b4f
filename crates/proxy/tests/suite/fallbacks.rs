//! Reads of a cached range that must be listed again.

use std::sync::atomic::Ordering;

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::task::JoinSet;

use crate::member::Member;
use crate::running::{RunningProxy, config, until};

const READS: usize = 50;
/// Maximum number of reads that are forwarded at once.
const FORWARDED_MAX: u64 = 16;

async fn start() -> (Member, RunningProxy) {
    let member = Member::start().await;
    member.store("c/k", b"v");
    let mut config = config(&member);
    config.cache.prefixes = vec![b"c/".to_vec()];
    let proxy = RunningProxy::start(config, None).await;
    until("the prefix is cached", || revision(&proxy) != 0).await;
    (member, proxy)
}

fn revision(proxy: &RunningProxy) -> i64 {
    proxy.proxy.services().cache.scopes()[0].revision()
}

/// Compacts the next revision of the feed, and holds its list.
async fn lose_copy(member: &Member, proxy: &RunningProxy) {
    member.state.holds_lists.send_replace(true);
    member.state.is_compacted.store(true, Ordering::SeqCst);
    member.end_watches();
    until("the copy is lost", || revision(proxy) == 0).await;
    member.state.is_compacted.store(false, Ordering::SeqCst);
}

async fn read_all(proxy: &RunningProxy) -> JoinSet<()> {
    let (mut reads, channel) = (JoinSet::new(), proxy.connect().await);
    for _ in 0..READS {
        let mut client = KvClient::new(channel.clone());
        reads.spawn(async move {
            let get = RangeRequest { key: "c/k".into(), ..RangeRequest::default() };
            let found = client.range(get).await.unwrap().into_inner();
            assert_eq!(found.kvs[0].value, "v");
        });
    }
    reads
}

#[tokio::test]
async fn few_reads_are_forwarded_at_once_while_a_list_takes_long() {
    let (member, proxy) = start().await;
    lose_copy(&member, &proxy).await;
    let before = member.count(|counts| &counts.lists);
    let reads = read_all(&proxy).await;
    until("reads are forwarded", || member.count(|counts| &counts.lists) >= before + FORWARDED_MAX)
        .await;
    member.state.holds_lists.send_replace(false);
    reads.join_all().await;
    let most = member.count(|counts| &counts.lists_max);
    assert!(most <= 1 + FORWARDED_MAX, "{most} reads were at the member");
}

#[tokio::test]
async fn reads_wait_for_a_list_that_is_short() {
    let (member, proxy) = start().await;
    // A busy machine may take longer for the list than the reads wait.
    for attempt in 0.. {
        lose_copy(&member, &proxy).await;
        let before = member.count(|counts| &counts.lists);
        let reads = read_all(&proxy).await;
        member.state.holds_lists.send_replace(false);
        reads.join_all().await;
        until("the prefix is cached again", || revision(&proxy) != 0).await;
        if member.count(|counts| &counts.lists) <= before + 1 {
            break;
        }
        assert!(attempt < 5, "the reads are forwarded");
    }
}
