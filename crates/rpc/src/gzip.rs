//! Compression of the messages of a call, which gRPC clients may use.
//!
//! Only gzip is supported, as in etcd. If the client of a call uses gzip, each message of the
//! response is also compressed, unless it is empty or longer than [`COMPRESSED_BYTES_MAX`]. The
//! decompression of a request stops one byte above the size limit for uncompressed requests. If the
//! request has that byte, it is rejected as too large.

use std::io::{Read, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use futures_util::stream::{self, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tonic::Status;
use tonic::body::Body;

use crate::grpc_frame::{FRAME_HEAD_BYTES, check_received_size, frame_bytes, read_head};
use crate::response_body::ResponseBody;

/// Maximum size in bytes of a response message that is compressed. Compressing a longer message
/// would block the network thread for too long.
const COMPRESSED_BYTES_MAX: usize = 64 << 10;

const GRPC_ENCODING: HeaderName = HeaderName::from_static("grpc-encoding");
const GZIP: HeaderValue = HeaderValue::from_static("gzip");

/// Returns true if the client compresses its messages with gzip. Fails if the encoding is neither
/// gzip nor identity.
pub(crate) fn is_gzip(head: &HeaderMap) -> Result<bool, Status> {
    let Some(encoding) = head.get(GRPC_ENCODING) else { return Ok(false) };
    match encoding.as_bytes() {
        b"gzip" => Ok(true),
        b"" | b"identity" => Ok(false),
        other => {
            let other = String::from_utf8_lossy(other);
            let why = format!("grpc: Decompressor is not installed for grpc-encoding {other:?}");
            Err(Status::unimplemented(why))
        }
    }
}

/// Decompresses a message whose flag is not 0. Fails if the flag is not 1, if the call has not
/// announced gzip (`is_packed` is false), if the message is malformed, or if the decompressed
/// message has more than `limit` bytes.
pub(crate) fn decompress(
    flag: u8,
    message: &[u8],
    limit: usize,
    is_packed: bool,
) -> Result<Bytes, Status> {
    if flag != 1 {
        let why = format!("grpc: received unexpected payload format {flag}");
        return Err(Status::internal(why));
    }
    if !is_packed {
        let why = "grpc: compressed flag set with identity or empty encoding";
        return Err(Status::internal(why));
    }
    let decoder = MultiGzDecoder::new(message);
    if decoder.header().is_none() {
        let error = if message.is_empty() { "EOF" } else { "gzip: invalid header" };
        let why = format!("grpc: failed to decompress the message: {error}");
        return Err(Status::internal(why));
    }
    let mut plain = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut plain).map_err(|error| {
        Status::internal(format!("grpc: failed to read decompressed data: {error}"))
    })?;
    if plain.len() > limit {
        let why = format!("grpc: received message after decompression larger than max {limit}");
        return Err(Status::resource_exhausted(why));
    }
    Ok(plain.into())
}

/// Compresses the message of a response, unless it is empty or longer than
/// [`COMPRESSED_BYTES_MAX`]. Streamed ranges and errors stay uncompressed.
pub(super) fn compress_response(answer: Response<ResponseBody>) -> Response<ResponseBody> {
    let (mut head, body) = answer.into_parts();
    let body = match body {
        ResponseBody::Message(framed) => ResponseBody::Message(compress_frame(framed)),
        body => body,
    };
    if !matches!(body, ResponseBody::Empty | ResponseBody::Tonic { .. }) {
        head.headers.insert(GRPC_ENCODING, GZIP);
    }
    Response::from_parts(head, body)
}

fn compress_frame(framed: Bytes) -> Bytes {
    let message = &framed[FRAME_HEAD_BYTES..];
    if message.is_empty() || message.len() > COMPRESSED_BYTES_MAX {
        return framed;
    }
    let mut packed = BytesMut::with_capacity(FRAME_HEAD_BYTES + message.len() / 2);
    packed.put_u8(1);
    packed.put_u32(0);
    let mut encoder = GzEncoder::new(packed.writer(), Compression::default());
    let written = encoder.write_all(message).and_then(|()| encoder.finish());
    let mut packed = written.expect("this memory grows").into_inner();
    let length = (packed.len() - FRAME_HEAD_BYTES) as u32;
    packed[1..FRAME_HEAD_BYTES].copy_from_slice(&length.to_be_bytes());
    packed.freeze()
}

/// Returns the flag and the length of the first message, or `None` if it is incomplete. Fails if
/// the message has more than `limit` bytes.
fn first_frame(bytes: &[u8], limit: usize) -> Result<Option<(u8, usize)>, Status> {
    let Some((flag, length)) = read_head(bytes) else { return Ok(None) };
    check_received_size(length, limit)?;
    Ok((bytes.len() >= FRAME_HEAD_BYTES + length).then_some((flag, length)))
}

/// Decompresses the messages of a request before a service of tonic receives them: these services
/// support no compression.
pub(super) fn decompress_request(mut request: Request<Body>, limit: usize) -> Request<Body> {
    request.headers_mut().remove(GRPC_ENCODING);
    request.map(|body| {
        let body = DecompressedBody { body, bytes: BytesMut::new(), limit };
        let frames = stream::unfold(body, |mut body| async {
            let next = body.next_frame().await.transpose()?;
            Some((next, body))
        });
        Body::new(StreamBody::new(frames.fuse()))
    })
}

pub(super) fn recompress_response(answer: Response<Body>) -> Response<Body> {
    if answer.headers().contains_key("grpc-status") {
        return answer;
    }
    let compress = |frame: Frame<Bytes>| frame.map_data(compress_frames);
    let mut answer = answer.map(|body| Body::new(body.map_frame(compress)));
    answer.headers_mut().insert(GRPC_ENCODING, GZIP);
    answer
}

struct DecompressedBody {
    body: Body,
    bytes: BytesMut,
    limit: usize,
}

impl DecompressedBody {
    fn next_message(&mut self) -> Result<Option<Bytes>, Status> {
        let Some((flag, length)) = first_frame(&self.bytes, self.limit)? else { return Ok(None) };
        let mut framed = self.bytes.split_to(FRAME_HEAD_BYTES + length).freeze();
        if flag == 0 {
            return Ok(Some(framed));
        }
        framed.advance(FRAME_HEAD_BYTES);
        let message = decompress(flag, &framed, self.limit, true)?;
        Ok(Some(frame_bytes(&message)))
    }

    async fn next_frame(&mut self) -> Result<Option<Frame<Bytes>>, Status> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(Some(Frame::data(message)));
            }
            match self.body.frame().await.transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.bytes.put(data),
                Some(Err(trailers)) => return Ok(Some(trailers)),
                // The body ends within a message. The service rejects this incomplete message.
                None if !self.bytes.is_empty() => {
                    return Ok(Some(Frame::data(std::mem::take(&mut self.bytes).freeze())));
                }
                None => return Ok(None),
            }
        }
    }
}

/// Compresses the messages in one piece of a response. Each piece that tonic sends consists of
/// whole messages.
fn compress_frames(mut messages: Bytes) -> Bytes {
    let mut packed = BytesMut::new();
    while let Ok(Some((0, length))) = first_frame(&messages, usize::MAX) {
        packed.put(compress_frame(messages.split_to(FRAME_HEAD_BYTES + length)));
    }
    packed.put(messages);
    packed.freeze()
}
