//! A member whose disk returns something else than was written: which member finds out, and when?

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use clearlane::corruption_check;
use clearlane_engine::{Bucket, EngineKind, KeyRange, Options};
use clearlane_net::tls::Dialer;
use clearlane_proto::etcdserverpb::{AlarmMember, AlarmType, CompactionRequest};
use clearlane_server::Server;
use clearlane_server::apply::Limits;
use clearlane_server::raft_snapshot::open_store_dir;
use clearlane_wal::files::OsFileSystem;

use crate::test_cluster::{TestCluster, block_on, eventually, put};

const EVERY: Duration = Duration::from_millis(50);

async fn cluster() -> TestCluster {
    let mut lab = TestCluster::new(&["a", "b", "c"]);
    // What a member has on disk is not applied again from its log.
    lab.tune = |start| start.backend.batch_interval = Duration::from_millis(5);
    for name in ["a", "b", "c"] {
        lab.start(name);
    }
    let leader = lab.leader().await;
    for number in 0..10 {
        lab.put(&leader, &format!("k{number}"), "value").await;
    }
    lab.agree().await;
    lab
}

async fn spoil(lab: &mut TestCluster, name: &str) {
    lab.kill(name).await;
    let snap = lab.data_dir(name).join("member/snap");
    let vault = open_store_dir(Arc::new(OsFileSystem), &snap, EngineKind::Bolt, Options::default());
    let engine = vault.unwrap().open().unwrap();
    let mut records = Vec::new();
    let snapshot = engine.snapshot().unwrap();
    snapshot
        .scan(Bucket::Key, KeyRange::ALL, &mut |key, record| {
            records.push((key.to_vec(), record.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    // There are more if one was put twice, which may be where an answer took too long.
    assert!(records.len() >= 10, "all of it is on disk");
    let (key, mut record) = records.swap_remove(3);
    let at = record.windows(5).position(|bytes| bytes == b"value").unwrap();
    record[at] = b'V';
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Key, &key, &record).unwrap();
    txn.commit().unwrap();
}

/// Waits until there are any.
async fn alarms(lab: &TestCluster) -> Vec<AlarmMember> {
    let raised = || {
        let mut all = lab.names().into_iter().map(|name| lab.node(&name).alarms());
        let first = all.next().filter(|alarms| alarms.is_raised(AlarmType::Corrupt))?;
        all.all(|other| other == first).then(|| first.iter().collect())
    };
    eventually("that all hear of an alarm", raised).await
}

async fn with_a_spoilt_follower() -> (TestCluster, String) {
    let mut lab = cluster().await;
    let follower = lab.followers().await.remove(0);
    spoil(&mut lab, &follower).await;
    lab.start(&follower);
    (lab, follower)
}

fn handle(lab: &TestCluster, name: &str) -> Server {
    let member = Server::new(&lab.running[name].node, Limits::default());
    tokio::spawn(member.requests().clone().run());
    member
}

fn corrupt(member_id: u64) -> Vec<AlarmMember> {
    vec![AlarmMember { member_id, alarm: AlarmType::Corrupt as i32 }]
}

async fn compact(lab: &TestCluster, name: &str, revision: i64) {
    let request = CompactionRequest { revision, physical: true };
    lab.kv(name).await.compact(request).await.unwrap();
}

#[test]
fn a_spoilt_member_does_not_begin_to_serve() {
    block_on(async {
        let mut lab = cluster().await;
        let follower = lab.followers().await.remove(0);
        let id = lab.id(&follower);
        // As long as nothing is wrong it may.
        lab.kill(&follower).await;
        let urls = vec![lab.url(&follower)];
        let opened = lab.member_config(&follower).open().unwrap();
        corruption_check::initial_check(&opened.threads, &urls, &Dialer::default()).unwrap();
        drop(opened);
        lab.start(&follower);
        lab.agree().await;

        spoil(&mut lab, &follower).await;
        let opened = lab.member_config(&follower).open().unwrap();
        let told = corruption_check::initial_check(&opened.threads, &urls, &Dialer::default())
            .unwrap_err();
        assert_eq!(told, format!("{id:x} found data inconsistency with peers"));
    });
}

#[test]
fn no_member_to_compare_with_is_no_fault() {
    block_on(async {
        let mut lab = cluster().await;
        let leader = lab.leader().await;
        for name in ["a", "b", "c"] {
            lab.kill(name).await;
        }
        let opened = lab.member_config(&leader).open().unwrap();
        corruption_check::initial_check(&opened.threads, &[lab.url(&leader)], &Dialer::default())
            .unwrap();
    });
}

#[test]
fn the_leader_finds_a_spoilt_follower() {
    block_on(async {
        let (lab, follower) = with_a_spoilt_follower().await;
        let leader = lab.leader().await;
        let checks = corruption_check::run_periodic_checks(handle(&lab, &leader), EVERY);
        let checks = tokio::spawn(checks);
        assert_eq!(alarms(&lab).await, corrupt(lab.id(&follower)));
        checks.abort();
        // No client writes on top of that, at no member.
        for name in lab.names() {
            let told = lab.kv(&name).await.put(put("k", "v")).await.unwrap_err();
            assert_eq!(told.message(), "etcdserver: corrupt cluster", "{name}");
        }
        assert_eq!(lab.get(&leader, "k3").await.unwrap().as_deref(), Some("value"));
    });
}

#[test]
fn a_follower_does_not_look() {
    block_on(async {
        let (lab, follower) = with_a_spoilt_follower().await;
        lab.leader().await;
        let other = lab.followers().await.into_iter().find(|name| *name != follower).unwrap();
        let checks =
            corruption_check::run_periodic_checks(handle(&lab, &other), Duration::from_millis(1));
        assert!(tokio::time::timeout(20 * EVERY, checks).await.is_err());
        assert_eq!(lab.node(&other).alarms().iter().count(), 0);
    });
}

#[test]
fn behind_a_compaction_the_one_of_three_is_found() {
    block_on(async {
        let (lab, follower) = with_a_spoilt_follower().await;
        let leader = lab.leader().await;
        // Only what all have done by compacting is compared.
        for number in 0..3 {
            lab.put(&leader, "more", &number.to_string()).await;
        }
        compact(&lab, &leader, 12).await;
        let checks = corruption_check::run_compaction_checks(handle(&lab, &leader), EVERY);
        let checks = tokio::spawn(checks);
        assert_eq!(alarms(&lab).await, corrupt(lab.id(&follower)));
        checks.abort();
    });
}

#[test]
fn behind_a_compaction_a_spoilt_leader_is_found_too() {
    block_on(async {
        let (lab, follower) = with_a_spoilt_follower().await;
        let id = lab.id(&follower);
        let before = lab.leader().await;
        let follows = || {
            let (has, all) = (lab.node(&follower).status(), lab.node(&before).status());
            (has.applied() >= all.committed()).then_some(())
        };
        eventually("that it follows", follows).await;
        lab.hand_over(&before, id).await;
        for number in 0..3 {
            lab.put(&follower, "more", &number.to_string()).await;
        }
        compact(&lab, &follower, 12).await;
        let checks = corruption_check::run_compaction_checks(handle(&lab, &follower), EVERY);
        let checks = tokio::spawn(checks);
        assert_eq!(alarms(&lab).await, corrupt(id));
        checks.abort();
    });
}
