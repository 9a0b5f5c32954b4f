//! The body of a gRPC request: frames, perhaps compressed, and the headers that go with it.
//!
//! ```text
//!   flags (1) │ length of pieces (1) │ grpc-timeout │ grpc-encoding │ body
//! ```

use bytes::Bytes;
use clearlane_rpc::decoders;

use crate::input::{Input, pieces};

/// Small, so that the fuzzer gets there.
const LIMIT: usize = 4 << 10;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let (flags, piece) = (input.byte(), input.byte());
    let _ = decoders::check_headers(input.string(), input.string());
    let body = Bytes::copy_from_slice(input.rest());
    if let Ok(message) = decoders::unary_message(body.clone(), LIMIT, flags & 1 != 0) {
        assert!(message.len() <= LIMIT);
    }
    let pieces = pieces(&body, piece).map(Bytes::copy_from_slice).collect();
    if let Ok(frames) = decoders::decompressed_body(pieces, LIMIT) {
        // What is whole was checked, so a client cannot make it much longer.
        assert!(frames.len() <= body.len() / 20 * (LIMIT + 5) + body.len() + LIMIT);
    }
}
