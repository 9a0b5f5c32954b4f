//! Tests of a member that receives a raft snapshot while it compacts its store. The member's
//! process must not end, and its data must then equal the data of the other members.
//!
//! There is one short round by default. `CLEARLANE_ROUNDS` sets the number of rounds; then each
//! round has up to 300,000 keys, and writes 25,000 entries while the follower is stopped. With
//! default flags the log keeps fewer entries than this, so the follower needs a raft snapshot.

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, MemberAddRequest, MemberListRequest, MemberRemoveRequest, TxnRequest,
};
use std::time::Instant;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::env_number;
use crate::program::{Program, TIMEOUT, kv_with_timeout, leader_of, members, short_pause};
use crate::support::{op, put};
use crate::three::agree;

/// Number of concurrent requests.
const WRITERS: usize = 64;

#[derive(Clone, Copy)]
struct Load {
    rounds: u64,
    keys: usize,
    entries: usize,
}

impl Load {
    /// Returns a load after which a stopped follower needs a raft snapshot. The log keeps 5,000
    /// entries before a snapshot record, and the follower lacks more entries than that.
    fn new(snapshot_count: u64) -> Load {
        match env_number("CLEARLANE_ROUNDS") {
            Some(rounds) => Load { rounds, keys: 300_000, entries: 25_000 },
            None => {
                Load { rounds: 1, keys: 20_000, entries: 3 * snapshot_count as usize / 2 + 7_000 }
            }
        }
    }
}

#[derive(Clone)]
struct Writer {
    kv: KvClient<Channel>,
}

impl Writer {
    /// Puts the keys `puts` in one transaction. Tries again after an error, because the leader may
    /// change.
    async fn txn(&mut self, puts: std::ops::Range<usize>, value: &str) {
        let put = |key: usize| op(Request::RequestPut(put(format!("k{key:07}"), value)));
        let request = TxnRequest { success: puts.map(put).collect(), ..TxnRequest::default() };
        let begin = Instant::now();
        while let Err(status) = self.kv.txn(request.clone()).await {
            let is_late = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
            assert!(is_late && begin.elapsed() < TIMEOUT, "{status}");
        }
    }

    /// Puts all keys, with `puts` keys in each entry.
    async fn fill(&self, keys: usize, puts: usize, value: &str) {
        let mut writers = JoinSet::new();
        for writer in 0..WRITERS {
            let (mut this, value) = (self.clone(), value.to_owned());
            writers.spawn(async move {
                for from in (writer * puts..keys).step_by(WRITERS * puts) {
                    this.txn(from..keys.min(from + puts), &value).await;
                }
            });
        }
        writers.join_all().await;
    }

    /// Compacts at the newest revision. Returns before the compaction ends.
    async fn compact(&mut self, members: &mut [Program], leader: usize) {
        let revision = members[leader].ready().await.header.unwrap().revision;
        let compaction = CompactionRequest { revision, physical: false };
        self.kv.compact(compaction).await.unwrap();
    }
}

async fn cluster(dir: &std::path::Path, flags: &[String]) -> Vec<Program> {
    let mut members = members(dir, 3);
    for member in &mut members {
        member.flags = flags.to_vec();
        member.start();
    }
    leader_of(&mut members).await;
    members
}

async fn a_follower_is_stopped(snapshot_count: u64) {
    let dir = tempfile::tempdir().unwrap();
    let load = Load::new(snapshot_count);
    let flags = [format!("--snapshot-count={snapshot_count}")];
    let mut members = cluster(dir.path(), &flags).await;
    for round in 0..load.rounds {
        let leader = leader_of(&mut members).await;
        let away = (leader + 1 + round as usize % 2) % 3;
        let mut writer = Writer { kv: kv_with_timeout(members[leader].client).await };
        writer.fill(load.keys, 100, &format!("round {round}")).await;
        writer.compact(&mut members, leader).await;
        members[away].signal("STOP");
        writer.fill(load.entries, 1, "while one is away").await;
        members[away].signal("CONT");
        agree(&mut members).await;
    }
    let copies: usize =
        members.iter().map(|member| member.log().matches("received a raft snapshot").count()).sum();
    println!("--snapshot-count={snapshot_count}: {} rounds, {copies} raft snapshots", load.rounds);
    assert!(copies > 0, "no follower got a raft snapshot: {}", members[0].log());
}

#[tokio::test]
async fn a_compacting_follower_gets_a_snapshot_with_default_flags() {
    a_follower_is_stopped(10_000).await;
}

#[tokio::test]
async fn a_compacting_follower_gets_a_snapshot_with_frequent_ones() {
    a_follower_is_stopped(100).await;
}

async fn at(member: &Program) -> ClusterClient<Channel> {
    ClusterClient::new(Endpoint::from_shared(member.url()).unwrap().connect().await.unwrap())
}

/// Removes a member. Tries again while the leader rejects the removal, which it does until it
/// considers the other members connected.
async fn remove(cluster: &mut ClusterClient<Channel>, member: &Program) {
    let id = id_of(cluster, &member.peer_url()).await;
    let begin = Instant::now();
    while let Err(status) = cluster.member_remove(MemberRemoveRequest { id }).await {
        assert!(begin.elapsed() < TIMEOUT, "{status}");
        short_pause().await;
    }
}

async fn add(cluster: &mut ClusterClient<Channel>, member: &Program) {
    let add = MemberAddRequest { peer_urls: vec![member.peer_url()], is_learner: false };
    let begin = Instant::now();
    while let Err(status) = cluster.member_add(add.clone()).await {
        assert!(begin.elapsed() < TIMEOUT, "{status}");
        short_pause().await;
    }
}

async fn id_of(cluster: &mut ClusterClient<Channel>, url: &str) -> u64 {
    let list = cluster.member_list(MemberListRequest { linearizable: true }).await.unwrap();
    let members = list.into_inner().members;
    members.iter().find(|member| member.peer_urls == [url.to_owned()]).unwrap().id
}

#[tokio::test]
async fn a_member_is_replaced_while_all_are_compacting() {
    let dir = tempfile::tempdir().unwrap();
    let load = Load::new(100);
    let mut members = cluster(dir.path(), &["--snapshot-count=100".to_owned()]).await;
    for round in 0..load.rounds {
        let leader = leader_of(&mut members).await;
        let away = (leader + 1 + round as usize % 2) % 3;
        let mut writer = Writer { kv: kv_with_timeout(members[leader].client).await };
        writer.fill(load.keys / 10, 100, &format!("round {round}")).await;
        let mut cluster = at(&members[leader]).await;
        remove(&mut cluster, &members[away]).await;
        let load_on = tokio::spawn({
            let writer = writer.clone();
            async move { writer.fill(load.entries, 1, "under load").await }
        });
        add(&mut cluster, &members[away]).await;
        members[away].rejoin();
        writer.compact(&mut members, leader).await;
        load_on.await.unwrap();
        agree(&mut members).await;
    }
}

/// A member that joins has no data until the others send their data. Until then it must not serve
/// clients.
#[tokio::test]
async fn a_member_that_joins_serves_no_client_before_it_has_what_the_others_have() {
    let dir = tempfile::tempdir().unwrap();
    let keys = 3_000;
    let mut members = cluster(dir.path(), &[]).await;
    let leader = leader_of(&mut members).await;
    let writer = Writer { kv: kv_with_timeout(members[leader].client).await };
    writer.fill(keys, 1, "v").await;
    let away = (leader + 1) % 3;
    let mut cluster = at(&members[leader]).await;
    remove(&mut cluster, &members[away]).await;
    add(&mut cluster, &members[away]).await;
    members[away].rejoin();
    let revision = members[leader].ready().await.header.unwrap().revision;
    let first = members[away].ready().await.header.unwrap().revision;
    assert!(first > keys as i64, "it says {first}, the leader {revision}");
    agree(&mut members).await;
}
