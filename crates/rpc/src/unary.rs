//! Calls with one message in each direction.
//!
//! A message that arrives in one piece is decoded in place. Its keys and values are slices of the
//! data from the socket, and code that keeps them must copy them. The response is encoded once,
//! into a buffer of exactly its length.

use std::future::Future;
use std::pin::Pin;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use clearlane_proto::etcdserverpb::TxnRequest;
use clearlane_proto::nested;
use clearlane_replica::apply::RequestRejection;
use http::Response;
use http_body::Body;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use prost::{DecodeError, Message};
use tonic::Status;

use crate::context::RequestContext;
use crate::grpc_frame::{FRAME_HEAD_BYTES, check_received_size, frame, read_head};
use crate::gzip;
use crate::response_body::{ResponseBody, ok_response};
use crate::status;

pub(crate) fn decode<M: Message + Default>(bytes: Bytes) -> Result<M, Status> {
    M::decode(bytes).map_err(|error| malformed_request(&error))
}

/// Decodes a transaction. Transactions may be nested as deep as etcd accepts.
pub(crate) fn decode_txn(bytes: Bytes) -> Result<TxnRequest, Status> {
    nested::decode_txn(bytes).map_err(|error| match error {
        nested::Error::TooDeep => status::from_error(RequestRejection::TooManyOps),
        nested::Error::Malformed(error) => malformed_request(&error),
    })
}

fn malformed_request(error: &DecodeError) -> Status {
    Status::internal(format!("grpc: error unmarshalling request: {error}"))
}

/// A response that is ready, or a response that the read pool makes. The second variant is rare and
/// therefore boxed; otherwise every call would allocate the space for it.
pub(crate) enum EncodedResponse<'a> {
    Ready(Response<ResponseBody>),
    Pooled(Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Status>> + Send + 'a>>),
}

impl EncodedResponse<'_> {
    pub(crate) fn message(message: impl Message) -> Self {
        EncodedResponse::Ready(ok_response(ResponseBody::Message(frame(&message))))
    }

    pub(crate) async fn resolve(
        self,
        context: &RequestContext,
    ) -> Result<Response<ResponseBody>, Status> {
        match self {
            EncodedResponse::Ready(answer) => Ok(answer),
            EncodedResponse::Pooled(encoded) => context.within_deadline(encoded).await?,
        }
    }
}

/// Reads the message of a request. Fails if there is no message, if its announced length is above
/// `limit`, or if the client sends more or fewer bytes than it has announced. If `is_packed` is
/// true, the message may be compressed.
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

/// Returns the next data that is not empty, or `None` at the end of the body.
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

/// Returns the length of the frame, or `None` if its head is incomplete. Fails if the message is
/// above `limit`, or if `bytes` has more than this frame.
fn frame_len(bytes: &[u8], limit: usize) -> Result<Option<usize>, Status> {
    let Some((_, length)) = read_head(bytes) else { return Ok(None) };
    check_received_size(length, limit)?;
    if bytes.len() > FRAME_HEAD_BYTES + length {
        return Err(Status::internal("grpc: more than one message in a call that takes one"));
    }
    Ok(Some(FRAME_HEAD_BYTES + length))
}

pub(crate) fn unframe(mut bytes: Bytes, limit: usize, is_packed: bool) -> Result<Bytes, Status> {
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
