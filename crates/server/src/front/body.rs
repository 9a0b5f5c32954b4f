//! What goes out: the bodies of answers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame, SizeHint};

use super::range::{Late, Pieces};
use super::unary::PREFIX;
use crate::status;

/// A message cannot be completed: the call is cut off.
pub(super) type Error = Box<dyn std::error::Error + Send + Sync>;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// The body of an answer.
#[derive(Debug, Default)]
pub enum Answer {
    /// Nothing (any more).
    #[default]
    Empty,
    /// One message of gRPC, and behind it the word that all went well.
    Message(Bytes),
    /// The same, encoded while it is sent.
    Range(Box<Pieces>),
    /// Only that word is left to send.
    Well,
    /// What tonic says.
    Tonic(tonic::body::Body),
}

impl Answer {
    /// How long the message in it is.
    pub(super) fn message_len(&self) -> usize {
        match self {
            Answer::Message(bytes) => bytes.len() - PREFIX,
            Answer::Range(pieces) => pieces.message_len(),
            Answer::Empty | Answer::Well | Answer::Tonic(_) => 0,
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Error>>> {
        if let Answer::Tonic(body) = &mut *self {
            return Pin::new(body).poll_frame(context).map_err(Error::from);
        }
        if let Answer::Range(pieces) = &mut *self {
            match ready!(pieces.poll(context)) {
                Ok(Some(piece)) => return Poll::Ready(Some(piece)),
                Ok(None) => *self = Answer::Well,
                Err(Late) => {
                    *self = Answer::Empty;
                    return Poll::Ready(Some(Ok(Frame::trailers(status::late()))));
                }
            }
        }
        let (frame, rest) = match std::mem::take(&mut *self) {
            Answer::Message(bytes) => (Some(Frame::data(bytes)), Answer::Well),
            Answer::Well => (Some(Frame::trailers(all_well())), Answer::Empty),
            Answer::Empty | Answer::Tonic(_) | Answer::Range(_) => (None, Answer::Empty),
        };
        *self = rest;
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Answer::Empty => true,
            Answer::Tonic(body) => body.is_end_stream(),
            Answer::Message(_) | Answer::Range(_) | Answer::Well => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Answer::Empty => SizeHint::with_exact(0),
            Answer::Tonic(body) => body.size_hint(),
            Answer::Message(_) | Answer::Range(_) | Answer::Well => SizeHint::default(),
        }
    }
}

fn all_well() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}
