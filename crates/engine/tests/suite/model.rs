//! Runs random histories on each engine, and compares the engine with a plain map. Snapshots stay
//! open while later actions of the history run.
//!
//! A failing case prints its history in shortened form. No regression file is written.

use std::sync::Arc;

use clearlane_engine::{Bucket, Defragment, EngineKind, KeyRange, Snapshot, WriteTxn};
use proptest::prelude::*;

use crate::support::{Change, Model, Store, records};

#[derive(Clone, Debug)]
enum Action {
    Change(Change),
    Commit,
    Abort,
    Snapshot,
    DropSnapshot(prop::sample::Index),
    Scan(Bucket, Vec<u8>, Option<Vec<u8>>),
    DefragmentBegin,
    DefragmentStep(usize),
    DefragmentFinish,
    DefragmentDrop,
    Reopen,
}

fn a_bucket() -> impl Strategy<Value = Bucket> {
    prop::sample::select(vec![Bucket::Key, Bucket::Lease, Bucket::Meta])
}

/// Keys are few and short, so that a history uses the same keys again.
fn a_key() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0, b'a', b'b', 255]), 1..4)
}

fn a_change() -> impl Strategy<Value = Action> {
    let length = prop_oneof![4 => 0..40usize, 1 => 2_000..6_000usize];
    let value = prop::option::weighted(0.7, (any::<u8>(), length));
    (a_bucket(), a_key(), value).prop_map(|(bucket, key, value)| {
        let value = value.map(|(fill, length)| vec![fill; length]);
        Action::Change(Change { bucket, key, value })
    })
}

fn an_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        12 => a_change(),
        5 => Just(Action::Commit),
        1 => Just(Action::Abort),
        3 => Just(Action::Snapshot),
        2 => any::<prop::sample::Index>().prop_map(Action::DropSnapshot),
        3 => (a_bucket(), a_key(), prop::option::of(a_key()))
            .prop_map(|(bucket, from, to)| Action::Scan(bucket, from, to)),
        1 => Just(Action::DefragmentBegin),
        3 => (1..5usize).prop_map(Action::DefragmentStep),
        1 => Just(Action::DefragmentFinish),
        1 => Just(Action::DefragmentDrop),
        1 => Just(Action::Reopen),
    ]
}

struct Race {
    /// The store, or `None` while the store is being reopened.
    store: Option<Store>,
    txn: Option<Box<dyn WriteTxn>>,
    defragment: Option<Box<dyn Defragment>>,
    snapshots: Vec<(Arc<dyn Snapshot>, Model)>,
    committed: Model,
    /// The committed state, with the changes of the open transaction applied.
    ahead: Model,
}

impl Race {
    fn new(kind: EngineKind) -> Race {
        Race {
            store: Some(Store::new(kind)),
            txn: None,
            defragment: None,
            snapshots: Vec::new(),
            committed: Model::default(),
            ahead: Model::default(),
        }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().unwrap()
    }

    fn txn(&mut self) -> &mut dyn WriteTxn {
        if self.txn.is_none() {
            self.txn = Some(self.store().engine.begin_write().unwrap());
        }
        &mut **self.txn.as_mut().unwrap()
    }

    fn step(&mut self, step: &Action) {
        match step {
            Action::Change(change) => {
                change.apply(self.txn());
                self.ahead.apply(change);
            }
            Action::Commit => {
                if let Some(txn) = self.txn.take() {
                    txn.commit().unwrap();
                    self.committed = self.ahead.clone();
                }
            }
            Action::Abort => {
                self.txn = None;
                self.ahead = self.committed.clone();
            }
            Action::Snapshot => {
                let snapshot = self.store().engine.snapshot().unwrap();
                self.snapshots.push((snapshot, self.committed.clone()));
            }
            Action::DropSnapshot(index) if !self.snapshots.is_empty() => {
                let (snapshot, model) = self.snapshots.remove(index.index(self.snapshots.len()));
                model.assert_same(&*snapshot, "a snapshot that is dropped");
            }
            Action::DropSnapshot(_) => {}
            Action::Scan(bucket, from, to) => self.scan(*bucket, from, to.as_deref()),
            Action::Reopen => self.reopen(),
            other => self.defragment_step(other),
        }
    }

    fn scan(&mut self, bucket: Bucket, from: &[u8], to: Option<&[u8]>) {
        let range = KeyRange { from, to };
        let expected = self.ahead.bucket(bucket, range);
        let key = from.to_vec();
        let value = self.ahead.records.get(&(bucket, key)).cloned();
        let txn = self.txn();
        assert_eq!(records(txn, bucket, range), expected);
        assert_eq!(txn.get(bucket, from).unwrap().map(|value| value.to_vec()), value);
        for (snapshot, model) in &self.snapshots {
            assert_eq!(records(&**snapshot, bucket, range), model.bucket(bucket, range));
        }
    }

    fn defragment_step(&mut self, step: &Action) {
        match (step, self.defragment.as_mut()) {
            (Action::DefragmentBegin, None) => {
                self.defragment = Some(self.store().engine.begin_defragment().unwrap());
            }
            (Action::DefragmentStep(records), Some(defragment)) => {
                defragment.step(*records).unwrap();
            }
            (Action::DefragmentFinish, Some(_)) if self.txn.is_none() => {
                self.defragment.take().unwrap().finish().unwrap();
            }
            (Action::DefragmentDrop, _) => self.defragment = None,
            _ => {}
        }
    }

    fn reopen(&mut self) {
        if self.store().kind.is_durable() {
            self.txn = None;
            self.defragment = None;
            self.snapshots.clear();
            self.ahead = self.committed.clone();
            self.store = self.store.take().map(Store::reopened);
        }
    }

    fn compare(&self) {
        let engine = &self.store().engine;
        self.committed.assert_same(&*engine.snapshot().unwrap(), "a new snapshot");
        assert_eq!(engine.size_in_use(), self.committed.size());
        if let Some(txn) = &self.txn {
            self.ahead.assert_same(&**txn, "the open transaction");
        }
        for (snapshot, model) in &self.snapshots {
            model.assert_same(&**snapshot, "a held snapshot");
        }
    }
}

fn race(kind: EngineKind, steps: &[Action]) {
    let mut race = Race::new(kind);
    for step in steps {
        race.step(step);
    }
    race.compare();
    race.reopen();
    race.compare();
}

fn histories() -> impl Strategy<Value = Vec<Action>> {
    prop::collection::vec(an_action(), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn bolt_equals_the_model(steps in histories()) {
        race(EngineKind::Bolt, &steps);
    }

    #[test]
    fn sled_equals_the_model(steps in histories()) {
        race(EngineKind::Sled, &steps);
    }

    #[test]
    fn memory_equals_the_model(steps in histories()) {
        race(EngineKind::Memory, &steps);
    }
}
