//! A response through the JSON gateway. A message is converted to JSON, as a whole and in pieces.
//! Both results must be the same.
//!
//! ```text
//!   number of the RPC (1) │ length of pieces (1) │ the message's bytes
//! ```

use bytes::Bytes;
use clearlane_rpc::decoders;

use crate::input::{Input, pieces};

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut methods = decoders::gateway_methods();
    let chosen = input.choice(methods.len());
    let kind = methods.nth(chosen).expect("chosen among them").output();
    let (piece, bytes) = (input.byte(), input.rest());
    // Bytes that this program would not write may be rejected, but must not cause a panic.
    let _ = decoders::pieces_to_json(&kind, pieces(bytes, piece));
    let Ok(text) = decoders::message_to_json(&kind, Bytes::copy_from_slice(bytes)) else { return };
    let message = decoders::json_to_message(&kind, &text).expect("it was just written");
    let whole = decoders::message_to_json(&kind, message.clone()).expect("it was just read");
    if let Ok(cut) = decoders::pieces_to_json(&kind, pieces(&message, piece)) {
        assert_eq!(String::from_utf8_lossy(&cut), String::from_utf8_lossy(&whole));
    }
}
