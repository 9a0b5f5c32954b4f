//! A runner for golden scripts for the store. Examples of commands: `put a 1`, `del a b`, `range a
//! z rev=3`, `compact 4`.

// Each test binary uses a different part of this module.
#![allow(dead_code, reason = "shared by several test binaries, none of which uses all of it")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clearlane_backend::{Config, Era, PreCommit};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{
    CompactionJob, HashKv, KeyLeases, RangeOptions, RangeRecords, ReadTxn, RecoveryInfo,
    SnapshotStore, StoreConfig, StoreReadTxn, UnopenedStore, WatchableKv, WriteTxn,
};
use goldenscript::{Argument, Command, Context, Runner};

type Outcome = Result<String, Box<dyn Error>>;

/// The budget of a step of a job. It is so small that every job takes several steps.
const BUDGET: usize = 3;

#[derive(Debug, Default)]
struct LeaseTable(Mutex<BTreeMap<Bytes, i64>>);

impl KeyLeases for LeaseTable {
    fn attach(&self, key: &Bytes, lease: i64) {
        let mut attached = self.0.lock().expect("no test panics with it");
        if lease == 0 {
            attached.remove(key);
        } else {
            attached.insert(key.clone(), lease);
        }
    }
}

/// A store that runs commands, and its open reads.
pub(crate) struct StoreRunner {
    era: Era,
    engine: Arc<dyn Engine>,
    store: Arc<dyn WatchableKv<u64>>,
    /// The same store, in eras where an open read blocks no other call. `None` in all other eras: a
    /// script runs on one thread, so it could not continue after opening a read.
    viewed: Option<Arc<SnapshotStore<u64>>>,
    leases: Arc<LeaseTable>,
    job: Option<CompactionJob>,
    open_reads: BTreeMap<String, StoreReadTxn<u64>>,
    applied: u64,
    /// If true, each hash is also computed by [`UnopenedStore`] from the committed records, and
    /// both hashes must be equal. The stored hashes of finished compactions are not compared.
    pub(crate) hashes_unopened: bool,
}

/// Splits a command into its words and its `key=value` options.
fn arguments(command: &Command) -> (Vec<&str>, BTreeMap<&str, &str>) {
    let (mut words, mut options) = (Vec::new(), BTreeMap::new());
    for argument in &command.args {
        match argument {
            Argument::Positional(word) => words.push(word.as_str()),
            Argument::KeyValue(key, value) => drop(options.insert(key.as_str(), value.as_str())),
            other => panic!("no such argument: {other}"),
        }
    }
    (words, options)
}

/// Parses a range: `a` is a single key, `a c` a range, `a -` all keys from `a` on. Without words,
/// the range has all keys.
fn range_of<'w>(words: &[&'w str], single: &'w mut Vec<u8>) -> KeyRange<'w> {
    match words {
        [] => KeyRange::ALL,
        [key] => {
            single.extend_from_slice(key.as_bytes());
            single.push(0);
            KeyRange { from: key.as_bytes(), to: Some(single) }
        }
        [from, "-", ..] => KeyRange::starting_at(from.as_bytes()),
        [from, to, ..] => KeyRange::new(from.as_bytes(), to.as_bytes()),
    }
}

fn options_of(options: &BTreeMap<&str, &str>) -> Result<RangeOptions, Box<dyn Error>> {
    let number = |name: &str| options.get(name).map_or(Ok(0), |text| text.parse::<i64>());
    let count_only = options.contains_key("count");
    Ok(RangeOptions {
        revision: number("rev")?,
        limit: number("limit")?,
        count_only,
        ..RangeOptions::default()
    })
}

fn show(answer: &RangeRecords) -> String {
    let mut out = String::new();
    for kv in &answer.records {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (key, value) = (text(&kv.key), text(&kv.value));
        let (create, modified) = (kv.create_revision, kv.mod_revision);
        let _ = write!(out, "{key}={value} create={create} mod={modified} version={}", kv.version);
        let lease = if kv.lease == 0 { String::new() } else { format!(" lease={}", kv.lease) };
        let _ = writeln!(out, "{lease}");
    }
    let _ = writeln!(out, "count={}", answer.count);
    out
}

/// Runs one operation in a write transaction. A put may have a lease after its value.
fn write(txn: &mut dyn WriteTxn<u64>, words: &[&str], lease: i64) -> Outcome {
    let mut single = Vec::new();
    match words {
        ["put", key, value, rest @ ..] => {
            let lease = rest.first().map_or(Ok(lease), |lease| lease.parse())?;
            txn.put(key.as_bytes(), value.as_bytes(), lease)?;
            Ok(String::new())
        }
        ["del", keys @ ..] => {
            let deleted = txn.delete_range(range_of(keys, &mut single))?;
            Ok(format!("deleted={deleted}\n"))
        }
        ["range", keys @ ..] => {
            Ok(show(&txn.range(range_of(keys, &mut single), RangeOptions::default())?))
        }
        other => Err(format!("no operation {other:?}").into()),
    }
}

impl StoreRunner {
    pub(crate) fn new(era: Era) -> StoreRunner {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let (store, viewed, _) = open(era, &engine, &Arc::default());
        let mut runner = StoreRunner {
            era,
            engine,
            store,
            viewed,
            leases: Arc::default(),
            job: None,
            open_reads: BTreeMap::new(),
            applied: 0,
            hashes_unopened: false,
        };
        runner.reopen();
        runner
    }

    fn txn(&mut self, operations: &[Vec<&str>], lease: i64) -> Outcome {
        self.applied += 1;
        let mut txn = self.store.begin_write()?;
        let mut out = String::new();
        for operation in operations {
            out += &write(&mut *txn, operation, lease)?;
        }
        let ended = txn.end(self.applied)?;
        Ok(out + &format!("rev={}\n", ended.revision))
    }

    fn range(
        &self,
        read_name: Option<&String>,
        range: KeyRange<'_>,
        options: RangeOptions,
    ) -> Outcome {
        let answer = match read_name {
            Some(name) => self.open_reads[name].range(range, options),
            None => self.store.begin_read().range(range, options),
        };
        Ok(show(&answer?))
    }

    fn compact(&mut self, at: i64) -> Outcome {
        self.applied += 1;
        let (job, ended) = self.store.compact(at, self.applied)?;
        drop(ended);
        self.job = Some(job);
        Ok(String::new())
    }

    fn step(&mut self) -> Outcome {
        let job = self.job.as_mut().ok_or("no compaction is under way")?;
        let done = self.store.compact_step(job, BUDGET)?;
        if done {
            self.job = None;
        }
        Ok(format!("done={done}\n"))
    }

    fn finish(&mut self) -> Outcome {
        while self.job.is_some() {
            self.step()?;
        }
        Ok(String::new())
    }

    fn hash(&self, revision: i64) -> Outcome {
        let mut job = self.store.hash(revision)?;
        let hash = loop {
            if let Some(hash) = job.step(BUDGET)? {
                break hash;
            }
        };
        // The hashes of finished compactions are not on disk.
        if self.hashes_unopened && !self.store.compaction_hashes().contains(&hash) {
            self.store.commit()?;
            let snapshot = self.engine.snapshot()?;
            assert_eq!(UnopenedStore::read(&*snapshot)?.hash(revision)?, hash);
        }
        let HashKv { hash, compact_revision, hash_revision } = hash;
        Ok(format!("hash={hash} compact_revision={compact_revision} hash_revision={hash_revision}"))
    }

    /// Drops the store without a commit and opens it again, as after a crash.
    fn crash(&mut self) -> Outcome {
        let opened = self.reopen();
        let read = self.store.begin_read();
        let mut out = format!("rev={} compacted={}\n", read.revision(), read.compact_revision());
        for lease in opened {
            let key = String::from_utf8_lossy(&lease.key).into_owned();
            let _ = writeln!(out, "{key} lease={}", lease.lease);
        }
        Ok(out)
    }

    /// Opens the store again. Returns the keys that are attached to a lease.
    fn reopen(&mut self) -> Vec<clearlane_mvcc::LeasedKey> {
        self.open_reads.clear();
        (self.job, self.viewed, self.leases) = (None, None, Arc::default());
        let empty: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        self.store = open(self.era, &empty, &self.leases).0;
        let (store, viewed, opened) = open(self.era, &self.engine, &self.leases);
        (self.store, self.viewed, self.job) = (store, viewed, opened.compaction);
        opened.leases.iter().for_each(|found| self.leases.attach(&found.key, found.lease));
        opened.leases
    }

    fn show_leases(&self) -> String {
        let attached = self.leases.0.lock().expect("no test panics with it");
        let line = |(key, lease): (&Bytes, &i64)| {
            format!("{} lease={lease}\n", String::from_utf8_lossy(key))
        };
        if attached.is_empty() { "none\n".into() } else { attached.iter().map(line).collect() }
    }

    fn records(&self) -> Outcome {
        let mut out = String::new();
        self.engine.snapshot()?.scan(Bucket::Key, KeyRange::ALL, &mut |key, _| {
            let (revision, mark) = clearlane_mvcc::RevisionKey::decode(key).expect("a record key");
            let _ = writeln!(out, "{revision} {mark:?}");
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(out)
    }
}

type OpenStore = (Arc<dyn WatchableKv<u64>>, Option<Arc<SnapshotStore<u64>>>, RecoveryInfo);

fn open(era: Era, engine: &Arc<dyn Engine>, leases: &Arc<LeaseTable>) -> OpenStore {
    let save = PreCommit::new(|applied: &u64, put| {
        put(Bucket::Meta, b"consistent_index", &applied.to_be_bytes())
    });
    let store_config = StoreConfig::new(Arc::clone(engine), Config::default(), save, 0);
    let store_config = StoreConfig { leases: Arc::<LeaseTable>::clone(leases), ..store_config };
    if era == Era::Clearlane {
        let opened = SnapshotStore::open(store_config);
        let (store, opened) = opened.expect("a sound engine opens");
        let store = Arc::new(store);
        return (Arc::<SnapshotStore<u64>>::clone(&store), Some(store), opened);
    }
    let opened = clearlane_mvcc::open(era, store_config);
    let (store, opened) = opened.expect("a sound engine opens");
    (Arc::from(store), None, opened)
}

impl Runner for StoreRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Outcome {
        let (words, options) = arguments(command);
        let number = |index: usize| words.get(index).map_or(Ok(0), |text| text.parse::<i64>());
        let mut single = Vec::new();
        let nothing = |()| String::new();
        match command.name.as_str() {
            "put" | "del" => {
                let lease = options.get("lease").map_or(Ok(0), |text| text.parse())?;
                let operation = [&[command.name.as_str()][..], &words].concat();
                self.txn(&[operation], lease)
            }
            "txn" => {
                let operations: Vec<Vec<&str>> =
                    words.iter().map(|operation| operation.split_whitespace().collect()).collect();
                self.txn(&operations, 0)
            }
            "view" => {
                let viewed = self.viewed.as_ref().ok_or("this store's reads hold up writers")?;
                self.open_reads.insert(words[0].to_owned(), viewed.begin_read());
                Ok(String::new())
            }
            "range" => {
                let range = range_of(&words, &mut single);
                self.range(context.prefix.as_ref(), range, options_of(&options)?)
            }
            "compact" => {
                self.compact(number(0)?)?;
                if options.contains_key("later") { Ok(String::new()) } else { self.finish() }
            }
            "step" => self.step(),
            "finish" => self.finish(),
            "abandon" => {
                self.job = None;
                Ok(String::new())
            }
            "hash" => self.hash(options.get("rev").map_or(Ok(0), |text| text.parse())?),
            "leases" => Ok(self.show_leases()),
            "commit" => self.store.commit().map(nothing).map_err(Into::into),
            "defragment" => self.store.defragment().map(nothing).map_err(Into::into),
            "crash" => self.crash(),
            "records" => self.records(),
            other => Err(format!("no command {other:?}").into()),
        }
    }
}
