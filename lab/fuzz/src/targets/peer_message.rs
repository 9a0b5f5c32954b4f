//! A message of raft from another member: read, described for the log, and written again.

use clearlane_raft::Message;

pub fn target(data: &[u8]) {
    let Ok(message) = Message::decode(data) else { return };
    let again = Message::decode(&message.encode()).expect("what was written can be read");
    // Fields that raft does not know come back in any order.
    assert_eq!(again.to_string(), message.to_string());
    assert_eq!(again.proposed_entries(), message.proposed_entries());
    let _ = (message.snapshot_position(), message.bytes());
}
