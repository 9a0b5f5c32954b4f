//! A call of the JSON gateway. JSON is converted to a message, and the message to JSON. If this
//! JSON is converted again, the result must be the same message. If the RPC has a request stream,
//! the text is first split into JSON objects.
//!
//! ```text
//!   number of the RPC (1) │ length of pieces (1) │ text
//! ```

use clearlane_rpc::decoders;

use crate::input::{Input, pieces};

const BYTES_MAX: usize = 4 << 20;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let mut methods = decoders::gateway_methods();
    let chosen = input.choice(methods.len());
    let method = methods.nth(chosen).expect("chosen among them");
    let (piece, text) = (input.byte(), input.rest());
    if method.is_client_streaming() {
        let cut = decoders::split_json(pieces(text, piece), BYTES_MAX);
        for object in cut.into_iter().flatten() {
            translate(&method.input(), &object);
        }
    } else {
        translate(&method.input(), text);
    }
}

fn translate(kind: &prost_reflect::MessageDescriptor, text: &[u8]) {
    let Ok(message) = decoders::json_to_message(kind, text) else { return };
    let written = decoders::message_to_json(kind, message.clone()).expect("it was just made");
    let again = decoders::json_to_message(kind, &written).expect("it was just written");
    let text = String::from_utf8_lossy(&written);
    assert_eq!(again, message, "{} wrote {text}", kind.full_name());
}
