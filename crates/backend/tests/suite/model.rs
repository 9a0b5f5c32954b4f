//! Compares every era with the plain model over random operations.
//!
//! After every operation the test compares the complete state that readers see, and the complete
//! contents of the engine, with the model. Eras commit on their own at different points: some at
//! every delete, some at the batch limit. When the engine shows such a commit, the model commits as
//! well.

use crate::support;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::contents;
use crate::support::model::{Map, Model};
use crate::support::{Entry, memory_engine};
use bytes::Bytes;
use clearlane_backend::{Backend, ComputedRecords, Config, Era, Error, RecordKey, WriteTx};
use clearlane_engine::stream::{Exporter, Importer};
use clearlane_engine::{Bucket, Engine, EngineKind, Options};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{self, TestRunner};

/// Buckets other than `key`. In the order of buckets, the first is just before `key` and the second
/// just after it. So a range in `key` that leaves its bucket would be noticed.
const SMALL: [Bucket; 4] = [Bucket::Cluster, Bucket::Lease, Bucket::Members, Bucket::Meta];
const NAMES: [&str; 4] = ["a", "ab", "b", "c"];

#[derive(Clone, Debug)]
enum Operation {
    Write(Vec<RandomChange>),
    Commit,
    Tick {
        millis: u64,
    },
    /// Removes the records at these positions, counted from the oldest record, and commits.
    Remove(Vec<usize>),
    /// Opens the backend again on the engine's present contents.
    Crash,
    Defragment,
    Copy,
}

#[derive(Clone, Debug)]
enum RandomChange {
    /// Puts the next record of bucket `key`, with a value of this length.
    Record(usize),
    /// Puts this number of computed records as the next records of bucket `key`.
    Computed(u64),
    /// Puts a record that is not above the last record, which must fail.
    OldRecord,
    Put(Bucket, &'static str, u8),
    Delete(Bucket, &'static str),
}

fn change() -> impl Strategy<Value = RandomChange> {
    let place = || (prop::sample::select(&SMALL[..]), prop::sample::select(&NAMES[..]));
    prop_oneof![
        4 => (0..40_usize).prop_map(RandomChange::Record),
        1 => (1..40_u64).prop_map(RandomChange::Computed),
        1 => Just(RandomChange::OldRecord),
        4 => (place(), any::<u8>()).prop_map(|((bucket, name), v)| RandomChange::Put(bucket, name, v)),
        1 => place().prop_map(|(bucket, name)| RandomChange::Delete(bucket, name)),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        10 => vec(change(), 0..6).prop_map(Operation::Write),
        2 => Just(Operation::Commit),
        3 => (0..150_u64).prop_map(|millis| Operation::Tick { millis }),
        2 => vec(0..8_usize, 0..4).prop_map(Operation::Remove),
        1 => Just(Operation::Crash),
        1 => Just(Operation::Defragment),
        1 => Just(Operation::Copy),
    ]
}

/// The source of the engine. After a crash, the backend is opened again on an engine from the same
/// source, which has the same data.
enum EngineSource {
    Memory(Arc<dyn Engine>),
    Bolt(tempfile::TempDir),
}

impl EngineSource {
    fn engine(&self) -> Arc<dyn Engine> {
        match self {
            EngineSource::Memory(engine) => Arc::clone(engine),
            EngineSource::Bolt(dir) => {
                let options = Options { cache_bytes: 1 << 20, ..Options::default() };
                clearlane_engine::open(EngineKind::Bolt, dir.path(), options).unwrap()
            }
        }
    }
}

struct OpenBackends {
    backend: Box<dyn Backend<Entry>>,
    engine: Arc<dyn Engine>,
    model: Model,
}

struct Race {
    era: Era,
    config: Config,
    source: EngineSource,
    model_durable: Arc<Mutex<Map>>,
    open: Option<OpenBackends>,
    entry: Entry,
    next_record: u64,
    now: Duration,
}

impl Race {
    fn start(era: Era, config: Config, source: EngineSource) -> Race {
        let (model_durable, now) = (Arc::default(), Duration::ZERO);
        let (open, entry, next_record) = (None, 0, 1);
        let mut race = Race { era, config, source, model_durable, open, entry, next_record, now };
        race.reopen();
        // After this commit every store has a consistent index, which shows when a commit was made.
        race.run(&Operation::Write(Vec::new()));
        race.run(&Operation::Commit);
        race
    }

    fn reopen(&mut self) {
        self.open = None;
        let (engine, config) = (self.source.engine(), self.config.clone());
        let backend = support::open(self.era, Arc::clone(&engine), config.clone());
        let model = Model::open(Arc::clone(&self.model_durable), config);
        self.open = Some(OpenBackends { backend, engine, model });
    }

    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Crash => self.reopen(),
            Operation::Write(changes) => self.write(changes),
            Operation::Commit => self.sides().into_iter().for_each(|side| side.commit().unwrap()),
            Operation::Tick { millis } => self.tick(*millis),
            Operation::Remove(positions) => self.remove(positions),
            Operation::Defragment => self.sides()[0].defragment().unwrap(),
            Operation::Copy => {
                let [copy, expected] = self.sides().map(|side| import(side.snapshot().unwrap()));
                assert_eq!(copy, expected);
            }
        }
        self.compare();
    }

    fn opened(&self) -> &OpenBackends {
        self.open.as_ref().expect("open between operations")
    }

    /// Returns the era's backend, followed by the model.
    fn sides(&self) -> [&dyn Backend<Entry>; 2] {
        [&*self.opened().backend, &self.opened().model]
    }

    fn write(&mut self, changes: &[RandomChange]) {
        self.entry += 1;
        let mut next_record = self.next_record;
        // Opening a write transaction may commit, because era clearlane limits the pending bytes.
        let mut sides = self.sides().map(|side| {
            let tx = side.begin_write().unwrap();
            self.commit_model_if_committed();
            tx
        });
        let [before, expected] = sides.each_ref().map(|tx| *tx.payload());
        assert_eq!(before, expected, "the payload of the transaction before");
        for change in changes {
            let outcomes = sides.each_mut().map(|tx| apply(&mut **tx, change, next_record));
            assert_eq!(outcomes[0], outcomes[1]);
            next_record += match change {
                RandomChange::Record(_) => 1,
                RandomChange::Computed(count) => *count,
                _ => 0,
            };
        }
        let [seen, expected] = sides.each_ref().map(|tx| contents::visible(&**tx).unwrap());
        assert_eq!(seen, expected, "a write transaction sees its own changes");
        sides.into_iter().for_each(|tx| drop(tx.end(self.entry).unwrap()));
        self.next_record = next_record;
    }

    fn tick(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
        let [backend, model] = self.sides();
        let due = backend.sizes().unwrap().pending_ops >= self.config.batch_limit;
        let committed = backend.commit_if_due(self.now).unwrap();
        if self.config.batch_limit == Config::default().batch_limit {
            assert_eq!(committed, model.commit_if_due(self.now).unwrap());
        } else {
            // If the batch limit is low, era clearlane commits early at ticks. The model does not
            // decide when to commit here: `compare` makes it commit whenever the era has committed.
            assert!(committed || !due, "a limit that was reached is heeded at the next tick");
        }
    }

    fn remove(&self, positions: &[usize]) {
        let visible = contents::visible(&*self.sides()[1].begin_read()).unwrap();
        let records = visible.into_keys().filter(|(bucket, _)| *bucket == Bucket::Key);
        let records = records.enumerate().filter(|(position, _)| positions.contains(position));
        let records: Vec<Bytes> = records.map(|(_, (_, key))| key).collect();
        for side in self.sides() {
            side.remove(&records).unwrap();
            side.commit().unwrap();
        }
    }

    /// Makes the model commit if the backend of the era has committed. Returns the engine's
    /// contents.
    fn commit_model_if_committed(&self) -> Map {
        let durable = contents::durable(&*self.opened().engine);
        let model_has = contents::saved_entry(&self.model_durable.lock().unwrap());
        if contents::saved_entry(&durable) != model_has {
            self.opened().model.commit().unwrap();
        }
        durable
    }

    fn compare(&self) {
        let durable = self.commit_model_if_committed();
        assert_eq!(durable, *self.model_durable.lock().unwrap(), "what is committed");
        let [seen, expected] =
            self.sides().map(|side| contents::visible(&*side.begin_read()).unwrap());
        assert_eq!(seen, expected, "what readers see");
        let [sizes, expected] = self.sides().map(|side| side.sizes().unwrap());
        assert_eq!((sizes.in_use, sizes.pending_ops), (expected.in_use, expected.pending_ops));
    }
}

/// Applies a change to an open write transaction. Returns an error as text.
fn apply(
    tx: &mut dyn WriteTx<Entry>,
    change: &RandomChange,
    next_record: u64,
) -> Result<(), String> {
    let outcome = match change {
        RandomChange::Record(length) => {
            tx.put(Bucket::Key, record(next_record).as_bytes(), vec![b'r'; *length].into())
        }
        RandomChange::Computed(count) => {
            tx.put_computed(Arc::new(NumberedRecords { first: next_record, count: *count }))
        }
        RandomChange::OldRecord => return put_old_record(tx),
        RandomChange::Put(bucket, name, value) => {
            tx.put(*bucket, name.as_bytes(), vec![*value].into())
        }
        RandomChange::Delete(bucket, name) => tx.delete(*bucket, name.as_bytes()),
    };
    outcome.map_err(|error| error.to_string())
}

fn record(number: u64) -> String {
    format!("r{number:06}")
}

#[derive(Debug)]
struct NumberedRecords {
    first: u64,
    count: u64,
}

impl ComputedRecords for NumberedRecords {
    fn count(&self) -> u64 {
        self.count
    }

    fn key(&self, skip: u64) -> RecordKey {
        let (name, mut bytes) = (record(self.first + skip), [0; 18]);
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        RecordKey::from_prefix(bytes, name.len() as u8)
    }

    fn visit_values(&self, skip: u64, visit: &mut dyn FnMut(&Bytes) -> ControlFlow<()>) {
        let value = |skip: u64| Bytes::from(vec![b'c'; (self.first + skip) as usize % 30]);
        let _ = (skip..self.count).try_for_each(|skip| visit(&value(skip)));
    }

    fn memory_bytes(&self) -> u64 {
        10 * self.count
    }
}

/// Puts a record that is below all others, and asserts that the put fails. Does nothing if no
/// record is visible, because then the put may succeed.
fn put_old_record(tx: &mut dyn WriteTx<Entry>) -> Result<(), String> {
    let state = contents::visible(tx).unwrap();
    if state.keys().any(|(bucket, _)| *bucket == Bucket::Key) {
        let refused = tx.put(Bucket::Key, record(0).as_bytes(), Bytes::new()).unwrap_err();
        // The error's last record is not compared, because the model forgets removed records.
        assert!(matches!(refused, Error::OutOfOrder { .. }), "{refused}");
    }
    Ok(())
}

/// Imports a copy into a new engine, and returns its contents.
fn import(mut exporter: Exporter) -> Map {
    let engine = memory_engine();
    let mut importer = Importer::new(Arc::clone(&engine)).unwrap();
    while let Some(chunk) = exporter.next_chunk().unwrap() {
        importer.feed(&chunk).unwrap();
    }
    importer.finish().unwrap();
    contents::durable(&*engine)
}

/// Compares every era with the model over random operations. After a failure, proptest removes
/// operations as long as the list still fails, and shows the rest.
fn race_all(cases: u32, operations: usize, config: &Config, source: fn() -> EngineSource) {
    for era in Era::DISTINCT_STORES {
        let _run = support::OnPanic(format!("era {era}"));
        let settings =
            test_runner::Config { cases, failure_persistence: None, ..Default::default() };
        let outcome =
            TestRunner::new(settings).run(&vec(operation(), 1..operations), |operations| {
                let mut race = Race::start(era, config.clone(), source());
                operations.iter().for_each(|operation| race.run(operation));
                Ok(())
            });
        outcome.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

fn in_memory() -> EngineSource {
    EngineSource::Memory(memory_engine())
}

#[test]
fn eras_do_as_the_model_does() {
    race_all(40, 40, &Config::default(), in_memory);
}

#[test]
fn eras_do_as_the_model_does_with_a_low_batch_limit() {
    race_all(40, 40, &Config { batch_limit: 4, ..Config::default() }, in_memory);
}

#[test]
fn eras_do_as_the_model_does_with_few_pending_bytes() {
    race_all(20, 40, &Config { pending_bytes_max: 600, ..Config::default() }, in_memory);
}

#[test]
fn eras_do_as_the_model_does_on_bolt() {
    race_all(3, 20, &Config::default(), || EngineSource::Bolt(tempfile::tempdir().unwrap()));
}
