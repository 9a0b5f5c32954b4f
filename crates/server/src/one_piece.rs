//! A connection that wants to be written to in one piece.
//!
//! An answer of gRPC is three frames of HTTP/2: head, message, end. Asked whether a socket can take
//! several pieces in one call, TCP says yes, and h2 leaves small frames where they are and hands over
//! a list. Told no, it copies small ones together, the frames of many answers at a time. For answers
//! of some hundred bytes the copy is cheaper than the list.
//!
//! Frames that are too large to be copied it hands over one by one, each in two calls, for each a flush. That
//! wakes the client for every 16 KiB of an answer. And worse: the kernel makes a segment of each call, and
//! sends ten of them before it waits for an acknowledgement; the receiver delays that by 40 ms, for it
//! counts on larger ones. So what is large is gathered here, up to 64 KiB, and goes when the
//! thread has had another turn and nothing has come to it.
//!
//! ```text
//!   write 1024, write 15369, flush     kept; the connection asks for another turn
//!   write 1024, write 15369, flush     kept
//!   write 57 (the end), flush          all of it goes, in one call
//! ```

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What h2 hands over of a large frame before its rest.
const LARGE: usize = 1024;
/// So much is kept.
const KEPT_MAX: usize = 64 << 10;

/// Says no.
#[derive(Debug)]
pub(crate) struct OnePiece<C> {
    connection: C,
    /// What was written and is kept, from `gone` on.
    kept: Vec<u8>,
    gone: usize,
    /// Something large has come to it since the last flush: more of the same is likely.
    has_grown: bool,
}

impl<C> OnePiece<C> {
    pub(crate) fn new(connection: C) -> OnePiece<C> {
        OnePiece { connection, kept: Vec::new(), gone: 0, has_grown: false }
    }
}

impl<C: AsyncWrite + Unpin> OnePiece<C> {
    /// Writes what is kept, and what comes behind it as far as it fits. Says how much of that went.
    fn poll_write_kept(
        &mut self,
        context: &mut Context<'_>,
        behind: &[u8],
    ) -> Poll<io::Result<usize>> {
        while self.gone < self.kept.len() {
            let slices = [IoSlice::new(&self.kept[self.gone..]), IoSlice::new(behind)];
            let connection = Pin::new(&mut self.connection);
            let written = ready!(connection.poll_write_vectored(context, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_kept = written.min(self.kept.len() - self.gone);
            self.gone += of_kept;
            if written > of_kept {
                self.let_go();
                return Poll::Ready(Ok(written - of_kept));
            }
        }
        self.let_go();
        Poll::Ready(Ok(0))
    }

    /// All that was kept has gone. Connections that do not need the memory again soon are many.
    fn let_go(&mut self) {
        (self.kept, self.gone, self.has_grown) = (Vec::new(), 0, false);
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for OnePiece<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for OnePiece<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Small answers that were copied together go at once: they are of another length.
        if self.kept.is_empty() && bytes.len() != LARGE {
            return Pin::new(&mut self.connection).poll_write(context, bytes);
        }
        if self.kept.len() + bytes.len() <= KEPT_MAX {
            if self.kept.is_empty() {
                self.kept.reserve(KEPT_MAX);
            }
            self.kept.extend_from_slice(bytes);
            self.has_grown = bytes.len() >= LARGE;
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(self.poll_write_kept(context, bytes))?;
        if written > 0 {
            return Poll::Ready(Ok(written));
        }
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.has_grown) {
            context.waker().wake_by_ref();
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_write_kept(context, &[]))?;
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_kept(context, &[]))?;
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Through a pipe that takes little at a time, in pieces of all kinds.
    #[test]
    fn what_is_written_arrives_in_its_order() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for room in [1, 7, 1000, 1024, 5000, 1 << 20] {
            let (ours, mut theirs) = tokio::io::duplex(room);
            let sizes = [9, LARGE, 15_369, LARGE, LARGE, 1, LARGE, 0, 40, LARGE];
            let pieces = sizes.map(|size| vec![size as u8; size]);
            let expected = pieces.concat();
            let writes = async {
                let mut ours = OnePiece::new(ours);
                for (number, piece) in pieces.iter().enumerate() {
                    ours.write_all(piece).await.unwrap();
                    if number % 4 == 3 {
                        ours.flush().await.unwrap();
                    }
                }
                ours.shutdown().await.unwrap();
            };
            let mut read = Vec::new();
            let reads = theirs.read_to_end(&mut read);
            let ((), done) = runtime.block_on(async { tokio::join!(writes, reads) });
            done.unwrap();
            assert!(read == expected, "room {room}");
        }
    }
}
