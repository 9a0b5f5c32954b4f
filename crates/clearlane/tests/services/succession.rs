//! Tests of locks and elections with clients over sockets: which clients wait, which client is the
//! next holder, and which client leaves no key.

use std::time::Duration;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::{LeaseGrantRequest, LeaseRevokeRequest, RangeRequest};
use clearlane_proto::v3electionpb::election_client::ElectionClient;
use clearlane_proto::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
};
use clearlane_proto::v3lockpb::lock_client::LockClient;
use clearlane_proto::v3lockpb::{LockRequest, UnlockRequest};
use tonic::Code;
use tonic::transport::Channel;

use crate::support::{code_and_message, with_server};

async fn grant(channel: &Channel, ids: &[i64]) {
    let mut leases = LeaseClient::new(channel.clone());
    for &id in ids {
        leases.lease_grant(LeaseGrantRequest { ttl: 600, id }).await.unwrap();
    }
}

async fn revoke(channel: &Channel, id: i64) {
    let request = LeaseRevokeRequest { id };
    LeaseClient::new(channel.clone()).lease_revoke(request).await.unwrap();
}

/// Waits until there are `count` keys with this prefix. Returns these keys.
async fn keys(channel: &Channel, prefix: &str, count: usize) -> Vec<Bytes> {
    let range_end = Bytes::from(prefix.replace('/', "0"));
    let range = RangeRequest { key: prefix.to_owned().into(), range_end, ..Default::default() };
    let mut kv = KvClient::new(channel.clone());
    loop {
        let found = kv.range(range.clone()).await.unwrap().into_inner();
        if found.kvs.len() == count {
            return found.kvs.into_iter().map(|record| record.key).collect();
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn wants(name: &str, lease: i64) -> LockRequest {
    LockRequest { name: name.to_owned().into(), lease }
}

#[test]
fn a_lock_goes_from_one_to_the_next() {
    with_server(async |server| {
        let channel = server.channel().await;
        grant(&channel, &[0xa1, 0xa2, 0xa3]).await;
        let mut lock = LockClient::new(channel.clone());
        for _ in 0..2 {
            let held = lock.lock(wants("l", 0xa1)).await.unwrap().into_inner();
            assert_eq!((&held.key[..], held.header.unwrap().revision), (&b"l/a1"[..], 2));
        }
        let wait = |lease| {
            let mut lock = lock.clone();
            tokio::spawn(async move { lock.lock(wants("l", lease)).await })
        };
        let second = wait(0xa2);
        keys(&channel, "l/", 2).await;
        let third = wait(0xa3);
        keys(&channel, "l/", 3).await;
        let unlock = |key: &str| UnlockRequest { key: key.to_owned().into() };
        let done = lock.unlock(unlock("l/a1")).await.unwrap().into_inner();
        assert_eq!(done.header.unwrap().revision, 5);
        let held = second.await.unwrap().unwrap().into_inner();
        assert_eq!((&held.key[..], held.header.unwrap().revision), (&b"l/a2"[..], 5));
        assert!(!third.is_finished(), "one is in front of it");
        revoke(&channel, 0xa2).await;
        let held = third.await.unwrap().unwrap().into_inner();
        assert_eq!((&held.key[..], held.header.unwrap().revision), (&b"l/a3"[..], 6));
        for revision in [7, 7] {
            let done = lock.unlock(unlock("l/a3")).await.unwrap().into_inner();
            assert_eq!(done.header.unwrap().revision, revision);
        }
        let refused = lock.unlock(unlock("")).await.unwrap_err();
        assert_eq!(code_and_message(&refused), (Code::Unknown, "etcdserver: key is not provided"));
        let refused = lock.lock(wants("l", 999)).await.unwrap_err();
        assert_eq!(
            code_and_message(&refused),
            (Code::Unknown, "etcdserver: requested lease not found")
        );
    });
}

#[test]
fn a_client_that_gives_up_leaves_no_key() {
    with_server(async |server| {
        let channel = server.channel().await;
        grant(&channel, &[0xa1]).await;
        let mut lock = LockClient::new(channel.clone());
        let held = lock.lock(wants("auto", 0)).await.unwrap().into_inner().key;
        // The client gives up as soon as its key exists, or after the test has yielded to other
        // tasks up to 19 times.
        for turns in 0..20 {
            let mut waiting = lock.clone();
            let waits = tokio::spawn(async move { waiting.lock(wants("auto", 0xa1)).await });
            keys(&channel, "auto/", 2).await;
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            waits.abort();
            assert_eq!(keys(&channel, "auto/", 1).await[..], [&held[..]]);
        }
    });
}

#[test]
fn a_waiter_whose_lease_ends_gets_no_lock() {
    with_server(async |server| {
        let channel = server.channel().await;
        grant(&channel, &[0xa1, 0xa2]).await;
        let mut lock = LockClient::new(channel.clone());
        lock.lock(wants("l", 0xa1)).await.unwrap();
        let mut waiting = lock.clone();
        let waits = tokio::spawn(async move { waiting.lock(wants("l", 0xa2)).await });
        keys(&channel, "l/", 2).await;
        revoke(&channel, 0xa2).await;
        lock.unlock(UnlockRequest { key: "l/a1".into() }).await.unwrap();
        let refused = waits.await.unwrap().unwrap_err();
        assert_eq!(code_and_message(&refused), (Code::Unknown, "mutex: session is expired"));
    });
}

fn runs(name: &str, lease: i64, value: &str) -> CampaignRequest {
    CampaignRequest { name: name.to_owned().into(), lease, value: value.to_owned().into() }
}

fn of(name: &str) -> LeaderRequest {
    LeaderRequest { name: name.to_owned().into() }
}

fn leader_key(key: &str, rev: i64, lease: i64) -> Option<LeaderKey> {
    Some(LeaderKey { name: "e".into(), key: key.to_owned().into(), rev, lease })
}

#[test]
fn an_election_is_won_observed_and_given_up() {
    with_server(async |server| {
        let channel = server.channel().await;
        grant(&channel, &[0xb1, 0xb2]).await;
        let mut election = ElectionClient::new(channel.clone());
        let none = election.leader(of("e")).await.unwrap_err();
        assert_eq!(code_and_message(&none), (Code::Unknown, "election: no leader"));
        let mut observed = election.observe(of("e")).await.unwrap().into_inner();
        let won = election.campaign(runs("e", 0xb1, "one")).await.unwrap().into_inner();
        assert_eq!(won.leader, leader_key("e/b1", 2, 0xb1));
        let mut seen = async || {
            let change = observed.message().await.unwrap().unwrap();
            (change.kv.unwrap().value, change.header.unwrap().revision)
        };
        assert_eq!(seen().await, ("one".into(), 2));

        let proclaim =
            |leader, value: &'static str| ProclaimRequest { leader, value: value.into() };
        election.proclaim(proclaim(leader_key("e/b1", 2, 0xb1), "uno")).await.unwrap();
        assert_eq!(seen().await, ("uno".into(), 3));
        let again = election.campaign(runs("e", 0xb1, "tre")).await.unwrap().into_inner();
        assert_eq!((again.header.unwrap().revision, again.leader), (3, won.leader));
        assert_eq!(seen().await, ("tre".into(), 4));

        let mut next = election.clone();
        let next = tokio::spawn(async move { next.campaign(runs("e", 0xb2, "two")).await });
        keys(&channel, "e/", 2).await;
        let refused = election.proclaim(proclaim(leader_key("e/b2", 9, 0xb2), "x")).await;
        assert_eq!(
            code_and_message(&refused.unwrap_err()),
            (Code::Unknown, "election: not leader")
        );
        let refused = election.proclaim(proclaim(None, "x")).await.unwrap_err();
        assert_eq!(
            code_and_message(&refused),
            (Code::Unknown, "\"leader\" field must be provided")
        );
        let wrong = ResignRequest { leader: leader_key("e/b1", 99, 0xb1) };
        election.resign(wrong).await.unwrap();
        assert_eq!(election.leader(of("e")).await.unwrap().into_inner().kv.unwrap().key, "e/b1");
        let resign = ResignRequest { leader: leader_key("e/b1", 2, 0xb1) };
        let resigned = election.resign(resign).await.unwrap().into_inner();
        assert_eq!(resigned.header.unwrap().revision, 6);
        let won = next.await.unwrap().unwrap().into_inner();
        assert_eq!((won.header.unwrap().revision, won.leader), (5, leader_key("e/b2", 5, 0xb2)));
        assert_eq!(seen().await.0, "two");
        revoke(&channel, 0xb2).await;
        let none = election.leader(of("e")).await.unwrap_err();
        assert_eq!(code_and_message(&none), (Code::Unknown, "election: no leader"));
        let refused = election.campaign(runs("e", 999, "x")).await.unwrap_err();
        assert_eq!(
            code_and_message(&refused),
            (Code::Unknown, "etcdserver: requested lease not found")
        );
    });
}
