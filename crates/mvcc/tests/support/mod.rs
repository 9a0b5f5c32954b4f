//! A runner for golden scripts over the store: `put a 1`, `del a b`, `range a z rev=3`, `compact 4`.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use clearlane_backend::{Backend, Config, PreCommit};
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine};
use clearlane_mvcc::{
    HashKv, OneAfterTheOther, RangeAnswer, RangeOptions, ReadView, Store, StoreCompaction, WriteTxn,
};
use goldenscript::{Argument, Command, Context, Runner};

type Outcome = Result<String, Box<dyn Error>>;

/// Small steps, so that every job takes several.
const BUDGET: usize = 3;

/// A store that runs commands, and views that stay open.
pub(crate) struct StoreRunner {
    engine: Arc<dyn Engine>,
    store: Store<u64>,
    job: Option<StoreCompaction>,
    views: BTreeMap<String, ReadView<u64>>,
    applied: u64,
}

fn open(engine: &Arc<dyn Engine>) -> (Store<u64>, clearlane_mvcc::Opened) {
    let save = PreCommit::new(|applied: &u64, put| {
        put(Bucket::Meta, b"consistent_index", &applied.to_be_bytes())
    });
    Store::open(Arc::clone(engine), Config::default(), save, 0, &OneAfterTheOther)
        .expect("a sound engine opens")
}

/// The words of a command, and its `key=value` options apart.
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

/// `a` is the key alone, `a c` a range, `a -` everything from there.
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
    Ok(RangeOptions { revision: number("rev")?, limit: number("limit")?, count_only })
}

fn show(answer: &RangeAnswer) -> String {
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

/// One operation in a write transaction.
fn write(txn: &mut WriteTxn<'_, u64>, words: &[&str], lease: i64) -> Outcome {
    let mut single = Vec::new();
    match words {
        ["put", key, value] => {
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
    pub(crate) fn new() -> StoreRunner {
        let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        let store = open(&engine).0;
        StoreRunner { engine, store, job: None, views: BTreeMap::new(), applied: 0 }
    }

    fn txn(&mut self, operations: &[Vec<&str>], lease: i64) -> Outcome {
        self.applied += 1;
        let mut txn = self.store.write()?;
        let mut out = String::new();
        for operation in operations {
            out += &write(&mut txn, operation, lease)?;
        }
        let ended = txn.end(self.applied)?;
        Ok(out + &format!("rev={}\n", ended.revision))
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
        let HashKv { hash, compact_revision, hash_revision } = loop {
            if let Some(hash) = job.step(BUDGET)? {
                break hash;
            }
        };
        Ok(format!("hash={hash} compact_revision={compact_revision} hash_revision={hash_revision}"))
    }

    /// Drops the store without a commit and opens it again, as a crash would have it.
    fn reopen(&mut self) -> Outcome {
        self.views.clear();
        let empty: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
        self.store = open(&empty).0;
        let (store, opened) = open(&self.engine);
        (self.store, self.job) = (store, opened.compaction);
        let view = self.store.read();
        let mut out = format!("rev={} compacted={}\n", view.revision(), view.compact_revision());
        for lease in opened.leases {
            let key = String::from_utf8_lossy(&lease.key).into_owned();
            let _ = writeln!(out, "{key} lease={}", lease.lease);
        }
        Ok(out)
    }

    fn records(&self) -> Outcome {
        let mut out = String::new();
        self.engine.snapshot()?.scan(Bucket::Key, KeyRange::ALL, &mut |key, _| {
            let (revision, mark) = clearlane_mvcc::RecordKey::decode(key).expect("a record key");
            let _ = writeln!(out, "{revision} {mark:?}");
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(out)
    }
}

impl Runner for StoreRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Outcome {
        let (words, options) = arguments(command);
        let number = |index: usize| words.get(index).map_or(Ok(0), |text| text.parse::<i64>());
        let mut single = Vec::new();
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
                self.views.insert(words[0].to_owned(), self.store.read());
                Ok(String::new())
            }
            "range" => {
                let current = self.store.read();
                let view = context.prefix.as_ref().map_or(&current, |name| &self.views[name]);
                Ok(show(&view.range(range_of(&words, &mut single), options_of(&options)?)?))
            }
            "compact" => {
                self.applied += 1;
                let (job, ended) = self.store.compact(number(0)?, self.applied)?;
                drop(ended);
                self.job = Some(job);
                if options.contains_key("later") { Ok(String::new()) } else { self.finish() }
            }
            "step" => self.step(),
            "finish" => self.finish(),
            "hash" => self.hash(options.get("rev").map_or(Ok(0), |text| text.parse())?),
            "commit" => self.store.commit().map(|()| String::new()).map_err(Into::into),
            "defragment" => {
                self.store.backend().defragment().map(|()| String::new()).map_err(Into::into)
            }
            "crash" => self.reopen(),
            "records" => self.records(),
            other => Err(format!("no command {other:?}").into()),
        }
    }
}
