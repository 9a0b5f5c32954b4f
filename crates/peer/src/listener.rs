//! How do other members' connections come in? Plainly, or after a handshake, each in a task of its
//! own.
//!
//! Handshakes are done on a [thread of their own](clearlane_net::handshake_thread): on the raft
//! loop, which serves the connections, a storm of them would delay heartbeats. What a client of
//! this port may open and how long it may take is bounded as on the port for clients, with bounds
//! that are not settable.

use std::io;
use std::time::Duration;

use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::connection_limit::ConnectionLimit;
use clearlane_net::handshake_thread::{
    ConnectionQueue, EstablishedConnection, EstablishedStream, HandshakeConfig, IncomingConnection,
};
use clearlane_net::listener::{AsyncListener, ByteStream, Connection, Listener};
use clearlane_net::ping_limiter::PingLimiter;
use clearlane_proto::peerpb::peer_server::{Peer, PeerServer};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::CONNECTION_TIMEOUT;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Each other member has three, and some more while it starts.
pub const CONNECTIONS_MAX: usize = 128;
const PENDING_HANDSHAKES_MAX: usize = CONNECTIONS_MAX / 2;
const WAITING_HANDSHAKES_MAX: usize = CONNECTIONS_MAX / 4;
/// Of a connection. A call of a member is forwarded as one, so these are many clients.
const STREAMS_MAX: u32 = 10_000;
/// The heads of members' calls have some hundred bytes, and their addresses.
const REQUEST_HEAD_BYTES_MAX: u32 = 64 << 10;
/// Members send none beyond HTTP/2's own, which hyper limits.
const PING_MIN_INTERVAL: Duration = Duration::ZERO;

/// Where all connections of one member go. Must be called on the runtime that serves them.
#[derive(Clone)]
pub(super) struct PeerConnections {
    limit: ConnectionLimit,
    queue: ConnectionQueue,
}

impl PeerConnections {
    pub(super) fn start<P: Peer>(
        service: PeerServer<P>,
        has_tls: bool,
    ) -> io::Result<PeerConnections> {
        let (established, mut connections) = mpsc::unbounded_channel();
        let config = HandshakeConfig {
            pending_max: PENDING_HANDSHAKES_MAX,
            waiting_max: WAITING_HANDSHAKES_MAX,
            first_byte_timeout: CONNECTION_TIMEOUT,
        };
        let queue = if has_tls {
            // The thread ends with the runtime, whose tasks have its queue.
            ConnectionQueue::with_tls(established, "peer-tls".to_owned(), config)?.0
        } else {
            ConnectionQueue::without_tls(established)
        };
        tokio::spawn(async move {
            let turns = BulkTurns::start();
            while let Some(connection) = connections.recv().await {
                tokio::spawn(serve_connection(connection, service.clone(), turns.clone()));
            }
        });
        let limit = ConnectionLimit::new("the peer port", CONNECTIONS_MAX);
        Ok(PeerConnections { limit, queue })
    }
}

/// Returns a future per listener, which the caller must run. They do not return.
pub(super) fn serve_all<P: Peer>(
    listeners: Vec<Listener>,
    service: PeerServer<P>,
) -> io::Result<Vec<impl Future<Output = ()> + Send>> {
    let addresses = listeners.iter().map(Listener::listen_address);
    let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
    let has_tls = addresses.iter().any(|address| address.is_secure);
    let listening = listeners.into_iter().map(Listener::into_async);
    let listening = listening.collect::<io::Result<Vec<_>>>()?;
    let connections = PeerConnections::start(service, has_tls)?;
    Ok(listening.into_iter().map(|listener| serve_peers(listener, connections.clone())).collect())
}

/// Does not return.
async fn serve_peers(listener: AsyncListener, connections: PeerConnections) {
    loop {
        let (connection, security) = listener.accept("a member's connection").await;
        let Some(permit) = connections.limit.admit() else { continue };
        connections.queue.add(IncomingConnection { connection, security, permit });
    }
}

/// Errors are the other member's business: it connects again.
async fn serve_connection<P: Peer>(
    connection: EstablishedConnection,
    service: PeerServer<P>,
    turns: BulkTurns,
) -> io::Result<()> {
    let EstablishedConnection { stream, permit: _counted, .. } = connection;
    let stream: Box<dyn ByteStream> = match stream {
        EstablishedStream::Plain(Connection::Tcp(stream)) => Box::new(TcpStream::from_std(stream)?),
        EstablishedStream::Plain(Connection::Unix(stream)) => {
            Box::new(UnixStream::from_std(stream)?)
        }
        EstablishedStream::Tls(mut stream, _) => {
            stream.get_mut().0.attach()?;
            stream
        }
    };
    let stream = PingLimiter::new(stream, PING_MIN_INTERVAL, CONNECTION_TIMEOUT, turns);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(REQUEST_HEAD_BYTES_MAX)
        .keep_alive_interval(CONNECTION_TIMEOUT)
        .keep_alive_timeout(CONNECTION_TIMEOUT);
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
    Ok(())
}
