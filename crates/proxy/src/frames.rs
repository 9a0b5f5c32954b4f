//! Bodies whose messages are changed one by one, and bodies that end with a status.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Response};
use http_body::Frame;
use tonic::body::Body;
use tonic::{Code, Status};

use crate::forward::FRAME_HEAD_BYTES;
use crate::status;
use crate::upstream::is_transport_error;

/// Returns a body with the frames of another one, each changed by `change`. Trailers pass
/// unchanged. Fails if a frame has a message with more than `bytes_max` bytes.
pub(crate) fn map_frames(
    body: Body,
    bytes_max: usize,
    change: impl FnMut(Bytes) -> Result<Bytes, Status> + Send + 'static,
) -> Body {
    let unread = BytesMut::new();
    Body::new(MappedBody { body, unread, bytes_max, change: Box::new(change) })
}

struct MappedBody {
    body: Body,
    /// The bytes of a message that has not arrived in full.
    unread: BytesMut,
    bytes_max: usize,
    change: Box<dyn FnMut(Bytes) -> Result<Bytes, Status> + Send>,
}

impl MappedBody {
    /// Returns the next message that has arrived in full, changed.
    fn next_frame(&mut self) -> Option<Result<Bytes, Status>> {
        let [_, length @ ..] = *self.unread.first_chunk::<FRAME_HEAD_BYTES>()?;
        let length = u32::from_be_bytes(length) as usize;
        let bytes_max = self.bytes_max;
        if length > bytes_max {
            return Some(Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({length} vs. {bytes_max})"
            ))));
        }
        let length = length.saturating_add(FRAME_HEAD_BYTES);
        if self.unread.len() < length {
            return None;
        }
        Some((self.change)(self.unread.split_to(length).freeze()))
    }
}

impl http_body::Body for MappedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(message) = self.next_frame() {
                return Poll::Ready(Some(message.map(Frame::data)));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unread.extend_from_slice(&data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.unread.is_empty() && self.body.is_end_stream()
    }
}

/// Lets the body of a member's response end with trailers in all cases. If the body fails, they
/// have its status. Otherwise HTTP/2 would reset the stream, and a client would see an internal
/// error, after which it does not repeat a read.
pub(crate) fn end_with_status(response: Response<Body>) -> Response<Body> {
    if response.headers().contains_key("grpc-status") {
        return response;
    }
    response.map(|body| match http_body::Body::is_end_stream(&body) {
        true => body,
        false => Body::new(StatusBody { body, has_ended: false }),
    })
}

struct StatusBody {
    body: Body,
    has_ended: bool,
}

impl http_body::Body for StatusBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let status = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
            Some(Ok(frame)) => {
                self.has_ended = frame.is_trailers();
                return Poll::Ready(Some(Ok(frame)));
            }
            // The connection was lost, without a code of HTTP/2.
            Some(Err(status)) if is_transport_error(&status) && status.code() == Code::Unknown => {
                status::connection_lost()
            }
            Some(Err(status)) => status,
            None => status::connection_lost(),
        };
        self.has_ended = true;
        let mut trailers = HeaderMap::with_capacity(2);
        Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, StreamBody};

    use super::*;

    /// Returns the data of a response with these frames, and its status.
    async fn end_of(frames: Vec<Result<Frame<Bytes>, Status>>) -> (Bytes, Status) {
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let body = end_with_status(Response::new(body)).into_body();
        let all = body.collect().await.unwrap();
        let status = Status::from_header_map(all.trailers().unwrap()).unwrap();
        (all.to_bytes(), status)
    }

    #[tokio::test]
    async fn a_body_ends_with_a_status() {
        let data = || Ok(Frame::data(Bytes::from_static(b"data")));
        let mut ok = HeaderMap::new();
        ok.insert("grpc-status", http::HeaderValue::from_static("0"));
        let failed = || Err(Status::data_loss("lost: 50 %"));
        for (end, code, message) in [
            (Some(Ok(Frame::trailers(ok))), Code::Ok, ""),
            (Some(failed()), Code::DataLoss, "lost: 50 %"),
            (None, Code::Unavailable, status::connection_lost().message()),
        ] {
            let frames = [data()].into_iter().chain(end).collect();
            let (received, status) = end_of(frames).await;
            assert_eq!((&received[..], status.code()), (&b"data"[..], code));
            assert_eq!(status.message(), message);
        }
        let (received, status) = end_of(vec![failed(), data()]).await;
        assert_eq!((received.len(), status.code()), (0, Code::DataLoss));
    }
}
