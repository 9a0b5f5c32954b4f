//! The body of a response: the pieces of its messages, and then the gRPC status.

use std::convert::Infallible;
use std::future;
use std::pin::Pin;

use bytes::Bytes;
use clearlane_net::coalescing_writer::LargeResponseGuard;
use futures_util::stream::{self, Stream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use http_body_util::StreamBody;
use hyper::body::Incoming;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const OK: &str = "0";
pub(super) const UNIMPLEMENTED: &str = "12";

/// The bytes of one or more messages, cut into pieces. A piece may occur several times. Its bytes
/// are then shared and not copied.
pub(super) type Pieces = Vec<Bytes>;

pub(super) fn length(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

type Frames = Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>> + Send>>;

/// Returns a body that sends the pieces and then the status. For a watch, `watch` is the body of
/// its request. Then no status is sent, and the response stays open until the client or its
/// connection ends it. `large` is dropped as soon as the connection has taken the last piece.
pub(super) fn body(
    pieces: Pieces,
    status: &'static str,
    watch: Option<Incoming>,
    large: Option<LargeResponseGuard>,
) -> StreamBody<Frames> {
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
    let data = stream::iter(pieces.map(|piece| Ok(Frame::data(piece))));
    let end = async move {
        drop(large);
        if let Some(_open) = watch {
            future::pending::<()>().await;
        }
        let status = (GRPC_STATUS, HeaderValue::from_static(status));
        Ok(Frame::trailers(HeaderMap::from_iter([status])))
    };
    StreamBody::new(Box::pin(data.chain(stream::once(end))))
}
