//! A snapshot from another member. The receiver rejects it, or creates a store from it; a member's
//! start on this store must not panic.
//!
//! ```text
//!   0 │ length of pieces (1) │ bytes                        the stream as it is
//!   1 │ length of pieces │ message │ frame │ frame │ ...    frames that get correct checksums
//!                            frame: kind (1) │ body (2 + n)
//! ```

use std::sync::Arc;

use clearlane_replica::raft_snapshot::{MemoryStoreDir, SnapshotReceiver, StoreDir};

use super::store_records;
use crate::input::{Input, pieces};

const MAGIC: &[u8] = b"clearlane-copy..\x01";
const STREAM_MAGIC: &[u8] = b"clearlane-stream\x02";
pub(super) const FRAME_RECORDS: u8 = 1;
pub(super) const FRAME_TRAILER: u8 = 2;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let (form, piece) = (input.choice(2), input.byte());
    if form == 0 {
        receive(input.rest(), piece);
    } else {
        receive(&with_sums(input), piece);
    }
}

/// Receives the stream in pieces, and starts a member on the store. Returns whether the receiver
/// has accepted the stream.
pub fn receive(stream: &[u8], piece: u8) -> bool {
    let store_dir = Arc::new(MemoryStoreDir::default());
    let mut receiver = SnapshotReceiver::new(Arc::clone(&store_dir) as Arc<dyn StoreDir>);
    for piece in pieces(stream, piece) {
        if receiver.feed(piece).is_err() {
            assert!(receiver.feed(b"more").is_err(), "more is taken behind an error");
            break;
        }
    }
    let Ok(received) = receiver.finish() else { return false };
    let engine = store_dir.promote(received.index).expect("what was received is kept");
    store_records::start(engine);
    true
}

fn with_sums(mut input: Input<'_>) -> Vec<u8> {
    let mut stream = MAGIC.to_vec();
    let message = input.string();
    stream.extend_from_slice(&(message.len() as u32).to_be_bytes());
    stream.extend_from_slice(message);
    let sum = crc32c::crc32c(&stream);
    stream.extend_from_slice(&sum.to_be_bytes());
    put_frames(&mut stream, input);
    stream
}

/// Appends the engine's part of the stream: its magic number, and the frames of the input with
/// correct checksums. If the body of a trailer is empty, a correct trailer for the preceding frames
/// takes its place.
pub(super) fn put_frames(stream: &mut Vec<u8>, mut input: Input<'_>) {
    stream.extend_from_slice(STREAM_MAGIC);
    let (mut records, mut sum_of_sums) = (0, 0);
    while !input.is_empty() {
        let (kind, body) = (input.byte(), input.string());
        let trailer = [&u64::to_be_bytes(records)[..], &u32::to_be_bytes(sum_of_sums)].concat();
        let body = if kind == FRAME_TRAILER && body.is_empty() { &trailer } else { body };
        let sum = put_frame(stream, kind, body);
        if kind == FRAME_RECORDS {
            records += count_records(body);
            sum_of_sums = crc32c::crc32c_append(sum_of_sums, &sum.to_be_bytes());
        }
    }
}

/// Appends a frame and returns its checksum.
fn put_frame(stream: &mut Vec<u8>, kind: u8, body: &[u8]) -> u32 {
    let start = stream.len();
    stream.push(kind);
    stream.extend_from_slice(&(body.len() as u32).to_be_bytes());
    let head_sum = crc32c::crc32c(&stream[start..]);
    stream.extend_from_slice(&head_sum.to_be_bytes());
    stream.extend_from_slice(body);
    let sum = crc32c::crc32c(&stream[start..]);
    stream.extend_from_slice(&sum.to_be_bytes());
    sum
}

/// Returns the number of complete records in the body of a frame. A record has a bucket (1), two
/// lengths (4 each), a key and a value.
fn count_records(mut body: &[u8]) -> u64 {
    let mut count = 0;
    while let Some((head, rest)) = body.split_first_chunk::<9>() {
        let length = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|byte| head[at + byte]));
        let Some(next) = rest.get(length(1) as usize + length(5) as usize..) else { break };
        (body, count) = (next, count + 1);
    }
    count
}
