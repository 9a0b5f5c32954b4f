//! Tests of alarms, the quota, sizes, hashes, snapshots and the leader, with a client over a
//! socket.

use crate::support;
use std::fs;
use std::sync::Arc;

use clearlane_backend::Era;
use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, MemoryEngine, Read};
use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::downgrade_request::DowngradeAction;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmType, CompactionRequest, DefragmentRequest, DeleteRangeRequest,
    DowngradeRequest, HashKvRequest, HashRequest, LeaseGrantRequest, LeaseRevokeRequest,
    MoveLeaderRequest, PutRequest, RangeRequest, SnapshotRequest, StatusRequest, TxnRequest,
};
use clearlane_proto::grpc::health::v1::HealthCheckRequest;
use clearlane_proto::grpc::health::v1::health_client::HealthClient;
use clearlane_replica::apply::Limits;
use clearlane_server::snapshot::snapshot_file;
use tonic::transport::Channel;
use tonic::{Code, Request};

use crate::support::{
    TestServer, block_on, code_and_message, in_eras, member_config, op, with_server,
};

/// The id that etcd gives to the member with the default name and peer address.
const MEMBER: u64 = 0x8e9e_05c5_2164_694d;

fn put(key: &str, bytes: usize) -> PutRequest {
    support::put(key, vec![b'v'; bytes])
}

const NO_SPACE: (Code, &str) =
    (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
const CORRUPT: (Code, &str) = (Code::DataLoss, "etcdserver: corrupt cluster");

fn with_quota(quota_bytes: i64, work: impl AsyncFn(&TestServer)) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = member_config(dir.path(), Era::Clearlane);
    config.replica.quota_bytes = quota_bytes;
    let server = TestServer::with(&config, 2, Limits::default());
    block_on(work(&server));
    server.stop();
}

struct Client {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
}

impl Client {
    async fn of(server: &TestServer) -> Client {
        let channel = server.channel().await;
        Client {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel),
        }
    }

    async fn alarm(&mut self, action: AlarmAction, member_id: u64, alarm: i32) -> Vec<AlarmMember> {
        let request = AlarmRequest { action: action as i32, member_id, alarm };
        let response = self.maintenance.alarm(request).await.unwrap().into_inner();
        assert!(response.header.unwrap().revision > 0);
        response.alarms
    }

    async fn raised(&mut self) -> Vec<AlarmMember> {
        self.alarm(AlarmAction::Get, 0, 0).await
    }

    async fn revision(&mut self) -> i64 {
        let request = StatusRequest {};
        self.maintenance.status(request).await.unwrap().into_inner().header.unwrap().revision
    }
}

fn puts_within(key: &str) -> TxnRequest {
    let inner = op(Op::RequestPut(put(key, 1)));
    let txn = TxnRequest { failure: vec![inner], ..TxnRequest::default() };
    let outer = op(Op::RequestTxn(txn));
    TxnRequest { success: vec![outer], ..TxnRequest::default() }
}

fn deletes(key: &str) -> TxnRequest {
    let delete = DeleteRangeRequest { key: key.to_owned().into(), ..Default::default() };
    TxnRequest { success: vec![op(Op::RequestDeleteRange(delete))], ..TxnRequest::default() }
}

#[test]
fn no_space_forbids_what_grows() {
    with_server(async |server| {
        let mut client = Client::of(server).await;
        client.kv.put(put("a", 1)).await.unwrap();
        let kind = AlarmType::Nospace as i32;
        let there = vec![AlarmMember { member_id: 777, alarm: kind }];
        assert_eq!(client.alarm(AlarmAction::Activate, 777, kind).await, there);
        assert_eq!(client.alarm(AlarmAction::Activate, 777, kind).await, there, "again");
        assert_eq!(client.raised().await, there);
        assert_eq!(client.alarm(AlarmAction::Get, 0, AlarmType::Corrupt as i32).await, vec![]);

        let refused = client.kv.put(put("a", 1)).await.unwrap_err();
        assert_eq!(code_and_message(&refused), NO_SPACE);
        let refused = client.kv.txn(puts_within("a")).await.unwrap_err();
        assert_eq!(code_and_message(&refused), NO_SPACE);
        let grant = LeaseGrantRequest { ttl: 60, id: 9 };
        assert_eq!(code_and_message(&client.lease.lease_grant(grant).await.unwrap_err()), NO_SPACE);
        let revoke = client.lease.lease_revoke(LeaseRevokeRequest { id: 9 }).await.unwrap_err();
        assert_eq!(revoke.code(), Code::NotFound, "a lease may be revoked, if there is one");
        client.kv.txn(deletes("none")).await.unwrap();
        let all = DeleteRangeRequest { key: "a".into(), ..Default::default() };
        assert_eq!(client.kv.delete_range(all).await.unwrap().into_inner().deleted, 1);
        client.kv.compact(CompactionRequest { revision: 2, physical: true }).await.unwrap();

        let request = Request::new(StatusRequest {});
        let status = client.maintenance.status(request).await.unwrap().into_inner();
        assert_eq!(status.errors, ["memberID:777 alarm:NOSPACE"]);
        assert_eq!(client.alarm(AlarmAction::Deactivate, 12, kind).await, vec![]);
        assert_eq!(client.alarm(AlarmAction::Deactivate, 777, kind).await, there);
        client.kv.put(put("a", 1)).await.unwrap();
    });
}

#[test]
fn corrupt_forbids_all_changes_and_outlives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let kind = AlarmType::Corrupt as i32;
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = Client::of(&server).await;
        client.kv.put(put("a", 1)).await.unwrap();
        client.alarm(AlarmAction::Activate, MEMBER, kind).await;
    });
    server.stop();
    let server = TestServer::start(dir.path(), Era::Clearlane);
    block_on(async {
        let mut client = Client::of(&server).await;
        assert_eq!(client.raised().await, [AlarmMember { member_id: MEMBER, alarm: kind }]);
        assert_eq!(code_and_message(&client.kv.put(put("a", 1)).await.unwrap_err()), CORRUPT);
        assert_eq!(code_and_message(&client.kv.txn(deletes("a")).await.unwrap_err()), CORRUPT);
        let compact = CompactionRequest { revision: 1, physical: false };
        assert_eq!(code_and_message(&client.kv.compact(compact).await.unwrap_err()), CORRUPT);
        let grant = LeaseGrantRequest { ttl: 60, id: 9 };
        assert_eq!(code_and_message(&client.lease.lease_grant(grant).await.unwrap_err()), CORRUPT);
        let revoke = LeaseRevokeRequest { id: 9 };
        assert_eq!(
            code_and_message(&client.lease.lease_revoke(revoke).await.unwrap_err()),
            CORRUPT
        );
        let range = RangeRequest { key: "a".into(), ..RangeRequest::default() };
        assert_eq!(client.kv.range(range).await.unwrap().into_inner().count, 1);
        let no_key = client.kv.put(put("", 1)).await.unwrap_err();
        assert_eq!(no_key.code(), Code::InvalidArgument, "its shape is looked at first");
        client.alarm(AlarmAction::Deactivate, MEMBER, kind).await;
        client.kv.put(put("a", 1)).await.unwrap();
    });
    server.stop();
}

#[test]
fn alarms_of_no_kind_and_of_unknown_kinds() {
    with_server(async |server| {
        let mut client = Client::of(server).await;
        assert_eq!(client.alarm(AlarmAction::Activate, MEMBER, 0).await, vec![]);
        assert_eq!(client.alarm(AlarmAction::Deactivate, MEMBER, 0).await, vec![]);
        let there = vec![AlarmMember { member_id: MEMBER, alarm: 9 }];
        assert_eq!(client.alarm(AlarmAction::Activate, MEMBER, 9).await, there);
        client.kv.put(put("a", 1)).await.unwrap();
        assert_eq!(client.alarm(AlarmAction::Deactivate, MEMBER, 9).await, there);
        assert_eq!(client.raised().await, vec![]);
        let unknown = AlarmRequest { action: 7, member_id: MEMBER, alarm: 1 };
        let refused = client.maintenance.alarm(unknown).await.unwrap_err();
        let words = "etcdserver: unknown alarm action";
        assert_eq!(code_and_message(&refused), (Code::InvalidArgument, words));
        assert_eq!(client.raised().await, vec![], "and the server lives");
    });
}

/// etcd's own tests of the quota use the same numbers, and expect the same results.
#[test]
fn a_quota_is_hit_and_room_is_made() {
    let quota = 53_248;
    with_quota(quota, async |server| {
        let mut client = Client::of(server).await;
        for number in 0..10 {
            client.kv.put(put(&format!("small{number}"), 10)).await.unwrap();
        }
        let refused = loop {
            if let Err(status) = client.kv.put(put("big", 4096)).await {
                break status;
            }
        };
        assert_eq!(code_and_message(&refused), NO_SPACE);
        let there = vec![AlarmMember { member_id: MEMBER, alarm: AlarmType::Nospace as i32 }];
        assert_eq!(client.raised().await, there);
        assert_eq!(code_and_message(&client.kv.put(put("small", 1)).await.unwrap_err()), NO_SPACE);

        let revision = client.revision().await;
        client.kv.compact(CompactionRequest { revision, physical: true }).await.unwrap();
        let status = client.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
        assert!(status.db_size_in_use < quota / 2, "{status:?}");
        assert!(status.db_size > status.db_size_in_use, "{status:?}");
        client.maintenance.defragment(DefragmentRequest {}).await.unwrap();
        let status = client.maintenance.status(StatusRequest {}).await.unwrap().into_inner();
        assert_eq!(status.db_size, status.db_size_in_use, "{status:?}");
        assert_eq!(status.db_size_quota, quota);
        let refused = client.kv.put(put("small", 1)).await.unwrap_err();
        assert_eq!(code_and_message(&refused), NO_SPACE, "the alarm stays until it is taken back");
        client.alarm(AlarmAction::Deactivate, MEMBER, AlarmType::Nospace as i32).await;
        client.kv.put(put("small", 1)).await.unwrap();
        assert_eq!(client.raised().await, vec![]);
    });
}

#[test]
fn a_request_that_does_not_fit_raises_the_alarm_before_it_is_refused() {
    with_quota(10_000, async |server| {
        let mut client = Client::of(server).await;
        let refused = client.kv.put(put("big", 20_000)).await.unwrap_err();
        assert_eq!(code_and_message(&refused), NO_SPACE);
        assert_eq!(client.raised().await.len(), 1);
        assert_eq!(client.revision().await, 1, "nothing was put");
    });
}

/// As in etcd, after the alarm has been disarmed, only a request that needs space, such as a put,
/// can raise it again. Deletes and compactions do not raise it, even if the store is still over its
/// quota.
#[test]
fn an_alarm_that_is_disarmed_without_room_waits_for_the_next_put() {
    with_quota(10_000, async |server| {
        let mut client = Client::of(server).await;
        // The puts are concurrent, so that the quota is checked for each put before the other puts
        // are in the store.
        let mut puts = tokio::task::JoinSet::new();
        for number in 0..10 {
            let mut kv = client.kv.clone();
            puts.spawn(async move { kv.put(put(&format!("k{number}"), 4096)).await.is_ok() });
        }
        let done = puts.join_all().await.into_iter().filter(|is_done| *is_done).count();
        assert!(done >= 1);
        while client.kv.put(put("more", 4096)).await.is_ok() {}
        assert_eq!(client.raised().await.len(), 1);
        client.alarm(AlarmAction::Deactivate, MEMBER, AlarmType::Nospace as i32).await;
        for _ in 0..3 {
            let all =
                DeleteRangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() };
            client.kv.delete_range(all).await.unwrap();
            let revision = client.revision().await;
            let compaction = CompactionRequest { revision, physical: true };
            match client.kv.compact(compaction).await {
                Ok(_) => {}
                Err(status) => assert_eq!(status.code(), Code::OutOfRange, "{status}"),
            }
            assert_eq!(client.raised().await, vec![]);
        }
        let refused = client.kv.put(put("k", 4096)).await.unwrap_err();
        assert_eq!(code_and_message(&refused), NO_SPACE);
        assert_eq!(client.raised().await.len(), 1);
    });
}

#[test]
fn a_snapshot_is_what_the_store_was() {
    in_eras([Era::Clearlane, Era::V3_1], async |server| {
        let mut client = Client::of(server).await;
        for number in 0..50 {
            client.kv.put(put(&format!("k{number}"), 2000)).await.unwrap();
        }
        let request = SnapshotRequest {};
        let mut stream = client.maintenance.snapshot(request).await.unwrap().into_inner();
        let (mut file, mut left) = (Vec::new(), u64::MAX);
        while let Some(message) = stream.message().await.unwrap() {
            assert!(message.blob.len() <= 32 << 10);
            assert!(message.remaining_bytes < left || left == 0, "it falls");
            assert_eq!(message.version, "3.7.0");
            left = message.remaining_bytes;
            file.extend_from_slice(&message.blob);
        }
        assert_eq!((left, file.len() % 512), (0, 32));
        let copy = restored(&file, true).unwrap();
        server.node.store().commit().unwrap();
        let original = server.node.store().snapshot().unwrap();
        let key = |read: &dyn Read| {
            let mut records = Vec::new();
            read.scan(Bucket::Key, KeyRange::ALL, &mut |key, value| {
                records.push((key.to_vec(), value.to_vec()));
                std::ops::ControlFlow::Continue(())
            })
            .unwrap();
            records
        };
        let (copied, there) = (key(&*copy.snapshot().unwrap()), key(&**original.snapshot()));
        assert_eq!((copied.len(), copied == there), (50, true));
        drop(original);
        damaged_is_noticed(&file);
    });
}

/// Some engines write a snapshot to a file first. The file loses its name as soon as it is created,
/// so no file is left if the client closes the connection.
#[test]
fn a_client_that_goes_away_leaves_no_file() {
    for kind in [EngineKind::Sled, EngineKind::Memory] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = member_config(dir.path(), Era::Clearlane);
        config.engine_kind = kind;
        let server = TestServer::with(&config, 2, Limits::default());
        block_on(async {
            let mut client = Client::of(&server).await;
            for number in 0..60 {
                client.kv.put(put(&format!("k{number}"), 100_000)).await.unwrap();
            }
            let request = SnapshotRequest {};
            let mut stream = client.maintenance.snapshot(request).await.unwrap().into_inner();
            let first = stream.message().await.unwrap().unwrap();
            assert!(first.remaining_bytes > 6_000_000, "{}", first.remaining_bytes);
            let files = fs::read_dir(dir.path().join("member/snap")).unwrap();
            let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
            assert_eq!(names.filter(|name| name.contains("tmp")).count(), 0, "{kind}");
        });
        // `stop` waits for the thread of the snapshot, whose client has left.
        server.stop();
    }
}

fn restored(file: &[u8], checks_sum: bool) -> clearlane_replica::Result<Arc<dyn Engine>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, file).unwrap();
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    snapshot_file::restore(&path, &engine, checks_sum).map(|()| engine)
}

/// Checks that the checksum detects truncations, also of the checksum itself, and single flipped
/// bits. A file without a checksum is accepted only if the checksum is not checked.
fn damaged_is_noticed(file: &[u8]) {
    for length in [0, 31, 32, 511, 512, file.len() - 512, file.len() - 32, file.len() - 1] {
        assert!(restored(&file[..length], true).is_err(), "cut at {length}");
    }
    for at in [0, 17, 600, file.len() / 2, file.len() - 40, file.len() - 33, file.len() - 1] {
        let mut damaged = file.to_vec();
        damaged[at] ^= 1;
        assert!(restored(&damaged, true).is_err(), "bit at {at}");
    }
    let bare = &file[..file.len() - 32];
    assert!(restored(bare, true).is_err());
    restored(bare, false).unwrap();
}

#[test]
fn sums_are_etcds_and_members_own() {
    with_server(async |server| {
        let mut client = Client::of(server).await;
        let at = |revision| HashKvRequest { revision };
        let empty = client.maintenance.hash_kv(at(0)).await.unwrap().into_inner();
        let figures = (empty.hash, empty.compact_revision, empty.hash_revision);
        assert_eq!(figures, (1_084_519_789, -1, 1), "etcd's, of an empty store");
        let before = client.maintenance.hash(HashRequest {}).await.unwrap().into_inner().hash;
        client.kv.put(put("a", 1)).await.unwrap();
        let after = client.maintenance.hash(HashRequest {}).await.unwrap().into_inner();
        assert_ne!(before, after.hash);
        assert_eq!(after.header.unwrap().revision, 2);
        let future = client.maintenance.hash_kv(at(9)).await.unwrap_err();
        assert_eq!(future.code(), Code::OutOfRange);
    });
}

#[test]
fn leadership_goes_to_members_that_vote_only() {
    with_server(async |server| {
        let mut client = Client::of(server).await;
        client.kv.put(put("a", 1)).await.unwrap();
        let request = MoveLeaderRequest { target_id: MEMBER };
        client.maintenance.move_leader(request).await.unwrap();
        for target_id in [0, 1] {
            let request = MoveLeaderRequest { target_id };
            let refused = client.maintenance.move_leader(request).await.unwrap_err();
            let words = "etcdserver: bad leader transferee";
            assert_eq!(code_and_message(&refused), (Code::FailedPrecondition, words));
        }
    });
}

#[test]
fn a_downgrade_goes_one_version_back_once() {
    with_server(async |server| {
        let mut client = Client::of(server).await.maintenance;
        let ask = |action: i32, version: &str| DowngradeRequest { action, version: version.into() };
        let (validate, enable) = (DowngradeAction::Validate as i32, DowngradeAction::Enable as i32);
        let cancel = DowngradeAction::Cancel as i32;
        for version in ["3.6", "3.6.0"] {
            let answer = client.downgrade(ask(validate, version)).await.unwrap().into_inner();
            assert_eq!((answer.version.as_str(), answer.header.unwrap().revision), ("3.7", 1));
        }
        let target = (Code::InvalidArgument, "etcdserver: invalid downgrade target version");
        let format = (Code::InvalidArgument, "etcdserver: wrong downgrade target version format");
        let busy =
            (Code::FailedPrecondition, "etcdserver: cluster has a downgrade job in progress");
        let none = (Code::Unknown, "etcdserver: unknown method");
        for (action, version, words) in [
            (validate, "3.7", target),
            (validate, "3.5", target),
            (validate, "3.8", target),
            (enable, "3.5", target),
            (validate, "abc", format),
            (validate, "", format),
            (9, "3.6", none),
        ] {
            let refused = client.downgrade(ask(action, version)).await.unwrap_err();
            assert_eq!(code_and_message(&refused), words, "{version}");
        }
        client.downgrade(ask(cancel, "")).await.unwrap();
        client.downgrade(ask(enable, "3.6")).await.unwrap();
        for action in [enable, validate] {
            let refused = client.downgrade(ask(action, "3.6")).await.unwrap_err();
            assert_eq!(code_and_message(&refused), busy);
        }
        let status = client.status(StatusRequest {}).await.unwrap().into_inner();
        let announced = status.downgrade_info.unwrap();
        assert_eq!((announced.enabled, announced.target_version.as_str()), (true, "3.6.0"));
        client.downgrade(ask(cancel, "")).await.unwrap();
        client.downgrade(ask(validate, "3.6")).await.unwrap();
    });
}

#[test]
fn the_server_as_a_whole_is_up() {
    with_server(async |server| {
        let mut client = HealthClient::new(server.channel().await);
        let of = |service: &str| HealthCheckRequest { service: service.into() };
        assert_eq!(client.check(of("")).await.unwrap().into_inner().status, 1);
        let unknown = client.check(of("etcdserverpb.KV")).await.unwrap_err();
        assert_eq!(code_and_message(&unknown), (Code::NotFound, "unknown service"));
        for (service, status) in [("", 1), ("nope", 3)] {
            let mut watch = client.watch(of(service)).await.unwrap().into_inner();
            assert_eq!(watch.message().await.unwrap().unwrap().status, status);
        }
    });
}
