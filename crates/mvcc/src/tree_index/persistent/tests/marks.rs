//! Compares deletions of ranges by mark with deletions key by key.

use super::*;
use crate::revision::RecordKind;
use crate::tree_index::DeletedRange;

const KEYS: u32 = 3_000;

#[derive(Clone, Debug)]
enum Operation {
    /// Puts keys in one transaction: the first key, the maximum number, and the distance between
    /// keys.
    Put(u32, u32, u32),
    DeleteKey(u32),
    /// Deletes some single keys in one call: the first key, the maximum number, and the distance
    /// between keys.
    DeleteKeys(u32, u32, u32),
    /// Deletes two ranges in one transaction, with a put between them.
    DeleteRanges([(u32, u32); 2], u32),
    /// Compacts at this number of revisions before the newest, with this number of keys per step.
    /// There is a put between steps.
    Compact(i64, usize),
    Snapshot,
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = || 0..KEYS;
    let len = || prop_oneof![0..40_u32, 0..KEYS];
    let ranges = [(key(), len()), (key(), len())];
    prop_oneof![
        4 => (key(), 1..200_u32, 1..40_u32).prop_map(|(at, n, step)| Operation::Put(at, n, step)),
        2 => key().prop_map(Operation::DeleteKey),
        1 => (key(), 1..50_u32, 1..20_u32)
            .prop_map(|(at, n, step)| Operation::DeleteKeys(at, n, step)),
        4 => (ranges, key()).prop_map(|(ranges, put)| Operation::DeleteRanges(ranges, put)),
        1 => (0..6_i64, 1..900_usize).prop_map(|(back, keys)| Operation::Compact(back, keys)),
        1 => Just(Operation::Snapshot),
    ]
}

/// The result of a deletion, and the keys that it should contain.
type Deleted = (DeletedRange, Vec<Vec<u8>>);

#[derive(Default)]
struct Race {
    marked: PersistentIndex,
    eager: PersistentIndex,
    main: i64,
    compacted: i64,
    deletions: Vec<Deleted>,
    snapshots: Vec<(PersistentSnapshot, PersistentSnapshot)>,
}

impl Race {
    fn put(&mut self, number: u32, sub: i64) {
        let (key, revision) = (key(number), Revision::new(self.main, sub));
        let made = self.marked.put(&key, revision, EncodedLen::of(9));
        assert_eq!(made, self.eager.put(&key, revision, EncodedLen::of(9)), "put {number}");
    }

    /// Deletes a range in both indexes: by a mark in one, key by key in the other. Returns how many
    /// keys had a value.
    fn delete_range(&mut self, from: u32, len: u32, sub: i64) -> i64 {
        let (low, high) = (key(from), key(from + len));
        let range = KeyRange::new(&low, &high);
        let first = Revision::new(self.main, sub);
        let mut keys = Vec::new();
        let live = self.marked.live_count(range);
        self.eager.tombstone_all(KeySelection::Range(range), first, &mut |key| {
            keys.push(key.to_vec());
        });
        let deleted = self.marked.mark_deleted(range, first).expect("this index has marks");
        assert_eq!((deleted.count(), live), (keys.len() as u64, Some(keys.len() as u64)));
        self.deletions.push((deleted, keys));
        self.deletions[self.deletions.len() - 1].1.len() as i64
    }

    fn run(&mut self, operation: &Operation) {
        self.main += 1;
        match operation {
            Operation::Put(from, count, step) => {
                let numbers = (*from..KEYS).step_by(*step as usize).take(*count as usize);
                numbers.zip(0..).for_each(|(number, sub)| self.put(number, sub));
            }
            Operation::DeleteKey(number) => {
                let (key, revision) = (key(*number), Revision::new(self.main, 0));
                assert_eq!(
                    self.marked.tombstone(&key, revision),
                    self.eager.tombstone(&key, revision)
                );
            }
            Operation::DeleteKeys(from, count, step) => {
                let numbers = (*from..KEYS).step_by(*step as usize).take(*count as usize);
                let keys: Vec<Bytes> = numbers.map(|number| key(number).into()).collect();
                let deleted =
                    tombstone_all(&mut self.marked, KeySelection::Sorted(&keys), self.main);
                assert_eq!(deleted, tombstone_each(&mut self.eager, &keys, self.main));
            }
            Operation::DeleteRanges([(from, len), second], put) => {
                let deleted = self.delete_range(*from, *len, 0);
                self.put(*put, deleted);
                self.delete_range(second.0, second.1, deleted + 1);
            }
            Operation::Compact(back, keys_max) => self.compact(self.main - back, *keys_max),
            Operation::Snapshot => {
                self.snapshots.push((self.marked.snapshot(), self.eager.snapshot()));
            }
        }
        check(&self.marked.current.root, true);
    }

    fn compact(&mut self, at: i64, keys_max: usize) {
        if at <= self.compacted {
            return;
        }
        let mut compactions = [self.marked.begin_compaction(at), self.eager.begin_compaction(at)];
        loop {
            let done = self.marked.compact_step(&mut compactions[0], keys_max);
            assert_eq!(done, self.eager.compact_step(&mut compactions[1], keys_max));
            if done {
                break;
            }
            self.main += 1;
            self.put(self.main as u32 * 7 % KEYS, 0);
        }
        let [kept, expected] = compactions.map(IndexCompaction::into_kept);
        assert_eq!(kept, expected, "compacted at {at}");
        self.compacted = at;
    }

    fn compare_all(&self) {
        assert_same(&self.marked, &self.eager);
        compare(&self.marked.snapshot(), &self.eager.snapshot(), self.main);
        for (marked, eager) in &self.snapshots {
            let [marked, eager] =
                [marked, eager].map(|snapshot| PersistentIndex { current: snapshot.clone() });
            assert_same(&marked, &eager);
            compare(&marked.current, &eager.current, self.main);
        }
        for (deleted, keys) in &self.deletions {
            compare_deletion(deleted, keys);
        }
    }
}

fn compare_deletion(deleted: &DeletedRange, keys: &[Vec<u8>]) {
    assert!(deleted.keys().eq(keys.iter().map(|key| &key[..])), "{deleted:?}");
    assert!(keys.iter().all(|key| deleted.range().contains(key)), "{deleted:?}");
    for skip in [0, 1, 15, 16, 17, 100, keys.len().saturating_sub(1), keys.len()] {
        let records = deleted.clone().into_records(skip as u64).map(|record| record.key);
        assert!(records.eq(keys.iter().skip(skip).map(|key| &key[..])), "{deleted:?} from {skip}");
    }
}

/// Asserts that each method returns the same result for both snapshots.
fn compare(marked: &PersistentSnapshot, eager: &PersistentSnapshot, newest: i64) {
    let (low, middle, high) = (key(KEYS / 3), key(KEYS / 2), key(2 * KEYS / 3));
    let ranges = [
        KeyRange::ALL,
        KeyRange::starting_at(&middle),
        KeyRange::new(&low, &high),
        KeyRange::new(b"", &middle),
        KeyRange::new(&high, &low),
    ];
    for at in [0, newest / 2, newest - 3, newest - 1, newest, newest + 1] {
        for range in ranges {
            assert_eq!(versions(marked, range, at), versions(eager, range, at), "at {at}");
            assert_eq!(marked.count(range, at), eager.count(range, at), "at {at}");
            assert_eq!(page(marked, range, at), page(eager, range, at), "at {at}");
            assert_eq!(changes(marked, range, at), changes(eager, range, at), "since {at}");
            assert_eq!(marked.key_after(range, 77), eager.key_after(range, 77));
        }
        for number in (0..KEYS).step_by(13) {
            assert_eq!(
                marked.get(&key(number), at),
                eager.get(&key(number), at),
                "{number} at {at}"
            );
        }
        let (mut kept, mut expected) = (Vec::new(), Vec::new());
        let next = marked.keep(at, &low, 700, &mut kept);
        assert_eq!(next, eager.keep(at, &low, 700, &mut expected));
        assert_eq!(kept, expected, "kept at {at}");
    }
}

fn versions(
    snapshot: &PersistentSnapshot,
    range: KeyRange<'_>,
    at: i64,
) -> Vec<(Vec<u8>, Version)> {
    let mut found = Vec::new();
    snapshot.walk(range, at, &mut |key, version| {
        found.push((key.to_vec(), version));
        ControlFlow::Continue(())
    });
    found
}

fn page(snapshot: &PersistentSnapshot, range: KeyRange<'_>, at: i64) -> (Vec<Version>, u64) {
    let mut found = Vec::new();
    let count = snapshot.revisions(range, at, 90, &mut |_, version| {
        found.push(version);
        ControlFlow::Continue(())
    });
    (found, count)
}

fn changes(
    snapshot: &PersistentSnapshot,
    range: KeyRange<'_>,
    since: i64,
) -> Vec<(Revision, RecordKind)> {
    let mut found = Vec::new();
    snapshot.changes_since(range, since, &mut |revision, kind| {
        found.push((revision, kind));
        ControlFlow::Continue(())
    });
    found
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 40, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn marks_do_as_single_tombstones_do(
        operations in prop::collection::vec(operation(), 1..40),
        filled_to in 0..KEYS,
    ) {
        let mut race = Race {
            marked: filled(0..filled_to), eager: filled(0..filled_to), main: 1, ..Race::default()
        };
        for operation in &operations {
            race.run(operation);
        }
        race.compare_all();
    }
}

#[test]
fn a_mark_changes_nodes_along_two_ways_down() {
    let mut index = filled(0..20_000);
    let snapshot = index.snapshot();
    let (low, high) = (key(1_003), key(18_997));
    let range = KeyRange::new(&low, &high);
    let deleted = index.mark_deleted(range, Revision::new(2, 0)).unwrap();
    assert_eq!((deleted.count(), index.live_count(range)), (17_994, Some(0)));
    let (before, after) = (nodes(&snapshot.root), nodes(&index.current.root));
    let copied = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    let levels = height(&index) + 1;
    assert!(copied < 2 * levels, "{copied} of {} nodes in {levels} levels", after.len());
}

#[test]
fn a_put_below_a_mark_leaves_the_others_deleted() {
    let mut index = filled(0..20_000);
    index.mark_deleted(KeyRange::ALL, Revision::new(2, 0)).unwrap();
    let marked = nodes(&index.current.root);
    let snapshot = index.snapshot();
    let made = index.put(&key(10_000), Revision::new(3, 0), EncodedLen::of(9));
    assert_eq!((made.created, made.version), (3, 1));
    assert_eq!(index.snapshot().count(KeyRange::ALL, 3), 1);
    assert_eq!((snapshot.count(KeyRange::ALL, 2), snapshot.count(KeyRange::ALL, 1)), (0, 20_000));
    let changed = nodes(&index.current.root);
    let copied = marked.iter().zip(&changed).filter(|(before, after)| before != after).count();
    assert_eq!(copied, height(&index) + 1, "one way down is copied");
    let since_2 = changes(&index.current, KeyRange::ALL, 2);
    let mut tombstones: Vec<i64> = since_2
        .iter()
        .filter(|(_, kind)| *kind == RecordKind::Tombstone)
        .map(|(revision, _)| revision.sub)
        .collect();
    assert!(tombstones.is_sorted(), "in the order of keys");
    tombstones.dedup();
    assert_eq!(tombstones.len(), 20_000);
}
