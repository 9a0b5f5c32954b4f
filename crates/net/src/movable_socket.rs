//! A socket that can move from one runtime to another, with the TLS connection around it.
//!
//! A tokio socket belongs to the runtime that created it. While it moves between two runtimes it is
//! detached: a plain socket of the operating system, which must not be polled.

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::listener::Connection;

#[derive(Debug)]
pub struct MovableSocket(SocketState);

#[derive(Debug)]
enum SocketState {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// A detached socket. `None` only if the system failed to detach it or to attach it again.
    Detached(Option<Connection>),
}

impl MovableSocket {
    /// Attaches a connection to the current runtime. Must be called on a runtime.
    pub fn from_connection(connection: Connection) -> io::Result<MovableSocket> {
        Ok(MovableSocket(match connection {
            Connection::Tcp(connection) => SocketState::Tcp(TcpStream::from_std(connection)?),
            Connection::Unix(connection) => SocketState::Unix(UnixStream::from_std(connection)?),
        }))
    }

    pub fn detach(&mut self) -> io::Result<()> {
        let connection = MovableSocket(mem::replace(&mut self.0, SocketState::Detached(None)));
        self.0 = SocketState::Detached(Some(connection.into_connection()?));
        Ok(())
    }

    pub fn into_connection(self) -> io::Result<Connection> {
        match self.0 {
            SocketState::Tcp(stream) => Ok(Connection::Tcp(stream.into_std()?)),
            SocketState::Unix(stream) => Ok(Connection::Unix(stream.into_std()?)),
            SocketState::Detached(connection) => connection.ok_or_else(detached),
        }
    }

    /// Waits for the first byte of a TCP connection and returns it. The next read returns the byte
    /// again. Fails if the connection has ended, or if the socket is not an attached TCP socket.
    pub(crate) async fn peek(&self) -> io::Result<u8> {
        let SocketState::Tcp(stream) = &self.0 else { return Err(detached()) };
        let mut first = [0];
        match stream.peek(&mut first).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(first[0]),
        }
    }

    /// Attaches a detached socket to the current runtime. Must be called on that runtime.
    pub fn attach(&mut self) -> io::Result<()> {
        if let SocketState::Detached(connection) = &mut self.0 {
            let connection = connection.take().ok_or(io::ErrorKind::NotConnected)?;
            *self = MovableSocket::from_connection(connection)?;
        }
        Ok(())
    }
}

fn detached() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the socket belongs to no runtime")
}

impl AsyncRead for MovableSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            SocketState::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            SocketState::Detached(_) => Poll::Ready(Err(detached())),
        }
    }
}

impl AsyncWrite for MovableSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            SocketState::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            SocketState::Detached(_) => Poll::Ready(Err(detached())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            SocketState::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            SocketState::Detached(_) => Poll::Ready(Err(detached())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_flush(context),
            SocketState::Unix(stream) => Pin::new(stream).poll_flush(context),
            SocketState::Detached(_) => Poll::Ready(Err(detached())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            SocketState::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            SocketState::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            SocketState::Detached(_) => Poll::Ready(Err(detached())),
        }
    }
}
