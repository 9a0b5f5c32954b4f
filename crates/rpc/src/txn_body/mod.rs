//! Encodes the response to a transaction or a delete, which contains the responses of operations.
//!
//! The length of a message precedes the message, and this also holds for each nested message. The
//! lengths of [streamed](StreamedResponse) records are already measured, so all lengths are known
//! before the first record is read. The first pass computes the lengths, and the second pass writes
//! the bytes.
//!
//! ```text
//!   0 │ length │ header │ op length ( range length ( header │ records │ more │ count ) ) │ ...
//!     └──────────────── bytes ─────────────────────────────┘└─ read ─┘└── tail ────────────
//! ```
//!
//! A short response is encoded in one buffer. A long response is encoded in the read pool.

use std::mem;
use std::vec::IntoIter;

use bytes::{BufMut, Bytes, BytesMut};
use clearlane_contention::YieldPoints;
use clearlane_proto::etcdserverpb::response_op::Response as OpResponse;
use clearlane_proto::etcdserverpb::{DeleteRangeResponse, RangeResponse, TxnResponse};
use clearlane_replica::RequestError;
use clearlane_replica::apply::OperationResponses;
use clearlane_server::read::streamed_range::StreamedRange;
use clearlane_server::read::streamed_response::{OperationStream, StreamedResponse};
use clearlane_server::threads::JobKind;
use http::Response;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;

use crate::context::CallHead;
use crate::grpc_frame::{FRAME_HEAD_BYTES, check_message_size};
use crate::message_parts::{CHUNK_BYTES, MessageParts, RecordsPart};
use crate::range_body::parts_response;
use crate::response_body::{ResponseBody, ok_response};
use crate::status;
use crate::unary::EncodedResponse;

/// A response up to this size is encoded on the network thread if none of its records are streamed.
/// All other responses are encoded in the read pool.
const INLINE_ENCODE_BYTES_MAX: usize = 1 << 20;

/// Field numbers of the response messages.
const RESPONSES_OF_TXN: u32 = 3;
const KVS_OF_RANGE: u32 = 2;
const PREV_KVS_OF_DELETE: u32 = 3;
const RANGE_OF_OP: u32 = 1;
const PUT_OF_OP: u32 = 2;
const DELETE_OF_OP: u32 = 3;
const TXN_OF_OP: u32 = 4;

pub(crate) fn encode_response<M: EncodeOperations>(
    head: &CallHead,
    until_ns: Option<u64>,
    response: StreamedResponse<M>,
) -> EncodedResponse<'_> {
    let is_short =
        response.streams.is_empty() && response.message.encoded_len() <= INLINE_ENCODE_BYTES_MAX;
    if is_short {
        return EncodedResponse::message(response.message);
    }
    EncodedResponse::Pooled(Box::pin(encode_in_pool(head, until_ns, response)))
}

async fn encode_in_pool<M: EncodeOperations>(
    head: &CallHead,
    until_ns: Option<u64>,
    response: StreamedResponse<M>,
) -> Result<Response<ResponseBody>, Status> {
    let threads = head.server.threads();
    let encode = move || encode_parts(response, CHUNK_BYTES as u64);
    let encoded = threads.read_pool().run(JobKind::Continued, encode).await;
    let (length, message) =
        encoded.ok_or_else(|| status::from_error(RequestError::Stopped)).flatten()?;
    if message.parts.is_empty() {
        return Ok(ok_response(ResponseBody::Message(message.bytes.freeze())));
    }
    Ok(parts_response(threads, &head.client.large_responses, length, message, until_ns))
}

/// Returns the length of the message, and its frame. Fails if the message is too large for gRPC. If
/// an operation has more than `inline_bytes` of records, its records are encoded only when they are
/// sent.
fn encode_parts<M: EncodeOperations>(
    mut response: StreamedResponse<M>,
    inline_bytes: u64,
) -> Result<(usize, MessageParts), Status> {
    response.stream_records(inline_bytes);
    let StreamedResponse { mut message, streams } = response;
    let mut lengths = Lengths::new(&streams);
    let length = message.measure(&mut lengths);
    check_message_size(length)?;
    let streamed = streams.iter().map(|stream| stream.records.encoded_len()).sum::<u64>();
    let mut encoder = Encoder {
        bytes: BytesMut::with_capacity(FRAME_HEAD_BYTES + (length - streamed) as usize),
        lengths: lengths.found.into_iter(),
        streams: streams.into_iter(),
        next_operation: 0,
        message: MessageParts::default(),
        steps: YieldPoints::default(),
    };
    encoder.bytes.put_u8(0);
    encoder.bytes.put_u32(length as u32);
    message.write(&mut encoder);
    Ok((length as usize, encoder.finish()))
}

/// A response that contains responses of operations.
pub(crate) trait EncodeOperations: OperationResponses + Message + 'static {
    /// Returns the length of the whole message. Adds to `lengths` the lengths that
    /// [`write`](Self::write) needs.
    fn measure(&mut self, lengths: &mut Lengths<'_>) -> u64;
    fn write(self, encoder: &mut Encoder);
}

impl EncodeOperations for TxnResponse {
    fn measure(&mut self, lengths: &mut Lengths<'_>) -> u64 {
        lengths.txn(self)
    }

    fn write(self, encoder: &mut Encoder) {
        encoder.txn(self);
    }
}

impl EncodeOperations for DeleteRangeResponse {
    fn measure(&mut self, lengths: &mut Lengths<'_>) -> u64 {
        lengths.operation(self)
    }

    fn write(self, encoder: &mut Encoder) {
        encoder.delete_range(self);
    }
}

/// The first pass, which computes the lengths.
pub(crate) struct Lengths<'s> {
    /// The streams of the operations that follow.
    streams: &'s [OperationStream],
    next_operation: usize,
    /// The lengths of the responses of operations and of nested transactions, in the order in which
    /// the second pass writes their heads.
    found: Vec<u64>,
}

impl<'s> Lengths<'s> {
    fn new(streams: &'s [OperationStream]) -> Lengths<'s> {
        Lengths { streams, next_operation: 0, found: Vec::new() }
    }

    fn txn(&mut self, txn: &mut TxnResponse) -> u64 {
        let mut ops = mem::take(&mut txn.responses);
        let mut length = txn.encoded_len() as u64;
        for op in &mut ops {
            let response = op.response.as_mut();
            length += field_len(response.map_or(0, |response| field_len(self.response(response))));
        }
        txn.responses = ops;
        length
    }

    fn response(&mut self, response: &mut OpResponse) -> u64 {
        let place = self.found.len();
        self.found.push(0);
        let length = match response {
            OpResponse::ResponseTxn(nested) => self.txn(nested),
            OpResponse::ResponseRange(range) => self.operation(range),
            OpResponse::ResponsePut(put) => self.operation(put),
            OpResponse::ResponseDeleteRange(delete) => self.operation(delete),
        };
        self.found[place] = length;
        length
    }

    fn operation(&mut self, response: &impl Message) -> u64 {
        let number = self.next_operation;
        self.next_operation += 1;
        let streamed = match self.streams.split_first() {
            Some((first, rest)) if first.operation == number => {
                self.streams = rest;
                first.records.encoded_len()
            }
            _ => 0,
        };
        response.encoded_len() as u64 + streamed
    }
}

/// The second pass, which writes the bytes.
pub(crate) struct Encoder {
    /// The bytes written since the last part.
    bytes: BytesMut,
    lengths: IntoIter<u64>,
    streams: IntoIter<OperationStream>,
    next_operation: usize,
    message: MessageParts,
    steps: YieldPoints,
}

impl Encoder {
    fn txn(&mut self, mut txn: TxnResponse) {
        let ops = mem::take(&mut txn.responses);
        self.message(&txn);
        for op in ops {
            match op.response {
                Some(response) => self.response(response),
                None => self.head(RESPONSES_OF_TXN, 0),
            }
        }
    }

    fn response(&mut self, response: OpResponse) {
        let length = self.lengths.next().expect("the first pass has seen it");
        self.head(RESPONSES_OF_TXN, field_len(length));
        match response {
            OpResponse::ResponseTxn(nested) => {
                self.head(TXN_OF_OP, length);
                self.txn(nested);
            }
            OpResponse::ResponseRange(range) => {
                self.head(RANGE_OF_OP, length);
                self.range(range);
            }
            OpResponse::ResponsePut(put) => {
                self.head(PUT_OF_OP, length);
                self.next_operation += 1;
                self.message(&put);
            }
            OpResponse::ResponseDeleteRange(delete) => {
                self.head(DELETE_OF_OP, length);
                self.delete_range(delete);
            }
        }
    }

    fn range(&mut self, response: RangeResponse) {
        let Some(records) = self.next_stream() else { return self.message(&response) };
        let RangeResponse { header, more, count, .. } = response;
        self.message(&RangeResponse { header, ..RangeResponse::default() });
        self.records(KVS_OF_RANGE, records);
        self.message(&RangeResponse { more, count, ..RangeResponse::default() });
    }

    fn delete_range(&mut self, response: DeleteRangeResponse) {
        let records = self.next_stream();
        self.message(&response);
        if let Some(records) = records {
            self.records(PREV_KVS_OF_DELETE, records);
        }
    }

    /// Returns the streamed range of the next operation, or `None` if that operation has none.
    fn next_stream(&mut self) -> Option<StreamedRange> {
        let number = self.next_operation;
        self.next_operation += 1;
        let is_streamed = self.streams.as_slice().first()?.operation == number;
        is_streamed.then(|| self.streams.next()).flatten().map(|stream| stream.records)
    }

    fn head(&mut self, field: u32, length: u64) {
        encode_key(field, WireType::LengthDelimited, &mut self.bytes);
        encode_varint(length, &mut self.bytes);
    }

    /// Writes the fields of a message into the open message.
    fn message(&mut self, message: &impl Message) {
        let before = self.bytes.len();
        message.encode(&mut self.bytes).expect("this memory grows");
        self.steps.advance(self.bytes.len() - before);
    }

    fn records(&mut self, field: u32, records: StreamedRange) {
        self.end_part();
        self.message.parts.push_back(RecordsPart { records, field, tail: Bytes::new() });
    }

    fn end_part(&mut self) {
        let written = self.bytes.split();
        match self.message.parts.back_mut() {
            Some(part) => part.tail = written.freeze(),
            None => self.message.bytes = written,
        }
    }

    fn finish(mut self) -> MessageParts {
        self.end_part();
        self.message
    }
}

/// Returns the encoded length of a field that has `length` bytes and a tag of one byte.
fn field_len(length: u64) -> u64 {
    (key_len(1) + encoded_len_varint(length)) as u64 + length
}

#[cfg(test)]
mod tests;
