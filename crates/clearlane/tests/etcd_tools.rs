//! Tests that etcd's tools can read the store's file of a member: `etcdutl hashkv`, `etcdutl
//! snapshot status`, `etcd-dump-db` and `bbolt check`.
//!
//! `tests/compat/bbolt/run` builds the tools and runs these tests. `CLEARLANE_TXNS=10000` sets the
//! number of transactions, and `CLEARLANE_SEED=7` selects different transactions.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "the seed of a failure is printed with it")]

#[path = "support/committed.rs"]
mod committed;

use std::collections::VecDeque;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_proto::authpb::UserAddOptions;
use clearlane_proto::etcdserverpb::auth_client::AuthClient;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    AuthUserAddRequest, CompactionRequest, DefragmentRequest, DeleteRangeRequest, HashKvRequest,
    LeaseGrantRequest, LeaseRevokeRequest, PutRequest, RequestOp, TxnRequest,
};
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::RpcServer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tonic::transport::{Channel, Endpoint};

use crate::committed::committed;

const TXNS: u64 = 500;
const TXNS_PER_CHECK: u64 = 100;
const READERS: usize = 3;

fn number_or(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Runs one of the tools. The environment variable `name` contains its path.
fn tool(name: &str, arguments: &[&str], input: &str) -> String {
    let program = std::env::var_os(name).unwrap_or_else(|| panic!("{name} names the program"));
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (stdout, complaint) = (words(output.stdout), words(output.stderr));
    assert!(output.status.success(), "{name} {arguments:?}: {stdout}{complaint}");
    stdout
}

struct Clients {
    kv: KvClient<Channel>,
    lease: LeaseClient<Channel>,
    auth: AuthClient<Channel>,
    maintenance: MaintenanceClient<Channel>,
    leases: Vec<i64>,
    users: u64,
    revision: i64,
    compacted: i64,
}

impl Clients {
    fn new(channel: &Channel) -> Clients {
        Clients {
            kv: KvClient::new(channel.clone()),
            lease: LeaseClient::new(channel.clone()),
            auth: AuthClient::new(channel.clone()),
            maintenance: MaintenanceClient::new(channel.clone()),
            leases: Vec::new(),
            users: 0,
            revision: 1,
            compacted: 0,
        }
    }

    fn put(&self, rng: &mut StdRng) -> PutRequest {
        let bytes = match rng.random_range(0..100) {
            0 => rng.random_range(100_000..1_400_000),
            1..5 => rng.random_range(2_000..20_000),
            _ => rng.random_range(0..300),
        };
        let lease = match self.leases.is_empty() || rng.random_ratio(9, 10) {
            true => 0,
            false => self.leases[rng.random_range(0..self.leases.len())],
        };
        let (key, value) = (key(rng), vec![rng.random(); bytes]);
        PutRequest { key: key.into(), value: value.into(), lease, ..PutRequest::default() }
    }

    async fn transaction(&mut self, rng: &mut StdRng) {
        match rng.random_range(0..100) {
            0..60 => {
                let put = self.put(rng);
                let done = self.kv.put(put).await.unwrap().into_inner();
                self.revision = done.header.unwrap().revision;
            }
            60..75 => {
                let (one, other) = (key(rng), key(rng));
                let range_end = if rng.random_ratio(1, 4) { other } else { Vec::new() };
                let delete = DeleteRangeRequest {
                    key: one.into(),
                    range_end: range_end.into(),
                    ..DeleteRangeRequest::default()
                };
                let done = self.kv.delete_range(delete).await.unwrap().into_inner();
                self.revision = done.header.unwrap().revision;
            }
            75..88 => self.puts_of_one_transaction(rng).await,
            88..92 => {
                let grant = LeaseGrantRequest { ttl: 10_000, ..LeaseGrantRequest::default() };
                self.leases.push(self.lease.lease_grant(grant).await.unwrap().into_inner().id);
            }
            92..94 => {
                if let Some(id) = self.leases.pop() {
                    self.lease.lease_revoke(LeaseRevokeRequest { id }).await.unwrap();
                }
            }
            94..96 => {
                self.users += 1;
                let name = format!("user{}", self.users);
                let options = Some(UserAddOptions { no_password: true });
                let add = AuthUserAddRequest { name, options, ..AuthUserAddRequest::default() };
                self.auth.user_add(add).await.unwrap();
            }
            _ => {
                let revision = self.revision - rng.random_range(0..50);
                if revision > self.compacted {
                    let physical = rng.random();
                    let compaction = CompactionRequest { revision, physical };
                    self.kv.compact(compaction).await.unwrap();
                    self.compacted = revision;
                }
            }
        }
    }

    async fn puts_of_one_transaction(&mut self, rng: &mut StdRng) {
        // A transaction may put each key only once.
        let first = rng.random_range(0..200);
        let puts = (first..first + rng.random_range(1..20)).map(|number| {
            let put = PutRequest {
                key: format!("key{number:04}").into_bytes().into(),
                value: vec![rng.random(); rng.random_range(0..100)].into(),
                ..PutRequest::default()
            };
            RequestOp { request: Some(Request::RequestPut(put)) }
        });
        let txn = TxnRequest { success: puts.collect(), ..TxnRequest::default() };
        let done = self.kv.txn(txn).await.unwrap().into_inner();
        self.revision = done.header.unwrap().revision;
    }
}

fn key(rng: &mut StdRng) -> Vec<u8> {
    format!("key{:04}", rng.random_range(0..300)).into_bytes()
}

/// Compares the output of etcd's tools for a copy of the file with the responses of the member.
async fn check(clients: &mut Clients, file: &Path, copy: &Path) {
    fs::copy(file, copy).unwrap();
    let copy = copy.to_str().unwrap();
    let request = HashKvRequest { revision: 0 };
    let ours = clients.maintenance.hash_kv(request).await.unwrap().into_inner();
    let expected = format!("{}, {}, {}", ours.hash, ours.hash_revision, ours.compact_revision);
    assert_eq!(tool("CLEARLANE_ETCDUTL", &["hashkv", copy], "").trim(), expected);

    let status = tool("CLEARLANE_ETCDUTL", &["snapshot", "status", copy], "");
    let fields: Vec<&str> = status.trim().split(", ").collect();
    assert_eq!(fields[1], ours.hash_revision.to_string(), "{status}");

    let listed = tool("CLEARLANE_DUMP_DB", &["list-bucket", copy], "");
    let ten = "alarm auth authRoles authUsers cluster key lease members members_removed meta";
    assert_eq!(listed.split_whitespace().collect::<Vec<_>>().join(" "), ten);
    let leases = tool("CLEARLANE_DUMP_DB", &["iterate-bucket", copy, "lease", "--decode"], "");
    assert_eq!(leases.lines().count(), clients.leases.len(), "{leases}");
    let users = tool("CLEARLANE_DUMP_DB", &["iterate-bucket", copy, "authUsers", "--decode"], "");
    assert_eq!(users.lines().count() as u64, clients.users, "{users}");

    assert_eq!(tool("CLEARLANE_BBOLT", &[copy, "0"], "check\n"), "ok\n");
}

#[ignore = "it needs etcd's tools: see tests/compat/bbolt/run"]
#[tokio::test]
async fn etcds_tools_read_every_file_of_a_run() {
    let seed = number_or("CLEARLANE_SEED", 1);
    let txns = number_or("CLEARLANE_TXNS", TXNS);
    println!("seed {seed}: {txns} transactions");
    let mut rng = StdRng::seed_from_u64(seed);
    let dir = tempfile::tempdir().unwrap();
    let start = MemberConfig::new("m", dir.path(), "http://localhost:2380", Era::Clearlane);
    let opened = start.open().unwrap();
    let threads = &opened.threads;
    let address = "127.0.0.1:0".parse().unwrap();
    let server = RpcServer::start(threads, address, 2, Limits::default()).unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address())).unwrap();
    let mut clients = Clients::new(&endpoint.connect().await.unwrap());
    let mut readers = VecDeque::new();
    for txn in 1..=txns {
        clients.transaction(&mut rng).await;
        if rng.random_ratio(1, 50) {
            readers.push_back(threads.store().begin_snapshot_read().unwrap());
            if readers.len() > READERS {
                readers.pop_front();
            }
        }
        if txn % TXNS_PER_CHECK == 0 {
            committed(threads).await;
            check(&mut clients, &dir.path().join("member/snap/db"), &dir.path().join("copy.db"))
                .await;
        }
        if txn % (3 * TXNS_PER_CHECK) == 0 {
            clients.maintenance.defragment(DefragmentRequest {}).await.unwrap();
        }
    }
    drop((clients, readers));
    tokio::task::spawn_blocking(|| server.stop()).await.unwrap().unwrap();
    threads.stop();
    assert!(threads.failure().borrow().is_none());
}
