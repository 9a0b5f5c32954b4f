//! Helpers of the suites: a store in a temporary directory, and a plain model to compare it with.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_engine::{
    Bucket, Engine, EngineKind, Error, KeyRange, Options, Read, Result, WriteTxn, open,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) kind: EngineKind,
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) dir: tempfile::TempDir,
}

impl Store {
    pub(crate) fn new(kind: EngineKind) -> Store {
        let dir = tempfile::tempdir().unwrap();
        Store { kind, engine: open_small(kind, dir.path()), dir }
    }

    /// Closes the store and opens it again. No snapshot may be open.
    pub(crate) fn reopened(self) -> Store {
        let Store { kind, engine, dir } = self;
        drop(engine);
        Store { kind, engine: open_small(kind, dir.path()), dir }
    }

    pub(crate) fn commit(&self, change: impl FnOnce(&mut dyn WriteTxn)) {
        let mut txn = self.engine.begin_write().unwrap();
        change(&mut *txn);
        txn.commit().unwrap();
    }

    pub(crate) fn put(&self, bucket: Bucket, key: &str, value: &str) {
        self.commit(|txn| txn.put(bucket, key.as_bytes(), value.as_bytes()).unwrap());
    }

    pub(crate) fn delete(&self, bucket: Bucket, key: &str) {
        self.commit(|txn| txn.delete(bucket, key.as_bytes()).unwrap());
    }

    pub(crate) fn defragment(&self) {
        let mut defragment = self.engine.begin_defragment().unwrap();
        while !defragment.step(3).unwrap() {}
        defragment.finish().unwrap();
    }
}

/// Opens a store, and waits up to 10 s for its directory. A process that another test starts holds
/// copies of all locks of this process until it runs its own program.
pub(crate) fn open_small(kind: EngineKind, dir: &Path) -> Arc<dyn Engine> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match open(kind, dir, Options { cache_bytes: 8 << 20, ..Options::default() }) {
            Err(Error::Locked { .. }) if Instant::now() < end => thread::yield_now(),
            opened => return opened.unwrap(),
        }
    }
}

pub(crate) type Record = (Vec<u8>, Vec<u8>);

pub(crate) fn records(reader: &dyn Read, bucket: Bucket, range: KeyRange<'_>) -> Vec<Record> {
    let mut found = Vec::new();
    reader
        .scan(bucket, range, &mut |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

/// Returns the records of a bucket as text: `key=value`, separated by spaces.
pub(crate) fn shown(reader: &dyn Read, bucket: Bucket) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let all = records(reader, bucket, KeyRange::ALL);
    let pairs = all.iter().map(|(key, value)| format!("{}={}", text(key), text(value)));
    pairs.collect::<Vec<_>>().join(" ")
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) records: BTreeMap<(Bucket, Vec<u8>), Vec<u8>>,
}

impl Model {
    pub(crate) fn apply(&mut self, change: &Change) {
        let Change { bucket, key, value } = change;
        match value {
            Some(value) => self.records.insert((*bucket, key.clone()), value.clone()),
            None => self.records.remove(&(*bucket, key.clone())),
        };
    }

    pub(crate) fn size(&self) -> u64 {
        self.records.iter().map(|((_, key), value)| (key.len() + value.len()) as u64).sum()
    }

    pub(crate) fn bucket(&self, bucket: Bucket, range: KeyRange<'_>) -> Vec<Record> {
        let of_bucket = self.records.iter().filter(|((of, _), _)| *of == bucket);
        let inside = of_bucket.filter(|((_, key), _)| range.contains(key));
        inside.map(|((_, key), value)| (key.clone(), value.clone())).collect()
    }

    pub(crate) fn assert_same(&self, reader: &dyn Read, hint: &str) {
        for bucket in Bucket::ALL {
            let expected = self.bucket(bucket, KeyRange::ALL);
            assert!(
                records(reader, bucket, KeyRange::ALL) == expected,
                "{hint}: bucket {} differs from the model",
                bucket.name()
            );
            let last = reader.last_key(bucket).unwrap();
            assert_eq!(last.as_deref(), expected.last().map(|(key, _)| &key[..]), "{hint}");
        }
    }
}

/// A put, or a delete if it has no value.
#[derive(Clone)]
pub(crate) struct Change {
    pub(crate) bucket: Bucket,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Option<Vec<u8>>,
}

impl Change {
    pub(crate) fn apply(&self, txn: &mut dyn WriteTxn) {
        match &self.value {
            Some(value) => txn.put(self.bucket, &self.key, value).unwrap(),
            None => txn.delete(self.bucket, &self.key).unwrap(),
        }
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bucket, key) = (self.bucket.name(), &self.key);
        match &self.value {
            Some(value) => write!(f, "put {bucket} {key:?} ({} bytes)", value.len()),
            None => write!(f, "delete {bucket} {key:?}"),
        }
    }
}

/// Applies changes in order. Consecutive puts into the same bucket are made by one `put_all`.
pub(crate) fn apply_all(changes: &[Change], txn: &mut dyn WriteTxn) -> Result<()> {
    let alike =
        |a: &Change, b: &Change| a.bucket == b.bucket && a.value.is_some() && b.value.is_some();
    for run in changes.chunk_by(alike) {
        if run[0].value.is_none() {
            txn.delete(run[0].bucket, &run[0].key)?;
            continue;
        }
        let pairs =
            run.iter().filter_map(|change| Some((&change.key[..], change.value.as_deref()?)));
        txn.put_all(run[0].bucket, &mut { pairs })?;
    }
    Ok(())
}

/// The key under which a workload stores the number of each commit.
pub(crate) const COMMIT_KEY: &[u8] = b"commit";

/// Returns the changes of commit `number` of a workload: new records, overwrites and deletes. They
/// depend only on the seed and the number, so a test can compute the expected contents after any
/// commit.
pub(crate) fn changes_of(seed: u64, number: u64) -> Vec<Change> {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
    let buckets = [Bucket::Key, Bucket::Key, Bucket::Lease, Bucket::Meta];
    let mut changes: Vec<Change> = (0..rng.random_range(1..12))
        .map(|_| {
            let key = format!("k{:03}", rng.random_range(0..200)).into_bytes();
            let bucket = buckets[rng.random_range(0..buckets.len())];
            let fill = rng.random_range(0..=255);
            let length = if rng.random_ratio(1, 20) { 9_000 } else { rng.random_range(0..300) };
            let value = (!rng.random_ratio(1, 4)).then(|| vec![fill; length]);
            Change { bucket, key, value }
        })
        .collect();
    // These records resemble records of revisions: the key of each is above all earlier keys of its
    // bucket.
    changes.extend((0..rng.random_range(0..8u8)).map(|sub| Change {
        bucket: Bucket::Key,
        key: [b"r", &number.to_be_bytes()[..], &[sub]].concat(),
        value: Some(vec![sub; rng.random_range(0..300)]),
    }));
    let number = number.to_be_bytes().to_vec();
    changes.push(Change { bucket: Bucket::Meta, key: COMMIT_KEY.to_vec(), value: Some(number) });
    changes
}

pub(crate) fn model_after(seed: u64, commits: u64) -> Model {
    let mut model = Model::default();
    for number in 1..=commits {
        changes_of(seed, number).iter().for_each(|change| model.apply(change));
    }
    model
}

/// Returns the number of the last commit of a workload that the store contains.
pub(crate) fn commit_number(reader: &dyn Read) -> u64 {
    let number = reader.get(Bucket::Meta, COMMIT_KEY).unwrap();
    number.map_or(0, |bytes| u64::from_be_bytes(bytes[..].try_into().unwrap()))
}

/// Returns the number in the environment variable `name`, such as a seed, or `default` if the
/// variable is not set.
pub(crate) fn seed_or(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a seed is a number"))
}
