//! Accepts connections of other members. Each connection is served by a separate task, after its
//! TLS handshake if it has one.
//!
//! Handshakes run on a [separate thread](clearlane_net::handshake_thread). The raft loop's thread
//! serves the connections, and many handshakes there would delay heartbeats. The numbers of
//! connections and of handshakes, and the time for the head of a call, are limited as on the client
//! port, but these limits cannot be configured.

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
use clearlane_net::tls::ConnectionRules;
use clearlane_proto::peerpb::peer_server::{Peer, PeerServer};
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;

use super::CONNECTION_TIMEOUT;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Maximum number of connections. Each other member opens up to three connections, and some more
/// while it starts.
pub const CONNECTIONS_MAX: usize = 128;
const PENDING_HANDSHAKES_MAX: usize = CONNECTIONS_MAX / 2;
const WAITING_HANDSHAKES_MAX: usize = CONNECTIONS_MAX / 4;
/// Maximum number of open streams of a connection. A client's call that another member forwards to
/// this member takes one stream, so the number must be large enough for many clients.
const STREAMS_MAX: u32 = 10_000;
/// Maximum size of a call's head in bytes. The head of a member's call has a few hundred bytes,
/// plus the peer URLs of the member.
const REQUEST_HEAD_BYTES_MAX: u32 = 64 << 10;
/// Minimum time between two HTTP/2 pings. Zero means that pings are not limited: the only HTTP/2
/// pings of members are the pings that hyper sends, and hyper limits them.
const PING_MIN_INTERVAL: Duration = Duration::ZERO;

/// Takes the accepted connections of all peer listeners of this member.
/// [`start`](PeerConnections::start) must be called on the runtime that serves the connections.
#[derive(Clone)]
pub(super) struct PeerConnections {
    limit: ConnectionLimit,
    queue: ConnectionQueue,
    rules: ConnectionRules,
}

impl PeerConnections {
    pub(super) fn start<P: Peer>(
        service: PeerServer<P>,
        has_tls: bool,
        rules: ConnectionRules,
    ) -> io::Result<PeerConnections> {
        let (established, mut connections) = mpsc::unbounded_channel();
        let config = HandshakeConfig {
            pending_max: PENDING_HANDSHAKES_MAX,
            waiting_max: WAITING_HANDSHAKES_MAX,
            first_byte_timeout: CONNECTION_TIMEOUT,
        };
        let queue = if has_tls {
            // The handshake thread ends with the runtime, because only tasks of the runtime hold
            // the thread's queue.
            ConnectionQueue::with_tls(established, "peer-tls".to_owned(), config)?.0
        } else {
            ConnectionQueue::without_tls(established)
        };
        tokio::spawn(async move {
            let turns = BulkTurns::start();
            while let Some(connection) = connections.recv().await {
                tokio::spawn(serve_connection(connection, service.clone(), turns.clone(), rules));
            }
        });
        let limit = ConnectionLimit::new("the peer port", CONNECTIONS_MAX);
        Ok(PeerConnections { limit, queue, rules })
    }
}

/// Returns one future for each listener. The caller must run these futures, which never complete.
/// Fails if a listener cannot be registered with the runtime, or if the handshake thread cannot
/// start.
pub(super) fn serve_all<P: Peer>(
    listeners: Vec<Listener>,
    service: PeerServer<P>,
    rules: ConnectionRules,
) -> io::Result<Vec<impl Future<Output = ()> + Send>> {
    let addresses = listeners.iter().map(Listener::listen_address);
    let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
    let has_tls = addresses.iter().any(|address| address.is_secure);
    let listening = listeners.into_iter().map(Listener::into_async);
    let listening = listening.collect::<io::Result<Vec<_>>>()?;
    let connections = PeerConnections::start(service, has_tls, rules)?;
    Ok(listening.into_iter().map(|listener| serve_peers(listener, connections.clone())).collect())
}

/// Accepts connections. Does not return.
async fn serve_peers(listener: AsyncListener, connections: PeerConnections) {
    loop {
        let (connection, security) = listener.accept("a member's connection").await;
        let Some(permit) = connections.limit.admit() else { continue };
        if let Err(error) = connection.set_write_timeout(connections.rules.write_timeout) {
            tracing::debug!(%error, "a member's connection has no write time-out");
        }
        connections.queue.add(IncomingConnection { connection, security, permit });
    }
}

/// Serves one connection. Errors of the connection are ignored: the other member connects again.
async fn serve_connection<P: Peer>(
    connection: EstablishedConnection,
    service: PeerServer<P>,
    turns: BulkTurns,
    rules: ConnectionRules,
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
        .keep_alive_interval(rules.read_timeout)
        .keep_alive_timeout(rules.read_timeout);
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
    Ok(())
}
