//! Writes the seeds of the corpus. Many seeds contain real requests and responses, from the
//! recordings of etcd. The others are files and records that this module creates.
//!
//! The seeds are written to `target/fuzz-corpus`. `lab/fuzz/run` starts with the inputs in this
//! directory:
//!
//! ```text
//!   cargo test -p clearlane-fuzz --test suite from_oracle -- --ignored
//!   lab/fuzz/run --minimise
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_backend::{Config, Era};
use clearlane_engine::bolt::fuzzing::MemoryStore;
use clearlane_engine::stream::Exporter;
use clearlane_engine::{Bucket, Engine, MemoryEngine};
use clearlane_fuzz::input::put_string;
use clearlane_fuzz::targets::{
    self, bolt_file, jwt, messages, snapshot_file, snapshot_stream, wal_directory,
};
use clearlane_mvcc::StoreConfig;
use clearlane_raft::{LogPosition, Message as RaftMessage};
use clearlane_replica::AppliedPosition;
use clearlane_replica::membership::MemberChange;
use clearlane_replica::raft_snapshot::SnapshotSender;
use clearlane_rpc::decoders;
use clearlane_wal::{ConfState, Entry, EntryKind, HardState, Metadata, WalSnapshot};
use prost_reflect::prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use serde_json::Value;

/// Maximum size of a seed, in bytes. Longer seeds are omitted, except a whole bolt file.
const SEED_BYTES_MAX: usize = 2 << 10;

struct Seeds {
    pool: DescriptorPool,
    /// The seeds: the name of a target, and an input for it.
    all: BTreeSet<(&'static str, Vec<u8>)>,
}

#[test]
#[ignore = "writes files"]
fn write_the_seeds() {
    let pool = DescriptorPool::decode(clearlane_proto::DESCRIPTORS).unwrap();
    let mut seeds = Seeds { pool, all: BTreeSet::new() };
    seeds.add_recordings();
    seeds.add_files();
    seeds.add_log();
    seeds.add_stores();
    seeds.add_bolt();
    let target_dir = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target_dir = target_dir.unwrap_or_else(|| repository("target"));
    for (number, (target, bytes)) in seeds.all.iter().enumerate() {
        targets::find(target).unwrap()(bytes);
        let dir = target_dir.join("fuzz-corpus").join(target);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("seed-{number:04}")), bytes).unwrap();
    }
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

impl Seeds {
    fn add(&mut self, target: &'static str, head: &[u8], body: &[u8]) {
        if head.len() + body.len() <= SEED_BYTES_MAX {
            self.all.insert((target, [head, body].concat()));
        }
    }

    /// Encodes a message that is given as JSON. Returns `None` if the JSON is not a message of this
    /// kind, for example because the recording contains a placeholder.
    fn encode(&self, kind: MessageDescriptor, json: &Value) -> Option<Vec<u8>> {
        Some(DynamicMessage::deserialize(kind, json).ok()?.encode_to_vec())
    }

    fn add_recordings(&mut self) {
        for entry in fs::read_dir(repository("crates/proto/oracle")).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "jsonl") {
                continue;
            }
            let text = fs::read_to_string(path).unwrap();
            let mut row = Vec::new();
            for line in text.lines() {
                self.add_step(&serde_json::from_str(line).unwrap(), &mut row);
            }
            self.add("kv_requests", &[], &row);
        }
    }

    /// Adds the requests and the reply of a step. `row` collects KV requests, and becomes an input
    /// when it is longer than 500 bytes.
    fn add_step(&mut self, line: &Value, row: &mut Vec<u8>) {
        let streamed = line["stream_in"].as_array().into_iter().flatten();
        let requests = streamed.chain(line.get("request"));
        let Some(rpc) = line["rpc"].as_str() else { return };
        let (service, name) = rpc.trim_start_matches('/').split_once('/').unwrap();
        let service = self.pool.get_service_by_name(service).unwrap();
        let method = service.methods().find(|method| method.name() == name).unwrap();
        for request in requests {
            let request = request.get("message").unwrap_or(request);
            let Some(bytes) = self.encode(method.input(), request) else { continue };
            self.add_request(&method, &bytes, request);
            if let Some(kind) = kv_kind(name) {
                row.push(kind);
                put_string(row, &bytes);
                if row.len() > 500 {
                    self.add("kv_requests", &[], &std::mem::take(row));
                }
            }
        }
        if let Some(bytes) = line.get("reply").and_then(|json| self.encode(method.output(), json)) {
            let number = gateway_number(&method);
            number.inspect(|number| self.add("gateway_answer", &[*number, 9], &bytes));
        }
    }

    fn add_request(&mut self, method: &MethodDescriptor, bytes: &[u8], json: &Value) {
        let kind = method.input().name().to_lowercase();
        let number = messages::MESSAGES.iter().position(|(name, _)| name.to_lowercase() == kind);
        self.add("messages", &[number.unwrap() as u8], bytes);
        if let Some(number) = gateway_number(method) {
            self.add("gateway_request", &[number, 9], json.to_string().as_bytes());
        }
        let frame = [&[0][..], &(bytes.len() as u32).to_be_bytes(), bytes].concat();
        self.add("grpc_frame", &[0, 20, 0, 2, b'5', b'S', 0, 4, b'g', b'z', b'i', b'p'], &frame);
        let fields = self.pool.get_message_by_name("etcdserverpb.InternalRaftRequest").unwrap();
        if let Some(field) = fields
            .fields()
            .find(|field| field.kind().as_message().is_some_and(|kind| *kind == method.input()))
        {
            let mut entry = DynamicMessage::new(fields.clone());
            let message = DynamicMessage::decode(method.input(), bytes).unwrap();
            entry.set_field(&field, prost_reflect::Value::Message(message));
            self.add("raft_entry", &[0], &entry.encode_to_vec());
        }
    }

    fn add_files(&mut self) {
        let golden = fs::read_dir(repository("crates/clearlane/tests/config")).unwrap();
        for path in golden.map(|entry| entry.unwrap().path()) {
            for line in fs::read_to_string(path).unwrap().lines() {
                if let Some(file) = line.strip_prefix("> file ") {
                    let text = file.split_once(' ').map(|(_, text)| text).unwrap_or_default();
                    let text: String = serde_json::from_str(text).unwrap_or_default();
                    self.add("config_file", &[], text.as_bytes());
                }
                if let Some(start) = line.strip_prefix("> start") {
                    let words: Vec<&str> = start.split_whitespace().collect();
                    let mut bytes = vec![words.len() as u8];
                    words.iter().for_each(|word| put_string(&mut bytes, word.as_bytes()));
                    self.add("arguments", &[], &bytes);
                }
            }
        }
        let deployed = fs::read_to_string(repository("deploy/clearlane.yml")).unwrap();
        self.add("config_file", &[], deployed.as_bytes());
        for text in [
            "http://127.0.0.1:2379,https://[::1]:2379,unix:///run/a.sock,unixs://localhost:1",
            "one=http://10.0.0.1:2380,two=http://10.0.0.2:2380,two=https://two.example:2380",
            "InitialCorruptCheck=true,TxnModeWriteWithSharedBuffer=false,AllAlpha=true",
        ] {
            self.add("addresses", &[], text.as_bytes());
        }
    }

    fn add_log(&mut self) {
        let entry = Entry { kind: EntryKind::Normal, term: 2, index: 3, data: "data".into() };
        let state = HardState { term: 2, vote: 1, commit: 3 };
        let members = ConfState { voters: vec![1, 2], learners: vec![3], ..ConfState::default() };
        let snapshot = WalSnapshot { index: 3, term: 2, conf_state: Some(members.clone()) };
        let metadata = Metadata { node_id: 1, cluster_id: 2 };
        let messages = [
            entry.encode(),
            state.encode(),
            metadata.encode(),
            snapshot.encode(),
            members.encode(),
        ];
        for (kind, bytes) in (0..).zip(&messages) {
            self.add("wal_records", &[kind], bytes);
        }
        let urls = ["http://10.0.0.1:2380".to_owned()];
        for is_learner in [false, true] {
            let change = MemberChange::add(&urls, is_learner, 7).unwrap();
            let change = change.to_conf_change(9);
            self.add("raft_entry", &[1], &change.encode());
            self.add("raft_entry", &[2], &change.context);
        }
        let (header, claims) =
            (&br#"{"alg":"HS256","typ":"JWT"}"#[..], br#"{"username":"a","revision":1}"#);
        assert!(jwt::verify_signed(header, claims).is_some());
        let mut signed = vec![5];
        put_string(&mut signed, header);
        self.add("jwt", &signed, claims);
        let keys = fs::read_dir(repository("crates/auth/tests/keys")).unwrap();
        for path in keys.map(|entry| entry.unwrap().path()) {
            for options in ["sign-method=ES256,priv-key=f", "sign-method=RS256,pub-key=f,ttl=5m"] {
                let mut head = vec![6];
                put_string(&mut head, options.as_bytes());
                self.add("jwt", &head, &fs::read(&path).unwrap());
            }
        }
        // The first segment has a snapshot at index 0, two entries, a hard state and a snapshot.
        // The second segment has one entry.
        let log = [
            &[0, 9, 0, 0, 0, 6, 0, 1, 1, 0, 1, b'a', 6, 0, 1, 2, 0, 0, 8, 1, 0, 2][..],
            &[9, 2, 1, 1, 0, 3, 6, 0, 2, 3, 0, 2, b'b', b'c', 2, 0],
        ]
        .concat();
        assert_eq!(wal_directory::open_all(&log), 2, "from 0 and from the snapshot");
        self.add("wal_directory", &[], &log);
        self.add("wal_directory", &[], &log[..22]);
    }

    fn add_stores(&mut self) {
        let engine = filled_store();
        let mut records = Vec::new();
        for bucket in Bucket::ALL {
            engine
                .snapshot()
                .unwrap()
                .scan(bucket, clearlane_engine::KeyRange::ALL, &mut |key, value| {
                    records.push(bucket.index() as u8);
                    put_string(&mut records, key);
                    put_string(&mut records, value);
                    std::ops::ControlFlow::Continue(())
                })
                .unwrap();
        }
        self.add("store_records", &[], &records);
        let chunks =
            all(&mut Exporter::new(engine.snapshot().unwrap()), |from| from.next_chunk().unwrap());
        // Keeps the kind and the body of each frame. Removes the magic number, the lengths and the
        // checksums.
        let frames = framed(&chunks[1..]);
        assert!(snapshot_file::restore(&snapshot_file::saved(&*engine), true));
        self.add("snapshot_file", &[3, 0], &records);
        self.add("snapshot_file", &[3, 1], &records);
        // The edits change the high-water mark of both meta pages, and, in page 2, the flags of the
        // second element and the number of elements.
        for (place, byte) in [(0x38, 9), (0x1038, 9), (0x2020, 1), (0x200a, 90)] {
            let [_, edit @ ..] = u32::to_be_bytes(place);
            self.add("snapshot_file", &[&[3, 2][..], &edit, &[byte]].concat(), &records);
            self.add("snapshot_file", &[&[2, 3][..], &edit, &[byte]].concat(), &records);
        }
        // Fields 1 to 4 of the message: its kind is snapshot, then the receiver, the sender and the
        // term.
        let mut message = RaftMessage::decode(&[8, 7, 16, 2, 24, 1, 32, 3]).unwrap();
        let conf_state = ConfState { voters: vec![1], ..ConfState::default() };
        message.set_snapshot_position(&LogPosition { index: 1, term: 1, conf_state });
        self.add("peer_message", &[], &message.encode());
        let exporter = Exporter::new(engine.snapshot().unwrap());
        let mut sender = SnapshotSender::new(exporter, message).unwrap();
        let chunks = all(&mut sender, |from| from.next_chunk().unwrap());
        assert!(snapshot_stream::receive(&chunks.concat(), 99));
        self.add("snapshot_stream", &[0, 99], &chunks.concat());
        let message = &chunks[0][21..chunks[0].len() - 4];
        let mut built = vec![1, 99];
        put_string(&mut built, message);
        self.add("snapshot_stream", &built, &frames);
    }
}

impl Seeds {
    fn add_bolt(&mut self) {
        for whole in 1..=3 {
            for sums in 0..3 {
                assert!(bolt_file::open(&[whole, sums]));
                self.add("bolt_file", &[whole, sums], &[]);
                // The edits change a transaction ID, a root page, the flags of a page and a value.
                // The last edit copies a page over another.
                for edit in [[3, 0, 16, 9], [3, 0, 8, 3], [1, 5, 2, 0], [0, 5, 90, 1], [5, 6, 0, 7]]
                {
                    self.add("bolt_file", &[whole, sums], &edit);
                }
            }
        }
        // A new file without its first meta page opens in the state before its first commit.
        let mut file = MemoryStore::create(1024).unwrap().file().contents();
        file.truncate(3 * 1024);
        file[..1024].fill(0);
        let raw = [&[0][..], &file].concat();
        assert!(bolt_file::open(&raw));
        self.all.insert(("bolt_file", raw));
        // These programs put and delete many keys, write large keys and values, hold snapshots,
        // defragment and reopen the store, and let commits fail.
        let programs: [&[u8]; 6] = [
            &[0, 4, 0, 0, 100, 7, 200, 10, 6, 0, 0, 190, 10, 11],
            &[0, 4, 1, 0, 250, 7, 90, 10, 8, 6, 1, 0, 80, 10, 4, 1, 2, 9, 1, 40, 10, 9, 0, 10, 11],
            &[1, 0, 0, 210, 255, 1, 10, 0, 1, 211, 220, 2, 10, 12, 1, 3, 11, 13, 10, 11],
            &[0, 0, 2, 255, 10, 1, 0, 2, 250, 10, 1, 10, 7, 2, 1, 254, 11, 3, 2, 250, 10],
            &[1, 8, 8, 0, 0, 1, 1, 1, 10, 8, 0, 0, 1, 2, 2, 10, 9, 1, 7, 0, 0, 9, 9, 0, 13, 11],
            &[0, 4, 2, 3, 99, 1, 255, 12, 1, 9, 12, 0, 4, 2, 3, 1, 1, 30, 12, 1, 2, 11],
        ];
        programs.iter().for_each(|program| self.add("bolt_transactions", &[], program));
    }
}

fn kv_kind(method: &str) -> Option<u8> {
    let kinds = ["Range", "Put", "DeleteRange", "Txn", "Compact", "LeaseGrant"];
    kinds.iter().position(|kind| *kind == method).map(|kind| kind as u8)
}

fn gateway_number(method: &MethodDescriptor) -> Option<u8> {
    let name = method.full_name();
    let number = decoders::gateway_methods().position(|bound| bound.full_name() == name);
    number.map(|number| number as u8)
}

fn all<T>(from: &mut T, next: fn(&mut T) -> Option<bytes::Bytes>) -> Vec<bytes::Bytes> {
    std::iter::from_fn(|| next(from)).collect()
}

/// Returns the frames in the form that the target `snapshot_stream` reads. The trailer is replaced
/// by an empty one, and the target makes the correct trailer itself.
fn framed(chunks: &[bytes::Bytes]) -> Vec<u8> {
    let mut frames = Vec::new();
    for chunk in &chunks[..chunks.len() - 1] {
        frames.push(chunk[0]);
        put_string(&mut frames, &chunk[9..chunk.len() - 4]);
    }
    frames.extend([2, 0, 0]);
    frames
}

/// Returns a store that contains a member and a few puts. One put is attached to a lease.
fn filled_store() -> Arc<dyn Engine> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let pre_commit = AppliedPosition::pre_commit();
    let config = StoreConfig::new(
        Arc::clone(&engine),
        Config::default(),
        pre_commit,
        AppliedPosition::default(),
    );
    let (store, _) = clearlane_mvcc::open(Era::Clearlane, config).unwrap();
    let mut txn = store.begin_write().unwrap();
    txn.put(b"a", b"1", 0).unwrap();
    txn.put(b"b", b"2", 7).unwrap();
    txn.put(b"a", b"3", 0).unwrap();
    let member = br#"{"id":1,"peerURLs":["http://10.0.0.1:2380"],"name":"one"}"#;
    txn.set(Bucket::Members, b"1", member[..].into()).unwrap();
    // Fields 1 and 2 of the lease: its ID, and its TTL in seconds.
    txn.set(Bucket::Lease, &7_i64.to_be_bytes(), [8, 7, 16, 60][..].into()).unwrap();
    let conf_state = ConfState { voters: vec![1], ..ConfState::default() };
    let conf_state = Arc::new(conf_state);
    txn.end(AppliedPosition { index: 1, term: 1, conf_state }).unwrap();
    store.commit().unwrap();
    engine
}
