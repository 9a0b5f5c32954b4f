//! How do other members' connections come in? Plainly, or after a handshake, each in a task of its
//! own.

use std::io;
use std::net::SocketAddr;

use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::listener::{AsyncListener, ByteStream, Connection, TransportSecurity};
use clearlane_proto::peerpb::peer_server::PeerServer;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpStream, UnixStream};

use super::CONNECTION_TIMEOUT;
use super::service::PeerService;

const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Does not return.
pub(super) async fn serve_peers(listener: AsyncListener, service: PeerServer<PeerService>) {
    loop {
        let (connection, security) = listener.accept("a member's connection").await;
        tokio::spawn(serve_connection(connection, security, service.clone()));
    }
}

/// Errors are the other member's business: it connects again.
async fn serve_connection(
    connection: Connection,
    security: TransportSecurity,
    service: PeerServer<PeerService>,
) -> io::Result<()> {
    match connection {
        Connection::Tcp(connection) => {
            let remote = connection.peer_addr()?;
            connection.set_nodelay(true)?;
            serve_stream(TcpStream::from_std(connection)?, security, Some(remote), service).await;
        }
        Connection::Unix(connection) => {
            serve_stream(UnixStream::from_std(connection)?, security, None, service).await;
        }
    }
    Ok(())
}

/// A port of members has connections with TLS, or connections without it.
async fn serve_stream<S: ByteStream + 'static>(
    stream: S,
    security: TransportSecurity,
    remote: Option<SocketAddr>,
    service: PeerServer<PeerService>,
) {
    let stream: Box<dyn ByteStream> = match security {
        TransportSecurity::Plain => Box::new(stream),
        TransportSecurity::Tls(tls) | TransportSecurity::PlainOrTls(tls) => {
            let Some((stream, _)) = tls.accept(stream, remote).await else { return };
            Box::new(stream)
        }
    };
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_concurrent_streams(None)
        .keep_alive_interval(CONNECTION_TIMEOUT)
        .keep_alive_timeout(CONNECTION_TIMEOUT);
    let _ = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
}
