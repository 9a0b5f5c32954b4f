//! A saved snapshot that is restored: refused, or a store on which a member can start.
//!
//! ```text
//!   0 or 1 (is the sum checked?) │ bytes                 as they are
//!   2 or 3 │ frame │ frame │ ...                         with the right lengths and sums
//! ```

use std::io::Cursor;
use std::sync::Arc;

use clearlane_engine::{Engine, MemoryEngine};
use clearlane_server::snapshot_file;
use sha2::{Digest as _, Sha256};

use super::snapshot_stream::put_frames;
use super::store_records;
use crate::input::Input;

const ALIGNMENT: usize = 512;
const LENGTH_BYTES: usize = 8;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let form = input.choice(4);
    let checks_sum = form % 2 == 1;
    if form < 2 {
        restore(input.rest(), checks_sum);
    } else {
        restore(&whole_file(input, checks_sum), checks_sum);
    }
}

/// Whether it was taken.
pub fn restore(file: &[u8], checks_sum: bool) -> bool {
    let engine: Arc<dyn Engine> = Arc::new(MemoryEngine::new());
    let restored =
        snapshot_file::restore(&mut Cursor::new(file), Arc::clone(&engine), checks_sum).is_ok();
    if restored {
        store_records::start(engine);
    }
    restored
}

fn whole_file(input: Input<'_>, has_sum: bool) -> Vec<u8> {
    let mut file = Vec::new();
    put_frames(&mut file, input);
    let stream = file.len();
    file.resize((stream + LENGTH_BYTES).next_multiple_of(ALIGNMENT) - LENGTH_BYTES, 0);
    file.extend_from_slice(&(stream as u64).to_be_bytes());
    if has_sum {
        let sum = Sha256::digest(&file);
        file.extend_from_slice(&sum);
    }
    file
}
