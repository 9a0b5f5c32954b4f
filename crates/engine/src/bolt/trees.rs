//! Tests of the shape of trees: depth, fill and merging, and that no page is lost.

use std::ops::ControlFlow;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use super::BoltStore;
use super::page::{Page, PageHeader};
use super::simulated_disk::SimulatedDisk;
use super::simulated_file::{create_with, open};
use crate::durable::DurableStore;
use crate::suite_support::{Change, Model};
use crate::writer_lock::WriterLock;
use crate::{Bucket, KeyRange, WriteTxn};

const SMALL_PAGE: usize = 1024;

fn small_pages() -> (SimulatedDisk, Arc<BoltStore>) {
    let disk = SimulatedDisk::with_contents(Vec::new());
    let store = create_with(&disk, SMALL_PAGE).unwrap();
    (disk, store)
}

fn commit(store: &Arc<BoltStore>, change: impl FnOnce(&mut dyn WriteTxn)) {
    let lock = Arc::new(WriterLock::default());
    let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
    change(&mut *txn);
    txn.commit().unwrap();
}

fn key(number: u32) -> [u8; 4] {
    number.to_be_bytes()
}

/// Returns the root page of a bucket. An inline root has the id 0.
fn root_of(store: &BoltStore, bucket: Bucket) -> Page {
    store.newest().buckets[bucket.index()].root.clone().unwrap()
}

/// Returns the number of levels and the number of pages of a bucket's tree. Both are 0 for an
/// inline bucket.
fn shape(store: &BoltStore, bucket: Bucket) -> (usize, usize) {
    let root = root_of(store, bucket);
    if root.id() == 0 {
        return (0, 0);
    }
    let (mut level, mut depth, mut pages) = (vec![root.id()], 0, 0);
    while !level.is_empty() {
        depth += 1;
        pages += level.len();
        let read = level.into_iter().map(|id| store.pager.page(id).unwrap());
        let branches = read.filter(|page| !page.is_leaf());
        level = branches
            .flat_map(|page| (0..page.count()).map(move |index| page.child(index)))
            .collect();
    }
    (depth, pages)
}

/// Asserts that every page below the high-water mark is either in use, free or pending. A store
/// that is opened again finds by its walk which pages are unused. Their number must equal the
/// number of free and pending pages of the running store.
fn assert_no_page_is_lost(disk: &SimulatedDisk, store: &BoltStore) {
    let (free, pending) = store.writer().freelist.counts();
    let again = open(disk).unwrap();
    assert_eq!(again.opening_notes(), []);
    let (found, _) = again.writer().freelist.counts();
    assert_eq!(found, free + pending, "of {} pages", store.newest().meta.high_water);
}

#[test]
fn deep_trees_equal_the_model_and_lose_no_page() {
    let (disk, store) = small_pages();
    let mut rng = StdRng::seed_from_u64(4);
    let mut model = Model::default();
    let mut deepest = 0;
    for round in 0..120 {
        // First most changes are puts, then most are deletes, so the trees grow and shrink.
        let deletes_of_8 = if round < 60 { 2 } else { 6 };
        let changes: Vec<Change> = (0..rng.random_range(1..300))
            .map(|_| Change {
                bucket: [Bucket::Key, Bucket::Lease][rng.random_range(0..2)],
                // The keys are long, so that a branch has few children.
                key: format!("{:060}", rng.random_range(0..8_000)).into_bytes(),
                value: (!rng.random_ratio(deletes_of_8, 8))
                    .then(|| vec![round as u8; rng.random_range(0..150)]),
            })
            .collect();
        commit(&store, |txn| changes.iter().for_each(|change| change.apply(txn)));
        changes.iter().for_each(|change| model.apply(change));
        deepest = deepest.max(shape(&store, Bucket::Lease).0);
        if round % 10 == 9 {
            model.assert_same(&*store.snapshot().unwrap(), &format!("round {round}"));
            assert_no_page_is_lost(&disk, &store);
        }
    }
    assert!(deepest >= 4, "{deepest} levels");
}

#[test]
fn puts_in_order_fill_their_pages() {
    let (_, store) = small_pages();
    for number in 0..50 {
        commit(&store, |txn| {
            for sub in 0..100 {
                let key = key(number * 100 + sub);
                txn.put(Bucket::Key, &key, &[1; 20]).unwrap();
                txn.put(Bucket::Lease, &key, &[1; 20]).unwrap();
            }
        });
    }
    // An element takes 40 bytes. So 22 elements fill 90 % of a page, and 12 fill half of it.
    let pages = [Bucket::Key, Bucket::Lease].map(|bucket| shape(&store, bucket).1);
    assert!(pages[0] < 5_000 / 20 && pages[1] > 5_000 / 16, "{pages:?}");
}

#[test]
fn deletes_make_a_tree_small_again() {
    let (disk, store) = small_pages();
    let mut numbers: Vec<u32> = (0..3_000).collect();
    commit(&store, |txn| {
        numbers.iter().for_each(|number| txn.put(Bucket::Lease, &key(*number), &[2; 50]).unwrap());
    });
    assert!(shape(&store, Bucket::Lease) > (3, 200), "{:?}", shape(&store, Bucket::Lease));
    numbers.shuffle(&mut StdRng::seed_from_u64(1));
    for part in numbers[100..].chunks(250) {
        commit(&store, |txn| {
            part.iter().for_each(|number| txn.delete(Bucket::Lease, &key(*number)).unwrap());
        });
    }
    let (_, pages) = shape(&store, Bucket::Lease);
    assert!(pages < 60, "{pages} pages for 100 records");
    for part in numbers[..100].chunks(30) {
        commit(&store, |txn| {
            part.iter().for_each(|number| txn.delete(Bucket::Lease, &key(*number)).unwrap());
        });
    }
    assert_eq!(shape(&store, Bucket::Lease), (0, 0), "an empty bucket is inline");
    assert_no_page_is_lost(&disk, &store);
}

#[test]
fn a_small_bucket_is_inline_until_it_grows() {
    let (disk, store) = small_pages();
    let is_inline = || root_of(&store, Bucket::Meta).id() == 0;
    for number in 0..40 {
        commit(&store, |txn| txn.put(Bucket::Meta, &key(number), b"v").unwrap());
        // A quarter of a page has space for a header and 11 elements of 21 bytes.
        assert_eq!(is_inline(), number < 11, "{number}");
        let again = open(&disk).unwrap();
        assert_eq!(again.size_in_use(), u64::from(number + 1) * 5);
        assert_eq!(
            again.snapshot().unwrap().last_key(Bucket::Meta).unwrap().unwrap(),
            key(number)[..]
        );
    }
    commit(&store, |txn| {
        (5..40).for_each(|number| txn.delete(Bucket::Meta, &key(number)).unwrap());
    });
    assert!(is_inline());
    assert_no_page_is_lost(&disk, &store);
}

#[test]
fn a_large_value_takes_pages_in_a_row_and_gives_them_back() {
    let (disk, store) = small_pages();
    let put = |byte| {
        commit(&store, |txn| txn.put(Bucket::Key, b"large", &vec![byte; 100_000]).unwrap());
    };
    put(1);
    let page = root_of(&store, Bucket::Key);
    assert_eq!(PageHeader::parse(page.bytes()).overflow, 97);
    let high_water = |_| store.newest().meta.high_water;
    let after: Vec<u64> = (2..20).inspect(|byte| put(*byte)).map(high_water).collect();
    assert_eq!(after[2], after[17], "the pages are used again");
    assert_no_page_is_lost(&disk, &store);
}

#[test]
fn a_commit_syncs_twice_however_large_it_is() {
    let disk = SimulatedDisk::with_contents(Vec::new());
    let store = create_with(&disk, 4096).unwrap();
    for count in [1, 100, 20_000] {
        let before = disk.sync_count();
        commit(&store, |txn| {
            (0..count).for_each(|number| txn.put(Bucket::Key, &key(number), &[1; 99]).unwrap());
        });
        assert_eq!(disk.sync_count() - before, 2, "{count} puts");
    }
}

#[test]
fn pages_of_a_snapshot_stay_as_long_as_it_is_open() {
    let (disk, store) = small_pages();
    let put_all = |value: u8| {
        commit(&store, |txn| {
            (0..500).for_each(|number| txn.put(Bucket::Key, &key(number), &[value; 30]).unwrap());
        });
    };
    put_all(0);
    let snapshot = store.snapshot().unwrap();
    put_all(1);
    let (_, held) = store.writer().freelist.counts();
    assert!(held > 15, "{held} pages are pending");
    put_all(2);
    let high_water = store.newest().meta.high_water;
    (3..50).for_each(&put_all);
    // Only the pages of the snapshot's own state and the pages that the last commit replaced are
    // pending.
    let (_, held_later) = store.writer().freelist.counts();
    assert!(held_later < 3 * held, "{held_later} pages are pending");
    assert!(store.newest().meta.high_water < high_water + 2 * held, "the file grows");
    let mut seen = 0;
    snapshot
        .scan(Bucket::Key, KeyRange::ALL, &mut |_, value| {
            assert_eq!(value, [0; 30]);
            seen += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(seen, 500);
    assert_no_page_is_lost(&disk, &store);
    drop(snapshot);
    put_all(11);
    let (_, held) = store.writer().freelist.counts();
    assert!(held < 60, "{held} pages are pending");
    assert_no_page_is_lost(&disk, &store);
}

#[test]
fn a_transaction_that_is_dropped_takes_no_page() {
    let (disk, store) = small_pages();
    commit(&store, |txn| txn.put(Bucket::Key, b"a", b"1").unwrap());
    let image = disk.contents();
    let lock = Arc::new(WriterLock::default());
    let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
    txn.put(Bucket::Key, b"b", &[1; 5_000]).unwrap();
    txn.delete(Bucket::Key, b"a").unwrap();
    assert_eq!(txn.last_key(Bucket::Key).unwrap().unwrap(), &b"b"[..]);
    drop(txn);
    assert!(disk.contents() == image);
    assert_no_page_is_lost(&disk, &store);
}
