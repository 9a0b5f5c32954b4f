//! The body of a gRPC request: frames, which may be compressed, and the headers that describe them.
//!
//! ```text
//!   flags (1) │ length of pieces (1) │ grpc-timeout │ grpc-encoding │ body
//! ```

use bytes::Bytes;
use clearlane_rpc::decoders;

use crate::input::{Input, pieces};

/// The limit is small, so that the fuzzer reaches it.
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
        // Each complete frame was checked against the limit. So the limit and the received body
        // determine how long the decompressed body can be.
        assert!(frames.len() <= body.len() / 20 * (LIMIT + 5) + body.len() + LIMIT);
    }
}
