//! Ends the connection of an HTTP/1.1 client that leaves while its request is being served.
//!
//! hyper checks for the end of a connection only while the connection has no unread bytes. If a
//! client sends one byte after its request and then leaves, hyper does not notice. The client's
//! watch would stay forever, and so would its place in the queue for a lock. So this wrapper reads
//! ahead each time that hyper flushes:
//!
//! ```text
//!   hyper reads ◀── read ahead, about 4 KiB ◀── socket
//!   hyper flushes ── reads ahead: finds the end ──▶ an error after 5 s, unless hyper is done
//! ```
//!
//! The delay of five seconds is for a client that has sent all its requests and has closed its half
//! of the connection, but still reads responses. While nothing is unread, hyper itself sees the end
//! and closes the connection immediately. (On the port for metrics, hyper first sends its
//! response.)
//!
//! This wrapper does nothing on an HTTP/2 connection, where the HTTP/2 library reads continuously.
//! The wrapper does not notice the end of a connection if about 4 KiB or more of unread bytes
//! precede it.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The start of an HTTP/2 connection. No method of HTTP/1.1 starts with it.
const HTTP2_PREFIX: &[u8] = b"PRI";
const AHEAD_BYTES_MAX: usize = 4 << 10;
const END_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct DepartedClient<C> {
    connection: C,
    /// True for HTTP/1.1, and false for HTTP/2. `None` before the client's first byte.
    is_http1: Option<bool>,
    ahead: Vec<u8>,
    /// The timer that starts when the end of the client's data is found, and `None` before. When
    /// the timer expires, the connection ends.
    ended: Option<Pin<Box<Sleep>>>,
}

impl<C> DepartedClient<C> {
    pub fn new(connection: C) -> DepartedClient<C> {
        DepartedClient { connection, is_http1: None, ahead: Vec::new(), ended: None }
    }
}

impl<C: AsyncRead + Unpin> DepartedClient<C> {
    fn poll_read_ahead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ended.is_none() && self.ahead.len() < AHEAD_BYTES_MAX {
            let mut bytes = [0; 512];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = Pin::new(&mut self.connection).poll_read(context, &mut buffer);
            ready!(read)?;
            self.ahead.extend_from_slice(buffer.filled());
            if buffer.filled().is_empty() {
                self.ended = Some(Box::pin(sleep(END_PATIENCE)));
            }
            // hyper may be waiting for these bytes or for the end of the data.
            context.waker().wake_by_ref();
        }
        match &mut self.ended {
            Some(patience) => patience.as_mut().poll(context).map(|()| {
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the client is gone"))
            }),
            None => Poll::Pending,
        }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for DepartedClient<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.ahead.is_empty() {
            let length = this.ahead.len().min(buffer.remaining());
            buffer.put_slice(&this.ahead[..length]);
            this.ahead.drain(..length);
            return Poll::Ready(Ok(()));
        }
        if this.ended.is_some() {
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut this.connection).poll_read(context, buffer))?;
        let bytes = &buffer.filled()[before..];
        if this.is_http1.is_none() && !bytes.is_empty() {
            let length = bytes.len().min(HTTP2_PREFIX.len());
            this.is_http1 = Some(bytes[..length] != HTTP2_PREFIX[..length]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncWrite for DepartedClient<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.connection).poll_flush(context))?;
        if this.is_http1 == Some(true)
            && let Poll::Ready(Err(error)) = this.poll_read_ahead(context)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn bytes_keep_their_order_and_the_end_is_an_error_later() {
        let (mut client, server) = duplex(100);
        let mut server = DepartedClient::new(server);
        client.write_all(b"GET").await.unwrap();
        let mut bytes = [0; 2];
        server.read_exact(&mut bytes).await.unwrap();
        server.flush().await.unwrap();
        client.write_all(b" /").await.unwrap();
        drop(client);
        server.flush().await.unwrap();
        tokio::time::advance(END_PATIENCE - Duration::from_millis(1)).await;
        server.flush().await.unwrap();
        let mut rest = Vec::new();
        server.read_to_end(&mut rest).await.unwrap();
        assert_eq!((&bytes, &rest[..]), (b"GE", &b"T /"[..]));
        tokio::time::advance(Duration::from_millis(2)).await;
        let error = server.flush().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_ahead_over_http2() {
        let (mut client, server) = duplex(100);
        let mut server = DepartedClient::new(server);
        client.write_all(b"PRI * HTTP/2.0").await.unwrap();
        let mut bytes = [0; 3];
        server.read_exact(&mut bytes).await.unwrap();
        drop(client);
        tokio::time::advance(2 * END_PATIENCE).await;
        server.flush().await.unwrap();
        assert!(server.ahead.is_empty() && server.ended.is_none());
    }
}
