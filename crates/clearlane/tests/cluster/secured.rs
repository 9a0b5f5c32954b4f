//! Members with TLS: which caller is let in, and which is not.

use clearlane::data::Error;
use clearlane_net::tls::TlsInfo;
use clearlane_net::tls::config::{AllowedNames, SelfSignedConfig};
use clearlane_proto::etcdserverpb::MemberAddRequest;
use tempfile::TempDir;

use crate::authority::{Authority, only};
use crate::test_cluster::{TestCluster, block_on, eventually};

const THREE: [&str; 3] = ["a", "b", "c"];
const HOME: [&str; 1] = ["127.0.0.1"];

/// Members with certificates of one authority, none of which runs yet.
fn of_one_authority(names: &[&str]) -> (TestCluster, Authority, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let ca = Authority::new(dir.path(), "ca");
    let mut lab = TestCluster::new(names);
    for name in names {
        lab.tls.insert((*name).to_owned(), member(&ca, name));
    }
    (lab, ca, dir)
}

fn member(ca: &Authority, name: &str) -> TlsInfo {
    TlsInfo { checks_address: true, ..ca.side(ca.pair(name, &HOME)) }
}

/// Two of three agree, and the third reaches no other member. After `then` it takes part.
fn is_kept_out_until(mut lab: TestCluster, then: impl FnOnce(&mut TestCluster)) {
    for name in THREE {
        lab.start(name);
    }
    block_on(async {
        let two = ["a".to_owned(), "b".to_owned()];
        lab.leader_of(&two).await;
        for number in 0..20 {
            lab.put("a", "k", &number.to_string()).await;
        }
        let figures = lab.node("c").peer_clients().unwrap().traffic();
        assert_eq!(figures.len(), 2);
        assert!(figures.iter().all(|to| !to.is_active), "{figures:?}");
        assert_eq!(lab.get("b", "k").await.unwrap().as_deref(), Some("19"));
        lab.kill("c").await;
    });
    then(&mut lab);
    lab.start("c");
    block_on(async {
        lab.agree().await;
        assert_eq!(lab.get("c", "k").await.unwrap().as_deref(), Some("19"));
    });
}

#[test]
fn three_members_replicate() {
    let (mut lab, _ca, _dir) = of_one_authority(&THREE);
    for name in THREE {
        lab.start(name);
    }
    block_on(async {
        let leader = lab.leader().await;
        lab.put("a", "k", "1").await;
        lab.agree().await;
        lab.kill(&leader).await;
        lab.leader().await;
        let other = lab.names().remove(0);
        lab.put(&other, "k", "2").await;
    });
    let gone = THREE.into_iter().find(|name| !lab.names().contains(&(*name).to_owned()));
    lab.start(gone.unwrap());
    block_on(async {
        lab.agree().await;
        assert_eq!(lab.get(gone.unwrap(), "k").await.unwrap().as_deref(), Some("2"));
    });
}

#[test]
fn a_member_of_another_authority_is_kept_out() {
    let (mut lab, ca, dir) = of_one_authority(&THREE);
    let other = Authority::new(dir.path(), "other");
    lab.tls.insert("c".to_owned(), member(&other, "odd"));
    is_kept_out_until(lab, |lab| {
        lab.tls.insert("c".to_owned(), member(&ca, "c"));
    });
}

/// It trusts the others.
#[test]
fn a_member_without_a_certificate_is_kept_out() {
    let (mut lab, ca, _dir) = of_one_authority(&THREE);
    lab.client_tls.insert("c".to_owned(), ca.believer());
    is_kept_out_until(lab, |lab| lab.client_tls.clear());
}

#[test]
fn a_member_of_another_name_is_kept_out() {
    let (mut lab, ca, _dir) = of_one_authority(&THREE);
    for side in lab.tls.values_mut() {
        side.allowed = only(&["a", "b", "third"]);
    }
    is_kept_out_until(lab, |lab| {
        let side =
            TlsInfo { server_certificate: Some(ca.pair("third", &HOME)), ..lab.tls["c"].clone() };
        lab.tls.insert("c".to_owned(), side);
    });
}

/// Its server certificate is for its address, its client certificate for another.
#[test]
fn a_member_from_elsewhere_is_kept_out() {
    let (mut lab, ca, _dir) = of_one_authority(&THREE);
    lab.client_tls.insert("c".to_owned(), ca.caller(ca.pair("away", &["10.9.8.7"])));
    is_kept_out_until(lab, |lab| {
        // With `--peer-skip-client-san-verification` it may connect. The others are restarted with
        // it.
        for name in ["a", "b"] {
            lab.tls.get_mut(name).unwrap().checks_address = false;
            block_on(lab.kill(name));
            lab.start(name);
        }
    });
}

#[test]
fn members_with_certificates_of_their_own_replicate() {
    let mut lab = TestCluster::new(&THREE);
    for name in THREE {
        let (dir, hosts) = (lab.data_dir(name).join("fixtures/peer"), vec![HOME[0].to_owned()]);
        let made = Some(SelfSignedConfig { flag: "peer-auto-tls", dir, hosts, years: 1 });
        let allowed = AllowedNames::Any;
        lab.tls
            .insert(name.to_owned(), TlsInfo { self_signed: made, allowed, ..TlsInfo::default() });
    }
    for name in THREE {
        lab.start(name);
    }
    block_on(async {
        lab.leader().await;
        lab.put("a", "k", "1").await;
        lab.agree().await;
    });
}

/// Also the question which members there are goes over TLS, and a raft snapshot of the store.
#[test]
fn a_member_joins_and_gets_a_copy() {
    let (mut lab, ca, dir) = of_one_authority(&["a"]);
    lab.tune = |start| (start.replica.snapshot_count, start.replica.catch_up_entries) = (10, 2);
    lab.start("a");
    block_on(async {
        for number in 0..50 {
            lab.put("a", "k", &number.to_string()).await;
        }
    });
    lab.tls.insert("b".to_owned(), member(&ca, "b"));
    let url = lab.bind("b");
    block_on(async {
        let request = MemberAddRequest { peer_urls: vec![url], is_learner: true };
        lab.cluster("a").await.member_add(request).await.unwrap();
    });
    let other = Authority::new(dir.path(), "other");
    lab.tls.insert("b".to_owned(), member(&other, "odd"));
    let odd = clearlane::data::MemberConfig {
        initial_cluster_state: clearlane::data::InitialClusterState::Existing,
        ..lab.member_config("b")
    };
    let told = odd.open().unwrap_err();
    assert!(matches!(told, Error::NoPeerAnswered(_)), "{told}");
    assert!(told.to_string().contains("certificate signed by unknown authority"), "{told}");
    lab.tls.insert("b".to_owned(), member(&ca, "b"));
    lab.join("b");
    block_on(async {
        lab.agree().await;
        let sent = || {
            let figures = lab.node("a").peer_clients().unwrap().traffic();
            figures.iter().any(|figures| figures.raft_snapshots_sent > 0).then_some(())
        };
        eventually("a copy", sent).await;
    });
}
