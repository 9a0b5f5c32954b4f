//! The steps from a client's bytes to a message and back, without a connection. `lab/fuzz` calls
//! the functions of this module with arbitrary bytes.
//!
//! Each function takes the same steps as the services. The server itself calls none of these
//! functions.

use bytes::{Bytes, BytesMut};
use clearlane_proto::etcdserverpb::TxnRequest;
use futures_util::{FutureExt as _, stream};
use http::{HeaderMap, HeaderValue, Request};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use prost_reflect::{MessageDescriptor, MethodDescriptor};
use tonic::Status;
use tonic::body::Body;

use crate::gateway::{bindings, json, json_splitter, json_transcoder};
use crate::metrics::RpcMethod;
use crate::{gzip, interceptors, unary};

/// Returns the message of a unary call from the body of its request. If `is_packed` is true, the
/// message may be compressed with gzip.
pub fn unary_message(body: Bytes, limit: usize, is_packed: bool) -> Result<Bytes, Status> {
    unary::unframe(body, limit, is_packed)
}

pub fn txn(message: Bytes) -> Result<TxnRequest, Status> {
    unary::decode_txn(message)
}

/// Decompresses the body of a request stream, as the service receives it. Each item of `pieces` has
/// the bytes of one read from the socket.
pub fn decompressed_body(pieces: Vec<Bytes>, limit: usize) -> Result<Bytes, Status> {
    let frames = pieces.into_iter().map(|piece| Ok::<_, Status>(Frame::data(piece)));
    let request = Request::new(Body::new(StreamBody::new(stream::iter(frames))));
    let mut body = gzip::decompress_request(request, limit).into_body();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().now_or_never().expect("nothing is waited for") {
        all.extend_from_slice(&frame?.into_data().unwrap_or_default());
    }
    Ok(all.freeze())
}

/// Reads the headers `grpc-timeout` and `grpc-encoding`. Fails if the encoding is not supported.
pub fn check_headers(timeout: &[u8], encoding: &[u8]) -> Result<(), Status> {
    let mut head = HeaderMap::new();
    for (name, value) in [("grpc-timeout", timeout), ("grpc-encoding", encoding)] {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            head.insert(name, value);
        }
    }
    let _ = interceptors::grpc_timeout(&head);
    gzip::is_gzip(&head).map(drop)
}

/// Returns the rpcs that the JSON gateway serves.
pub fn gateway_methods() -> impl ExactSizeIterator<Item = &'static MethodDescriptor> {
    bindings::TABLE.into_iter().map(|(_, rpc)| RpcMethod::named(rpc).descriptor())
}

/// Splits the body of a streaming call into JSON objects.
pub fn split_json<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    bytes_max: usize,
) -> Result<Vec<Bytes>, Status> {
    let mut splitter = json_splitter::JsonSplitter::default();
    let mut objects = Vec::new();
    for piece in pieces {
        splitter.push(piece);
        while let Some(object) = splitter.next(bytes_max)? {
            objects.push(object);
        }
    }
    Ok(objects)
}

pub fn json_to_message(kind: &MessageDescriptor, text: &[u8]) -> Result<Bytes, Status> {
    json::to_message(kind, text)
}

pub fn message_to_json(kind: &MessageDescriptor, message: Bytes) -> Result<Vec<u8>, Status> {
    json::of_message(kind, message)
}

/// Translates a long response to JSON. The response arrives in pieces.
pub fn pieces_to_json<'a>(
    kind: &MessageDescriptor,
    pieces: impl Iterator<Item = &'a [u8]> + Clone,
) -> Result<Vec<u8>, Status> {
    let length = pieces.clone().map(<[u8]>::len).sum::<usize>();
    let mut transcoder = json_transcoder::JsonTranscoder::new(kind.clone(), length as u64);
    let mut text = Vec::new();
    for piece in pieces {
        let mut piece = Bytes::copy_from_slice(piece);
        while !piece.is_empty() {
            let mut some = Vec::new();
            transcoder.transcode(&mut piece, &mut some)?;
            text.extend(some);
        }
    }
    if length == 0 {
        transcoder.transcode(&mut Bytes::new(), &mut text)?;
    }
    if transcoder.is_done() { Ok(text) } else { Err(Status::internal("a field is cut off")) }
}
