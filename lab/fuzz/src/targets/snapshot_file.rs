//! A saved snapshot that is restored. The restore rejects it, or creates a store from it; a
//! member's start on this store must not panic.
//!
//! ```text
//!   0 or 1 │ bytes                                    the file as it is
//!   2 or 3 │ count │ edit │ ... │ records             a bolt file of these records
//!                    edit: place (3) │ byte           records: see `store_records`
//! ```
//!
//! If the first number is odd, the restore checks the checksum at the end of the file. With 3, the
//! target first appends the correct checksum.
//!
//! Half of `count`, rounded down, is the number of edits. If `count` is even, the checksums of the
//! pages are corrected after the edits. If it is odd, the file loses its page checksums: its
//! meta pages then name no table of checksums.

use std::fs;
use std::path::PathBuf;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clearlane_engine::bolt::fuzzing::{make_foreign, put_sums_right};
use clearlane_engine::{Engine, Image, MemoryEngine};
use clearlane_server::snapshot::snapshot_file::{self, SnapshotWriter};
use sha2::{Digest as _, Sha256};

use super::store_records;
use crate::input::Input;

const CHECKSUM_BYTES: usize = 32;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let form = input.choice(4);
    let checks_sum = form % 2 == 1;
    match form {
        0 | 1 => restore(input.rest(), checks_sum),
        _ => restore(&bolt_file(input, checks_sum), checks_sum),
    };
}

/// Restores the file, and starts a member on the store. Returns whether the restore has accepted
/// the file.
pub fn restore(file: &[u8], checks_sum: bool) -> bool {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    match restore_into(&engine, file, checks_sum) {
        Ok(()) => store_records::start(engine),
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return false;
        }
    }
    true
}

fn restore_into(
    engine: &Arc<dyn Engine>,
    file: &[u8],
    checks_sum: bool,
) -> clearlane_replica::Result<()> {
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

fn put_sum(file: &mut Vec<u8>) {
    let sum = Sha256::digest(&file);
    file.extend_from_slice(&sum);
}

/// Returns a bolt file of the records, after the edits. If `has_sum` is true, the file ends with
/// its SHA-256 checksum, as a saved snapshot does.
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

/// Returns a snapshot of the store in the form that a client saves. If a bolt file cannot hold the
/// store's records, returns an empty file with a checksum of 32 zeros.
pub fn saved(engine: &dyn Engine) -> Vec<u8> {
    let snapshot = engine.snapshot().expect("memory can be read");
    let Ok(image) = Image::of_records(&*snapshot, &std::env::temp_dir()) else {
        return vec![0; CHECKSUM_BYTES];
    };
    let mut writer = SnapshotWriter::new(image);
    let next = || writer.next_chunk().expect("the file was just made");
    std::iter::from_fn(next).collect::<Vec<_>>().concat()
}
