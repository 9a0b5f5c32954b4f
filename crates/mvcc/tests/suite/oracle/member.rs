//! The parts of a member that the recordings need: a store, and the keys of each lease.
//!
//! Replies have the format of the recordings, protobuf's JSON, which omits default values. Jobs run
//! to their end within the call that starts them, because the recorder gave etcd time to finish
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_backend::{Config, PreCommit};
use clearlane_engine::{Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{
    Change, Error, LeasedKey, RecoveryInfo, Store, StoreConfig, TxnResult, WatchableKv, WriteTxn,
};
use serde_json::{Map, Value, json};

use crate::oracle::recording::Fields;

/// The reply, or the code and the message of the error as a client sees them.
type Outcome = Result<Value, Value>;

pub(crate) struct Member {
    engine: Arc<dyn Engine>,
    era: Era,
    store: Box<dyn Store<()>>,
    leases: BTreeMap<i64, BTreeSet<Bytes>>,
    budget: usize,
}

fn open(era: Era, engine: &Arc<dyn Engine>) -> (Box<dyn WatchableKv<()>>, RecoveryInfo) {
    let engine = Arc::clone(engine);
    let store_config = StoreConfig::new(engine, Config::default(), PreCommit::none(), ());
    clearlane_mvcc::open(era, store_config).unwrap()
}

fn error(error: &Error) -> Value {
    let known = matches!(error, Error::Compacted | Error::FutureRevision);
    assert!(known, "no error that a client gets: {error}");
    json!({ "code": "OutOfRange", "message": error.to_string() })
}

/// Builds a message from the fields that do not have their default value.
fn message(fields: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    let absent = |value: &Value| {
        value.is_null() || [json!("0"), json!(0), json!(false), json!([])].contains(value)
    };
    let present = fields.into_iter().filter(|(_, value)| !absent(value));
    Value::Object(present.map(|(name, value)| (name.to_owned(), value)).collect::<Map<_, _>>())
}

fn number(number: i64) -> Value {
    Value::from(number.to_string())
}

fn header(revision: i64) -> (&'static str, Value) {
    ("header", message([("revision", number(revision))]))
}

/// Runs a put that was requested by itself or in a transaction. Returns its reply.
fn put(txn: &mut dyn WriteTxn<()>, mut request: Fields) -> Value {
    let (key, value) = (request.bytes("key"), request.bytes("value"));
    txn.put(&key, &value, request.number("lease")).unwrap();
    request.assert_empty();
    message([header(txn.revision())])
}

fn delete_range(txn: &mut dyn WriteTxn<()>, mut request: Fields) -> Value {
    let (key, end) = (request.bytes("key"), request.bytes("range_end"));
    request.assert_empty();
    let single = [&key[..], &[0]].concat();
    let range = match &end[..] {
        [] => KeyRange::new(&key, &single),
        [0] => KeyRange::starting_at(&key),
        end => KeyRange::new(&key, end),
    };
    let deleted = txn.delete_range(range).unwrap();
    message([header(txn.revision()), ("deleted", number(deleted as i64))])
}

fn operation(txn: &mut dyn WriteTxn<()>, mut request: Fields) -> Value {
    let reply = if let Some(request) = request.message("request_put") {
        message([("response_put", put(txn, request))])
    } else if let Some(request) = request.message("request_delete_range") {
        message([("response_delete_range", delete_range(txn, request))])
    } else {
        Value::Null
    };
    request.assert_empty();
    reply
}

impl Member {
    pub(crate) fn new(era: Era, budget: usize) -> Member {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let store = open(era, &engine).0;
        Member { era, engine, store, leases: BTreeMap::new(), budget }
    }

    pub(crate) fn call(&mut self, method: &str, request: Fields) -> Outcome {
        match method {
            "/etcdserverpb.KV/Put" => Ok(self.write(|txn| put(txn, request))),
            "/etcdserverpb.KV/DeleteRange" => Ok(self.write(|txn| delete_range(txn, request))),
            "/etcdserverpb.KV/Txn" => Ok(self.txn(request)),
            "/etcdserverpb.KV/Compact" => self.compact(request),
            "/etcdserverpb.Lease/LeaseGrant" => Ok(self.grant(request)),
            "/etcdserverpb.Lease/LeaseRevoke" => Ok(self.revoke(request)),
            "/etcdserverpb.Maintenance/HashKV" => self.hash(request),
            "/etcdserverpb.Maintenance/Defragment" => {
                request.assert_empty();
                self.store.defragment().unwrap();
                Ok(message([]))
            }
            other => panic!("no method {other}"),
        }
    }

    /// Stops the store in an orderly way, and starts it again on the same data.
    pub(crate) fn restart(&mut self) {
        self.store.commit().unwrap();
        // An engine can have only one store. So the old store is closed first: it is replaced by a
        // store on another engine.
        let nowhere: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        self.store = open(self.era, &nowhere).0;
        let (store, opened) = open(self.era, &self.engine);
        self.store = store;
        assert!(opened.compaction.is_none(), "every compaction had come to its end");
        let found: BTreeSet<(i64, Bytes)> =
            opened.leases.into_iter().map(|LeasedKey { key, lease }| (lease, key)).collect();
        let attached = self
            .leases
            .iter()
            .flat_map(|(lease, keys)| keys.iter().map(|key| (*lease, key.clone())));
        assert_eq!(found, attached.collect(), "the records know the leases");
    }

    fn write<T>(&mut self, work: impl FnOnce(&mut dyn WriteTxn<()>) -> T) -> T {
        let mut txn = self.store.begin_write().unwrap();
        let done = work(&mut *txn);
        let TxnResult { changes, .. } = txn.end(()).unwrap();
        changes.into_changes().for_each(|change| self.attach(change));
        done
    }

    fn attach(&mut self, change: Change) {
        let (Change::Put(record) | Change::Delete(record)) = change;
        for keys in self.leases.values_mut() {
            keys.remove(&record.key);
        }
        if record.lease != 0 {
            self.leases.get_mut(&record.lease).expect("a lease that is there").insert(record.key);
        }
    }

    fn txn(&mut self, mut request: Fields) -> Value {
        let operations = request.messages("success");
        // The recordings contain no compares. If a recording had one, this check would fail.
        request.assert_empty();
        let (responses, revision) = self.write(|txn| {
            let responses: Vec<Value> =
                operations.into_iter().map(|request| operation(txn, request)).collect();
            (responses, txn.revision())
        });
        message([header(revision), ("succeeded", true.into()), ("responses", responses.into())])
    }

    fn compact(&mut self, mut request: Fields) -> Outcome {
        let at = request.number("revision");
        assert!(request.flag("physical"), "else the reply would not wait for the job");
        request.assert_empty();
        let (mut job, ended) = self.store.compact(at, ()).map_err(|e| error(&e))?;
        while !self.store.compact_step(&mut job, self.budget).unwrap() {}
        Ok(message([header(ended.revision)]))
    }

    fn hash(&mut self, mut request: Fields) -> Outcome {
        let mut job = self.store.hash(request.number("revision")).map_err(|e| error(&e))?;
        request.assert_empty();
        let hash = loop {
            if let Some(hash) = job.step(self.budget).unwrap() {
                break hash;
            }
        };
        Ok(message([
            header(self.store.begin_read().revision()),
            ("hash", hash.hash.into()),
            ("compact_revision", number(hash.compact_revision)),
            ("hash_revision", number(hash.hash_revision)),
        ]))
    }

    fn grant(&mut self, mut request: Fields) -> Value {
        let (id, ttl) = (request.number("ID"), request.number("TTL"));
        request.assert_empty();
        assert!(id != 0 && self.leases.insert(id, BTreeSet::new()).is_none(), "a new lease");
        let revision = self.store.begin_read().revision();
        message([header(revision), ("ID", number(id)), ("TTL", number(ttl))])
    }

    /// Deletes the keys of the lease, in order and in one transaction.
    fn revoke(&mut self, mut request: Fields) -> Value {
        let keys = self.leases.remove(&request.number("ID")).expect("a lease that is there");
        request.assert_empty();
        self.write(|txn| {
            for key in keys {
                let single = [&key[..], &[0]].concat();
                assert_eq!(txn.delete_range(KeyRange::new(&key, &single)).unwrap(), 1);
            }
            message([header(txn.revision())])
        })
    }
}
