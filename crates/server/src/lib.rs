//! What does the wire say? gRPC in front of a member, and the threads that carry it.
//!
//! A service here takes a request apart, asks the [member](clearlane_member::Handle), and puts the
//! answer on the wire. What a request means is decided below.
//!
//! | module | its question |
//! |---|---|
//! | [`serve`] | which thread has which connection? |
//! | [`data`] | where does a member lie on disk? |
//! | [`front`] | who answers this request? |
//! | [`kv`] | Range, Put, DeleteRange, Txn, Compact |
//! | [`lease`] | LeaseGrant, LeaseRevoke, LeaseKeepAlive, LeaseTimeToLive, LeaseLeases |
//! | [`status`] | which code goes with which words? |

pub mod data;
pub mod front;
pub mod kv;
pub mod lease;
mod one_piece;
pub mod serve;
pub mod status;
