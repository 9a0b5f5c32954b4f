//! The client port: Clearlane's gRPC services, JSON gateway and HTTP pages.
//!
//! | module | what it does |
//! |---|---|
//! | [`serve`], `stream_executor` | network threads, their connections, streams |
//! | `router` | finds the service for a request: gRPC, gateway or HTTP |
//! | `kv`, `unary`, `*_body`, `message_parts`, `grpc_frame`, `gzip` | the unary calls of KV |
//! | `read_ahead`, `request_turns`, `unread_body` | limits of the request bytes that are read |
//! | `context`, `interceptors`, `credentials` | one call: may it be served, and which user? |
//! | `client_info`, `slow_request` | the client in log lines; log lines about slow calls |
//! | `kv_service`, [`watch`], `lease`, [`cluster`], [`maintenance`], `auth`, `health` | services |
//! | `watch_permissions`, `snapshot` | permissions of watchers; a copy of the store |
//! | `lock`, `election`, `lock_queue` | etcd's concurrency services |
//! | [`http`], `gateway` | version, health, metrics, and the API in JSON |
//! | [`metrics`] | the metrics page |
//! | `status`, [`decoders`] | the gRPC code of each error; functions for fuzz targets |

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
pub mod health;
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
