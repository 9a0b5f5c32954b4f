//! What does the wire say? gRPC in front of a member, and the threads that carry it.
//!
//! A service here takes a request apart, asks the [member](clearlane_member::Server), and puts the
//! answer on the wire. What a request means is decided below. Two pages follow a request all the way
//! down and back: [the life of a Range](life_of_a_range) and [the life of a Put](life_of_a_put).
//!
//! | module | its question |
//! |---|---|
//! | [`serve`] | which thread has which connection? |
//! | [`listener`] | where do connections come from? |
//! | `doors` | through which doors does one come in? |
//! | [`front`] | who answers this request? |
//! | [`peer`] | what do members say to each other? |
//! | [`data`] | where does a member lie on disk, and how does it begin? |
//! | [`config`] | what does this member's owner want? flags, environment, config file |
//! | [`allocator`] | how long is memory kept that nobody uses? |
//! | [`run`] | how does the process begin and end? |
//! | [`logging`] | what does it say meanwhile? |
//! | [`tls`] | who is at the other end, and does anybody listen in? |
//! | [`tools`] | what can be done with the data of a member that does not run? |
//! | [`kv`] | Range, Put, DeleteRange, Txn, Compact |
//! | [`interceptors`] | may this member answer this caller at all? |
//! | [`maintenance`] | alarms, sizes, sums, copies; who leads |
//! | [`health`] | is this server up? |
//! | [`lease`] | LeaseGrant, LeaseRevoke, LeaseKeepAlive, LeaseTimeToLive, LeaseLeases |
//! | [`http`] | version, health, metrics, and the API in JSON |
//! | [`metrics`] | how is it doing, in numbers? |
//! | [`watch`] | watchers, and how their events reach a socket |
//! | [`cluster`] | who is a member? |
//! | [`lock_queue`], [`lock`], [`election`] | who is next? |
//! | [`auth`] | users and roles, on a server that asks for no password |
//! | [`corruption_check`] | who looks whether members differ, and when? |
//! | [`auto_compaction`] | what does a member do by itself? |
//! | [`status`] | which code goes with which words? |

pub mod allocator;
pub mod auth;
mod ping_limiter;
pub mod interceptors;
pub mod cluster;
pub mod config;
pub mod corruption_check;
pub mod data;
mod listeners;
pub mod election;
pub mod front;
pub mod health;
pub mod http;
pub mod kv;
pub mod lease;
pub mod life_of_a_put;
pub mod life_of_a_range;
pub mod listener;
pub mod lock;
pub mod logging;
pub mod maintenance;
pub mod metrics;
mod coalescing_writer;
pub mod peer;
pub mod run;
pub mod serve;
pub mod status;
pub mod lock_queue;
pub mod timeline;
pub mod tls;
pub mod tools;
pub mod auto_compaction;
pub mod watch;
