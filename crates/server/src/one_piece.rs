//! A connection that wants to be written to in one piece.
//!
//! An answer of gRPC is three frames of HTTP/2: head, message, end. Asked whether a socket can take
//! several pieces in one call, TCP says yes, and h2 leaves small frames where they are and hands over
//! a list. Told no, it copies small ones together, the frames of many answers at a time. For answers
//! of some hundred bytes the copy is cheaper than the list.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Says no.
#[derive(Debug)]
pub(crate) struct OnePiece<C>(pub(crate) C);

impl<C: AsyncRead + Unpin> AsyncRead for OnePiece<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for OnePiece<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
