//! A raft message from another member. The target reads it, describes it as for the server's log,
//! and writes it again.

use clearlane_raft::Message;

pub fn target(data: &[u8]) {
    let Ok(message) = Message::decode(data) else { return };
    let again = Message::decode(&message.encode()).expect("what was written can be read");
    // Fields that are unknown to raft may be written in any order. So the messages are compared as
    // text.
    assert_eq!(again.to_string(), message.to_string());
    assert_eq!(again.proposed_entries(), message.proposed_entries());
    let _ = (message.snapshot_position(), message.bytes());
}
