//! Tests that a member that has lost its data does not start again with its old identity.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Instant;

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::{
    MemberAddRequest, MemberListRequest, MemberRemoveRequest, StatusResponse,
};

use crate::program::{
    Program, TIMEOUT, kv_with_timeout, members, members_that_refuse_the_last, members_with_tls,
    patient_channel, short_pause,
};
use crate::support;
use crate::writers::{check_keys_present, value_of};

const REFUSED: &str = "has already been bootstrapped";
const WAITS: &str = "cannot know yet whether it has started before";

/// Puts keys until all are acknowledged. A put is tried again after an error, because a proposal
/// that is forwarded to a killed leader is lost.
async fn put(member: &Program, keys: std::ops::Range<usize>) -> Vec<String> {
    let mut client = kv_with_timeout(member.client).await;
    let keys: Vec<String> = keys.map(|number| format!("w{number}")).collect();
    for key in &keys {
        let begin = Instant::now();
        while let Err(status) = client.put(support::put(key, value_of(key))).await {
            assert!(begin.elapsed() < TIMEOUT, "{status}");
        }
    }
    keys
}

async fn all_ready(members: &mut [Program]) -> StatusResponse {
    let mut status = StatusResponse::default();
    for member in members {
        status = member.ready().await;
    }
    status
}

/// Waits until the member ends. Checks that its status is 1, and that the last line of its log
/// contains `error`.
async fn is_refused(member: &mut Program, error: &str) {
    let status = member.ended().await;
    assert_eq!(status.code(), Some(1), "{}", member.log());
    let log = member.log();
    assert!(log.lines().last().unwrap().contains(error), "{log}");
}

/// Two members acknowledge writes and stop, one of them loses its data, and the third member lags.
/// The wiped member and the third one must not serve clients without these writes.
#[tokio::test]
async fn a_wiped_voter_and_a_member_that_lags_elect_no_leader() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    all_ready(&mut members).await;
    members[2].kill();
    let keys = put(&members[0], 0..40).await;
    members[0].kill();
    members[1].wipe();
    members[1].start();
    members[2].start();
    is_refused(&mut members[1], REFUSED).await;
    // Members 0 and 2 now form a quorum, and must have all keys. Before this start, member 2 was
    // the only running member, so it could elect no leader.
    members[0].start();
    members[0].ready().await;
    members[2].ready().await;
    for at in [0, 2] {
        check_keys_present(members[at].client, &keys, false).await;
    }
}

#[tokio::test]
async fn a_wiped_follower_is_refused_until_it_is_added_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    all_ready(&mut members).await;
    let mut keys = put(&members[0], 0..10).await;
    members[2].wipe();
    members[2].start();
    is_refused(&mut members[2], REFUSED).await;
    members[2].start_existing();
    is_refused(&mut members[2], REFUSED).await;
    keys.extend(put(&members[1], 10..20).await);
    assert!(!members[2].data_dir().join("member/wal").exists(), "it has taken an identity");

    let mut cluster = ClusterClient::new(patient_channel(members[0].client).await);
    let listed =
        cluster.member_list(MemberListRequest::default()).await.unwrap().into_inner().members;
    let id = listed.iter().find(|member| member.name == "m2").unwrap().id;
    cluster.member_remove(MemberRemoveRequest { id }).await.unwrap();
    let peer_urls = vec![members[2].peer_url()];
    let add = || MemberAddRequest { peer_urls: peer_urls.clone(), is_learner: false };
    // A member is considered healthy only after it has been connected for a while.
    while let Err(status) = cluster.member_add(add()).await {
        assert_eq!(status.message(), "etcdserver: unhealthy cluster");
        short_pause().await;
    }
    members[2].start_existing();
    members[2].ready().await;
    check_keys_present(members[2].client, &keys, false).await;
}

/// The disk of a member is replaced by an older copy. The member still has its identity, but it
/// lacks entries that it has acknowledged. It must stop.
#[tokio::test]
async fn a_member_with_an_older_disk_stops() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members(dir.path(), 3);
    members.iter_mut().for_each(Program::start);
    all_ready(&mut members).await;
    let (disk, copy) = (members[2].data_dir(), dir.path().join("copy"));
    members[2].kill();
    copy_dir(&disk, &copy);
    members[2].start();
    members[2].ready().await;
    let keys = put(&members[2], 0..40).await;
    let term = members[0].ready().await.raft_term;
    members[2].wipe();
    copy_dir(&copy, &disk);
    members[2].start();
    let error = "this member has lost entries of its log";
    // Only the leader of this term knows which entries the member has acknowledged. If another
    // leader has been elected since then, the member may continue.
    while members[0].ready().await.raft_term == term {
        if !members[2].is_running() {
            is_refused(&mut members[2], error).await;
            break;
        }
        short_pause().await;
    }
    check_keys_present(members[0].client, &keys, false).await;
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy_dir(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[tokio::test]
async fn the_first_members_wait_for_a_majority() {
    let dir = tempfile::tempdir().unwrap();
    first_start(members(dir.path(), 3)).await;
}

#[tokio::test]
async fn the_first_members_wait_for_a_majority_with_tls() {
    let dir = tempfile::tempdir().unwrap();
    first_start(members_with_tls(dir.path(), 3)).await;
}

/// Members 0 and 1 reject the calls of member 2. Member 2 still learns that they are new, because
/// they query it before they start.
#[tokio::test]
async fn a_first_member_that_the_others_refuse_takes_part() {
    let dir = tempfile::tempdir().unwrap();
    let mut members = members_that_refuse_the_last(dir.path(), 3);
    // The others query member 2 only until they have started, and they can start without it. So
    // member 2 starts first.
    members[2].start();
    members[2].logs(WAITS).await;
    members[..2].iter_mut().for_each(Program::start);
    all_ready(&mut members).await;
    let mut keys = put(&members[2], 0..10).await;
    // After this kill, a leader needs the vote of member 2, and each put needs its acknowledgement.
    members[0].kill();
    keys.extend(put(&members[1], 10..20).await);
    keys.extend(put(&members[2], 20..30).await);
    check_keys_present(members[1].client, &keys, false).await;
    check_keys_present(members[2].client, &keys, false).await;
}

async fn first_start(mut members: Vec<Program>) {
    members[0].start();
    members[0].logs(WAITS).await;
    assert!(!members[0].data_dir().join("member/wal").exists(), "it has taken an identity");
    // While the member waits for the others, a signal must end it.
    members[0].signal("TERM");
    assert_eq!(members[0].ended().await.signal(), Some(15), "{}", members[0].log());
    members[0].start();
    members[1].start();
    all_ready(&mut members[..2]).await;
    let keys = put(&members[0], 0..10).await;
    members[2].start();
    members[2].ready().await;
    check_keys_present(members[2].client, &keys, false).await;
    // All members can restart at the same time, because they have data.
    members.iter_mut().for_each(Program::kill);
    members.iter_mut().for_each(Program::start);
    all_ready(&mut members).await;
}
