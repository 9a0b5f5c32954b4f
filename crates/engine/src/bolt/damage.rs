//! Tests that open files that were damaged, cut short, or written by another program. Either the
//! store shows the committed state and reports what it repaired, or opening fails and leaves the
//! file unchanged.

use std::ops::ControlFlow;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::BoltStore;
use super::meta::{META_PAGE_BYTES, Meta, MetaPage, encode_meta_page, parse_meta_page};
use super::simulated_disk::SimulatedDisk;
use super::simulated_file::{create, open, open_image, refused};
use crate::durable::DurableStore;
use crate::suite_support::{Model, apply_all, changes_of, model_after};
use crate::writer_lock::WriterLock;
use crate::{Bucket, KeyRange, OpeningNote, Result};

const SEED: u64 = 3;
const COMMITS: u64 = 60;
const PAGE: usize = 4096;

fn commit(store: &Arc<BoltStore>, number: u64) -> Result<()> {
    let lock = Arc::new(WriterLock::default());
    let mut txn = store.begin_write(lock.acquire()?)?;
    apply_all(&changes_of(SEED, number), &mut *txn)?;
    txn.commit()
}

/// Returns a file after the first `COMMITS` commits, without the pages that were never used.
fn image() -> Vec<u8> {
    let disk = SimulatedDisk::with_contents(Vec::new());
    let store = create(&disk).unwrap();
    (1..=COMMITS).for_each(|number| commit(&store, number).unwrap());
    let mut image = disk.contents();
    image.truncate(store.newest().meta.high_water as usize * PAGE);
    image
}

/// Returns the meta page with the current state, and the number of this page.
fn newest_meta(image: &[u8]) -> (MetaPage, usize) {
    let parse = |place: usize| {
        let page = &image[place * PAGE..place * PAGE + META_PAGE_BYTES];
        (parse_meta_page(page, place as u64).unwrap(), place)
    };
    [parse(0), parse(1)].into_iter().max_by_key(|(page, _)| page.meta.txid).unwrap()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Refused,
    Mended,
    Untouched,
}

/// Opens an image that may be damaged. If opening succeeds, asserts that the store equals `model`,
/// and that it has the right records after one more commit and a restart. If opening fails, asserts
/// that the file is unchanged.
fn outcome(image: Vec<u8>, model: &Model, hint: &str) -> Outcome {
    let disk = SimulatedDisk::with_contents(image.clone());
    let Ok(store) = open(&disk) else {
        refused(image);
        return Outcome::Refused;
    };
    model.assert_same(&*store.snapshot().unwrap(), hint);
    assert_eq!(store.size_in_use(), model.size(), "{hint}");
    let is_silent = store.opening_notes().is_empty();
    commit(&store, COMMITS + 1).unwrap();
    drop(store);
    let after = open(&disk).unwrap();
    model_after(SEED, COMMITS + 1).assert_same(&*after.snapshot().unwrap(), hint);
    if is_silent { Outcome::Untouched } else { Outcome::Mended }
}

#[test]
fn of_400_images_with_a_flipped_bit_none_answers_wrongly() {
    let (image, model) = (image(), model_after(SEED, COMMITS));
    let mut rng = StdRng::seed_from_u64(1);
    let outcomes: Vec<Outcome> = (0..400)
        .map(|number| {
            let mut damaged = image.clone();
            let bit = rng.random_range(0..damaged.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
            outcome(damaged, &model, &format!("image {number}: bit {bit}"))
        })
        .collect();
    let count = |wanted| outcomes.iter().filter(|outcome| **outcome == wanted).count();
    let counts = [Outcome::Refused, Outcome::Mended, Outcome::Untouched].map(count);
    println!("refused, mended, untouched: {counts:?} with {} pages", image.len() / PAGE);
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

#[test]
fn a_flipped_bit_of_the_newest_meta_page_is_mended() {
    let (image, model) = (image(), model_after(SEED, COMMITS));
    let (_, place) = newest_meta(&image);
    for byte in (0..10).chain(16..80).chain(512..604) {
        let mut damaged = image.clone();
        damaged[place * PAGE + byte] ^= 1 << (byte % 8);
        let hint = format!("byte {byte} of meta page {place}");
        assert_eq!(outcome(damaged, &model, &hint), Outcome::Mended, "{hint}");
    }
}

#[test]
fn mending_writes_the_meta_page_anew() {
    let mut image = image();
    let (_, place) = newest_meta(&image);
    let whole = image.clone();
    image[place * PAGE + 20] ^= 1;
    let disk = SimulatedDisk::with_contents(image);
    let store = open(&disk).unwrap();
    assert!(store.opening_notes()[0].text().ends_with("was damaged and is repaired"));
    assert!(disk.contents() == whole);
    assert!(open(&disk).unwrap().opening_notes().is_empty());
}

#[test]
fn a_state_that_may_be_one_commit_short_says_so() {
    let mut image = image();
    let (newest, place) = newest_meta(&image);
    image[place * PAGE..(place + 1) * PAGE].fill(0);
    // The pages of the previous commit still exist, because no later commit has used them again.
    let store = open_image(image).unwrap();
    let notes = store.opening_notes();
    let txid = newest.meta.txid - 1;
    let expected = format!("the state is of transaction {txid}; a later one may be lost");
    assert!(notes.len() == 1 && notes[0].text().ends_with(&expected), "{notes:?}");
    model_after(SEED, COMMITS - 1).assert_same(&*store.snapshot().unwrap(), "one short");
}

#[test]
fn a_file_of_another_program_gets_checksums_with_the_next_commit() {
    let mut image = image();
    let (newest, place) = newest_meta(&image);
    // bbolt writes the page like this, with zeros after the meta.
    let page = encode_meta_page(&newest.meta, None);
    image[place * PAGE..(place + 1) * PAGE].copy_from_slice(&page);
    let disk = SimulatedDisk::with_contents(image);
    for is_first in [true, false] {
        let store = open(&disk).unwrap();
        let notes = store.opening_notes();
        assert_eq!(
            notes.iter().any(|note| matches!(note, OpeningNote::Expected(_))),
            is_first,
            "{notes:?}"
        );
        commit(&store, COMMITS + 1).unwrap();
    }
    assert_eq!(outcome_of_each_page(&disk.contents()), [Outcome::Refused, Outcome::Untouched]);
}

/// Damages one byte of one page at a time, and opens the file. Returns the set of outcomes, without
/// [`Outcome::Mended`].
fn outcome_of_each_page(image: &[u8]) -> Vec<Outcome> {
    let model = model_after(SEED, COMMITS + 1);
    let high_water = newest_meta(image).0.meta.high_water as usize;
    let mut outcomes: Vec<Outcome> = (2..high_water)
        .map(|page| {
            let mut damaged = image.to_vec();
            damaged[page * PAGE + 100] ^= 4;
            match open_image(damaged) {
                Ok(store) => {
                    model.assert_same(&*store.snapshot().unwrap(), &format!("page {page}"));
                    let is_silent = store.opening_notes().is_empty();
                    if is_silent { Outcome::Untouched } else { Outcome::Mended }
                }
                Err(_) => Outcome::Refused,
            }
        })
        .filter(|outcome| *outcome != Outcome::Mended)
        .collect();
    outcomes.sort_by_key(|outcome| *outcome as u8);
    outcomes.dedup();
    outcomes
}

/// A meta page that states a different page size is ignored, even if it has the larger txid. With
/// the wrong page size, pages would be read from the wrong offsets.
#[test]
fn a_meta_page_of_another_page_size_does_not_count() {
    let mut image = image();
    let newest = newest_meta(&image).0.meta;
    let other = Meta { page_size: 1024, txid: newest.txid + 1, ..newest };
    // Page 0 keeps the right page size, which decides where page 1 is read.
    let even = Meta { txid: newest.txid + newest.txid % 2, ..newest };
    image[..PAGE].copy_from_slice(&encode_meta_page(&even, None));
    let odd = Meta { txid: even.txid + 1, ..other };
    image[PAGE..PAGE + 1024].copy_from_slice(&encode_meta_page(&odd, None));
    let disk = SimulatedDisk::with_contents(image);
    for number in 1..=3 {
        let store = open(&disk).unwrap();
        assert_eq!(store.pager.page_size(), PAGE);
        model_after(SEED, COMMITS + number - 1)
            .assert_same(&*store.snapshot().unwrap(), "page size");
        commit(&store, COMMITS + number).unwrap();
    }
}

/// Without checksums, only the layout of pages and the order of keys can be checked. Damage that
/// passes these checks must not cause a panic or an endless loop in later reads and writes.
#[test]
fn damaged_files_without_checksums_do_not_panic() {
    let mut image = image();
    let newest = newest_meta(&image).0.meta;
    for txid in [newest.txid - 1, newest.txid] {
        let meta = Meta { txid, ..newest };
        let place = meta.place() as usize;
        let page = encode_meta_page(&meta, None);
        image[place * PAGE..(place + 1) * PAGE].copy_from_slice(&page);
    }
    let mut rng = StdRng::seed_from_u64(2);
    let mut opened = 0;
    for _ in 0..2_000 {
        let mut damaged = image.clone();
        for _ in 0..rng.random_range(1..4) {
            // Most changes hit the first 200 bytes of a page, which contain its header and
            // elements.
            let page = rng.random_range(2..damaged.len() / PAGE);
            let bytes = if rng.random_ratio(3, 4) { 200 } else { PAGE };
            let byte = rng.random_range(0..bytes);
            damaged[page * PAGE + byte] = rng.random();
        }
        let Ok(store) = open_image(damaged) else { continue };
        opened += 1;
        let snapshot = store.snapshot().unwrap();
        for bucket in Bucket::ALL {
            snapshot.scan(bucket, KeyRange::ALL, &mut |_, _| ControlFlow::Continue(())).unwrap();
            snapshot.last_key(bucket).unwrap();
        }
        (1..4).for_each(|number| commit(&store, COMMITS + number).unwrap());
    }
    println!("{opened} were opened");
    assert!(opened > 200, "{opened}");
}

#[test]
fn what_is_no_store_is_refused_in_one_line() {
    let image = image();
    assert!(refused(Vec::new()).contains("no meta page is valid: page 0: the file is too short"));
    assert!(refused(vec![0x5a; 40_000]).contains("page 0: magic 0x5a5a5a5a, not 0xed0cdaed"));
    assert!(refused(image[..PAGE].to_vec()).contains("cut short"));
    assert!(refused(image[..image.len() - 1].to_vec()).contains("cut short"));
    let mut newer = image.clone();
    for place in 0..2 {
        newer[place * PAGE..place * PAGE + 1024].fill(0);
        let head = [0xed, 0xda, 0x0c, 0xed, 3, 0, 0, 0];
        newer[place * PAGE + 16..place * PAGE + 24].copy_from_slice(&head);
    }
    assert!(refused(newer).contains("version 3, not 2"), "an error names the version");
    let line = refused(image[..image.len() / 2].to_vec());
    assert!(line.starts_with("disk: damaged: ") && !line.contains('\n'), "{line}");
}

#[test]
fn pages_that_are_read_later_are_checked_too() {
    let disk = SimulatedDisk::with_contents(image());
    let store = open(&disk).unwrap();
    let snapshot = store.snapshot().unwrap();
    // The file changes under an open store, without the store's knowledge.
    let damaged: Vec<u8> = disk.contents().iter().map(|byte| byte ^ 0x10).collect();
    let file: &dyn super::file::StoreFile = &disk;
    file.write_at(0, &damaged).unwrap();
    let error = snapshot.scan(Bucket::Key, KeyRange::ALL, &mut |_, _| ControlFlow::Continue(()));
    let line = error.unwrap_err().to_string();
    assert!(line.starts_with("disk: damaged: page "), "{line}");
}
