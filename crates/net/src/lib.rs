//! How do bytes come in and go out? What a server of etcd's API needs below gRPC and HTTP.
//!
//! | module | what it does |
//! |---|---|
//! | [`listener`] | ports and sockets, and whether a connection on them speaks TLS |
//! | [`tls`] | certificates, which clients may connect, and connections to others |
//! | [`bulk_turn`] | large work of a network thread, a piece at a time |
//! | [`coalescing_writer`] | many small writes become few large ones |
//! | [`ping_limiter`] | closes connections of clients that ping too often, as gRPC servers do |
//! | [`sched`] | which threads get a core first |

pub mod bulk_turn;
pub mod coalescing_writer;
pub mod listener;
pub mod ping_limiter;
pub mod sched;
pub mod tls;

/// What a client may send before the tasks of its streams have read it: on a connection, and on one
/// of its streams.
///
/// h2 takes small frames for an attack if too many lie unread: each counts what it lacks to 256
/// bytes, and all together may count half of the connection's window. So these are 64,000 frames of
/// a few bytes. The window also bounds the memory that the unread data of a connection take.
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
