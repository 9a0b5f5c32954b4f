//! The gRPC proxy: a coherent cache in front of any etcd cluster, and the TCP gateway.
//!
//! ```text
//!   clients ─▶ serve ─▶ router ─┬─ Range ─────────▶ cache ──▶ upstream: one watch per range
//!                               ├─ Watch ─────────▶ watch ──▶ cache, or upstream
//!                               ├─ LeaseKeepAlive ▶ lease ──▶ upstream: few streams
//!                               ├─ MemberList ────▶ cluster
//!                               └─ all other calls ▶ forward ▶ upstream: as they are
//! ```
//!
//! Read the modules in this order:
//!
//! | module | what it does |
//! |---|---|
//! | [`serve`], `router`, `services` | connections; who answers a request |
//! | `hops` | calls that pass proxies without end |
//! | [`identity`], [`login`] | the caller of one request; the user of a certificate |
//! | [`connection`] | what one connection has seen |
//! | [`upstream`] | the members: connections, health, and the choice among them |
//! | [`cache`] | copies of key ranges; why a read from a copy is linearizable |
//! | [`watch`] | the watches of clients |
//! | [`lease`] | keep-alives |
//! | `forward`, `seen_body` | calls that go upstream as they are |
//! | `frames`, `gzip` | messages of a body that are changed one by one; their compression |
//! | `small_buffers` | a codec and a queue for streams that are mostly idle |
//! | [`namespace`] | the part of the keys that clients see |
//! | [`cluster`], [`registration`] | MemberList; other proxies of the cluster |
//! | [`pages`], [`metrics`] | health and metrics over HTTP/1.1 |
//! | [`trace`] | timelines of requests and watch events |
//! | [`gateway`] | the TCP gateway, which shares nothing with the modules above |

pub mod serve;
mod router;
mod hops;
pub mod services;
pub mod identity;
pub mod login;
pub mod connection;
pub mod upstream;
pub mod cache;
pub mod watch;
pub mod lease;
mod forward;
mod seen_body;
mod frames;
mod gzip;
mod small_buffers;
pub mod namespace;
pub mod cluster;
pub mod registration;
pub mod pages;
pub mod metrics;
pub mod trace;
mod status;
pub mod gateway;
