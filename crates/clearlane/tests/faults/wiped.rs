//! A member that has lost its data does not come back under its old identity.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::time::Instant;

use clearlane_proto::etcdserverpb::cluster_client::ClusterClient;
use clearlane_proto::etcdserverpb::{
    MemberAddRequest, MemberListRequest, MemberRemoveRequest, StatusResponse,
};

use crate::program::{
    Program, TIMEOUT, kv_with_timeout, members, members_with_tls, patient_channel, short_pause,
};
use crate::support;
use crate::writers::{check_keys_present, value_of};

const REFUSED: &str = "has already been bootstrapped";
const WAITS: &str = "cannot know yet whether it has started before";

/// Puts that are acknowledged. A proposal that is forwarded to a leader that was killed is lost, so
/// a put is tried again.
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

/// It ends with status 1 and this error.
async fn is_refused(member: &mut Program, error: &str) {
    let status = member.ended().await;
    assert_eq!(status.code(), Some(1), "{}", member.log());
    let log = member.log();
    assert!(log.lines().last().unwrap().contains(error), "{log}");
}

/// Two members acknowledge writes and stop, one of them loses its data, and the third member lags:
/// the wiped one and the third must not serve without these writes.
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
    // The third member alone elects no leader, and answers no linearizable read.
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
    // A member counts as healthy once it has been connected for a while.
    while let Err(status) = cluster.member_add(add()).await {
        assert_eq!(status.message(), "etcdserver: unhealthy cluster");
        short_pause().await;
    }
    members[2].start_existing();
    members[2].ready().await;
    check_keys_present(members[2].client, &keys, false).await;
}

/// The disk of a member is replaced by an older copy: it has its identity, and lacks entries.
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
    // A leader that was elected since does not know what the member has acknowledged.
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

async fn first_start(mut members: Vec<Program>) {
    members[0].start();
    members[0].logs(WAITS).await;
    assert!(!members[0].data_dir().join("member/wal").exists(), "it has taken an identity");
    // A signal ends it while it waits.
    members[0].signal("TERM");
    assert_eq!(members[0].ended().await.signal(), Some(15), "{}", members[0].log());
    members[0].start();
    members[1].start();
    all_ready(&mut members[..2]).await;
    let keys = put(&members[0], 0..10).await;
    members[2].start();
    members[2].ready().await;
    check_keys_present(members[2].client, &keys, false).await;
    // They can also restart all at once, because they have data.
    members.iter_mut().for_each(Program::kill);
    members.iter_mut().for_each(Program::start);
    all_ready(&mut members).await;
}
