//! How do other members' connections come in? Plainly, or after a handshake in a task of its own.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, Sender};
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::tls::Incoming;

/// So long nobody is accepted when the last attempt has failed.
const PAUSE: Duration = Duration::from_millis(10);

/// A connection of another member.
#[derive(Debug)]
pub(super) enum Connection {
    Plain(TcpStream),
    Secure(Box<TlsStream<TcpStream>>),
}

/// Those that come in on one address, once they may.
pub(super) fn connections(
    listener: std::net::TcpListener,
    tls: Option<Arc<Incoming>>,
) -> io::Result<ReceiverStream<io::Result<Connection>>> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let (ready, connections) = mpsc::channel(1);
    tokio::spawn(accept(listener, tls, ready));
    Ok(ReceiverStream::new(connections))
}

async fn accept(
    listener: TcpListener,
    tls: Option<Arc<Incoming>>,
    ready: Sender<io::Result<Connection>>,
) {
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                has_failed = false;
                tokio::spawn(greet(connection, tls.clone(), ready.clone()));
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
    connection: TcpStream,
    tls: Option<Arc<Incoming>>,
    ready: Sender<io::Result<Connection>>,
) {
    // Who has gone already makes these fail.
    let Ok(remote) = connection.peer_addr() else { return };
    if connection.set_nodelay(true).is_err() {
        return;
    }
    let connection = match tls {
        None => Connection::Plain(connection),
        Some(tls) => match tls.greet(connection, Some(remote)).await {
            Some((stream, _)) => Connection::Secure(Box::new(stream)),
            None => return,
        },
    };
    // If nobody takes it, this member is about to end.
    let _ = ready.send(Ok(connection)).await;
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Connection::Secure(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Connection::Secure(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Connection::Secure(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Connection::Plain(stream) => stream.is_write_vectored(),
            Connection::Secure(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_flush(context),
            Connection::Secure(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Secure(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
