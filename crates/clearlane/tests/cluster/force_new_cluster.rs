//! Tests of `--force-new-cluster`: one member continues as the only member of its cluster.

use clearlane::data::{Error, MemberConfig};

use crate::test_cluster::{TestCluster, block_on};

#[test]
fn the_last_one_of_three_goes_on_with_its_data() {
    let mut cluster = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = cluster.leader().await;
        cluster.put(&leader, "k", "1").await;
        cluster.agree().await;
        let ids = ["b", "c"].map(|name| cluster.id(name));
        for name in ["a", "b", "c"] {
            cluster.kill(name).await;
        }
        cluster.run(MemberConfig { force_new_cluster: true, ..cluster.member_config("a") });
        cluster.put("a", "k", "2").await;
        assert_eq!(cluster.get("a", "k").await.unwrap().as_deref(), Some("2"));
        let members = cluster.node("a").members();
        assert_eq!(members.iter().count(), 1);
        assert!(ids.iter().all(|id| members.is_removed(*id)));
        // The flag is needed only once. Afterwards the member is the only member of its cluster.
        cluster.kill("a").await;
        cluster.start("a");
        cluster.put("a", "k", "3").await;
    });
}

#[test]
fn there_must_be_data_to_go_on_with() {
    let cluster = TestCluster::new(&["a"]);
    let start = MemberConfig { force_new_cluster: true, ..cluster.member_config("a") };
    assert!(matches!(start.open().unwrap_err(), Error::NoDataToForce(_)));
}
