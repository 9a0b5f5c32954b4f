//! A sequence of transactions for the engine `bolt`, and the same changes on a plain map.
//!
//! Every read must return the same records from the store and from the map, even after the file has
//! been opened again. No page may be lost or used twice.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_engine::bolt::fuzzing::{MemoryFile, MemoryStore};
use clearlane_engine::{Bucket, KeyRange, Read, Snapshot, WriteTxn};

use crate::input::Input;

/// Maximum number of bytes that an input writes. The step that exceeds it is the last one.
const WRITTEN_BYTES_MAX: usize = 2 << 20;
const STEPS_MAX: usize = 400;
const SNAPSHOTS_MAX: usize = 4;
/// There are only three buckets, so that many steps of an input change the same pages.
const BUCKETS: [Bucket; 3] = [Bucket::Key, Bucket::Lease, Bucket::Meta];

type Model = BTreeMap<(Bucket, Vec<u8>), Vec<u8>>;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let page_size = [1024, 4096][input.choice(2)];
    let mut run = Run::new(page_size);
    for _ in 0..STEPS_MAX {
        if input.is_empty() || run.written > WRITTEN_BYTES_MAX {
            break;
        }
        run.step(&mut input);
    }
    run.reopen();
}

struct Run {
    page_size: usize,
    store: MemoryStore,
    committed: Arc<Model>,
    open: Option<(Box<dyn WriteTxn>, Model)>,
    snapshots: Vec<(Arc<dyn Snapshot>, Arc<Model>)>,
    written: usize,
}

impl Run {
    fn new(page_size: usize) -> Run {
        let store = MemoryStore::create(page_size).expect("the file takes it");
        let (committed, snapshots) = (Arc::default(), Vec::new());
        Run { page_size, store, committed, open: None, snapshots, written: 0 }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.choice(14) {
            0..=2 => self.put(BUCKETS[input.choice(3)], key(input), value(input)),
            3 => self.delete(BUCKETS[input.choice(3)], &key(input)),
            // Many puts or deletes in a row. So a short input can make a deep tree or remove it.
            4 | 5 => {
                let (bucket, from, value) = (BUCKETS[input.choice(3)], input.byte(), value(input));
                for number in 0..input.byte() {
                    self.put(bucket, numbered(from, number), value.clone());
                }
            }
            6 => {
                let (bucket, from) = (BUCKETS[input.choice(3)], input.byte());
                for number in 0..input.byte() {
                    self.delete(bucket, &numbered(from, number));
                }
            }
            7 => self.read(BUCKETS[input.choice(3)], &key(input), &key(input)),
            8 => self.open_snapshot(),
            9 => self.close_snapshot(input),
            10 => self.commit(),
            11 => self.reopen(),
            12 => match input.choice(4) {
                0 => self.open = None,
                1 => self.fail(u64::from(input.byte())),
                _ => self.commit(),
            },
            _ => self.defragment(),
        }
    }

    fn writer(&mut self) -> &mut (Box<dyn WriteTxn>, Model) {
        let (store, committed) = (&self.store, &self.committed);
        self.open.get_or_insert_with(|| {
            (store.begin_write().expect("there is no other writer"), Model::clone(committed))
        })
    }

    fn put(&mut self, bucket: Bucket, key: Vec<u8>, value: Vec<u8>) {
        self.written += key.len() + value.len();
        let (txn, model) = self.writer();
        txn.put(bucket, &key, &value).expect("it fits");
        model.insert((bucket, key), value);
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) {
        let (txn, model) = self.writer();
        txn.delete(bucket, key).expect("it can be read");
        model.remove(&(bucket, key.to_vec()));
    }

    fn read(&self, bucket: Bucket, from: &[u8], to: &[u8]) {
        let range = KeyRange::new(from, to);
        if let Some((txn, model)) = &self.open {
            assert_same_range(&**txn, model, bucket, range);
        }
        for (snapshot, model) in &self.snapshots {
            assert_same_range(&**snapshot, model, bucket, range);
        }
    }

    fn open_snapshot(&mut self) {
        if self.snapshots.len() < SNAPSHOTS_MAX {
            let snapshot = self.store.snapshot().expect("it is open");
            self.snapshots.push((snapshot, Arc::clone(&self.committed)));
        }
    }

    fn close_snapshot(&mut self, input: &mut Input<'_>) {
        if !self.snapshots.is_empty() {
            let (snapshot, model) = self.snapshots.remove(input.choice(self.snapshots.len()));
            assert_same(&*snapshot, &model);
        }
    }

    fn commit(&mut self) {
        if let Some((txn, model)) = self.open.take() {
            assert_same(&*txn, &model);
            txn.commit().expect("the file takes it");
            self.committed = Arc::new(model);
        }
    }

    /// Drops the uncommitted changes and all snapshots, and opens the file again.
    fn reopen(&mut self) {
        self.open = None;
        self.check();
        let file = MemoryFile::new(self.store.file().contents());
        let store = MemoryStore::open(&file).expect("what was written can be opened");
        assert!(store.opening_notes().is_empty(), "{:?}", store.opening_notes());
        assert_eq!(store.unused_pages(), self.store.unused_pages(), "a page is lost or used twice");
        self.snapshots.clear();
        self.store = store;
        self.check();
    }

    fn check(&self) {
        assert_same(&*self.store.snapshot().expect("it is open"), &self.committed);
        assert_eq!(self.store.size_in_use(), size(&self.committed));
        self.snapshots.iter().for_each(|(snapshot, model)| assert_same(&**snapshot, model));
    }

    /// Commits while the disk fails after `operations` operations. The transaction must be stored
    /// completely or not at all.
    fn fail(&mut self, operations: u64) {
        let Some((txn, model)) = self.open.take() else { return };
        self.store.file().fail_after(operations);
        let model = Arc::new(model);
        match txn.commit() {
            Ok(()) => self.committed = model,
            Err(_) => {
                self.check();
                assert!(self.store.begin_write().is_err(), "a commit failed and writing goes on");
                let found = MemoryStore::open(&MemoryFile::new(self.store.file().contents()));
                let found = found.expect("the state before is whole");
                if found.size_in_use() == size(&model) && is_same(&found, &model) {
                    self.committed = model;
                }
            }
        }
        self.snapshots.clear();
        let file = MemoryFile::new(self.store.file().contents());
        self.store = MemoryStore::open(&file).expect("what was written can be opened");
        self.check();
    }

    /// Copies all records into a new file, as a defragmentation does.
    fn defragment(&mut self) {
        self.commit();
        let next = MemoryStore::create(self.page_size).expect("the file takes it");
        let mut txn = next.begin_write().expect("there is no other writer");
        let snapshot = self.store.snapshot().expect("it is open");
        for bucket in Bucket::ALL {
            snapshot
                .scan(bucket, KeyRange::ALL, &mut |key, value| {
                    txn.put(bucket, key, value).expect("it fits");
                    ControlFlow::Continue(())
                })
                .expect("it can be read");
        }
        txn.commit().expect("the file takes it");
        self.written += size(&self.committed) as usize;
        self.store = next;
        self.check();
    }
}

/// Returns a key. Most keys are short and differ by their number. Some are 301 or 32,768 bytes
/// long.
fn key(input: &mut Input<'_>) -> Vec<u8> {
    let number = input.byte();
    match number {
        0..=199 => numbered(number, 0),
        200..=253 => [&[b'l'; 300][..], &[number]].concat(),
        _ => [&[b'm'; 32_767][..], &[number]].concat(),
    }
}

fn numbered(from: u8, number: u8) -> Vec<u8> {
    let number = u16::from(from) * 16 + u16::from(number);
    [&b"key"[..], &number.to_be_bytes()].concat()
}

fn value(input: &mut Input<'_>) -> Vec<u8> {
    let (length, fill) = (input.byte(), input.byte());
    let length = match length {
        0..=199 => usize::from(length),
        _ => usize::from(length - 199) * 397,
    };
    vec![fill; length]
}

fn size(model: &Model) -> u64 {
    model.iter().map(|((_, key), value)| (key.len() + value.len()) as u64).sum()
}

fn assert_same_range<R: Read + ?Sized>(
    reader: &R,
    model: &Model,
    bucket: Bucket,
    range: KeyRange<'_>,
) {
    let from = model.range((bucket, range.from.to_vec())..);
    let mut expected = from.take_while(|((of, key), _)| *of == bucket && range.contains(key));
    reader
        .scan(bucket, range, &mut |key, value| {
            let found = expected.next().map(|((_, key), value)| (&key[..], &value[..]));
            assert!(found == Some((key, value)), "{bucket:?}: {key:?} differs");
            ControlFlow::Continue(())
        })
        .expect("it can be read");
    assert!(range.is_empty() || expected.next().is_none(), "{bucket:?}: a record is missing");
    let found = reader.get(bucket, range.from).expect("it can be read");
    let expected = model.get(&(bucket, range.from.to_vec()));
    assert_eq!(found.as_deref(), expected.map(|value| &value[..]));
}

fn assert_same<R: Read + ?Sized>(reader: &R, model: &Model) {
    for bucket in Bucket::ALL {
        assert_same_range(reader, model, bucket, KeyRange::ALL);
        let last = reader.last_key(bucket).expect("it can be read");
        let next = Bucket::ALL.get(bucket.index() + 1).map(|next| (*next, Vec::new()));
        let mut below = next.map_or(model.range(..), |next| model.range(..next));
        let expected = below.next_back().filter(|((of, _), _)| *of == bucket);
        assert_eq!(last.as_deref(), expected.map(|((_, key), _)| &key[..]));
    }
}

fn is_same(store: &MemoryStore, model: &Model) -> bool {
    let snapshot = store.snapshot().expect("it is open");
    let mut found = Model::new();
    for bucket in Bucket::ALL {
        snapshot
            .scan(bucket, KeyRange::ALL, &mut |key, value| {
                found.insert((bucket, key.to_vec()), value.to_vec());
                ControlFlow::Continue(())
            })
            .expect("it can be read");
    }
    found == *model
}
