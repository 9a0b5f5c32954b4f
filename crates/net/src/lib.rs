//! Network connections: everything that Clearlane needs below gRPC and HTTP.
//!
//! | module | what it does |
//! |---|---|
//! | [`listener`] | binds ports and sockets; decides whether a connection uses TLS |
//! | [`tls`] | certificates, checks of clients, connections to other members |
//! | [`bulk_turn`] | divides large work of a network thread into turns |
//! | [`coalescing_writer`] | turns many small writes into few large ones |
//! | [`connection_limit`] | limits the number of open connections |
//! | [`departed_client`] | ends the connection of an HTTP/1.1 client that has left |
//! | [`handshake_thread`] | does TLS handshakes on a thread that serves no requests |
//! | [`movable_socket`] | a socket that can move from one runtime to another |
//! | [`log_limiter`] | limits the log lines that clients can cause |
//! | [`ping_limiter`] | closes connections of clients that ping too often or misbehave |
//! | [`free_ports`](free_ports()) | finds ports for servers that tools and tests start |
//! | [`sched`] | decides which threads get a core first |

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

/// Window of a connection between members: the number of bytes that the other end may send before
/// the tasks of the connection's streams have read them. The client port has its own window.
///
/// If there are too many small unread frames, h2 treats them as an attack. Each frame counts as 256
/// bytes minus its length, and all frames of a connection together may count up to half of this
/// window. So about 65,000 frames of a few bytes may be unread. The window also limits the memory
/// for the unread data of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
