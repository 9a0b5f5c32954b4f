//! What goes out: the bodies of answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Response};
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::grpc_frame::FRAME_HEAD_BYTES;
use crate::range_body::{DeadlinePassed, StreamedRangeBody};
use crate::status;

/// A message cannot be completed: the call is cut off.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

#[derive(Debug, Default)]
pub(crate) enum ResponseBody {
    #[default]
    Empty,
    /// A frame, followed by the status OK.
    Message(Bytes),
    /// The same, encoded while it is sent.
    Range(Box<StreamedRangeBody>),
    OkTrailers,
    Tonic(tonic::body::Body),
}

impl ResponseBody {
    pub(crate) fn message_len(&self) -> usize {
        match self {
            ResponseBody::Message(bytes) => bytes.len() - FRAME_HEAD_BYTES,
            ResponseBody::Range(pieces) => pieces.message_len(),
            ResponseBody::Empty | ResponseBody::OkTrailers | ResponseBody::Tonic(_) => 0,
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
        if let ResponseBody::Tonic(body) = &mut *self {
            return Pin::new(body).poll_frame(context).map_err(BodyError::from);
        }
        if let ResponseBody::Range(pieces) = &mut *self {
            match ready!(pieces.poll(context)) {
                Ok(Some(piece)) => return Poll::Ready(Some(piece)),
                Ok(None) => *self = ResponseBody::OkTrailers,
                // A client takes trailers after a part of a message for a broken response.
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
            ResponseBody::Message(bytes) => (Some(Frame::data(bytes)), ResponseBody::OkTrailers),
            ResponseBody::OkTrailers => (Some(Frame::trailers(ok_trailers())), ResponseBody::Empty),
            ResponseBody::Empty | ResponseBody::Tonic(_) | ResponseBody::Range(_) => {
                (None, ResponseBody::Empty)
            }
        };
        *self = rest;
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Empty => true,
            ResponseBody::Tonic(body) => body.is_end_stream(),
            ResponseBody::Message(_) | ResponseBody::Range(_) | ResponseBody::OkTrailers => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Empty => SizeHint::with_exact(0),
            ResponseBody::Tonic(body) => body.size_hint(),
            ResponseBody::Message(_) | ResponseBody::Range(_) | ResponseBody::OkTrailers => {
                SizeHint::default()
            }
        }
    }
}

/// Resets the stream with `CANCEL`, which grpc-go reports as an expired deadline.
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

/// Trailers only: the status is in the head.
pub(crate) fn error_response(status: &Status) -> Response<ResponseBody> {
    status.clone().into_http()
}
