//! Compares both tree indexes with the model, over random operations.

use std::collections::BTreeSet;

use bytes::Bytes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{KeySelection, Revision};
use proptest::prelude::*;

use crate::index::subject::{self, Record, TestedIndex};

#[derive(Clone, Debug)]
enum Operation {
    /// Runs one transaction: each key is put, or deleted if it exists.
    Write(Vec<(u16, bool)>),
    /// Deletes all keys from the first key up to, but not including, the second, in one
    /// transaction.
    DeleteRange(u16, u16),
    /// Deletes single keys, in one transaction.
    DeleteKeys(Vec<u16>),
    /// Compacts at this number of revisions before the newest, with this number of keys per step.
    /// There is one put between steps.
    Compact(i64, usize),
    /// Restores the index from the records, in this number of runs.
    Restore(usize),
    /// Reads an interval, at a number of revisions before the newest.
    Read { ends: (u16, u16), back: i64, limit: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let key = || 0..300_u16;
    let changes = prop::collection::vec((key(), prop::bool::weighted(0.6)), 1..12);
    let read = ((key(), key()), prop_oneof![Just(0), 0..40_i64], 0..20_u64);
    prop_oneof![
        12 => changes.prop_map(Operation::Write),
        1 => (key(), key()).prop_map(|(from, to)| Operation::DeleteRange(from, to)),
        1 => prop::collection::vec(key(), 0..60).prop_map(Operation::DeleteKeys),
        2 => (0..30_i64, 1..40_usize).prop_map(|(back, keys)| Operation::Compact(back, keys)),
        1 => (1..5_usize).prop_map(Operation::Restore),
        6 => read.prop_map(|(ends, back, limit)| Operation::Read { ends, back, limit }),
    ]
}

/// Returns a key. The keys have different lengths, some are too long for a slot, and many have the
/// same first bytes.
fn key(number: u16) -> Vec<u8> {
    match number % 5 {
        0 => format!("{number}").into_bytes(),
        1 => format!("/a/long/prefix/for/so/short/a/number/as/{number}").into_bytes(),
        2 => vec![0; usize::from(number / 5)],
        _ => format!("/pods/{number:04}").into_bytes(),
    }
}

struct Race {
    sides: [Box<dyn TestedIndex>; 2],
    records: Vec<Record>,
    main: i64,
    compacted: i64,
}

impl Race {
    fn run(&mut self, operation: &Operation) {
        match operation {
            Operation::Write(changes) => {
                self.main += 1;
                let mut seen = Vec::new();
                for (number, is_put) in changes {
                    // A transaction changes a key only once.
                    if !seen.contains(number) {
                        self.change(key(*number), *is_put, seen.len() as i64);
                        seen.push(*number);
                    }
                }
            }
            Operation::DeleteRange(from, to) => {
                let ends = [key(*from), key(*to)];
                self.delete(KeySelection::Range(KeyRange::new(&ends[0], &ends[1])));
            }
            Operation::DeleteKeys(numbers) => {
                let keys: BTreeSet<Bytes> =
                    numbers.iter().map(|number| key(*number).into()).collect();
                self.delete(KeySelection::Sorted(&Vec::from_iter(keys)));
            }
            Operation::Compact(back, keys_max) => self.compact(self.main - back, *keys_max),
            Operation::Restore(runs) => {
                self.sides = self.sides.each_ref().map(|side| side.rebuild(&self.records, *runs));
            }
            Operation::Read { ends, back, limit } => {
                let at = (self.main - back).max(self.compacted);
                let ends = [key(ends.0), key(ends.1)];
                for range in [
                    KeyRange::new(&ends[0], &ends[1]),
                    KeyRange::starting_at(&ends[0]),
                    KeyRange::ALL,
                ] {
                    self.compare(range, at, *limit);
                }
            }
        }
    }

    fn change(&mut self, key: Vec<u8>, is_put: bool, sub: i64) {
        let revision = Revision::new(self.main, sub);
        let [version, expected] = self.sides.each_mut().map(|side| match is_put {
            true => Some(side.put(&key, revision)),
            false => side.tombstone(&key, revision),
        });
        assert_eq!(version, expected, "{key:?}");
        if version.is_some() {
            let version = version.filter(|_| is_put);
            self.records.push(Record { key, revision, version });
        }
    }

    fn delete(&mut self, keys: KeySelection<'_>) {
        self.main += 1;
        let first = Revision::new(self.main, 0);
        let [deleted, expected] = self.sides.each_mut().map(|side| side.tombstone_all(keys, first));
        assert_eq!(deleted, expected, "{keys:?}");
        for (key, sub) in deleted.into_iter().zip(0..) {
            let revision = Revision::new(self.main, sub);
            self.records.push(Record { key, revision, version: None });
        }
    }

    fn compact(&mut self, at: i64, keys_max: usize) {
        // Does not compact twice at one revision. The first compaction leaves tombstones of that
        // revision, and a restore skips a tombstone without a put.
        if at <= self.compacted {
            return;
        }
        let mut put_between = Vec::new();
        let mut main = self.main;
        let [real, plain] = &mut self.sides;
        let kept = real.compact(at, keys_max, &mut |real| {
            main += 1;
            let key = key(main as u16 % 300);
            let version = real.put(&key, Revision::new(main, 0));
            put_between.push((key, version));
        });
        assert_eq!(kept, plain.compact(at, keys_max, &mut |_| {}));
        self.records.retain(|record| {
            record.revision.main > at || kept.binary_search(&record.revision).is_ok()
        });
        for (key, version) in put_between {
            assert_eq!(plain.put(&key, version.modified), version);
            let revision = version.modified;
            self.records.push(Record { key, revision, version: Some(version) });
        }
        (self.main, self.compacted) = (main, at);
    }

    fn compare(&self, range: KeyRange<'_>, at: i64, limit: u64) {
        let [snapshot, expected] = self.sides.each_ref().map(|side| side.snapshot());
        let found = snapshot.walk(range, at, usize::MAX);
        assert_eq!(found, expected.walk(range, at, usize::MAX), "at {at}");
        assert_eq!(snapshot.count(range, at), found.len() as u64);
        assert_eq!(snapshot.page(range, at, limit), expected.page(range, at, limit));
        if limit > 0 {
            let limit = limit as usize;
            assert_eq!(snapshot.walk(range, at, limit), expected.walk(range, at, limit));
            assert_eq!(snapshot.keep(at, limit), expected.keep(at, limit), "keep at {at}");
        }
        for (key, version) in found {
            assert_eq!(snapshot.get(&key, at), Some(version));
        }
    }
}

/// Checks that snapshots of `persistent` do not change later.
fn check_snapshots_stay(operations: &[Operation]) {
    let mut race = race(2);
    let mut snapshots = Vec::new();
    for operation in operations {
        snapshots.push((
            race.sides.each_ref().map(|side| side.snapshot()),
            race.main,
            race.compacted,
        ));
        race.run(operation);
    }
    for ([snapshot, expected], main, compacted) in snapshots {
        for at in [compacted, (main + compacted) / 2, main, main + 1_000] {
            let all =
                |snapshot: &dyn subject::TestedSnapshot| snapshot.page(KeyRange::ALL, at, u64::MAX);
            assert_eq!(all(&*snapshot), all(&*expected), "at {at}, taken at {main}");
        }
    }
}

fn race(era: usize) -> Race {
    let mut all = subject::all();
    let (_, plain) = all.pop().unwrap();
    let (_, real) = all.swap_remove(era);
    Race { sides: [real, plain], records: Vec::new(), main: 1, compacted: 0 }
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(operation(), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn locked_in_one_walk_does_as_the_model_does(operations in operations()) {
        let mut race = race(0);
        operations.iter().for_each(|operation| race.run(operation));
    }

    #[test]
    fn locked_by_key_does_as_the_model_does(operations in operations()) {
        let mut race = race(1);
        operations.iter().for_each(|operation| race.run(operation));
    }

    #[test]
    fn persistent_does_as_the_model_does(operations in operations()) {
        let mut race = race(2);
        operations.iter().for_each(|operation| race.run(operation));
    }

    #[test]
    fn snapshots_of_persistent_stay_as_they_were(operations in operations()) {
        check_snapshots_stay(&operations);
    }
}
