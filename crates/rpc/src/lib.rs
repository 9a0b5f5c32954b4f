//! What does the wire say? gRPC services, the JSON gateway and HTTP pages in front of a member.
//!
//! | module | what it does |
//! |---|---|
//! | [`serve`], `stream_executor` | network threads: which has which connection; its streams |
//! | `router` | one request: gRPC, gateway or HTTP |
//! | `kv`, `unary`, `*_body`, `message_parts`, `grpc_frame`, `gzip` | KV, from bytes to bytes |
//! | `context`, `interceptors`, `credentials` | one call: may this member answer it? its user |
//! | `client_info`, `slow_request` | which client it is; what the log says of slow calls |
//! | `kv_service`, [`watch`], `lease`, [`cluster`], [`maintenance`], `auth`, `health` | services |
//! | `watch_permissions`, `snapshot` | watchers that a user may still have; a copy of the store |
//! | `lock`, `election`, `lock_queue` | etcd's concurrency services |
//! | [`http`], `gateway` | version, health, metrics, and the API in JSON |
//! | [`metrics`] | the metrics page |
//! | `status`, [`decoders`] | which gRPC code an error has; what fuzz targets call |

mod auth;
mod client_info;
pub mod cluster;
mod context;
mod credentials;
pub mod decoders;
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
mod message_parts;
pub mod metrics;
mod range_body;
mod read_ahead;
mod request_turns;
mod response_body;
mod router;
pub mod serve;
mod slow_request;
mod snapshot;
mod status;
mod stream_executor;
mod txn_body;
mod unary;
mod unread_body;
pub mod watch;
mod watch_permissions;
