//! The data of an entry of the raft log: a request, a change of members, or the context of such a
//! change.
//!
//! ```text
//!   0 (a request), 1 (a change of members) or 2 (a context) │ data
//! ```

use bytes::Bytes;
use clearlane_proto::Message as _;
use clearlane_proto::nested::decode_raft_request;
use clearlane_replica::apply::{self, Limits, describe};
use clearlane_replica::membership::MemberChange;
use clearlane_wal::{ConfChange, MemberContext};

use crate::input::Input;

pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    match input.choice(3) {
        0 => request(input.rest()),
        1 => conf_change(input.rest()),
        _ => member_context(input.rest()),
    }
}

fn request(data: &[u8]) {
    let Ok(request) = decode_raft_request(Bytes::copy_from_slice(data)) else { return };
    let encoded = Bytes::from(request.encode_to_vec());
    let again = decode_raft_request(encoded.clone()).expect("what was written can be read");
    assert!(again == request, "{again:?} was read from what {request:?} wrote");
    assert_eq!(again.encode_to_vec(), encoded);
    // The log of the server contains this description for a slow entry.
    let _ = describe::request(&request).to_string();
    let _ = apply::check(&request, &Limits::default());
}

fn conf_change(data: &[u8]) {
    let Ok(change) = ConfChange::decode(data) else { return };
    assert_eq!(ConfChange::decode(&change.encode()).as_ref(), Ok(&change));
    if let Ok(parsed) = MemberChange::parse(&change) {
        let again = parsed.to_conf_change(change.id);
        assert_eq!(MemberChange::parse(&again).as_ref(), Ok(&parsed));
    }
}

fn member_context(data: &[u8]) {
    let Ok(context) = MemberContext::decode(data) else { return };
    assert_eq!(MemberContext::decode(context.encode().as_bytes()).as_ref(), Ok(&context));
}
