//! From the body of an HTTP request to the body of a call.

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited, StreamBody};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;

use super::JSON_BYTES_MAX;
use super::bindings::Binding;
use super::json;
use super::json_splitter::{JsonSplitter, too_large};
use crate::grpc_frame::frame_bytes;

pub(super) async fn message(body: Body, binding: &'static Binding) -> Result<Bytes, Status> {
    let json = Limited::new(body, JSON_BYTES_MAX).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            too_large(JSON_BYTES_MAX)
        } else {
            Status::cancelled("the request was cut off")
        }
    })?;
    json::to_message(&binding.method.input(), &json.to_bytes())
}

/// A stream of requests, and the signal that it was cut off: then its client has gone, and the
/// answers have no reader. A request stream that ends well may still get answers for a long time.
///
/// The first message is waited for, so that what is wrong with it can be reported in the status of
/// the response.
pub(super) async fn stream(
    body: Body,
    binding: &'static Binding,
) -> Result<(Body, oneshot::Receiver<()>), Status> {
    let (tell, cut_off) = oneshot::channel();
    let splitter = JsonSplitter::default();
    let mut messages = RequestMessages { body, binding, splitter, cut_off_to: Some(tell) };
    let first = messages.next().await?;
    let later = stream::unfold(messages, |mut messages| async {
        let next = messages.next().await.transpose()?;
        Some((next, messages))
    });
    let frames = stream::iter(first.map(Ok)).chain(later).map(|message| message.map(Frame::data));
    Ok((Body::new(StreamBody::new(frames.fuse())), cut_off))
}

/// Bytes of JSON objects in; a frame for each object out.
struct RequestMessages {
    body: Body,
    binding: &'static Binding,
    splitter: JsonSplitter,
    cut_off_to: Option<oneshot::Sender<()>>,
}

impl RequestMessages {
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(json) = self.splitter.next(JSON_BYTES_MAX)? {
                let message = json::to_message(&self.binding.method.input(), &json)?;
                return Ok(Some(frame_bytes(&message)));
            }
            match self.body.frame().await {
                Some(Ok(piece)) => {
                    piece.into_data().iter().for_each(|data| self.splitter.push(data))
                }
                None if !self.splitter.is_incomplete() => return Ok(None),
                None | Some(Err(_)) => {
                    // No task listens if there is no answer yet.
                    let _ = self.cut_off_to.take().map(|tell| tell.send(()));
                    return Err(Status::cancelled("the request was cut off"));
                }
            }
        }
    }
}
