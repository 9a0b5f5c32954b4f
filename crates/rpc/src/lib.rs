//! What does the wire say? gRPC services, the JSON gateway and HTTP pages in front of a member.
//!
//! | module | what it does |
//! |---|---|
//! | [`serve`] | network threads: which has which connection |
//! | `router` | one request: gRPC, gateway or HTTP |
//! | `kv`, `unary`, `range_body`, `response_body`, `gzip` | KV's calls, from bytes to bytes |
//! | `context` | one call: deadline, trace, and the calls of KV |
//! | `interceptors` | may this member answer this call at all? |
//! | `kv_service`, [`watch`], `lease`, [`cluster`], [`maintenance`], [`auth`] | services |
//! | `lock`, `election`, `lock_queue` | etcd's concurrency services |
//! | `health` | gRPC's health service |
//! | [`http`] | version, health, metrics, and the API in JSON |
//! | [`metrics`] | the metrics page |
//! | `status` | which gRPC code goes with which error |

pub mod auth;
mod client_info;
pub mod cluster;
mod context;
mod election;
mod grpc_frame;
mod gzip;
mod gateway;
mod health;
pub mod http;
mod interceptors;
mod kv;
mod kv_service;
mod lease;
mod lock;
mod lock_queue;
pub mod maintenance;
pub mod metrics;
mod range_body;
mod response_body;
mod router;
pub mod serve;
mod slow_request;
mod status;
mod unary;
pub mod watch;
