//! Tests of images that are read while commits run, images of damaged files and of other engines,
//! and images with bbolt's meta pages.

use std::fs;
use std::sync::Arc;

use bytes::Bytes;

use crate::bolt::BoltStore;
use crate::bolt::file::StoreFile as _;
use crate::bolt::image::{CHUNK_BYTES, Image};
use crate::bolt::inspect::{BoltFile, Checksums, PageKind};
use crate::bolt::meta::{META_PAGE_BYTES, Meta, NO_FREELIST, encode_meta_page, parse_meta_page};
use crate::bolt::page::{LeafElement, PageId, encode_leaf};
use crate::bolt::simulated_disk::SimulatedDisk;
use crate::bolt::simulated_file::{create, open, open_image};
use crate::durable::DurableStore;
use crate::suite_support::{Model, Store, apply_all, changes_of, model_after, records};
use crate::writer_lock::WriterLock;
use crate::{Bucket, EngineKind, Error, KeyRange, OpeningNote, Read, Result, Snapshot};

const SEED: u64 = 11;
const PAGE: usize = 4096;

fn commit(store: &Arc<BoltStore>, number: u64) {
    let lock = Arc::new(WriterLock::default());
    let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
    apply_all(&changes_of(SEED, number), &mut *txn).unwrap();
    txn.commit().unwrap();
}

fn model_of(reader: &dyn Read) -> Model {
    let all = Bucket::ALL.into_iter().flat_map(|bucket| {
        let found = records(reader, bucket, KeyRange::ALL).into_iter();
        found.map(move |(key, value)| ((bucket, key), value))
    });
    Model { records: all.collect() }
}

/// Returns a disk, its store and a model. The store has the first `commits` commits of the
/// workload, and large values whose overflow spans several chunks.
fn store_after(commits: u64) -> (SimulatedDisk, Arc<BoltStore>, Model) {
    let disk = SimulatedDisk::with_contents(Vec::new());
    let store = create(&disk).unwrap();
    (1..=commits).for_each(|number| commit(&store, number));
    let mut model = model_after(SEED, commits);
    let lock = Arc::new(WriterLock::default());
    let mut txn = store.begin_write(lock.acquire().unwrap()).unwrap();
    for number in 0..4 {
        let (key, value) = (format!("large{number}"), vec![number; CHUNK_BYTES + 5_000]);
        txn.put(Bucket::Lease, key.as_bytes(), &value).unwrap();
        model.records.insert((Bucket::Lease, key.into_bytes()), value);
    }
    txn.commit().unwrap();
    (disk, store, model)
}

fn image_of(store: &Arc<BoltStore>) -> Image {
    store.snapshot().unwrap().image().unwrap().unwrap()
}

fn read(image: &mut Image, mut between: impl FnMut()) -> Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(chunk) = image.next_chunk()? {
        assert!(chunk.len() <= CHUNK_BYTES);
        all.extend_from_slice(&chunk);
        between();
    }
    assert_eq!(all.len() as u64, image.bytes());
    Ok(all)
}

fn metas(image: &[u8]) -> [Meta; 2] {
    [0, 1].map(|place| {
        let page = parse_meta_page(&image[place * PAGE..][..META_PAGE_BYTES], place as u64);
        let page = page.unwrap();
        assert!(!page.is_misplaced && !page.is_damaged && page.table.is_some());
        page.meta
    })
}

#[test]
fn an_image_shows_its_state_while_commits_use_pages_again() {
    let (_, store, model) = store_after(60);
    let mut image = image_of(&store);
    let before = store.newest().meta;
    let mut number = 60;
    let bytes = read(&mut image, || {
        for _ in 0..10 {
            number += 1;
            commit(&store, number);
        }
    });
    let bytes = bytes.unwrap();
    assert!(number > 100, "{number} commits");
    let metas = metas(&bytes);
    let mut txids = metas.map(|meta| meta.txid);
    txids.sort_unstable();
    assert_eq!(txids, [before.txid - 1, before.txid]);
    let opened = open_image(bytes.clone()).unwrap();
    assert!(opened.opening_notes().is_empty(), "{:?}", opened.opening_notes());
    model.assert_same(&*opened.snapshot().unwrap(), "the image");
    // Free pages are zeros in an image, so an image of the image has the same pages.
    let again = read(&mut image_of(&opened), || ()).unwrap();
    let state = before.high_water as usize * PAGE;
    assert!(again[2 * PAGE..state] == bytes[2 * PAGE..state]);
    // Each of the two meta pages leads to the state, so an image with only one of them opens.
    for place in [0, 1] {
        let mut one = bytes.clone();
        one[place * PAGE..][..PAGE].fill(0);
        model.assert_same(&*open_image(one).unwrap().snapshot().unwrap(), "one meta page");
    }
}

#[test]
fn the_page_cache_gets_nothing_from_an_image() {
    let (disk, store, _) = store_after(60);
    drop(store);
    let store = open(&disk).unwrap();
    let ids = 2..store.newest().meta.high_water;
    let cached = || ids.clone().filter(|id| store.pager.is_cached(*id)).collect::<Vec<_>>();
    let before = cached();
    assert!(before.len() < ids.clone().count(), "the cache is too large for this test");
    read(&mut image_of(&store), || ()).unwrap();
    assert_eq!(cached(), before);
}

#[test]
fn a_damaged_page_ends_the_image() {
    let (disk, store, _) = store_after(20);
    let whole = disk.contents();
    let reached = super::reach::heads(&Arc::new(super::BoltSnapshot::new(&store))).unwrap();
    let sound = read(&mut image_of(&store), || ()).unwrap();
    let meta = store.newest().meta;
    drop(store);
    let (mut damaged, mut free) = (0, 0);
    for id in 2..meta.high_water {
        let disk = SimulatedDisk::with_contents(whole.clone());
        let store = open(&disk).unwrap();
        // Damages the page in the file while the store is open. The store may have the undamaged
        // page in its cache, but the image reads each page that it sends from the file.
        let mut page = whole[id as usize * PAGE..][..PAGE].to_vec();
        page[3_000] ^= 4;
        disk.write_at(id * PAGE as u64, &page).unwrap();
        // Creating the image reads the branches and a few leaves. So it fails before the first
        // chunk if the page is one of these and is not cached.
        let image = store.snapshot().unwrap().image();
        let outcome = image.and_then(|image| read(&mut image.unwrap(), || ()));
        let is_zero = sound[id as usize * PAGE..][..PAGE].iter().all(|byte| *byte == 0);
        match outcome {
            Err(Error::Corrupt { detail, .. }) => {
                damaged += 1;
                assert!(detail.contains("the checksum is wrong"), "{detail}");
            }
            Err(error) => panic!("page {id}: {error}"),
            Ok(bytes) => {
                free += 1;
                assert!(!reached.contains(id) && is_zero, "page {id}");
                assert!(bytes[2 * PAGE..] == sound[2 * PAGE..], "page {id}");
            }
        }
    }
    assert!(damaged > 100 && free > 2, "{damaged} and {free}");
}

fn bucket(name: &str, root: PageId) -> LeafElement {
    let record = [name.as_bytes(), &root.to_le_bytes(), &[0; 8]].concat();
    LeafElement::new(record.into(), name.len(), true)
}

#[test]
fn buckets_in_buckets_are_in_the_image() {
    let leaf = |id, elements: &[LeafElement]| encode_leaf(id, PAGE, PAGE, elements);
    let record = || LeafElement::new(Bytes::from_static(b"keyvalue"), 3, false);
    let pages = [
        leaf(2, &[bucket("key", 3), bucket("other", 5)]),
        leaf(3, &[record()]),
        leaf(4, &[record()]),
        leaf(5, &[bucket("inner", 4)]),
    ];
    let (page_size, freelist, high_water) = (PAGE as u32, NO_FREELIST, 6);
    let meta = |txid| Meta { page_size, root: 2, sequence: 0, freelist, high_water, txid };
    let mut file: Vec<u8> =
        [0, 1].into_iter().flat_map(|txid| encode_meta_page(&meta(txid), None)).collect();
    pages.iter().for_each(|page| file.extend_from_slice(page));
    let store = open_image(file.clone()).unwrap();
    let image = read(&mut image_of(&store), || ()).unwrap();
    assert!(image[2 * PAGE..6 * PAGE] == file[2 * PAGE..]);
}

/// bbolt's `Tx.WriteTo` writes the newer meta page to page 0, whatever its txid is. Opening such a
/// file must also write the newest meta page to its proper place.
#[test]
fn an_image_with_the_meta_pages_of_bbolt_opens_and_is_mended() {
    for commits in [20, 21] {
        let (_, store, _) = store_after(commits);
        let mut file = read(&mut image_of(&store), || ()).unwrap();
        let newest = metas(&file).into_iter().max_by_key(|meta| meta.txid).unwrap();
        for (place, txid) in [(0, newest.txid), (1, newest.txid - 1)] {
            let mut page = encode_meta_page(&Meta { txid, ..newest }, None);
            page[0] = place as u8;
            file[place * PAGE..][..PAGE].copy_from_slice(&page);
        }
        let disk = SimulatedDisk::with_contents(file);
        let model = {
            let store = open(&disk).unwrap();
            let notes = store.opening_notes();
            assert_eq!(notes.len(), 1, "{notes:?}");
            assert!(matches!(notes[0], OpeningNote::Expected(_)), "{notes:?}");
            model_of(&*store.snapshot().unwrap())
        };
        // Opening has written the newest meta page to its proper place. The next commit writes the
        // other meta page.
        let place = newest.place() as usize;
        let page = &disk.contents()[place * PAGE..][..META_PAGE_BYTES];
        let found = parse_meta_page(page, place as u64).unwrap();
        assert_eq!((found.meta.txid, found.is_misplaced), (newest.txid, false));
        let store = open(&disk).unwrap();
        model.assert_same(&*store.snapshot().unwrap(), "opened again");
        commit(&store, commits + 1);
        let model = model_of(&*store.snapshot().unwrap());
        drop(store);
        model.assert_same(&*open(&disk).unwrap().snapshot().unwrap(), "after a commit");
    }
}

#[test]
fn an_image_of_any_engine_has_its_records_and_leaves_no_file() {
    for kind in [EngineKind::Sled, EngineKind::Memory, EngineKind::Bolt] {
        let store = Store::new(kind);
        for number in 1..=30 {
            store.commit(|txn| apply_all(&changes_of(SEED, number), txn).unwrap());
        }
        let large = "v".repeat(3 * CHUNK_BYTES);
        store.put(Bucket::Key, "large", &large);
        let mut model = model_after(SEED, 30);
        model.records.insert((Bucket::Key, b"large".to_vec()), large.into_bytes());
        let dir = tempfile::tempdir().unwrap();
        let mut image = Image::new(store.engine.snapshot().unwrap(), dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{kind}");
        // A later change is not part of the image.
        store.delete(Bucket::Key, "large");
        let bytes = read(&mut image, || ()).unwrap();
        let opened = open_image(bytes).unwrap();
        assert!(opened.opening_notes().is_empty(), "{:?}", opened.opening_notes());
        model.assert_same(&*opened.snapshot().unwrap(), kind.name());
    }
}

#[test]
fn an_image_of_many_records_is_filled() {
    // The number of leaves requires two levels of branches above them.
    let store = Store::new(EngineKind::Memory);
    store.commit(|txn| {
        for number in 0..60_000_u32 {
            let key = [&[7; 60][..], &number.to_be_bytes()].concat();
            txn.put(Bucket::Key, &key, &[1; 40]).unwrap();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let mut image = Image::new(store.engine.snapshot().unwrap(), dir.path()).unwrap();
    let path = dir.path().join("image");
    fs::write(&path, read(&mut image, || ()).unwrap()).unwrap();
    let file = BoltFile::open(&path).unwrap();
    let survey = file.survey().unwrap();
    assert_eq!((&survey.problems[..], file.checksums()), (&[][..], &Checksums::Present));
    assert!(survey.pages.iter().all(|page| page.kind != PageKind::Free));
    let total = survey.total();
    assert_eq!((total.depth, total.records), (3, 60_000));
    let used = total.leaf_used_bytes * 100 / (total.leaf_pages * PAGE as u64);
    assert!(used >= 80, "{used} % are used");
}

#[test]
fn a_record_that_a_bolt_file_cannot_have_ends_the_image() {
    let store = Store::new(EngineKind::Memory);
    store.put(Bucket::Key, &"k".repeat(crate::KEY_BYTES_MAX + 1), "value");
    let dir = tempfile::tempdir().unwrap();
    let snapshot: Arc<dyn Snapshot> = store.engine.snapshot().unwrap();
    let error = Image::new(snapshot, dir.path()).unwrap_err();
    assert!(matches!(error, Error::KeySize { bytes: 32_769 }), "{error}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}
