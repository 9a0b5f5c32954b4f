//! Reads the requests of a stream while its responses wait. See `docs/watch.md`.
//!
//! h2 keeps DATA frames in memory until a task reads them, and ends a connection with too many
//! small unread frames. The connection cannot stop reading its socket, because it can send
//! responses only after window updates, which arrive after the requests. So each stream of requests
//! has a task that reads the requests and copies their bytes into a queue. The queue needs a tenth
//! of the memory that h2 needs:
//!
//! ```text
//!   h2 ──▶ read_requests ──▶ [bytes of many requests] ──▶ ReadAheadBody ──▶ the service
//!              stops at STREAM_BYTES_MAX, or at CONNECTION_BYTES_MAX for all streams together
//! ```
//!
//! At a limit, the stream's window fills and the client waits. A stream with less than 4 KiB in its
//! queue is always read, so streams without a reader delay no other stream.

use std::collections::VecDeque;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::response_body::BodyError;

/// A stream with this number of bytes in its queue is not read further.
const STREAM_BYTES_MAX: usize = 8 << 20;
/// If the queues of all streams of a connection together have this number of bytes, only streams
/// with fewer than [`STREAM_BYTES_MIN`] bytes in their queues are read further.
const CONNECTION_BYTES_MAX: usize = 128 << 20;
/// A stream with fewer bytes in its queue is read even if the connection is at its limit.
const STREAM_BYTES_MIN: usize = 4 << 10;
const CHUNK_BYTES_MIN: usize = 256;
const CHUNK_BYTES_MAX: usize = 16 << 10;

/// The memory of the queues of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReadAheadMemory(Arc<ConnectionMemory>);

#[derive(Debug, Default)]
struct ConnectionMemory {
    bytes: AtomicUsize,
    /// Wakes the tasks that wait until the connection is below its limit.
    released: Notify,
}

impl ConnectionMemory {
    fn release(&self, bytes: usize) {
        let before = self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before >= CONNECTION_BYTES_MAX && before - bytes < CONNECTION_BYTES_MAX {
            self.released.notify_waiters();
        }
    }
}

/// The body of a request whose bytes are read as they arrive. Dropping it ends the reading task.
#[derive(Debug)]
pub(crate) struct ReadAheadBody {
    queue: Arc<RequestBytes>,
    reader: AbortHandle,
}

impl ReadAheadBody {
    /// Starts the reading task. Must be called on the runtime of the connection.
    pub(crate) fn start<B>(body: B, memory: &ReadAheadMemory) -> ReadAheadBody
    where
        B: Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
    {
        let queue = Arc::new(RequestBytes {
            memory: memory.clone(),
            state: Mutex::default(),
            taken: Notify::new(),
        });
        let reader = tokio::spawn(read_requests(body, Arc::clone(&queue))).abort_handle();
        ReadAheadBody { queue, reader }
    }
}

impl Drop for ReadAheadBody {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

async fn read_requests<B>(body: B, queue: Arc<RequestBytes>)
where
    B: Body<Data = Bytes, Error: Into<BodyError>>,
{
    let mut body = pin!(body);
    loop {
        queue.wait_for_capacity().await;
        match body.frame().await {
            Some(Ok(frame)) => frame.data_ref().into_iter().for_each(|data| queue.push(data)),
            Some(Err(error)) => return queue.end(RequestEnd::Failed(error.into())),
            None => return queue.end(RequestEnd::Complete),
        }
    }
}

#[derive(Debug)]
struct RequestBytes {
    memory: ReadAheadMemory,
    state: Mutex<QueueState>,
    /// Wakes the reading task when bytes have left the queue.
    taken: Notify,
}

#[derive(Debug, Default)]
struct QueueState {
    chunks: VecDeque<BytesMut>,
    /// The memory of the chunks, in bytes.
    bytes: usize,
    end: Option<RequestEnd>,
    /// The waker of the task that waits for more bytes. `None` if no task waits.
    waiting: Option<Waker>,
}

#[derive(Debug)]
enum RequestEnd {
    Complete,
    Failed(BodyError),
}

impl RequestBytes {
    fn has_capacity(&self) -> bool {
        let of_stream = self.state.lock().bytes;
        let of_connection = self.memory.0.bytes.load(Ordering::Relaxed);
        of_stream < STREAM_BYTES_MIN
            || of_stream < STREAM_BYTES_MAX && of_connection < CONNECTION_BYTES_MAX
    }

    async fn wait_for_capacity(&self) {
        while !self.has_capacity() {
            let mut released = pin!(self.memory.0.released.notified());
            // Register the wait before the check, so that no release between them is missed.
            released.as_mut().enable();
            if self.has_capacity() {
                return;
            }
            tokio::select! { () = released => {}, () = self.taken.notified() => {} }
        }
    }

    fn push(&self, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        let added = state.push(data);
        self.memory.0.bytes.fetch_add(added, Ordering::Relaxed);
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Marks the end of the requests. After an error the queued requests are dropped, because the
    /// client has left.
    fn end(&self, end: RequestEnd) {
        let mut state = self.state.lock();
        if matches!(end, RequestEnd::Failed(_)) {
            state.chunks.clear();
            self.memory.0.release(std::mem::take(&mut state.bytes));
        }
        state.end = Some(end);
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    fn poll_chunk(&self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        let mut state = self.state.lock();
        if let Some(chunk) = state.chunks.pop_front() {
            state.bytes -= chunk.capacity();
            drop(state);
            self.memory.0.release(chunk.capacity());
            self.taken.notify_one();
            return Poll::Ready(Some(Ok(chunk.freeze())));
        }
        match state.end.replace(RequestEnd::Complete) {
            Some(RequestEnd::Complete) => Poll::Ready(None),
            Some(RequestEnd::Failed(error)) => Poll::Ready(Some(Err(error))),
            None => {
                state.end = None;
                state.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl QueueState {
    /// Adds bytes. Returns by how many bytes the memory of the queue grows.
    fn push(&mut self, data: &[u8]) -> usize {
        if let Some(last) = self.chunks.back_mut()
            && last.capacity() - last.len() >= data.len()
        {
            last.extend_from_slice(data);
            return 0;
        }
        // The first chunk of an empty queue has no spare capacity, because a request is usually
        // taken before the next request arrives.
        let capacity = match self.chunks.back() {
            None => 0,
            Some(last) => (2 * last.capacity()).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX),
        };
        let mut chunk = BytesMut::with_capacity(capacity.max(data.len()));
        chunk.extend_from_slice(data);
        let added = chunk.capacity();
        self.bytes += added;
        self.chunks.push_back(chunk);
        added
    }
}

impl Drop for RequestBytes {
    fn drop(&mut self) {
        self.memory.0.release(self.state.get_mut().bytes);
    }
}

impl Body for ReadAheadBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let chunk = self.queue.poll_chunk(context);
        chunk.map(|chunk| chunk.map(|chunk| chunk.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        let state = self.queue.state.lock();
        state.chunks.is_empty() && matches!(state.end, Some(RequestEnd::Complete))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::atomic::AtomicBool;

    use futures_util::stream;
    use http_body_util::StreamBody;

    use super::*;

    /// Returns a body that has `bytes` bytes in frames of `frame` bytes. `read` counts the bytes
    /// that the reading task has read.
    fn requests(
        frame: usize,
        bytes: usize,
        read: &Arc<AtomicUsize>,
    ) -> impl Body<Data = Bytes, Error = Infallible> + Send + 'static {
        let read = Arc::clone(read);
        StreamBody::new(stream::poll_fn(move |_| {
            let before = read.load(Ordering::Relaxed);
            let length = frame.min(bytes - before);
            read.store(before + length, Ordering::Relaxed);
            Poll::Ready((length > 0).then(|| Ok(Frame::data(vec![7; length].into()))))
        }))
    }

    fn block_on(work: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work);
    }

    /// Lets the reading tasks run until they can make no more progress.
    async fn settle() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_stream_is_read_up_to_its_limit_and_again_when_bytes_are_taken() {
        block_on(async {
            for frame in [300, 20_000] {
                let (read, memory) = (Arc::default(), ReadAheadMemory::default());
                let total = 3 * STREAM_BYTES_MAX;
                let mut body = ReadAheadBody::start(requests(frame, total, &read), &memory);
                settle().await;
                let queued = read.load(Ordering::Relaxed);
                assert!(queued > STREAM_BYTES_MAX / 2, "{queued} bytes of {frame} at once");
                assert!(memory.0.bytes.load(Ordering::Relaxed) < STREAM_BYTES_MAX + 40_000);
                let mut taken = 0;
                while let Some(chunk) = body.frame().await {
                    taken += chunk.unwrap().into_data().unwrap().len();
                    let ahead = read.load(Ordering::Relaxed) - taken;
                    assert!(ahead < STREAM_BYTES_MAX + 40_000, "{ahead} bytes of {frame} at once");
                }
                assert_eq!((taken, memory.0.bytes.load(Ordering::Relaxed)), (total, 0));
                assert!(body.is_end_stream());
            }
        });
    }

    #[test]
    fn small_requests_take_little_more_memory_than_their_bytes() {
        block_on(async {
            let (read, memory) = (Arc::default(), ReadAheadMemory::default());
            let _body = ReadAheadBody::start(requests(15, 150_000, &read), &memory);
            settle().await;
            assert_eq!(read.load(Ordering::Relaxed), 150_000);
            let held = memory.0.bytes.load(Ordering::Relaxed);
            assert!(held < 170_000, "{held} bytes for 10,000 requests");
        });
    }

    #[test]
    fn streams_share_the_limit_of_their_connection_and_each_is_read() {
        block_on(async {
            let memory = ReadAheadMemory::default();
            let reads: Vec<Arc<AtomicUsize>> = (0..40).map(|_| Arc::default()).collect();
            let start =
                |read| ReadAheadBody::start(requests(10_000, 2 * STREAM_BYTES_MAX, read), &memory);
            let mut bodies: Vec<ReadAheadBody> = reads.iter().map(start).collect();
            settle().await;
            let held = || memory.0.bytes.load(Ordering::Relaxed);
            assert!(held() >= CONNECTION_BYTES_MAX);
            assert!(held() < CONNECTION_BYTES_MAX + 40 * 40_000, "{} bytes", held());
            // The last stream is read although other streams use all of the memory.
            let mut last = bodies.pop().unwrap();
            while last.frame().await.is_some() {}
            assert_eq!(reads[39].load(Ordering::Relaxed), 2 * STREAM_BYTES_MAX);
            // Waiting streams receive the memory that other streams free.
            let before: usize = reads.iter().map(|read| read.load(Ordering::Relaxed)).sum();
            bodies.drain(..10);
            settle().await;
            let after: usize = reads.iter().map(|read| read.load(Ordering::Relaxed)).sum();
            assert!(after > before + 5 * STREAM_BYTES_MAX, "{before} and {after} bytes read");
            drop(bodies);
            settle().await;
            assert_eq!(held(), 0);
        });
    }

    /// A body without data. It sets the flag when it is dropped.
    struct Silent(Arc<AtomicBool>);

    impl Drop for Silent {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    impl Body for Silent {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            Poll::Pending
        }
    }

    #[test]
    fn the_task_ends_with_the_body() {
        block_on(async {
            let is_dropped = Arc::new(AtomicBool::new(false));
            let silent = Silent(Arc::clone(&is_dropped));
            let body = ReadAheadBody::start(silent, &ReadAheadMemory::default());
            settle().await;
            assert!(!is_dropped.load(Ordering::Relaxed));
            drop(body);
            settle().await;
            assert!(is_dropped.load(Ordering::Relaxed));
        });
    }

    #[test]
    fn an_error_drops_what_is_queued() {
        block_on(async {
            let frames = [Ok(Frame::data(Bytes::from_static(b"request"))), Err("gone")];
            let memory = ReadAheadMemory::default();
            let body = StreamBody::new(stream::iter(frames));
            let mut body = ReadAheadBody::start(body, &memory);
            settle().await;
            assert_eq!(body.frame().await.unwrap().unwrap_err().to_string(), "gone");
            assert!(body.frame().await.is_none());
            assert_eq!(memory.0.bytes.load(Ordering::Relaxed), 0);
        });
    }
}
