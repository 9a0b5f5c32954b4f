//! From the body of an HTTP request to the body of a call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body as _;
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited};
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
    let mut messages = RequestMessages {
        body,
        binding,
        splitter: JsonSplitter::default(),
        first: None,
        cut_off_to: Some(tell),
    };
    let first = std::future::poll_fn(|context| messages.poll_message(context)).await;
    messages.first = first.transpose()?;
    Ok((Body::new(messages), cut_off))
}

/// Bytes of JSON objects in; a frame for each object out.
struct RequestMessages {
    body: Body,
    binding: &'static Binding,
    splitter: JsonSplitter,
    first: Option<Bytes>,
    cut_off_to: Option<oneshot::Sender<()>>,
}

impl RequestMessages {
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            if let Some(value) = self.splitter.next(JSON_BYTES_MAX).transpose() {
                let message =
                    value.and_then(|json| json::to_message(&self.binding.method.input(), &json));
                return Poll::Ready(Some(message.map(|message| frame_bytes(&message))));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(piece)) => {
                    piece.into_data().iter().for_each(|data| self.splitter.push(data))
                }
                None if !self.splitter.is_incomplete() => return Poll::Ready(None),
                None | Some(Err(_)) => {
                    // No task listens if there is no answer yet.
                    let _ = self.cut_off_to.take().map(|tell| tell.send(()));
                    return Poll::Ready(Some(Err(Status::cancelled("the request was cut off"))));
                }
            }
        }
    }
}

impl http_body::Body for RequestMessages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        self.poll_message(context).map(|message| message.map(|framed| framed.map(Frame::data)))
    }
}
