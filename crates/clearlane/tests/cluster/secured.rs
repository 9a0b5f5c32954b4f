//! Tests of members with TLS: which callers are accepted, and which are not.

use clearlane::data::Error;
use clearlane_net::tls::TlsInfo;
use clearlane_net::tls::config::{AllowedNames, SelfSignedConfig};
use clearlane_proto::etcdserverpb::MemberAddRequest;
use tempfile::TempDir;

use crate::authority::{Authority, only};
use crate::test_cluster::{TestCluster, block_on, eventually};

const THREE: [&str; 3] = ["a", "b", "c"];
const HOME: [&str; 1] = ["127.0.0.1"];

/// Creates members with certificates of one authority. None of them is started.
fn of_one_authority(names: &[&str]) -> (TestCluster, Authority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let mut cluster = TestCluster::new(names);
    for name in names {
        cluster.tls.insert((*name).to_owned(), member(&ca, name));
    }
    (cluster, ca, dir)
}

fn member(ca: &Authority, name: &str) -> TlsInfo {
    TlsInfo { checks_address: true, ..ca.side(ca.pair(name, &HOME)) }
}

/// Checks that two of three members agree, and that the third member reaches no other member. Then
/// calls `then`, starts the third member again, and checks that this member takes part.
fn is_kept_out_until(mut cluster: TestCluster, then: impl FnOnce(&mut TestCluster)) {
    for name in THREE {
        cluster.start(name);
    }
    block_on(async {
        let two = ["a".to_owned(), "b".to_owned()];
        cluster.leader_of(&two).await;
        for number in 0..20 {
            cluster.put("a", "k", &number.to_string()).await;
        }
        let figures = cluster.node("c").peer_clients().unwrap().traffic();
        assert_eq!(figures.len(), 2);
        assert!(figures.iter().all(|to| !to.is_active), "{figures:?}");
        assert_eq!(cluster.get("b", "k").await.unwrap().as_deref(), Some("19"));
        cluster.kill("c").await;
    });
    then(&mut cluster);
    cluster.start("c");
    block_on(async {
        cluster.agree().await;
        assert_eq!(cluster.get("c", "k").await.unwrap().as_deref(), Some("19"));
    });
}

#[test]
fn three_members_replicate() {
    let (mut cluster, _ca, _dir) = of_one_authority(&THREE);
    for name in THREE {
        cluster.start(name);
    }
    block_on(async {
        let leader = cluster.leader().await;
        cluster.put("a", "k", "1").await;
        cluster.agree().await;
        cluster.kill(&leader).await;
        cluster.leader().await;
        let other = cluster.names().remove(0);
        cluster.put(&other, "k", "2").await;
    });
    let gone = THREE.into_iter().find(|name| !cluster.names().contains(&(*name).to_owned()));
    cluster.start(gone.unwrap());
    block_on(async {
        cluster.agree().await;
        assert_eq!(cluster.get(gone.unwrap(), "k").await.unwrap().as_deref(), Some("2"));
    });
}

#[test]
fn a_member_of_another_authority_is_kept_out() {
    let (mut cluster, ca, dir) = of_one_authority(&THREE);
    let other = Authority::new(dir.path(), "other");
    cluster.tls.insert("c".to_owned(), member(&other, "odd"));
    is_kept_out_until(cluster, |cluster| {
        cluster.tls.insert("c".to_owned(), member(&ca, "c"));
    });
}

#[test]
fn a_member_of_another_name_is_kept_out() {
    let (mut cluster, ca, _dir) = of_one_authority(&THREE);
    for side in cluster.tls.values_mut() {
        side.allowed = only(&["a", "b", "third"]);
    }
    is_kept_out_until(cluster, |cluster| {
        let side = TlsInfo {
            server_certificate: Some(ca.pair("third", &HOME)),
            ..cluster.tls["c"].clone()
        };
        cluster.tls.insert("c".to_owned(), side);
    });
}

/// Checks that `c` takes part although the others reject its connections. The others connect to
/// `c`, verify the server certificate of `c`, and receive its messages over these connections.
fn takes_part_over_the_others_connections(cluster: &mut TestCluster) {
    for name in THREE {
        cluster.start(name);
    }
    block_on(async {
        cluster.leader().await;
        for number in 0..20 {
            cluster.put("c", "k", &number.to_string()).await;
        }
        cluster.agree().await;
        let to_others = cluster.node("c").peer_clients().unwrap().traffic();
        assert_eq!(to_others.len(), 2);
        assert!(to_others.iter().all(|to| !to.is_active), "{to_others:?}");
        // A follower sends only to the leader, so one connection with sent bytes is enough.
        assert!(to_others.iter().any(|to| to.sent_bytes > 0), "{to_others:?}");
        // Without `a`, a quorum consists of `b` and `c`. So the next put succeeds only if `c` leads
        // or votes.
        cluster.kill("a").await;
        cluster.leader().await;
        cluster.put("c", "k", "c").await;
        assert_eq!(cluster.get("b", "k").await.unwrap().as_deref(), Some("c"));
    });
    cluster.start("a");
    block_on(async {
        cluster.agree().await;
        assert_eq!(cluster.get("a", "k").await.unwrap().as_deref(), Some("c"));
    });
}

#[test]
fn a_member_without_a_client_certificate_takes_part() {
    let (mut cluster, ca, _dir) = of_one_authority(&THREE);
    cluster.client_tls.insert("c".to_owned(), ca.believer());
    takes_part_over_the_others_connections(&mut cluster);
}

/// The server certificate of `c` is for its address, and its client certificate is for a different
/// address. So the others reject the connections of `c`, but `c` must take part.
#[test]
fn a_member_that_calls_from_elsewhere_takes_part() {
    let (mut cluster, ca, _dir) = of_one_authority(&THREE);
    cluster.client_tls.insert("c".to_owned(), ca.caller(ca.pair("away", &["10.9.8.7"])));
    takes_part_over_the_others_connections(&mut cluster);
    // With `--peer-skip-client-san-verification`, the others accept the connections of `c` as well.
    for name in ["a", "b"] {
        cluster.tls.get_mut(name).unwrap().checks_address = false;
        block_on(cluster.kill(name));
        cluster.start(name);
    }
    block_on(async {
        let accepted = || {
            let to_others = cluster.node("c").peer_clients().unwrap().traffic();
            to_others.iter().all(|to| to.is_active).then_some(())
        };
        eventually("connections to both", accepted).await;
    });
}

#[test]
fn members_with_certificates_of_their_own_replicate() {
    let mut cluster = TestCluster::new(&THREE);
    for name in THREE {
        let (dir, hosts) = (cluster.data_dir(name).join("fixtures/peer"), vec![HOME[0].to_owned()]);
        let made = Some(SelfSignedConfig { flag: "peer-auto-tls", dir, hosts, years: 1 });
        let allowed = AllowedNames::Any;
        cluster
            .tls
            .insert(name.to_owned(), TlsInfo { self_signed: made, allowed, ..TlsInfo::default() });
    }
    for name in THREE {
        cluster.start(name);
    }
    block_on(async {
        cluster.leader().await;
        cluster.put("a", "k", "1").await;
        cluster.agree().await;
    });
}

/// The queries of the joining member and a raft snapshot of the store must also work over TLS.
#[test]
fn a_member_joins_and_gets_a_copy() {
    let (mut cluster, ca, dir) = of_one_authority(&["a"]);
    cluster.tune = |start| (start.replica.snapshot_count, start.replica.catch_up_entries) = (10, 2);
    cluster.start("a");
    block_on(async {
        for number in 0..50 {
            cluster.put("a", "k", &number.to_string()).await;
        }
    });
    cluster.tls.insert("b".to_owned(), member(&ca, "b"));
    let url = cluster.bind("b");
    block_on(async {
        let request = MemberAddRequest { peer_urls: vec![url], is_learner: true };
        cluster.cluster_client("a").await.member_add(request).await.unwrap();
    });
    let other = Authority::new(dir.path(), "other");
    cluster.tls.insert("b".to_owned(), member(&other, "odd"));
    let odd = clearlane::data::MemberConfig {
        initial_cluster_state: clearlane::data::InitialClusterState::Existing,
        ..cluster.member_config("b")
    };
    let error = odd.open().unwrap_err();
    assert!(matches!(error, Error::NoPeerAnswered(_)), "{error}");
    assert!(error.to_string().contains("certificate signed by unknown authority"), "{error}");
    cluster.tls.insert("b".to_owned(), member(&ca, "b"));
    cluster.join("b");
    block_on(async {
        cluster.agree().await;
        let sent = || {
            let figures = cluster.node("a").peer_clients().unwrap().traffic();
            figures.iter().any(|figures| figures.raft_snapshots_sent > 0).then_some(())
        };
        eventually("a copy", sent).await;
    });
}
