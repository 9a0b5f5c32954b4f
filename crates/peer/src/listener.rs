//! How do other members' connections come in? Plainly, or after a handshake in a task of its own.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use clearlane_net::listener::{self, AsyncListener, ByteStream, Listener, TransportSecurity};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);

pub(super) struct PeerConnection(Box<dyn ByteStream>);

/// After their handshakes.
pub(super) fn accept_connections(
    listener: Listener,
) -> io::Result<ReceiverStream<io::Result<PeerConnection>>> {
    let listener = listener.into_async()?;
    let (ready, connections) = mpsc::channel(1);
    tokio::spawn(accept_loop(listener, ready));
    Ok(ReceiverStream::new(connections))
}

async fn accept_loop(listener: AsyncListener, ready: Sender<io::Result<PeerConnection>>) {
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((connection, speech)) => {
                has_failed = false;
                tokio::spawn(accept_one(connection, speech, ready.clone()));
            }
            // Too many files are open, or the other has gone: the next one may do.
            Err(error) => {
                if !has_failed {
                    tracing::warn!(%error, "failed to accept a member's connection");
                }
                has_failed = true;
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn accept_one(
    connection: listener::Connection,
    speech: TransportSecurity,
    ready: Sender<io::Result<PeerConnection>>,
) {
    let greeted = match connection {
        // A connection that is closed already makes these fail.
        listener::Connection::Tcp(connection) => {
            let Ok(remote) = connection.peer_addr() else { return };
            if connection.set_nodelay(true).is_err() {
                return;
            }
            let Ok(connection) = TcpStream::from_std(connection) else { return };
            tls_handshake(connection, speech, Some(remote)).await
        }
        listener::Connection::Unix(connection) => {
            let Ok(connection) = UnixStream::from_std(connection) else { return };
            tls_handshake(connection, speech, None).await
        }
    };
    if let Some(connection) = greeted {
        // If no task takes it, this member is about to end.
        let _ = ready.send(Ok(connection)).await;
    }
}

/// Without TLS, the connection as it is. A port of members has one kind of connections.
async fn tls_handshake<S: ByteStream + 'static>(
    stream: S,
    speech: TransportSecurity,
    remote: Option<SocketAddr>,
) -> Option<PeerConnection> {
    let stream: Box<dyn ByteStream> = match speech {
        TransportSecurity::Plain => Box::new(stream),
        TransportSecurity::Tls(tls) | TransportSecurity::PlainOrTls(tls) => {
            Box::new(tls.accept(stream, remote).await?.0)
        }
    };
    Some(PeerConnection(stream))
}

impl AsyncRead for PeerConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for PeerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

impl Connected for PeerConnection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
