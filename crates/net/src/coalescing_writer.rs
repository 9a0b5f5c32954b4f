//! A connection that gathers small writes into a few large ones. See `docs/head-of-line.md`.
//!
//! The writer reports that it does not support vectored writes. So h2 copies small frames into one
//! buffer, which is cheaper for responses of a few hundred bytes. h2 writes each larger frame
//! separately, in two calls and a flush. This writer gathers the larger frames. It defers a flush
//! until the connection's task has run once more and has added nothing. It writes earlier if more
//! than 64 KiB would be gathered, or after eight deferred flushes in a row:
//!
//! ```text
//!   write 1024, write 15369, flush     kept; the connection's task is woken again
//!   write 57 (the end), flush          all bytes are written in one call
//! ```
//!
//! While a [large response](ActiveLargeResponses) is in progress, small writes are gathered as
//! well, and the connection waits for a [turn](BulkTurns) of the network thread after each full
//! buffer and each deferred flush.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::bulk_turn::{BulkTurn, BulkTurns};

/// Number of bytes of a large frame that h2 writes first, before the rest of the frame.
const LARGE_FRAME_CHUNK_BYTES: usize = 1024;
const BUFFER_BYTES_MAX: usize = 64 << 10;
/// Maximum number of flushes in a row that are deferred. The limit matters if a large response is
/// in progress, but only small writes arrive: it would take many small writes, each with a flush,
/// to fill the buffer. Large frames fill the buffer before this limit is reached.
const DEFERRED_FLUSHES_MAX: u32 = 8;

#[derive(Debug)]
pub struct CoalescingWriter<C> {
    connection: C,
    /// The gathered bytes. The bytes before `written` have been written to the connection.
    buffer: Vec<u8>,
    written: usize,
    /// If true, another write is likely to follow the last one, so the next flush may be deferred.
    expects_more: bool,
    /// Number of flushes in a row that were deferred.
    deferred_flushes: u32,
    large_responses: ActiveLargeResponses,
    turns: BulkTurns,
    /// A requested turn, or `None` if no turn is requested. Until the turn is granted, writes wait,
    /// a flush does nothing, and only a shutdown writes the gathered bytes.
    next_turn: Option<BulkTurn>,
}

impl<C> CoalescingWriter<C> {
    pub fn new(
        connection: C,
        large_responses: ActiveLargeResponses,
        turns: BulkTurns,
    ) -> CoalescingWriter<C> {
        CoalescingWriter {
            connection,
            buffer: Vec::new(),
            written: 0,
            expects_more: false,
            deferred_flushes: 0,
            large_responses,
            turns,
            next_turn: None,
        }
    }
}

impl<C: AsyncWrite + Unpin> CoalescingWriter<C> {
    /// Writes all gathered bytes, and then as many bytes of `behind` as the connection takes in the
    /// same call. Returns the number of bytes of `behind` that were written.
    fn poll_write_buffered(
        &mut self,
        context: &mut Context<'_>,
        behind: &[u8],
    ) -> Poll<io::Result<usize>> {
        while self.written < self.buffer.len() {
            let slices = [IoSlice::new(&self.buffer[self.written..]), IoSlice::new(behind)];
            let connection = Pin::new(&mut self.connection);
            let written = ready!(connection.poll_write_vectored(context, &slices))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_kept = written.min(self.buffer.len() - self.written);
            self.written += of_kept;
            if written > of_kept {
                self.clear_buffer();
                return Poll::Ready(Ok(written - of_kept));
            }
        }
        self.clear_buffer();
        Poll::Ready(Ok(0))
    }

    /// Clears the buffer and frees its memory, because many connections will not need it again
    /// soon.
    fn clear_buffer(&mut self) {
        self.buffer = Vec::new();
        self.written = 0;
        self.expects_more = false;
        self.deferred_flushes = 0;
    }

    /// Writes the gathered bytes, and then as many of `bytes` as the connection takes. Returns how
    /// many of `bytes` were written. While a large response is in progress, the next write waits
    /// for a turn.
    fn poll_write_full_buffer(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut written = ready!(self.poll_write_buffered(context, bytes))?;
        if written == 0 {
            written = ready!(Pin::new(&mut self.connection).poll_write(context, bytes))?;
        }
        if self.large_responses.is_any_active() {
            self.request_turn(context);
        }
        Poll::Ready(Ok(written))
    }

    /// Yields to other threads that wait for this core, and then requests a turn. The task is woken
    /// when the turn is granted.
    fn request_turn(&mut self, context: &mut Context<'_>) {
        std::thread::yield_now();
        self.next_turn = Some(self.turns.request());
        let _ = self.poll_turn(context);
    }

    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(turn) = &mut self.next_turn {
            ready!(Pin::new(turn).poll(context));
            self.next_turn = None;
        }
        Poll::Ready(())
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for CoalescingWriter<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for CoalescingWriter<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(context));
        // A write of exactly `LARGE_FRAME_CHUNK_BYTES` is the start of a large frame, which is
        // gathered. Any other write contains small frames that h2 has copied together, or the rest
        // of a large frame. If nothing is gathered and no large response is in progress, such a
        // write is passed on immediately.
        let is_long = self.large_responses.is_any_active();
        if self.buffer.is_empty() && !is_long && bytes.len() != LARGE_FRAME_CHUNK_BYTES {
            return Pin::new(&mut self.connection).poll_write(context, bytes);
        }
        if self.buffer.len() + bytes.len() > BUFFER_BYTES_MAX {
            return self.poll_write_full_buffer(context, bytes);
        }
        if self.buffer.is_empty() {
            self.buffer.reserve(BUFFER_BYTES_MAX);
        }
        self.buffer.extend_from_slice(bytes);
        self.expects_more = is_long || bytes.len() >= LARGE_FRAME_CHUNK_BYTES;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.poll_turn(context).is_pending() {
            return Poll::Ready(Ok(()));
        }
        if std::mem::take(&mut self.expects_more) && self.deferred_flushes < DEFERRED_FLUSHES_MAX {
            self.deferred_flushes += 1;
            if self.large_responses.is_any_active() {
                self.request_turn(context);
            } else {
                context.waker().wake_by_ref();
            }
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_write_buffered(context, &[]))?;
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_buffered(context, &[]))?;
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

/// Counts the large responses in progress on a connection. A response no longer counts when h2 has
/// taken its last bytes, although up to half a megabyte of them may be unsent.
#[derive(Clone, Debug, Default)]
pub struct ActiveLargeResponses(Arc<AtomicUsize>);

#[derive(Debug)]
pub struct LargeResponseGuard(ActiveLargeResponses);

impl ActiveLargeResponses {
    /// Counts a response until the guard is dropped.
    pub fn start(&self) -> LargeResponseGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        LargeResponseGuard(self.clone())
    }

    fn is_any_active(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for LargeResponseGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::LocalSet;

    use super::*;

    /// Writes chunks of many sizes through pipes of several capacities, while a large response
    /// starts and ends. All bytes must arrive in order.
    #[test]
    fn what_is_written_arrives_in_its_order() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for room in [1, 7, 1000, 1024, 5000, 1 << 20] {
            let (ours, mut theirs) = tokio::io::duplex(room);
            const LARGE: usize = LARGE_FRAME_CHUNK_BYTES;
            let sizes = [9, LARGE, 15_369, LARGE, LARGE, 1, LARGE, 0, 40, LARGE];
            let pieces = sizes.map(|size| vec![size as u8; size]);
            let expected = pieces.concat();
            let long = ActiveLargeResponses::default();
            let writes = async {
                let mut ours = CoalescingWriter::new(ours, long.clone(), BulkTurns::start());
                let mut under_way = None;
                for (number, piece) in pieces.iter().enumerate() {
                    ours.write_all(piece).await.unwrap();
                    if number % 4 == 3 {
                        under_way = under_way.xor(Some(long.start()));
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

    /// A byte has arrived before the first chunk was written. The task that waits for the byte
    /// reads it after at most two chunks, not after the whole long response. This also holds if
    /// something else keeps waking the writing task.
    #[test]
    fn a_short_answer_goes_before_a_long_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for is_woken in [false, true] {
            let pieces = runtime.block_on(writes_before_a_byte(is_woken));
            assert!(pieces <= 2, "woken: {is_woken}, {pieces} pieces");
        }
    }

    async fn writes_before_a_byte(is_woken: bool) -> usize {
        let (mut arrives, mut sends) = tokio::net::UnixStream::pair().unwrap();
        sends.write_all(b"!").await.unwrap();
        let gone = Rc::new(Cell::new(0));
        let tasks = LocalSet::new();
        let (pieces, turns) = (Rc::clone(&gone), BulkTurns::start());
        tasks.spawn_local(async move {
            let writes = async {
                let long = ActiveLargeResponses::default();
                let _under_way = long.start();
                let mut ours = CoalescingWriter::new(tokio::io::sink(), long, turns);
                for _ in 0..1000 {
                    ours.write_all(&[1; LARGE_FRAME_CHUNK_BYTES]).await.unwrap();
                    ours.write_all(&[2; BUFFER_BYTES_MAX]).await.unwrap();
                    pieces.set(pieces.get() + 1);
                }
            };
            let wakes = std::future::poll_fn(|context| {
                if is_woken {
                    context.waker().wake_by_ref();
                }
                Poll::<()>::Pending
            });
            tokio::select! { () = writes => {} () = wakes => {} }
        });
        let reads = async move {
            arrives.read_u8().await.unwrap();
            gone.get()
        };
        tasks.run_until(reads).await
    }
}
