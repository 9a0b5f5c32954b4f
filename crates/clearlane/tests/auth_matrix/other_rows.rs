//! Rows of the matrix with requests to the services Lease, Cluster, Maintenance, Lock, Election and
//! Health.

use clearlane_proto::etcdserverpb::alarm_request::AlarmAction;
use clearlane_proto::etcdserverpb::downgrade_request::DowngradeAction;
use clearlane_proto::etcdserverpb::{
    AlarmRequest, AlarmType, DefragmentRequest, DowngradeRequest, HashKvRequest, HashRequest,
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, LeaseLeasesRequest,
    LeaseRevokeRequest, LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, MemberAddRequest,
    MemberListRequest, MemberListResponse, MemberPromoteRequest, MemberRemoveRequest,
    MemberUpdateRequest, MoveLeaderRequest, PutRequest, SnapshotRequest, StatusRequest,
};
use clearlane_proto::grpc::health::v1::{HealthCheckRequest, HealthListRequest};
use clearlane_proto::v3electionpb::{
    CampaignRequest, LeaderKey, LeaderRequest, ProclaimRequest, ResignRequest,
};
use clearlane_proto::v3lockpb::{LockRequest, UnlockRequest};

use crate::kv_rows::{delete, put};
use crate::row::Row;
use crate::server::{LEASE_EXACT, LEASE_FREE, LEASE_NARROW, LEASE_OUTSIDE, LEASE_SECONDS};

/// The leases in the rows: the text that names a lease in a row, and the ID of the lease.
const LEASES: [(&str, i64); 5] = [
    ("lease without keys", LEASE_FREE),
    ("lease of k/1-lease", LEASE_NARROW),
    ("lease of k/3-lease", LEASE_EXACT),
    ("lease of z-lease", LEASE_OUTSIDE),
    ("no such lease", 4711),
];

pub(crate) fn rows() -> Vec<Row> {
    [lease_rows(), lease_lists(), cluster_rows(), maintenance_rows(), lock_rows()]
        .into_iter()
        .chain([election_rows(), health_rows()])
        .flatten()
        .collect()
}

fn grant(id: i64) -> LeaseGrantRequest {
    LeaseGrantRequest { id, ttl: LEASE_SECONDS }
}

/// Adds calls to a row, which are made after each cell: they grant the lease `id` again, and put
/// its key again if it has one. The lease 4711 does not exist, so its row gets no calls.
fn restored(row: Row, id: i64) -> Row {
    let keys =
        [(LEASE_NARROW, "k/1-lease"), (LEASE_EXACT, "k/3-lease"), (LEASE_OUTSIDE, "z-lease")];
    let key = keys.iter().find(|(lease, _)| *lease == id);
    let row = if id == 4711 { row } else { row.after("Lease/LeaseGrant", grant(id)) };
    match key {
        Some((lease, key)) => row.after("KV/Put", PutRequest { lease: *lease, ..put(key) }),
        None => row,
    }
}

fn lease_rows() -> Vec<Row> {
    let mut rows = vec![
        Row::new("Lease/LeaseGrant", "new", grant(500))
            .after("Lease/LeaseRevoke", LeaseRevokeRequest { id: 500 }),
        Row::new("Lease/LeaseGrant", "id is taken", grant(LEASE_FREE)),
        Row::new("Lease/LeaseGrant", "ttl 0", LeaseGrantRequest { id: 501, ttl: 0 })
            .after("Lease/LeaseRevoke", LeaseRevokeRequest { id: 501 }),
    ];
    for (shape, id) in LEASES {
        rows.push(restored(Row::new("Lease/LeaseRevoke", shape, LeaseRevokeRequest { id }), id));
    }
    for (shape, id) in LEASES {
        let left = |reply: LeaseKeepAliveResponse| (reply.ttl > 0).to_string();
        let request = LeaseKeepAliveRequest { id };
        rows.push(Row::new("Lease/LeaseKeepAlive", shape, request).fact(left));
    }
    for keys in [false, true] {
        for (shape, id) in LEASES {
            let request = LeaseTimeToLiveRequest { id, keys };
            let found = |reply: LeaseTimeToLiveResponse| {
                let left = if reply.ttl > 0 { "" } else { "gone," };
                format!("{left}{}", reply.keys.len())
            };
            let shape = if keys { with_keys(shape) } else { shape };
            rows.push(Row::new("Lease/LeaseTimeToLive", shape, request).fact(found));
        }
    }
    rows
}

fn with_keys(shape: &str) -> &'static str {
    match shape {
        "lease without keys" => "lease without keys; keys",
        "lease of k/1-lease" => "lease of k/1-lease; keys",
        "lease of k/3-lease" => "lease of k/3-lease; keys",
        "lease of z-lease" => "lease of z-lease; keys",
        _ => "no such lease; keys",
    }
}

/// These rows list leases, which requires permission for the keys of all leases.
fn lease_lists() -> Vec<Row> {
    let revoke = |id| LeaseRevokeRequest { id };
    let list = |shape| Row::new("Lease/LeaseLeases", shape, LeaseLeasesRequest {});
    let all = list("leases of k/1-lease, k/3-lease, z-lease");
    let without_outside = list("leases of k/1-lease, k/3-lease");
    let narrow = list("lease of k/1-lease");
    let none = list("leases without keys");
    let outside = [LEASE_OUTSIDE];
    let exact = [LEASE_OUTSIDE, LEASE_EXACT];
    let narrowest = [LEASE_OUTSIDE, LEASE_EXACT, LEASE_NARROW];
    let mut rows = vec![all];
    for (mut row, revoked) in
        [(without_outside, &outside[..]), (narrow, &exact[..]), (none, &narrowest[..])]
    {
        for id in revoked {
            row = row.before("Lease/LeaseRevoke", revoke(*id));
            row = restored(row, *id);
        }
        rows.push(row);
    }
    rows
}

fn cluster_rows() -> Vec<Row> {
    let found = |reply: MemberListResponse| reply.members.len().to_string();
    let add = |url: &str| MemberAddRequest { peer_urls: vec![url.to_owned()], is_learner: true };
    let update = |id, url: &str| MemberUpdateRequest { id, peer_urls: vec![url.to_owned()] };
    vec![
        Row::new("Cluster/MemberList", "", MemberListRequest { linearizable: false }).fact(found),
        Row::new("Cluster/MemberList", "linearizable", MemberListRequest { linearizable: true })
            .fact(found),
        Row::new("Cluster/MemberAdd", "url is taken", add("http://localhost:2380")),
        Row::new("Cluster/MemberAdd", "no url", add("garbage")),
        Row::new("Cluster/MemberRemove", "no such member", MemberRemoveRequest { id: 5 }),
        Row::new("Cluster/MemberUpdate", "no such member", update(5, "http://localhost:2381")),
        Row::new("Cluster/MemberPromote", "no such member", MemberPromoteRequest { id: 5 }),
    ]
}

fn maintenance_rows() -> Vec<Row> {
    let alarm = |action: AlarmAction, alarm: AlarmType| AlarmRequest {
        action: action as i32,
        alarm: alarm as i32,
        ..Default::default()
    };
    let off = || alarm(AlarmAction::Deactivate, AlarmType::Nospace);
    let downgrade = |action: DowngradeAction, version: &str| DowngradeRequest {
        action: action as i32,
        version: version.to_owned(),
    };
    use DowngradeAction::{Cancel, Enable, Validate};
    vec![
        Row::new("Maintenance/Alarm", "get", alarm(AlarmAction::Get, AlarmType::None)),
        Row::new("Maintenance/Alarm", "activate", alarm(AlarmAction::Activate, AlarmType::Nospace))
            .after("Maintenance/Alarm", off()),
        Row::new("Maintenance/Alarm", "deactivate", off()),
        Row::new("Maintenance/Status", "", StatusRequest {}),
        Row::new("Maintenance/Defragment", "", DefragmentRequest {}),
        Row::new("Maintenance/Hash", "", HashRequest {}),
        Row::new("Maintenance/HashKV", "", HashKvRequest { revision: 0 }),
        Row::new("Maintenance/HashKV", "future revision", HashKvRequest { revision: 1 << 40 }),
        Row::new("Maintenance/Snapshot", "", SnapshotRequest {}),
        Row::new("Maintenance/MoveLeader", "no such member", MoveLeaderRequest { target_id: 1 }),
        Row::new("Maintenance/Downgrade", "validate", downgrade(Validate, "3.6.0")),
        Row::new("Maintenance/Downgrade", "validate, no version", downgrade(Validate, "x")),
        Row::new("Maintenance/Downgrade", "enable, no version", downgrade(Enable, "x")),
        Row::new("Maintenance/Downgrade", "cancel", downgrade(Cancel, "")),
    ]
}

fn lock_rows() -> Vec<Row> {
    let lock = |name: &'static str, lease| LockRequest { name: name.into(), lease };
    let unlock = |key: &'static str| UnlockRequest { key: key.into() };
    let shapes = [
        ("k/1-lock, lease without keys", lock("k/1-lock", LEASE_FREE)),
        ("k/1-lock, lease of k/1-lease", lock("k/1-lock", LEASE_NARROW)),
        ("k/1-lock, lease of z-lease", lock("k/1-lock", LEASE_OUTSIDE)),
        ("k/1-lock, no lease", lock("k/1-lock", 0)),
        ("k/1-lock, no such lease", lock("k/1-lock", 4711)),
        ("k/3-lock, lease without keys", lock("k/3-lock", LEASE_FREE)),
        ("z-lock, lease without keys", lock("z-lock", LEASE_FREE)),
    ];
    let mut rows = Vec::new();
    for (shape, request) in shapes {
        let row = Row::new("Lock/Lock", shape, request);
        let row = row.after("KV/DeleteRange", delete("k/1-lock", "k/1-locl"));
        let row = row.after("KV/DeleteRange", delete("k/3-lock", "k/3-locl"));
        rows.push(row.after("KV/DeleteRange", delete("z-lock", "z-locl")));
    }
    rows.push(Row::new("Lock/Unlock", "k/1-lock/64", unlock("k/1-lock/64")));
    rows.push(Row::new("Lock/Unlock", "k/3-lock/64", unlock("k/3-lock/64")));
    rows.push(Row::new("Lock/Unlock", "z-lock/64", unlock("z-lock/64")));
    rows
}

fn election_rows() -> Vec<Row> {
    let leader = |name: &'static str, key: &'static str| {
        Some(LeaderKey { name: name.into(), key: key.into(), rev: 1, lease: LEASE_FREE })
    };
    let mut rows = Vec::new();
    for (name, key, next) in [
        ("k/1-vote", "k/1-vote/64", "k/1-votf"),
        ("k/3-vote", "k/3-vote/64", "k/3-votf"),
        ("z-vote", "z-vote/64", "z-votf"),
    ] {
        let campaign = CampaignRequest { name: name.into(), lease: LEASE_FREE, value: "v".into() };
        let row = Row::new("Election/Campaign", name, campaign);
        rows.push(row.after("KV/DeleteRange", delete(name, next)));
        // The leader that these requests name does not exist.
        let proclaim = ProclaimRequest { leader: leader(name, key), value: "w".into() };
        rows.push(Row::new("Election/Proclaim", name, proclaim));
        rows.push(Row::new("Election/Resign", name, ResignRequest { leader: leader(name, key) }));
        for method in ["Election/Leader", "Election/Observe"] {
            let row = Row::new(method, name, LeaderRequest { name: name.into() });
            rows.push(row.before("KV/Put", put(key)).after("KV/DeleteRange", delete(name, next)));
        }
    }
    let nameless = ProclaimRequest { leader: None, value: "w".into() };
    rows.push(Row::new("Election/Proclaim", "no leader", nameless));
    rows.push(Row::new(
        "Election/Leader",
        "k/1-vote, none",
        LeaderRequest { name: "k/1-vote".into() },
    ));
    rows
}

fn health_rows() -> Vec<Row> {
    let check = |service: &str| HealthCheckRequest { service: service.to_owned() };
    vec![
        Row::new("Health/Check", "", check("")),
        Row::new("Health/Check", "unknown service", check("x")),
        Row::new("Health/List", "", HealthListRequest {}),
        Row::new("Health/Watch", "", check("")),
    ]
}
