//! A file for the engine `bolt`.
//!
//! Either the engine rejects the file and does not change it. Or the engine can read and change the
//! whole file, and finds the changes when it opens the file again.
//!
//! ```text
//!   0 │ the file as it is
//!   1 + number of a whole file │ handling of its checksums │ edits; see `put_edit`
//! ```
//!
//! After the edits, the checksums are handled in one of three ways. 0 removes the page checksums:
//! the meta pages then name no table of checksums. 1 corrects the checksums. 2 leaves them as they
//! are.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::LazyLock;

use clearlane_engine::bolt::fuzzing::{MemoryFile, MemoryStore, make_foreign, put_sums_right};
use clearlane_engine::{Bucket, Error, KeyRange};

use crate::input::Input;

/// A key that the target puts into each bucket.
const KEY: &[u8] = b"fuzz";
/// Maximum size, in bytes, of a file whose length an edit changes.
const FILE_BYTES_MAX: usize = 1 << 20;

type Records = BTreeMap<(Bucket, Vec<u8>), Vec<u8>>;

pub fn target(data: &[u8]) {
    open(data);
}

/// Creates a file from the input, and checks how the engine handles it. Returns whether the engine
/// opens the file.
pub fn open(data: &[u8]) -> bool {
    let image = image(Input::new(data));
    let file = MemoryFile::new(image.clone());
    let store = match MemoryStore::open(&file) {
        Ok(store) => store,
        Err(error) => {
            assert!(file.contents() == image, "what is refused was changed: {error}");
            assert!(matches!(error, Error::Corrupt { .. }), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
            return false;
        }
    };
    let mut records = read_all(&store);
    if change(&store, &mut records).is_some() {
        let again = MemoryStore::open(&file).expect("what was written can be opened");
        assert_eq!(again.opening_notes().iter().find(|note| note.text().contains("damaged")), None);
        assert!(read_all(&again) == records, "what was written is not what is there");
        assert_eq!(again.unused_pages(), store.unused_pages(), "a page is lost, or used twice");
    }
    true
}

fn image(mut input: Input<'_>) -> Vec<u8> {
    let kind = input.choice(1 + WHOLE.len());
    let Some(whole) = kind.checked_sub(1) else { return input.rest().to_vec() };
    let mut image = WHOLE[whole].clone();
    let sums = input.choice(3);
    while !input.is_empty() {
        put_edit(&mut image, &mut input);
    }
    match sums {
        0 => make_foreign(&mut image),
        1 => put_sums_right(&mut image),
        _ => {}
    }
    image
}

/// Applies one edit. The input starts with the kind of edit, the number of a page of 1 KiB, and an
/// offset in this page, in units of 4 bytes. The edit starts at this offset, except that a page is
/// copied to the start of the page. The last kind of edit cuts or extends the file so that it ends
/// at this offset.
fn put_edit(image: &mut Vec<u8>, input: &mut Input<'_>) {
    let kind = input.choice(7);
    let place = usize::from(input.byte()) << 10;
    let at = place + (usize::from(input.byte()) << 2);
    let mut write = |at: usize, bytes: &[u8]| {
        let to = image.get_mut(at..).unwrap_or_default();
        let count = bytes.len().min(to.len());
        to[..count].copy_from_slice(&bytes[..count]);
    };
    match kind {
        0 => write(at, &[input.byte()]),
        1 => write(at, &u16::from_be_bytes([input.byte(), input.byte()]).to_le_bytes()),
        2 => write(at, &(input.number() as u32).to_le_bytes()),
        3 => write(at, &input.number().to_le_bytes()),
        4 => write(at, input.string()),
        5 => {
            let from = (usize::from(input.byte()) << 10).min(image.len());
            let to = image.len().min(from + 1024);
            let page = image[from..to].to_vec();
            let end = image.len().min(place + page.len());
            if place < end {
                image[place..end].copy_from_slice(&page[..end - place]);
            }
        }
        _ => image.resize(at.min(FILE_BYTES_MAX), 0),
    }
}

/// The files to edit. Their page sizes are 1024 and 4096 bytes. They contain trees, inline buckets,
/// values of several pages and free pages.
static WHOLE: LazyLock<[Vec<u8>; 3]> =
    LazyLock::new(|| [whole_file(1024, 3), whole_file(1024, 120), whole_file(4096, 60)]);

fn whole_file(page_size: usize, records: u32) -> Vec<u8> {
    let store = MemoryStore::create(page_size).expect("the file takes it");
    for round in 0..2 {
        let mut txn = store.begin_write().expect("there is no other writer");
        for number in 0..records {
            let bucket = Bucket::ALL[number as usize % Bucket::ALL.len()];
            let bucket = if number % 3 == 0 { bucket } else { Bucket::Key };
            let value = vec![round; if number % 40 == 39 { 3 * page_size } else { 30 }];
            txn.put(bucket, format!("key {number:08}").as_bytes(), &value).expect("it fits");
        }
        txn.commit().expect("the file takes it");
    }
    store.file().contents()
}

fn read_all(store: &MemoryStore) -> Records {
    let snapshot = store.snapshot().expect("it is open");
    let mut records = Records::new();
    for bucket in Bucket::ALL {
        let mut last = None;
        snapshot
            .scan(bucket, KeyRange::ALL, &mut |key, value| {
                records.insert((bucket, key.to_vec()), value.to_vec());
                last = Some(key.to_vec());
                ControlFlow::Continue(())
            })
            .expect("what was opened can be read");
        assert_eq!(snapshot.last_key(bucket).expect("it can be read").as_deref(), last.as_deref());
    }
    for ((bucket, key), value) in &records {
        let found = snapshot.get(*bucket, key).expect("it can be read");
        assert_eq!(found.as_deref(), Some(&value[..]));
    }
    let bytes: usize = records.iter().map(|((_, key), value)| key.len() + value.len()).sum();
    assert_eq!(store.size_in_use(), bytes as u64);
    records
}

/// Changes the store and `records` in the same way, and checks that they are equal after each
/// commit. Returns `None` if the file has a bucket in the place of a record. In this case the put
/// fails, although the file is not damaged.
fn change(store: &MemoryStore, records: &mut Records) -> Option<()> {
    for round in 0..3 {
        let mut txn = store.begin_write().expect("there is no other writer");
        for bucket in Bucket::ALL {
            let value = vec![round; 200 << (bucket.index() / 2)];
            txn.put(bucket, KEY, &value).ok()?;
            records.insert((bucket, KEY.to_vec()), value);
        }
        // Deletes the first record, then every second record, then the first half of the records.
        let count = records.len();
        let doomed: Vec<_> = match round {
            0 => records.keys().take(1).cloned().collect(),
            1 => records.keys().step_by(2).cloned().collect(),
            _ => records.keys().take(count / 2).cloned().collect(),
        };
        for (bucket, key) in doomed {
            txn.delete(bucket, &key).expect("a record can be deleted");
            records.remove(&(bucket, key));
        }
        txn.commit().expect("the file takes it");
        assert!(read_all(store) == *records, "round {round}: what was written is not there");
    }
    Some(())
}
