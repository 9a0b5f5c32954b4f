//! The paths of the JSON gateway, and the rpc of each path.
//!
//! etcd's `.proto` files contain the paths as options, but our files do not. A test checks that the
//! table has all rpcs of etcd's API except RangeStream.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost_reflect::MethodDescriptor;

use crate::metrics::RpcMethod;

/// The paths after `/v3`, and the rpc that each path calls.
pub(crate) const TABLE: [(&str, &str); 51] = [
    ("/kv/range", "/etcdserverpb.KV/Range"),
    ("/kv/put", "/etcdserverpb.KV/Put"),
    ("/kv/deleterange", "/etcdserverpb.KV/DeleteRange"),
    ("/kv/txn", "/etcdserverpb.KV/Txn"),
    ("/kv/compaction", "/etcdserverpb.KV/Compact"),
    ("/watch", "/etcdserverpb.Watch/Watch"),
    ("/lease/grant", "/etcdserverpb.Lease/LeaseGrant"),
    ("/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("/kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("/lease/keepalive", "/etcdserverpb.Lease/LeaseKeepAlive"),
    ("/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("/kv/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("/kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("/cluster/member/add", "/etcdserverpb.Cluster/MemberAdd"),
    ("/cluster/member/remove", "/etcdserverpb.Cluster/MemberRemove"),
    ("/cluster/member/update", "/etcdserverpb.Cluster/MemberUpdate"),
    ("/cluster/member/list", "/etcdserverpb.Cluster/MemberList"),
    ("/cluster/member/promote", "/etcdserverpb.Cluster/MemberPromote"),
    ("/maintenance/alarm", "/etcdserverpb.Maintenance/Alarm"),
    ("/maintenance/status", "/etcdserverpb.Maintenance/Status"),
    ("/maintenance/defragment", "/etcdserverpb.Maintenance/Defragment"),
    ("/maintenance/hash", "/etcdserverpb.Maintenance/Hash"),
    ("/maintenance/hashkv", "/etcdserverpb.Maintenance/HashKV"),
    ("/maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot"),
    ("/maintenance/transfer-leadership", "/etcdserverpb.Maintenance/MoveLeader"),
    ("/maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade"),
    ("/auth/enable", "/etcdserverpb.Auth/AuthEnable"),
    ("/auth/disable", "/etcdserverpb.Auth/AuthDisable"),
    ("/auth/status", "/etcdserverpb.Auth/AuthStatus"),
    ("/auth/authenticate", "/etcdserverpb.Auth/Authenticate"),
    ("/auth/user/add", "/etcdserverpb.Auth/UserAdd"),
    ("/auth/user/get", "/etcdserverpb.Auth/UserGet"),
    ("/auth/user/list", "/etcdserverpb.Auth/UserList"),
    ("/auth/user/delete", "/etcdserverpb.Auth/UserDelete"),
    ("/auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword"),
    ("/auth/user/grant", "/etcdserverpb.Auth/UserGrantRole"),
    ("/auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole"),
    ("/auth/role/add", "/etcdserverpb.Auth/RoleAdd"),
    ("/auth/role/get", "/etcdserverpb.Auth/RoleGet"),
    ("/auth/role/list", "/etcdserverpb.Auth/RoleList"),
    ("/auth/role/delete", "/etcdserverpb.Auth/RoleDelete"),
    ("/auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission"),
    ("/auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission"),
    ("/election/campaign", "/v3electionpb.Election/Campaign"),
    ("/election/proclaim", "/v3electionpb.Election/Proclaim"),
    ("/election/leader", "/v3electionpb.Election/Leader"),
    ("/election/observe", "/v3electionpb.Election/Observe"),
    ("/election/resign", "/v3electionpb.Election/Resign"),
    ("/lock/lock", "/v3lockpb.Lock/Lock"),
    ("/lock/unlock", "/v3lockpb.Lock/Unlock"),
];

pub(super) struct Binding {
    /// The path of the gRPC call.
    pub(super) rpc: &'static str,
    pub(super) number: RpcMethod,
    pub(super) method: &'static MethodDescriptor,
}

/// The bindings by path.
static BINDINGS: LazyLock<HashMap<&str, Binding>> = LazyLock::new(|| {
    let bound = TABLE.into_iter().map(|(path, rpc)| {
        let number = RpcMethod::named(rpc);
        (path, Binding { rpc, number, method: number.descriptor() })
    });
    bound.collect()
});

pub(super) fn find(path: &str) -> Option<&'static Binding> {
    BINDINGS.get(path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost_reflect::DescriptorPool;

    use super::*;

    /// Checks that all rpcs of etcd's API except RangeStream have a path. RangeStream has no path
    /// in etcd either. The services `grpc.*` (Health) and `peerpb.*` (calls between members) are
    /// skipped, because the gateway does not serve them.
    #[test]
    fn every_rpc_has_a_path() {
        let pool = DescriptorPool::decode(clearlane_proto::DESCRIPTORS).unwrap();
        let bound: BTreeSet<&str> = TABLE.iter().map(|(_, rpc)| *rpc).collect();
        let mut unbound = Vec::new();
        for service in pool.services() {
            for method in service.methods() {
                let rpc = format!("/{}/{}", service.full_name(), method.name());
                let is_ours =
                    !["grpc.", "peerpb."].iter().any(|of| service.full_name().starts_with(of));
                if is_ours && !bound.contains(&rpc[..]) {
                    unbound.push(rpc);
                }
            }
        }
        assert_eq!(unbound, ["/etcdserverpb.KV/RangeStream"]);
        assert!(TABLE.iter().all(|(path, rpc)| find(path).is_some_and(|found| found.rpc == *rpc)));
    }
}
