//! Restores a store from its records, which are read in runs. For every run length, the index must
//! be equal to the index that the puts built, and each key must have the lease of its newest
//! record. Damage must be reported.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_contention::Registry;
use clearlane_engine::{Bucket, Engine, KeyRange, MemoryEngine, Snapshot};
use clearlane_mvcc::restore::{LeasedKey, RUN_RECORDS, RestoredIndex, restore};
use clearlane_mvcc::{
    CompactionLock, EncodedLen, Error, IndexSnapshot, LockedIndex, PersistentIndex, Revision,
    TreeIndex, Version,
};
use clearlane_proto::mvccpb::KeyValue;
use proptest::prelude::*;
use prost::Message;

/// The tested run lengths, in records. No test has enough records to fill a run of the last length,
/// so with this length one run has all records.
const RUN_LENGTHS: [usize; 5] = [1, 2, 3, 20, RUN_RECORDS];

/// The expected state of a store: the index that its writes have built, and the records that the
/// writes have left.
struct World {
    index: PersistentIndex,
    records: BTreeMap<Vec<u8>, Vec<u8>>,
    leases: BTreeMap<Vec<u8>, i64>,
    revision: i64,
    compacted: i64,
    /// If true, a compaction was interrupted and has left records to remove.
    interrupted: bool,
}

#[derive(Clone, Debug)]
enum Operation {
    /// Runs one transaction. `Some(lease)` puts the key, and attaches it to the lease unless the
    /// lease is 0. `None` deletes the key.
    Write(Vec<(u8, Option<i64>)>),
    /// Compacts at the current revision minus the first number. The second number is the maximum
    /// number of records to remove. Then the compaction stops, as if it were interrupted.
    Compact(i64, usize),
    /// Skips revisions, so that they have no records, as if a compaction had removed the records.
    Skip(i64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let change = prop_oneof![
        3 => Just(Some(0)),
        2 => (1..4_i64).prop_map(Some),
        2 => Just(None),
    ];
    let removals = prop_oneof![2 => Just(usize::MAX), 1 => 0..6_usize];
    prop_oneof![
        12 => prop::collection::vec((0..9_u8, change), 1..6).prop_map(Operation::Write),
        1 => (0..12_i64, removals).prop_map(|(back, removals)| Operation::Compact(back, removals)),
        1 => (1..1_000_i64).prop_map(Operation::Skip),
    ]
}

/// Returns a short key, or for the number 4 a key that is too long for a slot.
fn key(number: u8) -> Vec<u8> {
    if number == 4 { vec![b'k'; 50] } else { format!("k{number}").into_bytes() }
}

impl World {
    fn new() -> World {
        World {
            index: PersistentIndex::default(),
            records: BTreeMap::new(),
            leases: BTreeMap::new(),
            revision: 1,
            compacted: -1,
            interrupted: false,
        }
    }

    fn run(operations: &[Operation]) -> World {
        let mut world = World::new();
        for operation in operations {
            match operation {
                Operation::Write(changes) => world.write(changes),
                Operation::Compact(back, removals) => {
                    world.compact(world.revision - back, *removals);
                }
                Operation::Skip(revisions) => {
                    // A restored store has the revision of its newest record, so the skip is
                    // followed by a write.
                    world.revision += revisions;
                    world.write(&[(8, Some(0))]);
                }
            }
        }
        world
    }

    fn write(&mut self, changes: &[(u8, Option<i64>)]) {
        let mut revision = Revision::new(self.revision + 1, 0);
        let mut seen = Vec::new();
        for (number, change) in changes {
            if seen.contains(number) {
                continue; // A transaction changes a key only once.
            }
            seen.push(*number);
            let key = key(*number);
            if let Some(lease) = change {
                let version = self.index.put(&key, revision, payload(&key, *lease));
                self.records.insert(revision.put_key().to_vec(), record(&key, version, *lease));
                self.leases.insert(key, *lease);
            } else if self.index.tombstone(&key, revision).is_some() {
                let tombstone = KeyValue { key: key.clone().into(), ..KeyValue::default() };
                self.records.insert(revision.tombstone_key().to_vec(), tombstone.encode_to_vec());
                self.leases.remove(&key);
            } else {
                continue;
            }
            revision.sub += 1;
            self.revision = revision.main;
        }
    }

    fn compact(&mut self, at: i64, removals: usize) {
        if at <= self.compacted {
            return;
        }
        self.compacted = at;
        let kept = compact(&mut self.index, at);
        let goes = |key: &Vec<u8>| {
            let (revision, _) = clearlane_mvcc::RevisionKey::decode(key).unwrap();
            revision.main <= at && kept.binary_search(&revision).is_err()
        };
        let removed: Vec<Vec<u8>> = self.records.keys().filter(|key| goes(key)).cloned().collect();
        self.interrupted = removals < removed.len();
        for key in removed.iter().take(removals) {
            self.records.remove(key);
        }
    }

    fn snapshot(&self) -> Arc<dyn Snapshot> {
        let engine = MemoryEngine::new();
        let mut txn = engine.begin_write().unwrap();
        let mut records = self.records.iter().map(|(key, value)| (&key[..], &value[..]));
        txn.put_all(Bucket::Key, &mut records).unwrap();
        if self.compacted >= 0 {
            let mark = Revision::new(self.compacted, 0).put_key();
            txn.put(Bucket::Meta, b"scheduledCompactRev", &mark).unwrap();
            if !self.interrupted {
                txn.put(Bucket::Meta, b"finishedCompactRev", &mark).unwrap();
            }
        }
        txn.commit().unwrap();
        engine.snapshot().unwrap()
    }

    fn leases(&self) -> Vec<LeasedKey> {
        let attached = self.leases.iter().filter(|(_, lease)| **lease != 0);
        let pair =
            |(key, lease): (&Vec<u8>, &i64)| LeasedKey { key: key.clone().into(), lease: *lease };
        attached.map(pair).collect()
    }
}

fn payload(key: &[u8], lease: i64) -> EncodedLen {
    let (key, value) = (key.to_vec().into(), b"any".to_vec().into());
    EncodedLen::of(KeyValue { key, value, lease, ..KeyValue::default() }.encoded_len())
}

fn record(key: &[u8], version: Version, lease: i64) -> Vec<u8> {
    let record = KeyValue {
        key: key.to_vec().into(),
        create_revision: version.created,
        mod_revision: version.modified.main,
        version: version.version,
        value: b"any".to_vec().into(),
        lease,
    };
    record.encode_to_vec()
}

fn compact(index: &mut impl TreeIndex, at: i64) -> Vec<Revision> {
    let mut compaction = index.begin_compaction(at);
    while !index.compact_step(&mut compaction, 3) {}
    compaction.into_kept()
}

fn locked() -> LockedIndex {
    LockedIndex::new(&Registry::new(), CompactionLock::PerKey)
}

/// The contents of an index at a revision: keys with versions, two counts, and the revisions that a
/// hash keeps.
type IndexContents = (Vec<(Vec<u8>, Version)>, [u64; 2], Vec<Revision>);

fn contents_at(snapshot: &impl IndexSnapshot, at: i64) -> IndexContents {
    let mut found = Vec::new();
    let all = snapshot.revisions(KeyRange::ALL, at, u64::MAX, &mut |key, version| {
        found.push((key.to_vec(), version));
        ControlFlow::Continue(())
    });
    for (key, version) in &found {
        assert_eq!(snapshot.get(key, at), Some(*version));
    }
    let some = snapshot.count(KeyRange::new(&key(2), &key(6)), at);
    let mut kept = Vec::new();
    assert_eq!(snapshot.keep(at, &[], usize::MAX, &mut kept), None);
    (found, [all, some], kept)
}

/// Asserts that two snapshots have the same contents at a revision. At a revision before the
/// newest, one of the snapshots may not know the length of a record.
fn assert_same(
    snapshot: &impl IndexSnapshot,
    expected: &impl IndexSnapshot,
    at: i64,
    world: &World,
) {
    let (mut said, mut expected) = (contents_at(snapshot, at), contents_at(expected, at));
    for ((_, one), (_, other)) in said.0.iter_mut().zip(&mut expected.0) {
        if at < world.revision
            && [one.encoded_len, other.encoded_len].contains(&EncodedLen::UNKNOWN)
        {
            (one.encoded_len, other.encoded_len) = (EncodedLen::UNKNOWN, EncodedLen::UNKNOWN);
        }
    }
    let is_known = |(_, version): &(_, Version)| version.encoded_len != EncodedLen::UNKNOWN;
    assert!(at < world.revision || said.0.iter().all(is_known));
    assert_eq!(said, expected, "at {at}");
}

/// Restores with every run length, and compares the restored index with the world at every readable
/// revision.
fn check<I: TreeIndex>(world: &World, empty: fn() -> I) {
    let snapshot = world.snapshot();
    // After the restore, one more compaction must keep the same revisions for every run length.
    let at = (world.compacted + 1).max((world.compacted.max(1) + world.revision) / 2);
    let whole = restore(&*snapshot, PersistentIndex::default(), RUN_RECORDS);
    let kept = compact(&mut whole.unwrap().index, at);
    for run_records in RUN_LENGTHS {
        let mut restored = restore(&*snapshot, empty(), run_records).unwrap();
        check_one(world, &restored);
        assert_eq!(compact(&mut restored.index, at), kept, "runs of {run_records}");
        for at in [at, world.revision] {
            let (snapshot, expected) = (restored.index.snapshot(), world.index.snapshot());
            assert_same(&snapshot, &expected, at, world);
        }
    }
}

fn check_one<I: TreeIndex>(world: &World, restored: &RestoredIndex<I>) {
    assert_eq!(restored.revision, world.revision);
    assert_eq!(restored.compact_revision, world.compacted);
    assert_eq!(restored.finished_compact_revision < restored.compact_revision, world.interrupted);
    assert_eq!(restored.leases, world.leases());
    let (snapshot, expected) = (restored.index.snapshot(), world.index.snapshot());
    let mains = world.records.keys().map(|key| i64::from_be_bytes(key[..8].try_into().unwrap()));
    for at in mains.chain([world.compacted, world.revision, i64::MAX]) {
        if at >= world.compacted {
            assert_same(&snapshot, &expected, at, world);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, failure_persistence: None, ..Default::default() })]

    #[test]
    fn persistent_is_what_the_puts_have_built(
        operations in prop::collection::vec(operation(), 0..60),
    ) {
        check(&World::run(&operations), PersistentIndex::default);
    }

    #[test]
    fn locked_is_what_the_puts_have_built(
        operations in prop::collection::vec(operation(), 0..60),
    ) {
        check(&World::run(&operations), locked);
    }
}

#[test]
fn an_empty_store_is_restored() {
    let world = World::new();
    check(&world, PersistentIndex::default);
    check(&world, locked);
}

#[test]
fn a_hot_key_is_merged_from_many_runs() {
    let mut world = World::new();
    for number in 0..300 {
        let change = if number % 50 == 49 { None } else { Some(i64::from(number % 7)) };
        world.write(&[(1, change), (u8::try_from(number % 9).unwrap(), Some(0))]);
    }
    check(&world, PersistentIndex::default);
    check(&world, locked);
}

#[test]
fn records_that_lie_close_together_are_read() {
    let mut world = World::run(&[Operation::Write(vec![(0, Some(1))])]);
    world.revision = 10_000_000_000;
    for number in 0..200 {
        world.write(&[(number % 9, Some(i64::from(number % 3)))]);
    }
    check(&world, PersistentIndex::default);
}

#[test]
fn a_lone_tombstone_is_no_key_and_detaches() {
    let mut world = World::new();
    world.write(&[(0, Some(5)), (1, Some(6))]);
    world.write(&[(0, None)]);
    world.compact(3, usize::MAX);
    assert_eq!(world.records.len(), 2, "the put of k1 and the tombstone of k0");
    check(&world, PersistentIndex::default);
    let restored = restore(&*world.snapshot(), locked(), 1).unwrap();
    let attached = LeasedKey { key: key(1).into(), lease: 6 };
    assert_eq!(restored.leases, [attached]);
}

#[test]
fn an_empty_record_is_a_version_of_the_empty_key() {
    let mut world = World::new();
    world.write(&[(0, Some(5)), (1, Some(0))]);
    for bumped in [100, 200] {
        world.records.insert(Revision::new(bumped, 0).put_key().to_vec(), Vec::new());
    }
    for run_records in RUN_LENGTHS {
        let restored = restore(&*world.snapshot(), PersistentIndex::default(), run_records);
        let RestoredIndex { index, revision, leases, .. } = restored.unwrap();
        assert_eq!((revision, leases.len()), (200, 1));
        let index = index.snapshot();
        let version = |at| index.get(b"", at).map(|found| (found.modified.main, found.version));
        assert_eq!([99, 100, 200].map(version), [None, Some((100, 1)), Some((200, 2))]);
        assert_eq!(index.count(KeyRange::starting_at(&[0]), 200), 2);
    }
    let mut world = undamaged();
    world.records.insert(Revision::new(21, 1).put_key().to_vec(), Vec::new());
    assert!(restore_error(&world).contains("is impossible"));
}

/// Returns a store of twenty transactions with three changes each.
fn undamaged() -> World {
    let mut world = World::new();
    for main in 0..20_u8 {
        world.write(&[main, main + 1, main + 2].map(|number| (number % 9, Some(1))));
    }
    world
}

/// Returns the error of a restore, which must be the same for every run length.
fn restore_error(world: &World) -> String {
    let snapshot = world.snapshot();
    let refused = |run_records| match restore(&*snapshot, locked(), run_records) {
        Err(Error::Damaged(detail)) => detail,
        other => panic!("{other:?}"),
    };
    let first = refused(RUN_RECORDS);
    for run_records in RUN_LENGTHS {
        assert_eq!(refused(run_records), first, "runs of {run_records}");
    }
    first
}

type Damage = (fn(&mut World, Revision), &'static str);

const DAMAGES: [Damage; 8] = [
    (|world, at| drop(world.records.insert(at.put_key().to_vec(), vec![0xff; 3])), "decode"),
    (|world, at| world.replace(at, 0, 1), "version 0"),
    (|world, at| world.replace(at, i64::MAX, 1), "version 9223372036854775807"),
    (|world, at| world.replace(at, 1, at.main + 1), "is impossible"),
    (|world, at| world.replace(at, 1, 0), "created at 0"),
    (
        |world, at| {
            let tombstone = KeyValue { key: key(0).into(), ..KeyValue::default() };
            world.records.insert(at.tombstone_key().to_vec(), tombstone.encode_to_vec());
        },
        "both a put and a tombstone",
    ),
    (
        |world, at| {
            let mut key = at.put_key().to_vec();
            key[8] = b'-';
            world.records.insert(key, Vec::new());
        },
        "not a revision key",
    ),
    (
        |world, at| {
            let key = Revision::new(at.main, 1 << 32).put_key().to_vec();
            world.records.insert(key, Vec::new());
        },
        "its revision is out of range",
    ),
];

impl World {
    fn replace(&mut self, modified: Revision, version: i64, created: i64) {
        let payload = EncodedLen::UNKNOWN;
        let record =
            record(&key(0), Version { modified, created, version, encoded_len: payload }, 0);
        self.records.insert(modified.put_key().to_vec(), record);
    }
}

#[test]
fn damage_is_named_wherever_it_is() {
    for (spoil, expected) in DAMAGES {
        for main in [2, 3, 7, 12, 20, 21] {
            let mut world = undamaged();
            spoil(&mut world, Revision::new(main, 1));
            let said = restore_error(&world);
            assert!(said.contains(expected), "{said}");
            if expected != "not a revision key" {
                assert!(said.contains(&format!("revision {main}.")), "{said}");
            }
        }
    }
}

#[test]
fn of_several_damaged_records_the_lowest_is_named() {
    for mains in [[2, 21], [5, 6], [11, 17], [20, 21]] {
        let mut world = undamaged();
        for main in mains {
            world.replace(Revision::new(main, 2), 0, 1);
        }
        assert!(restore_error(&world).contains(&format!("revision {}.2", mains[0])));
    }
}

#[test]
fn bytes_that_are_no_keys_at_all_are_refused() {
    for bytes in [&b""[..], b"\0", b"zzz", &[0xff; 40], &[0; 16]] {
        let mut world = undamaged();
        world.records.insert(bytes.to_vec(), Vec::new());
        assert!(restore_error(&world).contains("not a revision key"));
    }
    let mut world = undamaged();
    world.replace(Revision::new(i64::MAX, 0), 1, 1);
    assert!(restore_error(&world).contains("its revision is out of range"));
    let mut world = undamaged();
    world.compacted = i64::MAX;
    assert!(restore_error(&world).contains("is impossible"));
}
