//! What does the wire say? gRPC in front of a member, and the threads that carry it.
//!
//! A service here takes a request apart, asks the [member](clearlane_member::Handle), and puts the
//! answer on the wire. What a request means is decided below.
//!
//! | module | its question |
//! |---|---|
//! | [`serve`] | which thread has which connection? |
//! | [`peer`] | what do members say to each other? |
//! | [`front`] | who answers this request? |
//! | [`data`] | where does a member lie on disk, and how does it begin? |
//! | [`kv`] | Range, Put, DeleteRange, Txn, Compact |
//! | [`caller`] | may this member answer this caller at all? |
//! | [`maintenance`] | alarms, sizes, sums, copies; who leads |
//! | [`health`] | is this server up? |
//! | [`lease`] | LeaseGrant, LeaseRevoke, LeaseKeepAlive, LeaseTimeToLive, LeaseLeases |
//! | [`http`] | version, health, metrics, and the API in JSON |
//! | [`metrics`] | how is it doing, in numbers? |
//! | [`watch`] | watchers, and how their events reach a socket |
//! | [`succession`], [`lock`], [`election`] | who is next? |
//! | [`cluster`] | who is a member? |
//! | [`status`] | which code goes with which words? |

pub mod cluster;
pub mod data;
pub mod front;
pub mod http;
pub mod kv;
pub mod caller;
pub mod health;
pub mod maintenance;
pub mod lease;
pub mod metrics;
mod one_piece;
pub mod peer;
pub mod serve;
pub mod status;
pub mod watch;
pub mod succession;
pub mod lock;
pub mod election;
