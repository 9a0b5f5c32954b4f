//! Tests the steps of writes and commits in many orders: every order of two writes and two commits,
//! and random orders that also have compactions, defragmentations, and readers that stay open
//! through several steps.
//!
//! One thread runs the steps one after the other, so every order is exact and can be repeated. The
//! expected contents are plain maps, which are copied when a reader is opened. After every step of
//! the writer, of a commit or of a defragmentation, every open reader reads everything again.

// With the feature `shuttle` the published pointer works only inside the model checker.
#![cfg(not(feature = "shuttle"))]

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, MemoryEngine, Options, Snapshot};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::atomic_state::AtomicState;
use super::writer::{CHANGE_OVERHEAD, RECORD_OVERHEAD, SHARED_RECORD_OVERHEAD};
use super::{BackendState, Defragmentation, SnapshotBackend};
use crate::clearlane::read_tx::SnapshotReadTx;
use crate::record_key::RecordKey;
use crate::{Backend, ComputedRecords, Config, PreCommit, ReadTx, WriteTx};

type Map = BTreeMap<(Bucket, Bytes), Bytes>;
type Entry = u64;

/// Buckets other than `key`. In the order of buckets, the first is just before `key` and the second
/// just after it. So a range in `key` that leaves its bucket would be noticed.
const SMALL: [Bucket; 3] = [Bucket::Cluster, Bucket::Lease, Bucket::Meta];
const NAMES: [&str; 3] = ["a", "b", "c"];
const INDEX: (Bucket, Bytes) = (Bucket::Meta, Bytes::from_static(b"consistent_index"));

#[derive(Clone, Debug)]
enum Step {
    OpenWrite,
    Change(Vec<RecordChange>),
    EndWrite,
    TakeRemovals,
    Freeze,
    Write,
    Publish,
    Remove(Vec<Bytes>),
    BeginDefragment,
    Defragment,
    FinishDefragment,
    OpenReader,
    CloseReader(usize),
}

/// A put, or a delete if the value is `None`.
type RecordChange = (Bucket, Bytes, Option<Bytes>);

/// The prefix of a value that is put as a computed record.
const COMPUTED: &str = "computed";

#[derive(Debug)]
struct ComputedRecord {
    key: RecordKey,
    value: Bytes,
}

fn computed(key: &[u8], value: Bytes) -> Arc<dyn ComputedRecords> {
    Arc::new(ComputedRecord { key: RecordKey::new(key).unwrap(), value })
}

impl ComputedRecords for ComputedRecord {
    fn count(&self) -> u64 {
        1
    }

    fn key(&self, _skip: u64) -> RecordKey {
        self.key
    }

    fn visit_values(&self, skip: u64, visit: &mut dyn FnMut(&Bytes) -> ControlFlow<()>) {
        assert_eq!(skip, 0, "there is one");
        let _ = visit(&self.value);
    }

    fn memory_bytes(&self) -> u64 {
        7
    }
}

fn put(bucket: Bucket, key: &str, value: &str) -> RecordChange {
    (bucket, Bytes::copy_from_slice(key.as_bytes()), Some(Bytes::copy_from_slice(value.as_bytes())))
}

fn delete(bucket: Bucket, key: &str) -> RecordChange {
    (bucket, Bytes::copy_from_slice(key.as_bytes()), None)
}

fn apply(map: &mut Map, (bucket, key, value): &RecordChange) {
    match value {
        Some(value) => map.insert((*bucket, key.clone()), value.clone()),
        None => map.remove(&(*bucket, key.clone())),
    };
}

#[derive(Default)]
struct ExpectedState {
    visible: Map,
    entry: Entry,
    /// The visible state after each write transaction, by the number of the transaction's entry.
    /// After a crash the store must have one of these states, apart from removed records and the
    /// saved index.
    ended: BTreeMap<Entry, Map>,
    durable: Map,
    removed: BTreeSet<Bytes>,
}

enum CommitProgress {
    None,
    RemovalsTaken(Vec<Bytes>),
    Frozen { removals: Vec<Bytes>, frozen: Arc<BackendState<Entry>>, state: Map, entry: Entry },
    Written { removals: Vec<Bytes>, frozen: Arc<BackendState<Entry>>, snapshot: Arc<dyn Snapshot> },
}

struct OpenWriteTx<'b> {
    tx: Box<dyn WriteTx<Entry> + 'b>,
    expected: Map,
    changes: Vec<RecordChange>,
}

struct OpenReader {
    tx: SnapshotReadTx<Entry>,
    expected: Map,
    entry: Entry,
}

struct World<'b> {
    backend: &'b SnapshotBackend<Entry>,
    expected: ExpectedState,
    commit: CommitProgress,
    open_write: Option<OpenWriteTx<'b>>,
    defragmentation: Option<Defragmentation<'b, Entry>>,
    readers: Vec<OpenReader>,
    run_name: String,
    steps: Vec<Step>,
}

impl Drop for World<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}, after these steps: {:#?}", self.run_name, self.steps);
        }
    }
}

fn open_on(engine: &Arc<dyn Engine>) -> SnapshotBackend<Entry> {
    let save_index =
        PreCommit::new(|entry: &Entry, put| put(INDEX.0, &INDEX.1, entry.to_string().as_bytes()));
    let saved = engine.snapshot().unwrap().get(INDEX.0, &INDEX.1).unwrap();
    let entry = saved.map_or(0, |saved| number(&saved));
    SnapshotBackend::open(Arc::clone(engine), Config::default(), save_index, entry).unwrap()
}

fn fresh_backend() -> SnapshotBackend<Entry> {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    open_on(&engine)
}

fn number(text: &[u8]) -> Entry {
    std::str::from_utf8(text).unwrap().parse().unwrap()
}

fn everything(tx: &dyn ReadTx) -> Map {
    let mut found = Map::new();
    for bucket in SMALL.into_iter().chain([Bucket::Key]) {
        tx.range(bucket, KeyRange::ALL, &mut |key, value| {
            let before = found.insert((bucket, Bytes::copy_from_slice(key)), value.to_bytes());
            assert_eq!(before, None, "a range shows a key once");
            ControlFlow::Continue(())
        })
        .unwrap();
    }
    found
}

fn assert_shows(tx: &dyn ReadTx, sees: &Map) {
    assert_eq!(everything(tx), *sees);
    for ((bucket, key), value) in sees {
        assert_eq!(tx.get(*bucket, key).unwrap().as_ref(), Some(value), "{bucket:?} {key:?}");
    }
    for (bucket, name) in SMALL.into_iter().flat_map(|bucket| NAMES.map(|name| (bucket, name))) {
        let key = Bytes::from_static(name.as_bytes());
        let expected = sees.get(&(bucket, key)).cloned();
        assert_eq!(tx.get(bucket, name.as_bytes()).unwrap(), expected, "{bucket:?} {name}");
    }
}

impl<'b> World<'b> {
    /// Creates a world. Writes and commits the changes `first`.
    fn new(
        backend: &'b SnapshotBackend<Entry>,
        run_name: String,
        first: Vec<RecordChange>,
    ) -> World<'b> {
        let mut world = World {
            backend,
            expected: ExpectedState::default(),
            commit: CommitProgress::None,
            open_write: None,
            defragmentation: None,
            readers: Vec::new(),
            run_name,
            steps: Vec::new(),
        };
        let commit = [Step::TakeRemovals, Step::Freeze, Step::Write, Step::Publish];
        let write = [Step::OpenWrite, Step::Change(first), Step::EndWrite];
        write.into_iter().chain(commit).for_each(|step| world.run(step));
        world
    }

    fn run(&mut self, step: Step) {
        self.steps.push(step.clone());
        let published = self.backend.begin_snapshot_read().payload;
        // Only the steps `Write` and `FinishDefragment` change the engine. So the state after a
        // crash is checked only after these two steps.
        let engine_changes = matches!(step, Step::Write | Step::FinishDefragment);
        match step {
            Step::OpenWrite | Step::Change(_) | Step::EndWrite => self.apply_step(step),
            Step::TakeRemovals | Step::Freeze | Step::Write | Step::Publish => self.commit_step(),
            Step::Remove(records) => return self.backend.remove(&records).unwrap(),
            Step::BeginDefragment => {
                self.defragmentation = Some(self.backend.begin_defragment().unwrap());
            }
            Step::Defragment => drop(self.defragmentation.as_mut().unwrap().step().unwrap()),
            Step::FinishDefragment => self.defragmentation.take().unwrap().finish().unwrap(),
            Step::OpenReader => return self.open_reader(),
            Step::CloseReader(reader) => return drop(self.readers.swap_remove(reader)),
        }
        assert!(self.backend.begin_snapshot_read().payload >= published, "a state was taken back");
        self.readers.iter().for_each(OpenReader::check);
        if let Some(writing) = &self.open_write {
            assert_shows(&*writing.tx, &writing.expected);
        }
        if engine_changes {
            self.check_crash();
        }
    }

    fn apply_step(&mut self, step: Step) {
        match step {
            Step::OpenWrite => {
                let (tx, sees) =
                    (self.backend.begin_write().unwrap(), self.expected.visible.clone());
                self.open_write = Some(OpenWriteTx { tx, expected: sees, changes: Vec::new() });
            }
            Step::Change(changes) => self.open_write.as_mut().unwrap().change(changes),
            _ => {
                let OpenWriteTx { tx, changes, .. } = self.open_write.take().unwrap();
                self.expected.entry += 1;
                drop(tx.end(self.expected.entry).unwrap());
                changes.iter().for_each(|change| apply(&mut self.expected.visible, change));
                self.expected.ended.insert(self.expected.entry, self.expected.visible.clone());
            }
        }
    }

    /// Runs the next step of a commit, in the order of `commit_batch`.
    fn commit_step(&mut self) {
        self.commit = match std::mem::replace(&mut self.commit, CommitProgress::None) {
            CommitProgress::None => {
                CommitProgress::RemovalsTaken(std::mem::take(&mut *self.backend.removals.lock()))
            }
            CommitProgress::RemovalsTaken(removals) => {
                let (state, entry) = (self.expected.visible.clone(), self.expected.entry);
                let frozen = self.backend.freeze();
                assert_eq!(frozen.payload, entry, "the current state is frozen");
                CommitProgress::Frozen { removals, frozen, state, entry }
            }
            CommitProgress::Frozen { removals, frozen, state, entry } => {
                let snapshot = self.backend.write_frozen(&frozen, &removals).unwrap();
                self.expected.on_written(state, entry, &removals);
                CommitProgress::Written { removals, frozen, snapshot }
            }
            CommitProgress::Written { removals, frozen, snapshot } => {
                self.backend.publish_durable(&frozen, snapshot);
                self.expected.on_published(&removals);
                CommitProgress::None
            }
        }
    }

    fn open_reader(&mut self) {
        let (sees, entry) = (self.expected.visible.clone(), self.expected.entry);
        let reader = OpenReader { tx: self.backend.begin_snapshot_read(), expected: sees, entry };
        reader.check();
        self.readers.push(reader);
    }

    /// Checks the state after a crash at this point. The engine must contain exactly the records of
    /// the last commit. These records must be the state after one of the ended write transactions,
    /// without the records that were removed.
    fn check_crash(&self) {
        let reopened = open_on(&self.backend.engine).begin_snapshot_read();
        let mut found = everything(&reopened);
        assert_eq!(found, self.expected.durable);
        let Some(index) = found.remove(&INDEX) else { return };
        assert_eq!(number(&index), reopened.payload);
        let mut ended = self.expected.ended[&number(&index)].clone();
        ended.remove(&INDEX);
        ended.retain(|(bucket, key), _| {
            *bucket != Bucket::Key || !self.expected.removed.contains(key)
        });
        assert_eq!(found, ended, "no state in between");
    }
}

impl OpenReader {
    fn check(&self) {
        assert_eq!(self.tx.payload, self.entry);
        assert_shows(&self.tx, &self.expected);
    }
}

impl ExpectedState {
    fn on_written(&mut self, frozen: Map, entry: Entry, removals: &[Bytes]) {
        self.durable = frozen;
        self.durable.insert(INDEX, entry.to_string().into());
        for record in removals {
            self.durable.remove(&(Bucket::Key, record.clone()));
            self.removed.insert(record.clone());
        }
    }

    fn on_published(&mut self, removals: &[Bytes]) {
        self.visible.insert(INDEX, self.durable[&INDEX].clone());
        for record in removals {
            self.visible.remove(&(Bucket::Key, record.clone()));
        }
    }
}

impl OpenWriteTx<'_> {
    fn change(&mut self, changes: Vec<RecordChange>) {
        for (bucket, key, value) in &changes {
            match value {
                Some(value) if value.starts_with(COMPUTED.as_bytes()) => {
                    self.tx.put_computed(computed(key, value.clone())).unwrap();
                }
                Some(value) => self.tx.put(*bucket, key, value.clone()).unwrap(),
                None => self.tx.delete(*bucket, key).unwrap(),
            }
        }
        changes.iter().for_each(|change| apply(&mut self.expected, change));
        self.changes.extend(changes);
    }
}

#[test]
fn an_update_is_made_again_if_another_came_between() {
    let published = AtomicState::new(vec!["first"]);
    let with = |current: &Vec<&'static str>, new| [&current[..], &[new]].concat();
    let calls = Cell::new(0);
    let (replaced, published_now) = published.update(|current| {
        calls.set(calls.get() + 1);
        if calls.get() == 1 {
            published.update(|current| with(current, "between"));
        }
        with(current, "second")
    });
    assert_eq!(*replaced, ["first", "between"]);
    assert_eq!(*published_now, ["first", "between", "second"]);
    assert_eq!((published.load(), calls.get()), (published_now, 2));
}

#[test]
fn a_commit_leaves_nothing_pending_but_what_came_meanwhile() {
    let backend = fresh_backend();
    let changes = vec![put(Bucket::Key, "r1", "1"), put(Bucket::Lease, "a", "1")];
    let mut world = World::new(&backend, "pending".to_owned(), changes);
    let pending = |state: &BackendState<Entry>| {
        let buckets = &state.pending_buckets;
        let changes = buckets.active.iter().chain(buckets.frozen.iter()).count();
        let records = state.pending_records.end - state.pending_records.begin;
        (records, changes, state.pending_ops(), state.pending_bytes())
    };
    assert_eq!(pending(&backend.current.load()), (0, 0, 0, 0));
    let overhead = RECORD_OVERHEAD + CHANGE_OVERHEAD;
    let first = vec![put(Bucket::Key, "r2", "2"), put(Bucket::Lease, "a", "2")];
    let meanwhile = vec![put(Bucket::Key, "r3", "3"), delete(Bucket::Lease, "a")];
    let write = |changes| [Step::OpenWrite, Step::Change(changes), Step::EndWrite];
    write(first).into_iter().for_each(|step| world.run(step));
    [Step::TakeRemovals, Step::Freeze].into_iter().for_each(|step| world.run(step));
    write(meanwhile).into_iter().for_each(|step| world.run(step));
    assert_eq!(pending(&backend.current.load()), (2, 2, 4, 2 * overhead + 3 + 2 + 3 + 1));
    [Step::Write, Step::Publish].into_iter().for_each(|step| world.run(step));
    assert_eq!(pending(&backend.current.load()), (1, 1, 2, overhead + 3 + 1));
}

#[test]
fn records_that_share_a_buffer_are_read_as_others_and_count_as_less() {
    let backend = fresh_backend();
    let buffer = Bytes::from_static(b"onetwo");
    let mut tx = backend.begin_write().unwrap();
    tx.put_shared(b"r1", buffer.slice(..3)).unwrap();
    tx.put_shared(b"r2", buffer.slice(3..)).unwrap();
    let refused = tx.put_shared(b"r2", buffer.clone()).unwrap_err();
    assert!(matches!(refused, crate::Error::OutOfOrder { .. }));
    drop(tx.end(1).unwrap());
    let (state, expected) = (backend.current.load(), 2 * (2 + 3 + SHARED_RECORD_OVERHEAD));
    assert_eq!((state.pending_ops(), state.pending_bytes()), (2, expected));
    for _ in 0..2 {
        let read = backend.begin_snapshot_read();
        assert_eq!(read.get(Bucket::Key, b"r1").unwrap(), Some(buffer.slice(..3)));
        assert_eq!(read.get(Bucket::Key, b"r2").unwrap(), Some(buffer.slice(3..)));
        backend.commit().unwrap();
    }
}

#[test]
fn computed_records_count_as_what_they_keep_and_come_in_order() {
    let backend = fresh_backend();
    let value = Bytes::from_static(b"value");
    let mut tx = backend.begin_write().unwrap();
    tx.put(Bucket::Key, b"r1", value.clone()).unwrap();
    tx.put_computed(computed(b"r2", value.clone())).unwrap();
    let counted = 2 + 5 + RECORD_OVERHEAD + 7;
    for key in [b"r1", b"r2"] {
        let refused = tx.put_computed(computed(key, value.clone())).unwrap_err();
        assert!(matches!(refused, crate::Error::OutOfOrder { .. }), "{refused}");
        let refused = tx.put(Bucket::Key, key, value.clone()).unwrap_err();
        assert!(matches!(refused, crate::Error::OutOfOrder { .. }), "{refused}");
    }
    drop(tx.end(1).unwrap());
    let state = backend.current.load();
    assert_eq!((state.pending_ops(), state.pending_bytes()), (2, counted));
    backend.commit().unwrap();
    let state = backend.current.load();
    assert_eq!((state.pending_ops(), state.pending_bytes()), (0, 0));
}

#[test]
fn two_writes_and_two_commits_in_every_order_with_a_reader_opened_at_every_point() {
    let orders = (0_u32..1 << 12).filter(|order| order.count_ones() == 6);
    let mut run = 0;
    for order in orders {
        run_order(order);
        run += 1;
    }
    assert_eq!(run, 924, "12 over 6");
}

/// Runs the steps in the order that the bits of `order` give, lowest bit first: a 1 is the
/// committer's next step, and a 0 is the writer's next step.
fn run_order(order: u32) {
    let backend = fresh_backend();
    let first = vec![put(Bucket::Key, "r0", "0"), put(Bucket::Lease, "b", "0")];
    let mut world = World::new(&backend, format!("order {order:012b}"), first);
    let (mut applier, mut committer) = (applier_steps().into_iter(), committer_steps().into_iter());
    world.run(Step::OpenReader);
    for position in 0..12 {
        let committers_turn = order >> position & 1 == 1;
        let steps = if committers_turn { committer.next() } else { applier.next() };
        steps.unwrap().into_iter().for_each(|step| world.run(step));
        world.run(Step::OpenReader);
    }
}

fn applier_steps() -> Vec<Vec<Step>> {
    let first = vec![
        put(Bucket::Key, "r1", "1"),
        put(Bucket::Lease, "a", "1"),
        put(Bucket::Meta, "a", "1"),
        put(Bucket::Cluster, "c", "1"),
    ];
    let second = vec![
        put(Bucket::Lease, "a", "2"),
        delete(Bucket::Meta, "a"),
        delete(Bucket::Lease, "b"),
        put(Bucket::Key, "r2", "2"),
        put(Bucket::Key, "r3", COMPUTED),
        put(Bucket::Lease, "c", "2"),
    ];
    let transaction = |changes| [Step::OpenWrite, Step::Change(changes), Step::EndWrite];
    [first, second].into_iter().flat_map(transaction).map(|step| vec![step]).collect()
}

/// Returns the steps of two commits. The removals are taken together with the freeze, because there
/// are none in this test.
fn committer_steps() -> Vec<Vec<Step>> {
    let commit = [vec![Step::TakeRemovals, Step::Freeze], vec![Step::Write], vec![Step::Publish]];
    [commit.clone(), commit].into_iter().flatten().collect()
}

#[test]
fn a_reader_stalled_across_commits_compaction_and_defragmentation_in_random_orders() {
    (0..2_000).for_each(|seed| run_seed(&fresh_backend(), seed, 40, 0));
}

#[test]
fn the_same_on_bolt() {
    for seed in 0..40 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let engine = clearlane_engine::open(EngineKind::Bolt, &path, Options::default()).unwrap();
        run_seed(&open_on(&engine), seed, 40, 0);
    }
}

#[test]
fn the_same_where_the_pending_records_begin_a_new_chunk() {
    (0..10).for_each(|seed| run_seed(&fresh_backend(), seed, 40, 490));
}

/// Runs `steps` random steps on a backend where `records` records of bucket `key` are pending.
fn run_seed(backend: &SnapshotBackend<Entry>, seed: u64, steps: usize, records: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = World::new(backend, format!("seed {seed}"), Vec::new());
    let mut next_record = 0;
    world.run(Step::OpenWrite);
    let prepared = (0..records).map(|_| new_record(&mut next_record)).collect();
    world.run(Step::Change(prepared));
    world.run(Step::EndWrite);
    world.run(Step::OpenReader);
    for _ in 0..steps {
        let step = random_step(&world, &mut random, &mut next_record);
        world.run(step);
    }
}

fn new_record(next: &mut u64) -> RecordChange {
    *next += 1;
    put(Bucket::Key, &format!("r{next:05}"), &next.to_string())
}

fn random_step(world: &World<'_>, random: &mut StdRng, next_record: &mut u64) -> Step {
    match random.random_range(0..20) {
        0..7 => random_write_step(world, random, next_record),
        7..13 => next_commit_step(&world.commit),
        13..15 => Step::Remove(random_records(world, random)),
        15..17 => next_defragment_step(world, random),
        // The first reader stays open to the end; the others are opened and closed.
        17 if world.readers.len() > 1 => {
            Step::CloseReader(random.random_range(1..world.readers.len()))
        }
        _ if world.readers.len() > 3 => next_commit_step(&world.commit),
        _ => Step::OpenReader,
    }
}

fn random_write_step(world: &World<'_>, random: &mut StdRng, next_record: &mut u64) -> Step {
    if world.open_write.is_none() {
        return Step::OpenWrite;
    }
    if random.random_ratio(1, 3) {
        return Step::EndWrite;
    }
    let change = |_| match random.random_range(0..4) {
        0 => delete(*SMALL.choose(random).unwrap(), NAMES.choose(random).unwrap()),
        1 if random.random() => new_record(next_record),
        1 => {
            let (bucket, key, _) = new_record(next_record);
            (bucket, key, Some(Bytes::from(format!("{COMPUTED} {next_record}"))))
        }
        _ => {
            let value = random.random_range(0..100).to_string();
            put(*SMALL.choose(random).unwrap(), NAMES.choose(random).unwrap(), &value)
        }
    };
    Step::Change((0..3).map(change).collect())
}

fn next_commit_step(commit: &CommitProgress) -> Step {
    match commit {
        CommitProgress::None => Step::TakeRemovals,
        CommitProgress::RemovalsTaken(_) => Step::Freeze,
        CommitProgress::Frozen { .. } => Step::Write,
        CommitProgress::Written { .. } => Step::Publish,
    }
}

/// Returns the next step of a defragmentation. The defragmentation ends only while no commit is in
/// progress, because `finish` and a commit take the same lock, `committer`.
fn next_defragment_step(world: &World<'_>, random: &mut StdRng) -> Step {
    match (&world.defragmentation, &world.commit) {
        (None, _) => Step::BeginDefragment,
        (Some(_), CommitProgress::None) if random.random() => Step::FinishDefragment,
        _ => Step::Defragment,
    }
}

/// Returns up to two visible records, which the next step removes as a compaction would. Several
/// calls may return the same record.
fn random_records(world: &World<'_>, random: &mut StdRng) -> Vec<Bytes> {
    let records = world.expected.visible.keys().filter(|(bucket, _)| *bucket == Bucket::Key);
    let records: Vec<Bytes> = records.map(|(_, key)| key.clone()).collect();
    records.sample(random, 2).cloned().collect()
}
