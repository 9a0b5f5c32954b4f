//! The bodies of responses.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::grpc_frame::FRAME_HEAD_BYTES;
use crate::message_parts::CHUNK_BYTES;
use crate::range_body::{DeadlinePassed, StreamedRangeBody};
use crate::status;

/// An error inside a message: the message cannot be completed, and the call is cut off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

#[derive(Debug, Default)]
pub(crate) enum ResponseBody {
    #[default]
    Empty,
    /// A frame, followed by the status OK.
    Message(Bytes),
    /// A frame that is encoded while it is sent, followed by the status OK.
    Range(Box<StreamedRangeBody>),
    OkTrailers,
    /// A body of tonic. `rest` is sent before the next frame of `body`.
    Tonic {
        body: tonic::body::Body,
        rest: Bytes,
    },
}

impl ResponseBody {
    pub(crate) fn tonic(body: tonic::body::Body) -> ResponseBody {
        ResponseBody::Tonic { body, rest: Bytes::new() }
    }

    pub(crate) fn message_len(&self) -> usize {
        match self {
            ResponseBody::Message(bytes) => bytes.len() - FRAME_HEAD_BYTES,
            ResponseBody::Range(pieces) => pieces.message_len(),
            ResponseBody::Empty | ResponseBody::OkTrailers | ResponseBody::Tonic { .. } => 0,
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let ResponseBody::Tonic { body, rest } = &mut *self {
            return poll_tonic(body, rest, context);
        }
        if let ResponseBody::Range(pieces) = &mut *self {
            match ready!(pieces.poll(context)) {
                Ok(Some(piece)) => return Poll::Ready(Some(piece)),
                Ok(None) => *self = ResponseBody::OkTrailers,
                // Reset the stream: a client treats trailers after a part of a message as a broken
                // response.
                Err(DeadlinePassed { is_begun: true }) => {
                    *self = ResponseBody::Empty;
                    return Poll::Ready(Some(Err(cancelled())));
                }
                Err(DeadlinePassed { is_begun: false }) => {
                    *self = ResponseBody::Empty;
                    return Poll::Ready(Some(Ok(Frame::trailers(
                        status::deadline_exceeded_trailers(),
                    ))));
                }
            }
        }
        let (frame, rest) = match std::mem::take(&mut *self) {
            ResponseBody::Message(mut bytes) => {
                let chunk = split_chunk(&mut bytes);
                let is_last = bytes.is_empty();
                let rest =
                    if is_last { ResponseBody::OkTrailers } else { ResponseBody::Message(bytes) };
                (Some(Frame::data(chunk)), rest)
            }
            ResponseBody::OkTrailers => (Some(Frame::trailers(ok_trailers())), ResponseBody::Empty),
            ResponseBody::Empty | ResponseBody::Tonic { .. } | ResponseBody::Range(_) => {
                (None, ResponseBody::Empty)
            }
        };
        *self = rest;
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Empty => true,
            ResponseBody::Tonic { body, rest } => rest.is_empty() && body.is_end_stream(),
            ResponseBody::Message(_) | ResponseBody::Range(_) | ResponseBody::OkTrailers => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Empty => SizeHint::with_exact(0),
            ResponseBody::Tonic { body, rest } if rest.is_empty() => body.size_hint(),
            ResponseBody::Tonic { .. }
            | ResponseBody::Message(_)
            | ResponseBody::Range(_)
            | ResponseBody::OkTrailers => SizeHint::default(),
        }
    }
}

/// Splits off at most [`CHUNK_BYTES`] bytes. hyper gives a frame to h2 as soon as one byte of the
/// frame fits into the client's window. So h2 keeps less than this number of bytes of a body in
/// addition to the bytes that fit into the window.
fn split_chunk(bytes: &mut Bytes) -> Bytes {
    bytes.split_to(bytes.len().min(CHUNK_BYTES))
}

fn poll_tonic(
    body: &mut tonic::body::Body,
    rest: &mut Bytes,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
    if rest.is_empty() {
        let frame = ready!(Pin::new(body).poll_frame(context)).transpose()?;
        match frame.map(Frame::into_data) {
            None => return Poll::Ready(None),
            Some(Err(other)) => return Poll::Ready(Some(Ok(other))),
            Some(Ok(data)) => *rest = data,
        }
    }
    Poll::Ready(Some(Ok(Frame::data(split_chunk(rest)))))
}

/// Returns the error that resets the stream with `CANCEL`. grpc-go reports this code as an expired
/// deadline if the deadline of the call has passed.
fn cancelled() -> BodyError {
    h2::Error::from(h2::Reason::CANCEL).into()
}

fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

pub(crate) fn ok_response(answer: ResponseBody) -> Response<ResponseBody> {
    let mut response = Response::new(answer);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Returns a response without a body. The status is in the head.
pub(crate) fn error_response(status: &Status) -> Response<ResponseBody> {
    status.clone().into_http()
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[test]
    fn large_frames_are_sent_in_chunks() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let bytes: Bytes = (0..2 * CHUNK_BYTES + 7).map(|byte| byte as u8).collect();
            let tonic = ResponseBody::tonic(tonic::body::Body::new(Full::new(bytes.clone())));
            for (mut body, has_trailers) in
                [(tonic, false), (ResponseBody::Message(bytes.clone()), true)]
            {
                let mut sent = Vec::new();
                for length in [CHUNK_BYTES, CHUNK_BYTES, 7] {
                    assert!(!body.is_end_stream(), "after {} bytes", sent.len());
                    let chunk = body.frame().await.unwrap().unwrap().into_data().unwrap();
                    assert_eq!(chunk.len(), length);
                    sent.extend(chunk);
                }
                assert_eq!(sent, bytes);
                if has_trailers {
                    assert!(body.frame().await.unwrap().unwrap().is_trailers());
                }
                assert!(body.is_end_stream() && body.frame().await.is_none());
            }
        });
    }
}
