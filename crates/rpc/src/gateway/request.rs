//! From the body of an HTTP request to the body of a call.

use bytes::Bytes;
use clearlane_server::threads::JobKind;
use clearlane_server::{RequestError, Server};
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
use crate::grpc_frame::{check_received_size, frame_bytes};
use crate::kv::message_bytes_max;
use crate::status;

/// Longer JSON is decoded in the read pool: other requests of the thread would wait for it.
const INLINE_JSON_BYTES_MAX: usize = 16 << 10;
/// Longer JSON takes a place of the read pool from long answers, and not from short reads.
const SHORT_JSON_BYTES_MAX: usize = 1 << 20;

pub(super) async fn message(
    server: &Server,
    body: Body,
    binding: &'static Binding,
) -> Result<Bytes, Status> {
    let json = Limited::new(body, JSON_BYTES_MAX).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            too_large(JSON_BYTES_MAX)
        } else {
            Status::cancelled("the request was cut off")
        }
    })?;
    decode(server, binding, json.to_bytes()).await
}

async fn decode(server: &Server, binding: &'static Binding, json: Bytes) -> Result<Bytes, Status> {
    let kind = binding.method.input();
    if json.len() <= INLINE_JSON_BYTES_MAX {
        return json::to_message(&kind, &json);
    }
    let is_short = json.len() <= SHORT_JSON_BYTES_MAX;
    let job = if is_short { JobKind::Short } else { JobKind::Continued };
    let decode = move || json::to_message_in_steps(&kind, json);
    let decoded = server.threads().read_pool().run(job, decode).await;
    let message = decoded.ok_or_else(|| status::from_error(RequestError::Stopped)).flatten()?;
    check_received_size(message.len(), message_bytes_max(server))?;
    Ok(message)
}

/// A stream of requests, and the signal that it was cut off: then its client has gone, and the
/// answers have no reader. A request stream that ends well may still get answers for a long time.
///
/// The first message is waited for, so that what is wrong with it can be reported in the status of
/// the response.
pub(super) async fn stream(
    server: Server,
    body: Body,
    binding: &'static Binding,
) -> Result<(Body, oneshot::Receiver<()>), Status> {
    let (tell, cut_off) = oneshot::channel();
    let splitter = JsonSplitter::default();
    let mut messages = RequestMessages { server, body, binding, splitter, cut_off_to: Some(tell) };
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
    server: Server,
    body: Body,
    binding: &'static Binding,
    splitter: JsonSplitter,
    cut_off_to: Option<oneshot::Sender<()>>,
}

impl RequestMessages {
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(json) = self.splitter.next(JSON_BYTES_MAX)? {
                let message = decode(&self.server, self.binding, json).await?;
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
