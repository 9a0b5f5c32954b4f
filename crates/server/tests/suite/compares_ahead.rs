//! Tests of compares over more keys than the apply loop evaluates itself, while puts and deletes
//! change these keys. The outcome of each transaction must depend only on the state immediately
//! before it.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_engine::{EngineKind, Options};
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_replica::apply::Limits;
use clearlane_replica::membership::{self, Member};
use clearlane_replica::{ReplicaConfig, StorageConfig, bootstrap};
use clearlane_server::Server;
use clearlane_server::observe::request_trace::RequestTrace;
use clearlane_server::snapshot::DiskStoreDir;
use clearlane_server::threads::{NoNetwork, ServerThreads};
use clearlane_wal as wal;
use clearlane_wal::Metadata;
use clearlane_wal::files::OsFileSystem;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::{LocalSet, spawn_local, yield_now};

const KEYS: usize = 3000;
const ROUNDS: usize = 60;

fn start(dir: &Path) -> Arc<ServerThreads> {
    let (files, snap) = (Arc::new(OsFileSystem), dir.join("snap"));
    let store_dir =
        DiskStoreDir::new(files.clone(), &snap, EngineKind::Memory, Options::default()).unwrap();
    let storage = StorageConfig {
        files,
        wal_dir: dir.join("wal"),
        wal: wal::Options::default(),
        store_dir: Arc::new(store_dir),
        era: Era::Clearlane,
        backend: Default::default(),
        learners_max: membership::LEARNERS_MAX,
    };
    let peer_urls = vec!["http://localhost:1".to_owned()];
    let first = [Member { id: 1, peer_urls, ..Member::default() }];
    bootstrap(&storage, Metadata { node_id: 1, cluster_id: 7 }, &first).unwrap();
    let mut config = ReplicaConfig::new(7, 7);
    config.read_index.tick_interval = Duration::from_millis(1);
    Arc::new(ServerThreads::start(storage, config, Box::new(NoNetwork)).unwrap())
}

fn key(number: usize) -> String {
    format!("k{number:04}")
}

fn put(number: usize, value: &str) -> PutRequest {
    let (key, value) = (key(number).into(), value.to_owned().into());
    PutRequest { key, value, ..PutRequest::default() }
}

async fn fill(server: &Server) {
    let puts = (0..KEYS).map(|number| Request::RequestPut(put(number, "good")));
    let puts: Vec<_> = puts.map(|put| RequestOp { request: Some(put) }).collect();
    for success in puts.chunks(100) {
        let request = TxnRequest { success: success.to_vec(), ..TxnRequest::default() };
        let response = server.txn(request, &mut RequestTrace::start()).await.unwrap();
        response.read_all(server).await.unwrap();
    }
}

/// Deletes one of the compared keys, or puts it with the value `good`. Two calls in 100 put the key
/// with the value `bad`, which violates the compare of values; one of the two then puts `good`
/// again.
async fn change(server: &Server, chance: &mut StdRng) {
    let number = chance.random_range(0..KEYS);
    match chance.random_range(0..100) {
        0..10 => {
            let delete = DeleteRangeRequest { key: key(number).into(), ..Default::default() };
            server.propose(delete).await.map(drop).unwrap();
        }
        10 => {
            server.propose(put(number, "bad")).await.unwrap();
            server.propose(put(number, "good")).await.unwrap();
        }
        11 => drop(server.propose(put(number, "bad")).await.unwrap()),
        _ => drop(server.propose(put(number, "good")).await.unwrap()),
    }
}

/// The compare of one round, over all keys.
#[derive(Clone, Copy, Debug)]
enum Question {
    IsGood,
    /// No key was changed after this revision.
    UnchangedSince(i64),
    /// No key was created after this revision.
    CreatedBy(i64),
}

impl Question {
    fn compare(self) -> Compare {
        let (target, result, given) = match self {
            Question::IsGood => {
                let given = TargetUnion::Value("good".into());
                (CompareTarget::Value, CompareResult::Equal, given)
            }
            Question::UnchangedSince(revision) => {
                let given = TargetUnion::ModRevision(revision + 1);
                (CompareTarget::Mod, CompareResult::Less, given)
            }
            Question::CreatedBy(revision) => {
                let given = TargetUnion::CreateRevision(revision + 1);
                (CompareTarget::Create, CompareResult::Less, given)
            }
        };
        Compare {
            target: target.into(),
            result: result.into(),
            key: "k".into(),
            range_end: "l".into(),
            target_union: Some(given),
        }
    }

    fn holds_for(self, record: &KeyValue) -> bool {
        match self {
            Question::IsGood => record.value == "good",
            Question::UnchangedSince(revision) => record.mod_revision <= revision,
            Question::CreatedBy(revision) => record.create_revision <= revision,
        }
    }
}

async fn ask(server: &Server, question: Question) -> TxnResponse {
    // The put gives the transaction a separate revision, whatever the result of the compare.
    let mark = PutRequest { key: "mark".into(), ..PutRequest::default() };
    let mark = vec![RequestOp { request: Some(Request::RequestPut(mark)) }];
    let compare = vec![question.compare()];
    let request = TxnRequest { compare, success: mark.clone(), failure: mark };
    let response = server.txn(request, &mut RequestTrace::start()).await.unwrap();
    response.read_all(server).await.unwrap()
}

/// Returns all keys at a revision.
async fn records(server: &Server, revision: i64) -> Vec<KeyValue> {
    let (key, range_end) = ("k".into(), "l".into());
    let request = RangeRequest { key, range_end, revision, ..RangeRequest::default() };
    let found = server.range(request, &mut RequestTrace::start()).await.unwrap();
    found.read_all(server).await.unwrap().kvs
}

async fn rounds(server: Server, seed: u64) {
    fill(&server).await;
    let mut chance = StdRng::seed_from_u64(seed);
    let is_over = Rc::new(std::cell::Cell::new(false));
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let (server, is_over) = (server.clone(), Rc::clone(&is_over));
            let mut chance = StdRng::seed_from_u64(chance.random());
            spawn_local(async move {
                while !is_over.get() {
                    change(&server, &mut chance).await;
                    yield_now().await;
                }
            })
        })
        .collect();
    let mut decided: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let now = server.store_revision().await.unwrap();
        let (name, question) = match chance.random_range(0..3) {
            0 => ("value", Question::IsGood),
            // Use a revision above the current one, so that the compare may hold although some puts
            // are applied before it.
            1 => ("mod", Question::UnchangedSince(now + chance.random_range(0..30))),
            _ => ("create", Question::CreatedBy(now + chance.random_range(0..30))),
        };
        let response = ask(&server, question).await;
        let revision = response.header.unwrap().revision;
        let before = records(&server, revision - 1).await;
        let expected = before.iter().all(|record| question.holds_for(record));
        assert_eq!(response.succeeded, expected, "{question:?} at {revision}");
        decided.entry(name).or_default()[usize::from(expected)] += 1;
        if matches!(question, Question::IsGood) {
            let bad = before.iter().filter(|record| record.value == "bad");
            for record in bad.map(|record| record.key.clone()) {
                let value = "good".into();
                let good = PutRequest { key: record, value, ..PutRequest::default() };
                server.propose(good).await.unwrap();
            }
        }
    }
    is_over.set(true);
    for writer in writers {
        writer.await.unwrap();
    }
    println!("how often they failed and held: {decided:?}");
    let [failed, held] =
        [0, 1].map(|outcome| decided.values().map(|of| of[outcome]).sum::<usize>());
    assert!(failed > 0 && held > 0, "{decided:?}");
}

#[test]
fn compares_over_many_keys_decide_by_the_state_before_them() {
    let seed = rand::random();
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let node = start(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(LocalSet::new().run_until(async {
        let server = Server::new(&node, Limits::default());
        let requests = tokio::spawn(server.requests().clone().run());
        let work = rounds(server, seed);
        tokio::time::timeout(Duration::from_secs(120), work).await.expect("in time");
        requests.abort();
    }));
    node.stop();
    assert!(node.failure().borrow().is_none());
}
