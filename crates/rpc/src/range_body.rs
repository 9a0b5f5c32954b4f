//! The response to a range, from stored records to bytes.
//!
//! A record has the same form in the store and in a response: an encoded `KeyValue`. So nothing is
//! decoded here. A committed record of up to 1 KiB is copied twice: from its page, and into the
//! frame. A longer or a pending record is copied once, into the frame.
//!
//! ```text
//!   0 │ length │ header │ tag length record │ tag length record │ ... │ more │ count
//!              └ the message, whose length is known before its first record is sent ┘
//! ```
//!
//! A small response is one buffer. A large one is sent in [chunks](StreamedRangeBody). The read
//! pool reads and encodes the largest responses, one batch ahead of the connection.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_net::coalescing_writer::{ActiveLargeResponses, LargeResponseGuard};
use clearlane_replica::RequestError;
use clearlane_server::deadline::Deadline;
use clearlane_server::read::range::{RangeMeta, RangeRows};
use clearlane_server::read::response_memory::ResponseMemoryPermit;
use clearlane_server::read::streamed_range::StreamedRange;
use clearlane_server::threads::{JobKind, ServerThreads};
use http::Response;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep};
use tonic::Status;

use crate::grpc_frame::{FRAME_HEAD_BYTES, check_message_size};
use crate::message_parts::{
    CHUNK_BYTES, MessageParts, RecordsPart, encode_chunk, encode_record, field_len,
};
use crate::response_body::{BodyError, ResponseBody, ok_response};
use crate::stream_executor::RESET_DELAY;

/// The pool reads the next batch when at most this number of chunks are left to send.
const CHUNKS_AHEAD: usize = 8;
/// Field numbers of `RangeResponse`.
const HEADER: u32 = 1;
const KVS: u32 = 2;
const MORE: u32 = 3;
const COUNT: u32 = 4;

/// Returns the response for rows that are in memory.
pub(crate) fn rows_response(
    RangeRows { meta, records }: RangeRows,
    until_ns: Option<u64>,
) -> Result<Response<ResponseBody>, Status> {
    let encoded = records.iter().map(|record| field_len(record.len())).sum();
    let RangeFrame { length, mut bytes, tail } = RangeFrame::new(&meta, encoded)?;
    let records = records.into_iter();
    if length > CHUNK_BYTES {
        let source = RangeSource::Records { records, bytes, tail };
        return Ok(streamed_response(length, until_ns, source));
    }
    bytes.reserve(length);
    records.for_each(|record| encode_record(KVS, &record, &mut bytes));
    bytes.put(tail);
    Ok(ok_response(ResponseBody::Message(bytes.freeze())))
}

/// Returns the response for rows that are read while they are sent.
pub(crate) fn stream_response(
    threads: &Arc<ServerThreads>,
    large_responses: &ActiveLargeResponses,
    records: StreamedRange,
    until_ns: Option<u64>,
) -> Result<Response<ResponseBody>, Status> {
    let encoded = usize::try_from(records.encoded_len()).unwrap_or(usize::MAX);
    let RangeFrame { length, bytes, tail } = match RangeFrame::new(&records.meta, encoded) {
        Ok(frame) => frame,
        Err(status) => {
            drop_in_pool(threads, records);
            return Err(status);
        }
    };
    let parts = [RecordsPart { records, field: KVS, tail }].into();
    let message = MessageParts { bytes, parts };
    Ok(parts_response(threads, large_responses, length, message, until_ns))
}

/// Returns the response for a message of `length` bytes. `message` also has the head of the frame.
pub(crate) fn parts_response(
    threads: &Arc<ServerThreads>,
    large_responses: &ActiveLargeResponses,
    length: usize,
    message: MessageParts,
    until_ns: Option<u64>,
) -> Response<ResponseBody> {
    let reading = StreamedRead::start(threads, large_responses, message);
    streamed_response(length, until_ns, RangeSource::Streamed(reading))
}

fn streamed_response(
    length: usize,
    until_ns: Option<u64>,
    source: RangeSource,
) -> Response<ResponseBody> {
    let deadline = Deadline::new(until_ns);
    ok_response(ResponseBody::Range(Box::new(StreamedRangeBody {
        length,
        source,
        deadline,
        is_begun: false,
        reset_delay: None,
        yields_next: false,
    })))
}

/// The parts of a response before and after the records.
struct RangeFrame {
    /// Length of the whole message.
    length: usize,
    /// The bytes before the records.
    bytes: BytesMut,
    /// The bytes after the records.
    tail: Bytes,
}

impl RangeFrame {
    /// Creates the frame. `encoded` is the length of the records, including their tags and lengths.
    fn new(about: &RangeMeta, encoded: usize) -> Result<RangeFrame, Status> {
        let tail = tail(about);
        let header = about.header.as_ref().map_or(0, |header| field_len(header.encoded_len()));
        let length = encoded.saturating_add(header + tail.len());
        check_message_size(length as u64)?;
        let mut bytes = BytesMut::with_capacity(FRAME_HEAD_BYTES + header);
        bytes.put_u8(0);
        bytes.put_u32(length as u32);
        if let Some(header) = &about.header {
            encode_key(HEADER, WireType::LengthDelimited, &mut bytes);
            header.encode_length_delimited(&mut bytes).expect("this memory grows");
        }
        Ok(RangeFrame { length, bytes, tail })
    }
}

fn tail(about: &RangeMeta) -> Bytes {
    let mut tail = BytesMut::with_capacity(16);
    if about.more {
        encode_key(MORE, WireType::Varint, &mut tail);
        encode_varint(1, &mut tail);
    }
    if about.count != 0 {
        encode_key(COUNT, WireType::Varint, &mut tail);
        encode_varint(about.count as u64, &mut tail);
    }
    tail.freeze()
}

/// The source of the chunks. `bytes` are sent before the first of `records`.
#[derive(Debug)]
enum RangeSource {
    Records { records: std::vec::IntoIter<Bytes>, bytes: BytesMut, tail: Bytes },
    Streamed(StreamedRead),
    Done,
}

#[derive(Debug)]
struct StreamedRead {
    batch: ReadBatch,
    next_batch: Option<oneshot::Receiver<Result<ReadBatch, BodyError>>>,
    threads: Arc<ServerThreads>,
    #[expect(dead_code, reason = "known to the connection until the last piece is handed on")]
    active_response: LargeResponseGuard,
}

/// One batch of chunks. `rest` is the part of the message that the pool has not read yet.
#[derive(Debug, Default)]
struct ReadBatch {
    chunks: VecDeque<Bytes>,
    rest: Option<Box<MessageParts>>,
    #[expect(dead_code, reason = "taken for as long as the pieces are here")]
    permit: Option<ResponseMemoryPermit>,
}

impl StreamedRead {
    fn start(
        threads: &Arc<ServerThreads>,
        large_responses: &ActiveLargeResponses,
        message: MessageParts,
    ) -> StreamedRead {
        let (threads, active_response) = (Arc::clone(threads), large_responses.start());
        let next_batch = Some(read_batch(&threads, Box::new(message)));
        StreamedRead { batch: ReadBatch::default(), next_batch, threads, active_response }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, BodyError>>> {
        loop {
            // Do not read earlier: a client that takes nothing would then use more memory.
            if self.batch.chunks.len() <= CHUNKS_AHEAD
                && let Some(rest) = self.batch.rest.take()
            {
                self.next_batch = Some(read_batch(&self.threads, rest));
            }
            if let Some(piece) = self.batch.chunks.pop_front() {
                return Poll::Ready(Some(Ok(piece)));
            }
            let Some(next) = &mut self.next_batch else { return Poll::Ready(None) };
            match ready!(Pin::new(next).poll(context)) {
                Ok(Ok(read)) => (self.batch, self.next_batch) = (read, None),
                Ok(Err(error)) => return Poll::Ready(Some(Err(error))),
                Err(_) => return Poll::Ready(Some(Err(RequestError::Stopped.into()))),
            }
        }
    }
}

/// If a client leaves, an old read transaction may still be open. The thread that drops the last
/// reference to it also frees its data, which may take a long time. So the read pool drops the read
/// transaction, and other connections of this network thread do not wait.
impl Drop for StreamedRead {
    fn drop(&mut self) {
        let read = self.next_batch.take().and_then(|mut next| {
            // After `close`, the pool skips a job that has not started, and drops its data. A job
            // that has finished has left its batch in the channel.
            next.close();
            next.try_recv().ok()?.ok()?.rest
        });
        if let Some(left) = self.batch.rest.take().or(read) {
            drop_in_pool(&self.threads, left);
        }
    }
}

/// Drops a value in the read pool. No task waits for the job, so the pool skips its work and drops
/// its data.
fn drop_in_pool(threads: &ServerThreads, left: impl Send + 'static) {
    drop(threads.read_pool().submit(JobKind::Continued, move || drop(left)));
}

fn read_batch(
    threads: &ServerThreads,
    mut message: Box<MessageParts>,
) -> oneshot::Receiver<Result<ReadBatch, BodyError>> {
    let memory = Arc::clone(threads.response_memory());
    threads.read_pool().submit(JobKind::Continued, move || {
        let permit = ResponseMemoryPermit::acquire(&memory, message.encoded_len());
        let chunks = message.read(permit.chunk_bytes())?;
        let rest = (!message.is_empty()).then_some(message);
        Ok(ReadBatch { chunks, rest, permit: Some(permit) })
    })
}

#[derive(Debug)]
pub(crate) struct StreamedRangeBody {
    /// Length of the whole message.
    length: usize,
    source: RangeSource,
    deadline: Deadline,
    /// If true, at least one chunk was sent.
    is_begun: bool,
    /// The delay between the deadline and the error. `Some` after the deadline, if a part of the
    /// message was sent.
    reset_delay: Option<Pin<Box<Sleep>>>,
    /// If true, the task yields before the next chunk.
    yields_next: bool,
}

/// A frame of the body; `None` after the last chunk of a message.
type BodyFrame = Option<Result<http_body::Frame<Bytes>, BodyError>>;

/// The error of a body whose deadline has passed. `is_begun` is true if a part of the message was
/// sent and the rest will not be sent.
#[derive(Debug)]
pub(crate) struct DeadlinePassed {
    pub(crate) is_begun: bool,
}

impl StreamedRangeBody {
    pub(crate) fn message_len(&self) -> usize {
        self.length
    }

    /// Returns the next frame, or an error after the deadline. If a part of the message was sent,
    /// the error is delayed: usually the client ends the call itself during the delay, and reports
    /// that its deadline has passed.
    pub(crate) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<BodyFrame, DeadlinePassed>> {
        if let Some(delay) = &mut self.reset_delay {
            return delay.as_mut().poll(context).map(|()| Err(DeadlinePassed { is_begun: true }));
        }
        if !self.deadline.has_passed() {
            match self.poll_chunk(context) {
                Poll::Ready(piece) => {
                    self.is_begun = true;
                    return Poll::Ready(Ok(piece));
                }
                Poll::Pending => ready!(self.deadline.poll(context)),
            }
        }
        if !self.is_begun || matches!(self.source, RangeSource::Done) {
            return Poll::Ready(Err(DeadlinePassed { is_begun: false }));
        }
        self.source = RangeSource::Done;
        let delay = self.reset_delay.insert(Box::pin(sleep(RESET_DELAY)));
        delay.as_mut().poll(context).map(|()| Err(DeadlinePassed { is_begun: true }))
    }

    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<BodyFrame> {
        if std::mem::replace(&mut self.yields_next, false) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let piece = match &mut self.source {
            RangeSource::Done => None,
            RangeSource::Streamed(reading) => ready!(reading.poll(context)),
            RangeSource::Records { records, bytes, tail } => {
                let mut bytes = std::mem::take(bytes);
                encode_chunk(KVS, records, &mut bytes);
                if records.as_slice().is_empty() {
                    bytes.put_slice(tail);
                    self.source = RangeSource::Done;
                }
                Some(Ok(bytes.freeze()))
            }
        };
        if !matches!(piece, Some(Ok(_))) {
            self.source = RangeSource::Done;
        }
        self.yields_next = piece.is_some();
        Poll::Ready(piece.map(|piece| piece.map(http_body::Frame::data)))
    }
}
