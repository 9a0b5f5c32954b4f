//! A saved snapshot that is restored: refused, or a store on which a member can start.
//!
//! ```text
//!   0 or 1 (is the sum checked?) │ bytes                 as they are
//!   2 or 3 │ frame │ frame │ ...                         the former format, with the right lengths
//!                                                        and sums
//!   4 or 5 │ count │ edit │ ... │ records                a bolt file of these records
//!                    edit: place (3) │ byte
//! ```

use std::fs;
use std::io::Cursor;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clearlane_engine::bolt::fuzzing::{make_foreign, put_sums_right};
use clearlane_engine::{Engine, Image, MemoryEngine};
use clearlane_server::snapshot_file::{self, SnapshotWriter, former};
use sha2::{Digest as _, Sha256};

use super::snapshot_stream::put_frames;
use super::store_records;
use crate::input::Input;

const ALIGNMENT: usize = 512;
const LENGTH_BYTES: usize = 8;
const CHECKSUM_BYTES: usize = 32;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let form = input.choice(6);
    let checks_sum = form % 2 == 1;
    match form {
        0 | 1 => restore(input.rest(), checks_sum),
        2 | 3 => restore(&former_file(input, checks_sum), checks_sum),
        _ => restore(&bolt_file(input, checks_sum), checks_sum),
    };
}

/// Whether it was taken.
pub fn restore(file: &[u8], checks_sum: bool) -> bool {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let is_bolt = snapshot_file::is_bolt(&mut Cursor::new(file)).expect("memory can be read");
    let outcome = match is_bolt {
        true => restore_bolt(file, &engine, checks_sum),
        false => former::restore(&mut Cursor::new(file), Arc::clone(&engine), checks_sum),
    };
    match outcome {
        Ok(()) => store_records::start(engine),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return false;
        }
    }
    true
}

fn restore_bolt(
    file: &[u8],
    engine: &Arc<dyn Engine>,
    checks_sum: bool,
) -> clearlane_server::Result<()> {
    let path = temporary_path();
    fs::write(&path, file).expect("a temporary file can be written");
    let outcome = snapshot_file::restore(&path, engine, checks_sum);
    assert!(fs::read(&path).is_ok_and(|found| found == file), "the file was changed");
    fs::remove_file(&path).expect("it is there");
    outcome
}

fn temporary_path() -> PathBuf {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("clearlane-fuzz-{}-{number}", process::id()))
}

/// A file of the former format.
pub fn former_file(input: Input<'_>, has_sum: bool) -> Vec<u8> {
    let mut stream = Vec::new();
    put_frames(&mut stream, input);
    former_file_of(stream, has_sum)
}

/// A file of the former format with the stream of a store.
pub fn former_file_of(stream: Vec<u8>, has_sum: bool) -> Vec<u8> {
    let length = stream.len() as u64;
    let mut file = stream;
    let end = (file.len() + LENGTH_BYTES).next_multiple_of(ALIGNMENT);
    file.resize(end - LENGTH_BYTES, 0);
    file.extend_from_slice(&length.to_be_bytes());
    if has_sum {
        put_sum(&mut file);
    }
    file
}

fn put_sum(file: &mut Vec<u8>) {
    let sum = Sha256::digest(&file);
    file.extend_from_slice(&sum);
}

/// With edits, its own sums are put right, or are gone.
fn bolt_file(mut input: Input<'_>, has_sum: bool) -> Vec<u8> {
    let count = input.byte();
    let edits: Vec<_> = (0..count / 2)
        .map(|_| {
            let place = u32::from_be_bytes([0, input.byte(), input.byte(), input.byte()]);
            (place as usize, input.byte())
        })
        .collect();
    let mut file = saved(&*store_records::filled(input));
    file.truncate(file.len() - CHECKSUM_BYTES);
    for (place, byte) in edits {
        if let Some(there) = file.get_mut(place) {
            *there = byte;
        }
    }
    match count % 2 {
        0 => put_sums_right(&mut file),
        _ => make_foreign(&mut file),
    }
    if has_sum {
        put_sum(&mut file);
    }
    file
}

/// A snapshot of the store, as a client saves it; empty if a bolt file cannot have its records.
pub fn saved(engine: &dyn Engine) -> Vec<u8> {
    let snapshot = engine.snapshot().expect("memory can be read");
    let Ok(image) = Image::of_records(&*snapshot, &std::env::temp_dir()) else {
        return vec![0; CHECKSUM_BYTES];
    };
    let mut writer = SnapshotWriter::new(image);
    let next = || writer.next_chunk().expect("the file was just made");
    std::iter::from_fn(next).collect::<Vec<_>>().concat()
}
