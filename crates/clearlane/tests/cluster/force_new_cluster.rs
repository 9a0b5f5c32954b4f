//! A member that goes on as the only one.

use std::fs;

use clearlane::data::{Error, MemberConfig};

use crate::test_cluster::{TestCluster, block_on};

#[test]
fn the_last_one_of_three_goes_on_with_its_data() {
    let mut lab = TestCluster::started(&["a", "b", "c"]);
    block_on(async {
        let leader = lab.leader().await;
        lab.put(&leader, "k", "1").await;
        lab.agree().await;
        let ids = ["b", "c"].map(|name| lab.id(name));
        for name in ["a", "b", "c"] {
            lab.kill(name).await;
        }
        lab.run(MemberConfig { force_new_cluster: true, ..lab.member_config("a") });
        lab.put("a", "k", "2").await;
        assert_eq!(lab.get("a", "k").await.unwrap().as_deref(), Some("2"));
        let members = lab.node("a").members();
        assert_eq!(members.iter().count(), 1);
        assert!(ids.iter().all(|id| members.is_removed(*id)));
        // The flag is given once; from then on it is alone.
        lab.kill("a").await;
        lab.start("a");
        lab.put("a", "k", "3").await;
    });
}

#[test]
fn there_must_be_data_to_go_on_with() {
    let mut lab = TestCluster::new(&["a"]);
    let start = MemberConfig { force_new_cluster: true, ..lab.member_config("a") };
    assert!(matches!(start.open().unwrap_err(), Error::NoDataToForce(_)));
    lab.start("a");
    block_on(lab.kill("a"));
    fs::write(lab.data_dir("a").join("member/format"), "2\n").unwrap();
    assert!(matches!(lab.member_config("a").open().unwrap_err(), Error::NewerFormat { .. }));
}
