//! How do bytes come in and go out? What a server of etcd's API needs below gRPC and HTTP.
//!
//! | module | what it does |
//! |---|---|
//! | [`listener`] | ports and sockets, and whether a connection on them speaks TLS |
//! | [`tls`] | certificates, which clients may connect, and connections to others |
//! | [`bulk_turn`] | large work of a network thread, a piece at a time |
//! | [`coalescing_writer`] | many small writes become few large ones |
//! | [`connection_limit`] | how many connections may be open |
//! | [`handshake_thread`] | TLS handshakes, apart from the threads that answer requests |
//! | [`movable_socket`] | a socket that goes from one runtime to another |
//! | [`log_limiter`] | lines of the log that a client can cause |
//! | [`ping_limiter`] | closes connections of clients that ping too often, or mean no good |
//! | [`free_ports`](free_ports()) | ports for servers that tools and tests start |
//! | [`sched`] | which threads get a core first |

pub mod bulk_turn;
pub mod coalescing_writer;
pub mod connection_limit;
pub mod departed_client;
mod frame_scanner;
mod free_ports;
pub mod handshake_thread;
mod head_timer;
pub mod listener;
pub mod log_limiter;
pub mod movable_socket;
pub mod ping_limiter;
pub mod sched;
pub mod tls;

pub use free_ports::free_ports;

/// What a client may send before the tasks of its streams have read it: on a connection, and on one
/// of its streams.
///
/// h2 takes small frames for an attack if too many lie unread: each counts what it lacks to 256
/// bytes, and all together may count half of the connection's window. So these are 64,000 frames of
/// a few bytes. The window also bounds the memory that the unread data of a connection take.
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
