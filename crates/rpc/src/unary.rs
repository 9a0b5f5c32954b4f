//! A call with one message each way.
//!
//! ```text
//!   on the wire     0 │ length: 4 bytes │ message
//! ```
//!
//! A message that comes in one piece is decoded where it lies; its keys and values are slices of
//! what was read from the socket, and code that keeps them must copy them. The answer is encoded
//! once, into memory of just its length.

use std::future::Future;
use std::pin::Pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use clearlane_proto::etcdserverpb::TxnRequest;
use clearlane_proto::nested;
use clearlane_server::apply::RequestRejection;
use clearlane_server::{RequestError, Server};
use http::Response;
use http::header::{CONTENT_TYPE, HeaderValue};
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::{DecodeError, Message};
use tonic::Status;

use crate::context::RequestContext;
use crate::gzip;
use crate::router::ResponseBody;
use crate::status;

/// What lies before a message.
pub(super) const FRAME_HEAD_BYTES: usize = 5;
/// As much as fits into one message.
const MESSAGE_BYTES_MAX: u64 = i32::MAX as u64;
/// What is encoded on the network thread.
const INLINE_ENCODE_BYTES_MAX: usize = 1 << 20;

/// The message that lies in these bytes.
pub(super) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| malformed_request(&error))
}

/// The same for a transaction, which may hold others, as deep as etcd takes them.
pub(super) fn decode_txn(bytes: Bytes) -> Result<TxnRequest, Status> {
    nested::decode_txn(bytes).map_err(|error| match error {
        nested::Error::TooDeep => status::from_error(&RequestRejection::TooManyOps.into()),
        nested::Error::Malformed(error) => malformed_request(&error),
    })
}

fn malformed_request(error: &DecodeError) -> Status {
    Status::internal(format!("grpc: error unmarshalling request: {error}"))
}

/// How a message is answered.
pub(super) fn message_response(message: impl Message) -> Response<ResponseBody> {
    ok_response(ResponseBody::Message(frame(&message)))
}

/// The same for one that may be large. Then it is encoded in the read pool, so that no other task
/// of this thread waits for it, and only a few are encoded at a time.
pub(super) fn message_response_of_any_size(
    member: &Server,
    message: impl Message + 'static,
) -> Result<EncodedResponse<'_>, Status> {
    let length = message.encoded_len();
    if length <= INLINE_ENCODE_BYTES_MAX {
        return Ok(EncodedResponse::Ready(self::message_response(message)));
    }
    check_message_size(length as u64)?;
    let work = member.threads().read_pool().run(move || frame(&message));
    Ok(EncodedResponse::Pooled(Box::pin(work)))
}

/// An answer, or one that the pool is asked for. What is rare is boxed, or every call
/// would allocate the space for it.
pub(crate) enum EncodedResponse<'a> {
    Ready(Response<ResponseBody>),
    Pooled(Pin<Box<dyn Future<Output = Option<Bytes>> + Send + 'a>>),
}

impl EncodedResponse<'_> {
    /// Waits for the pool, if it was asked.
    pub(super) async fn resolve(
        self,
        errand: &RequestContext,
    ) -> Result<Response<ResponseBody>, Status> {
        match self {
            EncodedResponse::Ready(answer) => Ok(answer),
            EncodedResponse::Pooled(framed) => match errand.within_deadline(framed).await? {
                Some(framed) => Ok(ok_response(ResponseBody::Message(framed))),
                None => Err(status::from_error(&RequestError::Stopped)),
            },
        }
    }
}

/// Checks that a message may have this length.
pub(super) fn check_message_size(length: u64) -> Result<(), Status> {
    if length <= MESSAGE_BYTES_MAX {
        return Ok(());
    }
    let why =
        format!("grpc: trying to send message larger than max ({length} vs. {MESSAGE_BYTES_MAX})");
    Err(Status::resource_exhausted(why))
}

/// The message of a request that has one. A client that sends more than it has announced is cut off
/// before that takes memory.
/// `is_packed` is whether it may be compressed.
pub(crate) async fn read_message(
    mut body: Incoming,
    limit: usize,
    is_packed: bool,
) -> Result<Bytes, Status> {
    let Some(first) = next_data(&mut body).await? else {
        return Err(Status::internal("grpc: a call without a message"));
    };
    let length = frame_len(&first, limit)?;
    let Some(mut more) = next_data(&mut body).await? else {
        return unframe(first, limit, is_packed);
    };
    let mut gathered = BytesMut::with_capacity(length.unwrap_or(first.len() + more.len()));
    gathered.put(first);
    loop {
        gathered.put(more);
        frame_len(&gathered, limit)?;
        match next_data(&mut body).await? {
            Some(bytes) => more = bytes,
            None => return unframe(gathered.freeze(), limit, is_packed),
        }
    }
}

/// The next piece that has something in it.
async fn next_data(body: &mut Incoming) -> Result<Option<Bytes>, Status> {
    while !body.is_end_stream() {
        match body.frame().await {
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) if data.is_empty() => {}
                Ok(data) => return Ok(Some(data)),
                Err(_trailers) => return Ok(None),
            },
            Some(Err(error)) => return Err(Status::cancelled(error.to_string())),
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// How long the current frame will be, if its head is there.
fn frame_len(bytes: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    let Some((head, message)) = bytes.split_first_chunk::<FRAME_HEAD_BYTES>() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
    check_received_size(length, limit)?;
    if message.len() > length {
        return Err(Status::internal("grpc: more than one message in a call that takes one"));
    }
    Ok(Some(FRAME_HEAD_BYTES + length))
}

/// Whether a message is taken that is so long on the wire.
pub(crate) fn check_received_size(length: usize, limit: usize) -> Result<(), Status> {
    if length <= limit {
        return Ok(());
    }
    let why = format!("grpc: received message larger than max ({length} vs. {limit})");
    Err(Status::resource_exhausted(why))
}

fn unframe(mut bytes: Bytes, limit: usize, is_packed: bool) -> Result<Bytes, Status> {
    match frame_len(&bytes, limit)? {
        Some(length) if length == bytes.len() => {
            let flag = bytes.get_u8();
            bytes.advance(FRAME_HEAD_BYTES - 1);
            match flag {
                0 => Ok(bytes),
                flag => gzip::decompress(flag, &bytes, limit, is_packed),
            }
        }
        _ => Err(Status::internal("grpc: the message ends before its length")),
    }
}

/// A message with what lies before it.
pub(super) fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(FRAME_HEAD_BYTES + length);
    bytes.put_u8(0);
    bytes.put_u32(length as u32);
    message.encode(&mut bytes).expect("there is room for all of it");
    bytes.freeze()
}

/// An answer that is one.
pub(super) fn ok_response(answer: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(answer);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
