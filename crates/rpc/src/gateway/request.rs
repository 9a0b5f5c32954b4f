//! From the body of an HTTP request to the body of a call.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_server::threads::JobKind;
use clearlane_server::{RequestError, Server};
use futures_util::stream::{self, StreamExt};
use http_body::Frame;
use http_body_util::{BodyExt, LengthLimitError, Limited, StreamBody};
use tokio::sync::{Semaphore, oneshot};
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
/// Maximum number of requests with longer JSON that a network thread has in the read pool. While
/// one is decoded, its parts may take forty times the memory of its JSON.
const LONG_JSON_MAX: usize = 1;

/// Decodes the requests of one network thread.
#[derive(Clone, Debug)]
pub(super) struct JsonDecoder {
    server: Server,
    long_json: Arc<Semaphore>,
}

impl JsonDecoder {
    pub(super) fn new(server: Server) -> JsonDecoder {
        JsonDecoder { server, long_json: Arc::new(Semaphore::new(LONG_JSON_MAX)) }
    }

    async fn decode(&self, binding: &'static Binding, json: Bytes) -> Result<Bytes, Status> {
        let kind = binding.method.input();
        if json.len() <= INLINE_JSON_BYTES_MAX {
            return json::to_message(&kind, &json);
        }
        let stopped = || status::from_error(RequestError::Stopped);
        let (job, permit) = if json.len() <= SHORT_JSON_BYTES_MAX {
            (JobKind::Short, None)
        } else {
            let permit = Arc::clone(&self.long_json).acquire_owned().await;
            (JobKind::Continued, Some(permit.map_err(|_| stopped())?))
        };
        let decode = move || {
            // The job of a request that was dropped may run for some time.
            let _until_done = permit;
            json::to_message_in_steps(&kind, json)
        };
        let decoded = self.server.threads().read_pool().run(job, decode).await;
        let message = decoded.ok_or_else(stopped).flatten()?;
        check_received_size(message.len(), message_bytes_max(&self.server))?;
        Ok(message)
    }
}

pub(super) async fn message(
    decoder: &JsonDecoder,
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
    decoder.decode(binding, json.to_bytes()).await
}

/// A stream of requests, and the signal that it was cut off: then its client has gone, and the
/// answers have no reader. A request stream that ends well may still get answers for a long time.
///
/// The first message is waited for, so that what is wrong with it can be reported in the status of
/// the response.
pub(super) async fn stream(
    decoder: JsonDecoder,
    body: Body,
    binding: &'static Binding,
) -> Result<(Body, oneshot::Receiver<()>), Status> {
    let (tell, cut_off) = oneshot::channel();
    let splitter = JsonSplitter::default();
    let mut messages = RequestMessages { decoder, body, binding, splitter, cut_off_to: Some(tell) };
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
    decoder: JsonDecoder,
    body: Body,
    binding: &'static Binding,
    splitter: JsonSplitter,
    cut_off_to: Option<oneshot::Sender<()>>,
}

impl RequestMessages {
    async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            if let Some(json) = self.splitter.next(JSON_BYTES_MAX)? {
                let message = self.decoder.decode(self.binding, json).await?;
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
