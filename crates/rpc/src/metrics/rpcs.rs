//! The table of all rpcs. The number of an rpc is its index in the table and in the counters of a
//! thread.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MethodDescriptor};

/// The services, in the order of the metrics page.
const SERVICES: [&str; 9] = [
    "etcdserverpb.Auth",
    "etcdserverpb.Cluster",
    "etcdserverpb.KV",
    "etcdserverpb.Lease",
    "etcdserverpb.Maintenance",
    "etcdserverpb.Watch",
    "grpc.health.v1.Health",
    "v3electionpb.Election",
    "v3lockpb.Lock",
];

/// The number of an rpc in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RpcMethod(pub(super) u16);

impl RpcMethod {
    /// Returns the rpc with a path such as `/etcdserverpb.KV/Range`, or `None` if there is no such
    /// rpc. Code that needs the same rpc for each call should keep the result, so that it looks up
    /// the path only once.
    pub fn find(path: &str) -> Option<RpcMethod> {
        RPCS.by_path.get(path).copied()
    }

    /// Returns the rpc with this path. Panics if the API has no such rpc.
    pub(crate) fn named(path: &str) -> RpcMethod {
        RpcMethod::find(path).expect("an rpc of the API")
    }

    pub fn is_of_service(service: &str) -> bool {
        SERVICES.contains(&service)
    }

    pub(crate) fn descriptor(self) -> &'static MethodDescriptor {
        &RPCS.all[usize::from(self.0)].descriptor
    }
}

pub(super) struct RpcInfo {
    pub(super) service: &'static str,
    pub(super) kind: &'static str,
    /// etcd's name of the request. `None` if etcd does not measure the duration of this rpc.
    pub(super) request: Option<&'static str>,
    pub(super) descriptor: MethodDescriptor,
}

pub(super) struct RpcTable {
    pub(super) all: Vec<RpcInfo>,
    by_path: HashMap<String, RpcMethod>,
}

pub(super) static RPCS: LazyLock<RpcTable> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(clearlane_proto::DESCRIPTORS).expect("compiled by the build");
    let mut rpcs = RpcTable { all: Vec::new(), by_path: HashMap::new() };
    for service in SERVICES {
        let found = pool.get_service_by_name(service).expect("a service of the API");
        for method in found.methods() {
            let number = RpcMethod(rpcs.all.len() as u16);
            rpcs.by_path.insert(format!("/{service}/{}", method.name()), number);
            rpcs.all.push(RpcInfo::new(service, method));
        }
    }
    rpcs
});

impl RpcInfo {
    fn new(service: &'static str, descriptor: MethodDescriptor) -> RpcInfo {
        let kind = match (descriptor.is_client_streaming(), descriptor.is_server_streaming()) {
            (false, false) => "unary",
            (true, false) => "client_stream",
            (false, true) => "server_stream",
            (true, true) => "bidi_stream",
        };
        let request = match descriptor.name() {
            "Range" => Some("range"),
            "Put" => Some("put"),
            "DeleteRange" => Some("delete_range"),
            "Txn" => Some("txn"),
            "Compact" => Some("compaction"),
            "LeaseGrant" => Some("lease_grant"),
            "LeaseRevoke" => Some("lease_revoke"),
            _ => None,
        };
        RpcInfo { service, kind, request, descriptor }
    }
}
