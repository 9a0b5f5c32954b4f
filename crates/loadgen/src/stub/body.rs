//! The body of an answer: pieces that are repeated, then the status.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use clearlane_net::coalescing_writer::LargeResponseGuard;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};
use hyper::body::Incoming;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: &str = "0";
const UNIMPLEMENTED: &str = "12";

/// Bytes, each piece so many times. Nothing is copied for another time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Pieces(VecDeque<(Bytes, u64)>);

impl Pieces {
    pub(super) fn push(&mut self, piece: impl Into<Bytes>, times: u64) {
        let piece = piece.into();
        if !piece.is_empty() && times > 0 {
            self.0.push_back((piece, times));
        }
    }

    pub(super) fn push_front(&mut self, piece: impl Into<Bytes>) {
        self.0.push_front((piece.into(), 1));
    }

    pub(super) fn append(&mut self, mut others: Pieces) {
        self.0.append(&mut others.0);
    }

    pub(super) fn length(&self) -> usize {
        self.0.iter().map(|(piece, times)| piece.len() * *times as usize).sum()
    }

    /// In one piece.
    pub(super) fn concat(mut self) -> Bytes {
        let mut whole = BytesMut::with_capacity(self.length());
        while let Some(piece) = self.next() {
            whole.extend_from_slice(&piece);
        }
        whole.freeze()
    }

    fn next(&mut self) -> Option<Bytes> {
        let (piece, times) = self.0.front_mut()?;
        *times -= 1;
        let piece = piece.clone();
        self.0.pop_front_if(|(_, times)| *times == 0);
        Some(piece)
    }
}

#[derive(Debug)]
pub(super) struct AnswerBody {
    pieces: Pieces,
    /// `None` once it has been sent.
    status: Option<&'static str>,
    /// Of a watch, which ends only with its connection.
    request: Option<Incoming>,
    /// Until all is handed over.
    large: Option<LargeResponseGuard>,
}

impl AnswerBody {
    pub(super) fn new(
        pieces: Pieces,
        request: Option<Incoming>,
        large: Option<LargeResponseGuard>,
    ) -> AnswerBody {
        AnswerBody { pieces, status: Some(OK), request, large }
    }

    pub(super) fn unimplemented() -> AnswerBody {
        let (pieces, status) = (Pieces::default(), Some(UNIMPLEMENTED));
        AnswerBody { pieces, status, request: None, large: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    /// Of a watch, nothing wakes the task but the end of the stream.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(piece) = self.pieces.next() {
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        self.large = None;
        if self.request.is_some() {
            return Poll::Pending;
        }
        let trailers = self.status.take().map(|status| {
            let status = (GRPC_STATUS, HeaderValue::from_static(status));
            Ok(Frame::trailers(HeaderMap::from_iter([status])))
        });
        Poll::Ready(trailers)
    }
}
