//! Bodies whose messages are changed one by one.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;

use crate::forward::FRAME_HEAD_BYTES;

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
