//! Tests of a member whose disk returns data that was never written: which member detects this, and
//! when.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use clearlane::corruption_check;
use clearlane_engine::{Bucket, EngineKind, KeyRange, Options};
use clearlane_net::tls::Dialer;
use clearlane_proto::etcdserverpb::{AlarmMember, AlarmType, CompactionRequest};
use clearlane_replica::apply::Limits;
use clearlane_server::Server;
use clearlane_server::snapshot::open_store_dir;
use clearlane_wal::files::OsFileSystem;

use crate::test_cluster::{TestCluster, block_on, eventually, put};

const EVERY: Duration = Duration::from_millis(50);

async fn started_cluster() -> TestCluster {
    let mut cluster = TestCluster::new(&["a", "b", "c"]);
    // Frequent commits ensure that the data is on disk, so that a restarted member does not apply
    // the data again from the log.
    cluster.tune = |start| start.backend.batch_interval = Duration::from_millis(5);
    for name in ["a", "b", "c"] {
        cluster.start(name);
    }
    let leader = cluster.leader().await;
    for number in 0..10 {
        cluster.put(&leader, &format!("k{number}"), "value").await;
    }
    cluster.agree().await;
    cluster
}

async fn spoil(cluster: &mut TestCluster, name: &str) {
    cluster.kill(name).await;
    let snap = cluster.data_dir(name).join("member/snap");
    let store_dir =
        open_store_dir(Arc::new(OsFileSystem), &snap, EngineKind::Bolt, Options::default());
    let engine = store_dir.unwrap().open().unwrap();
    let mut records = Vec::new();
    let snapshot = engine.snapshot().unwrap();
    snapshot
        .scan(Bucket::Key, KeyRange::ALL, &mut |key, record| {
            records.push((key.to_vec(), record.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    // There are more than ten records if a response took too long and the put was tried again.
    assert!(records.len() >= 10, "all of it is on disk");
    let (key, mut record) = records.swap_remove(3);
    let at = record.windows(5).position(|bytes| bytes == b"value").unwrap();
    record[at] = b'V';
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Key, &key, &record).unwrap();
    txn.commit().unwrap();
}

/// Waits until all members have the same alarms, including CORRUPT. Returns these alarms.
async fn alarms(cluster: &TestCluster) -> Vec<AlarmMember> {
    let raised = || {
        let mut all = cluster.names().into_iter().map(|name| cluster.node(&name).alarms());
        let first = all.next().filter(|alarms| alarms.is_raised(AlarmType::Corrupt))?;
        all.all(|other| other == first).then(|| first.iter().collect())
    };
    eventually("that all hear of an alarm", raised).await
}

async fn with_a_spoilt_follower() -> (TestCluster, String) {
    let mut cluster = started_cluster().await;
    let follower = cluster.followers().await.remove(0);
    spoil(&mut cluster, &follower).await;
    cluster.start(&follower);
    (cluster, follower)
}

fn handle(cluster: &TestCluster, name: &str) -> Server {
    let member = Server::new(&cluster.running[name].node, Limits::default());
    tokio::spawn(member.requests().clone().run());
    member
}

fn corrupt(member_id: u64) -> Vec<AlarmMember> {
    vec![AlarmMember { member_id, alarm: AlarmType::Corrupt as i32 }]
}

async fn compact(cluster: &TestCluster, name: &str, revision: i64) {
    let request = CompactionRequest { revision, physical: true };
    cluster.kv(name).await.compact(request).await.unwrap();
}

#[test]
fn a_spoilt_member_does_not_begin_to_serve() {
    block_on(async {
        let mut cluster = started_cluster().await;
        let follower = cluster.followers().await.remove(0);
        let id = cluster.id(&follower);
        // The check passes while the data is correct.
        cluster.kill(&follower).await;
        let urls = vec![cluster.url(&follower)];
        let opened = cluster.member_config(&follower).open().unwrap();
        corruption_check::initial_check(&opened.threads, &urls, &Dialer::default()).unwrap();
        drop(opened);
        cluster.start(&follower);
        cluster.agree().await;

        spoil(&mut cluster, &follower).await;
        let opened = cluster.member_config(&follower).open().unwrap();
        let error = corruption_check::initial_check(&opened.threads, &urls, &Dialer::default())
            .unwrap_err();
        assert_eq!(error, format!("{id:x} found data inconsistency with peers"));
    });
}

#[test]
fn no_member_to_compare_with_is_no_fault() {
    block_on(async {
        let mut cluster = started_cluster().await;
        let leader = cluster.leader().await;
        for name in ["a", "b", "c"] {
            cluster.kill(name).await;
        }
        let opened = cluster.member_config(&leader).open().unwrap();
        corruption_check::initial_check(
            &opened.threads,
            &[cluster.url(&leader)],
            &Dialer::default(),
        )
        .unwrap();
    });
}

#[test]
fn the_leader_finds_a_spoilt_follower() {
    block_on(async {
        let (cluster, follower) = with_a_spoilt_follower().await;
        let leader = cluster.leader().await;
        let checks = corruption_check::run_periodic_checks(handle(&cluster, &leader), EVERY);
        let checks = tokio::spawn(checks);
        assert_eq!(alarms(&cluster).await, corrupt(cluster.id(&follower)));
        checks.abort();
        // Afterwards no member accepts writes.
        for name in cluster.names() {
            let error = cluster.kv(&name).await.put(put("k", "v")).await.unwrap_err();
            assert_eq!(error.message(), "etcdserver: corrupt cluster", "{name}");
        }
        assert_eq!(cluster.get(&leader, "k3").await.unwrap().as_deref(), Some("value"));
    });
}

#[test]
fn a_follower_does_not_look() {
    block_on(async {
        let (cluster, follower) = with_a_spoilt_follower().await;
        cluster.leader().await;
        let other = cluster.followers().await.into_iter().find(|name| *name != follower).unwrap();
        let checks = corruption_check::run_periodic_checks(
            handle(&cluster, &other),
            Duration::from_millis(1),
        );
        assert!(tokio::time::timeout(20 * EVERY, checks).await.is_err());
        assert_eq!(cluster.node(&other).alarms().iter().count(), 0);
    });
}

#[test]
fn behind_a_compaction_the_one_of_three_is_found() {
    block_on(async {
        let (cluster, follower) = with_a_spoilt_follower().await;
        let leader = cluster.leader().await;
        // The check compares hashes of compactions. So all members must make a compaction first.
        for number in 0..3 {
            cluster.put(&leader, "more", &number.to_string()).await;
        }
        compact(&cluster, &leader, 12).await;
        let checks = corruption_check::run_compaction_checks(handle(&cluster, &leader), EVERY);
        let checks = tokio::spawn(checks);
        assert_eq!(alarms(&cluster).await, corrupt(cluster.id(&follower)));
        checks.abort();
    });
}

#[test]
fn behind_a_compaction_a_spoilt_leader_is_found_too() {
    block_on(async {
        let (cluster, follower) = with_a_spoilt_follower().await;
        let id = cluster.id(&follower);
        let before = cluster.leader().await;
        let follows = || {
            let (has, all) = (cluster.node(&follower).status(), cluster.node(&before).status());
            (has.applied() >= all.committed()).then_some(())
        };
        eventually("that it follows", follows).await;
        cluster.hand_over(&before, id).await;
        for number in 0..3 {
            cluster.put(&follower, "more", &number.to_string()).await;
        }
        compact(&cluster, &follower, 12).await;
        let checks = corruption_check::run_compaction_checks(handle(&cluster, &follower), EVERY);
        let checks = tokio::spawn(checks);
        assert_eq!(alarms(&cluster).await, corrupt(id));
        checks.abort();
    });
}
