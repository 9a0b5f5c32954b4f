//! How do other members' connections come in? Plainly, or after a handshake in a task of its own.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc::{self, Sender};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::listen::{self, Listener, Speech, Stream, Waiting};

/// So long nobody is accepted when the last attempt has failed.
const PAUSE: Duration = Duration::from_millis(10);

/// A connection of another member.
pub(super) struct Connection(Box<dyn Stream>);

/// Those that come in on one address, once they may.
pub(super) fn connections(
    listener: Listener,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    let listener = listener.into_waiting()?;
    let (ready, connections) = mpsc::channel(1);
    tokio::spawn(accept(listener, ready));
    Ok(ReceiverStream::new(connections))
}

async fn accept(listener: Waiting, ready: Sender<io::Result<Connection>>) {
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((connection, speech)) => {
                has_failed = false;
                tokio::spawn(greet(connection, speech, ready.clone()));
            }
            // Too many files are open, or the other has gone: the next one may do.
            Err(error) => {
                if !has_failed {
                    tracing::warn!(%error, "failed to accept a member's connection");
                }
                has_failed = true;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn greet(
    connection: listen::Connection,
    speech: Speech,
    ready: Sender<io::Result<Connection>>,
) {
    let greeted = match connection {
        // A connection that is closed already makes these fail.
        listen::Connection::Tcp(connection) => {
            let Ok(remote) = connection.peer_addr() else { return };
            if connection.set_nodelay(true).is_err() {
                return;
            }
            let Ok(connection) = TcpStream::from_std(connection) else { return };
            secured(connection, speech, Some(remote)).await
        }
        listen::Connection::Unix(connection) => {
            let Ok(connection) = UnixStream::from_std(connection) else { return };
            secured(connection, speech, None).await
        }
    };
    if let Some(connection) = greeted {
        // If nobody takes it, this member is about to end.
        let _ = ready.send(Ok(connection)).await;
    }
}

/// After the handshake, if there is to be one. A port of members has one kind of connections.
async fn secured<S: Stream + 'static>(
    stream: S,
    speech: Speech,
    remote: Option<SocketAddr>,
) -> Option<Connection> {
    let stream: Box<dyn Stream> = match speech {
        Speech::Plain => Box::new(stream),
        Speech::Secure(tls) | Speech::Either(tls) => Box::new(tls.greet(stream, remote).await?.0),
    };
    Some(Connection(stream))
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
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

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
