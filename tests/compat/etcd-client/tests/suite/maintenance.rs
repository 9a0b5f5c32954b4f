//! The requests of an operator: status, alarms, hashes, snapshots, defragmentation.

use clearlane_compat_etcd_client::{Cluster, assert_refused};
use etcd_client::{
    AlarmAction, AlarmOptions, AlarmType, Client, DowngradeOptions, GetOptions, SnapshotStreaming,
};
use tonic::Code;

const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";

async fn one() -> (Cluster, Client) {
    let cluster = Cluster::one().await;
    let mut client = cluster.client().await;
    for n in 0..20 {
        client.put(format!("key{}", n % 5), n.to_string(), None).await.unwrap();
    }
    (cluster, client)
}

/// Reads the whole snapshot. Also returns the number of remaining bytes that each message of the
/// stream reported.
async fn read(mut stream: SnapshotStreaming) -> (Vec<u8>, Vec<u64>) {
    let (mut all, mut remaining) = (Vec::new(), Vec::new());
    while let Some(piece) = stream.message().await.unwrap() {
        all.extend_from_slice(piece.blob());
        remaining.push(piece.remaining_bytes());
        assert!(piece.version().starts_with("3."), "{piece:?}");
    }
    (all, remaining)
}

#[tokio::test]
async fn status_of_a_member() {
    let (_cluster, mut client) = one().await;
    let mut status = client.status().await.unwrap();
    let header = status.take_header().unwrap();
    assert_eq!(status.version(), "3.7.1");
    assert_eq!((status.leader(), header.revision()), (header.member_id(), 21));
    assert!(status.raft_term() >= 2 && status.raft_term() == header.raft_term());
    assert!(status.raft_index() >= 20 && status.raft_applied_index() >= 20);
    assert!(status.raft_index() >= status.raft_applied_index());
    assert!(status.db_size() > 0 && status.raft_used_db_size() > 0);
    assert!(status.errors().is_empty() && !status.is_learner());
    assert_eq!((status.storage_version(), status.db_size_quota()), ("3.7.0", 2 << 30));
    let downgrade = status.downgrade_info().unwrap();
    assert_eq!((downgrade.enabled(), downgrade.target_version()), (false, ""));
}

#[tokio::test]
async fn an_alarm_stops_what_needs_space() {
    let (cluster, mut client) = one().await;
    let id = cluster.id(0).await;
    let all = client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
    assert!(all.alarms().is_empty() && all.header().is_some());

    let mut options = AlarmOptions::new();
    options.with_member(id);
    let raised = client
        .alarm(AlarmAction::Activate, AlarmType::Nospace, Some(options.clone()))
        .await
        .unwrap();
    assert_eq!(raised.alarms().len(), 1);
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
    let alarm = &alarms.alarms()[0];
    assert!(alarm.member_id() == id && alarm.alarm() == AlarmType::Nospace);
    let refused = client.put("key", "1", None).await;
    assert_refused(refused, Code::ResourceExhausted, NO_SPACE);
    let refused = client.lease_grant(60, None).await;
    assert_refused(refused, Code::ResourceExhausted, NO_SPACE);
    assert_eq!(client.get("key1", None).await.unwrap().count(), 1);
    assert_eq!(client.delete("key1", None).await.unwrap().deleted(), 1);
    assert!(!client.status().await.unwrap().errors().is_empty());

    let gone = client
        .maintenance_client()
        .alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options))
        .await
        .unwrap();
    assert_eq!(gone.alarms().len(), 1);
    client.put("key", "1", None).await.unwrap();
    assert!(client.status().await.unwrap().errors().is_empty());
}

#[tokio::test]
async fn a_corrupt_member_changes_nothing() {
    let (cluster, mut client) = one().await;
    let mut options = AlarmOptions::new();
    options.with_member(cluster.id(0).await);
    let raise = client.alarm(AlarmAction::Activate, AlarmType::Corrupt, Some(options.clone()));
    raise.await.unwrap();
    let words = "etcdserver: corrupt cluster";
    assert_refused(client.put("key", "1", None).await, Code::DataLoss, words);
    assert_refused(client.delete("key1", None).await, Code::DataLoss, words);
    assert_refused(client.lease_grant(60, None).await, Code::DataLoss, words);
    assert_eq!(client.get("key1", None).await.unwrap().count(), 1);
    client.alarm(AlarmAction::Deactivate, AlarmType::Corrupt, Some(options)).await.unwrap();
    client.put("key", "1", None).await.unwrap();
}

#[tokio::test]
async fn the_quota_raises_the_alarm() {
    let cluster = Cluster::of(1, &["--quota-backend-bytes", "8388608"]).await;
    let mut client = cluster.client().await;
    assert_eq!(client.status().await.unwrap().db_size_quota(), 8 << 20);
    let mut written = 0;
    let refused = loop {
        match client.put("key", vec![b'v'; 1 << 20], None).await {
            Ok(_) => written += 1,
            refused => break refused,
        }
        assert!(written < 100, "no quota is in force");
    };
    assert_refused(refused, Code::ResourceExhausted, NO_SPACE);
    assert!(written > 1);
    let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
    assert!(alarms.alarms()[0].alarm() == AlarmType::Nospace);
    // The way out of the alarm: delete keys, compact and defragment, and then deactivate the alarm.
    let revision = client.delete("key", None).await.unwrap().take_header().unwrap().revision();
    let physical = etcd_client::CompactionOptions::new().with_physical();
    client.compact(revision, Some(physical)).await.unwrap();
    client.defragment().await.unwrap();
    let mut options = AlarmOptions::new();
    options.with_member(cluster.id(0).await);
    client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options)).await.unwrap();
    client.put("key", vec![b'v'; 1 << 20], None).await.unwrap();
}

#[tokio::test]
async fn defragmenting_loses_nothing() {
    let (_cluster, mut client) = one().await;
    assert!(client.defragment().await.unwrap().header().is_none());
    let all = GetOptions::new().with_all_keys();
    let got = client.get("", Some(all.with_min_mod_revision(2))).await.unwrap();
    assert_eq!(got.count(), 5);
    let old = GetOptions::new().with_revision(2);
    assert_eq!(client.get("key0", Some(old)).await.unwrap().kvs()[0].value(), b"0");
}

#[tokio::test]
async fn hashes_tell_whether_two_are_the_same() {
    let ((_a, mut first), (_b, mut second)) = (one().await, one().await);
    for revision in [0, 10, 21] {
        let one = first.hash_kv(revision).await.unwrap();
        let other = second.maintenance_client().hash_kv(revision).await.unwrap();
        assert_eq!((one.hash(), one.hash_revision()), (other.hash(), other.hash_revision()));
        assert_eq!(one.hash_revision(), if revision == 0 { 21 } else { revision });
        assert_eq!((one.compact_version(), one.header().unwrap().revision()), (-1, 21));
        assert_ne!(one.hash(), 0);
    }
    first.put("key0", "other", None).await.unwrap();
    second.put("key0", "value", None).await.unwrap();
    assert_ne!(first.hash_kv(0).await.unwrap().hash(), second.hash_kv(0).await.unwrap().hash());
    // This hash covers the whole file, and no two files are equal.
    let hash = first.hash().await.unwrap();
    assert_eq!(hash.header().unwrap().revision(), 22);
    assert_eq!(hash.hash(), first.maintenance_client().hash().await.unwrap().hash());

    first.compact(15, None).await.unwrap();
    assert_eq!(first.hash_kv(0).await.unwrap().compact_version(), 15);
    let words = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(first.hash_kv(23).await, Code::OutOfRange, words);
    let words = "etcdserver: mvcc: required revision has been compacted";
    assert_refused(first.hash_kv(14).await, Code::OutOfRange, words);
}

#[tokio::test]
async fn a_snapshot_comes_in_pieces() {
    let (_cluster, mut client) = one().await;
    for n in 0..5 {
        client.put(format!("big{n}"), vec![b'v'; 1 << 20], None).await.unwrap();
    }
    let (all, remaining) = read(client.snapshot().await.unwrap()).await;
    assert!(all.len() > 5 << 20);
    assert_eq!(remaining.last(), Some(&0));
    assert!(remaining.len() > 10 && remaining.is_sorted_by(|a, b| a >= b), "{remaining:?}");
    // The snapshot ends with a SHA-256 checksum of 32 bytes, after whole sectors of 512 bytes.
    assert_eq!(all.len() % 512, 32);
}

#[tokio::test]
async fn downgrading_is_looked_at() {
    let (_cluster, mut client) = one().await;
    let mut maintenance = client.maintenance_client();
    let validate = |version: &str| DowngradeOptions::Validate(version.to_owned());
    let mut allowed = maintenance.downgrade(validate("3.6.0")).await.unwrap();
    assert_eq!(allowed.version(), "3.7");
    assert_eq!(allowed.take_header().unwrap().revision(), 21);
    let words = "etcdserver: invalid downgrade target version";
    let refused = maintenance.downgrade(validate("3.4.0")).await;
    assert_refused(refused, Code::InvalidArgument, words);
    let words = "etcdserver: wrong downgrade target version format";
    assert_refused(maintenance.downgrade(validate("x")).await, Code::InvalidArgument, words);
    let enable = DowngradeOptions::Enable("3.6.0".to_owned());
    assert_eq!(maintenance.downgrade(enable).await.unwrap().version(), "3.7");
    let status = maintenance.status().await.unwrap();
    let downgrade = status.downgrade_info().unwrap();
    assert_eq!((downgrade.enabled(), downgrade.target_version()), (true, "3.6.0"));
    maintenance.downgrade(DowngradeOptions::Cancel).await.unwrap();
    let status = maintenance.status().await.unwrap();
    assert!(!status.downgrade_info().unwrap().enabled());
    client.put("key", "1", None).await.unwrap();
}

#[tokio::test]
async fn the_leader_moves() {
    let cluster = Cluster::three().await;
    for attempt in 1.. {
        let leader = cluster.leader().await;
        let follower = (leader + 1) % 3;
        let target = cluster.id(follower).await;
        let refused = cluster.client_of(follower).await.move_leader(target).await;
        let mut client = cluster.client_of(leader).await;
        let unknown = client.move_leader(77).await;
        let moved = client.move_leader(target).await;
        let new_leader = cluster.leader().await;
        // An election may interfere, for example on a slow machine. Then the test tries everything
        // again.
        if attempt < 3 && (moved.is_err() || new_leader != follower) {
            continue;
        }
        assert_refused(refused, Code::FailedPrecondition, "etcdserver: not leader");
        let words = "etcdserver: bad leader transferee";
        assert_refused(unknown, Code::FailedPrecondition, words);
        assert!(moved.unwrap().header().is_none());
        assert_eq!(new_leader, follower);
        client.put("key", "1", None).await.unwrap();
        break;
    }
}
