//! Translates the body of an HTTP request to the body of a call.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use clearlane_server::threads::JobKind;
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

/// JSON up to this size, in bytes, is decoded on the network thread. Longer JSON is decoded in the
/// read pool, because other requests of the network thread would wait for it.
const INLINE_JSON_BYTES_MAX: usize = 16 << 10;
/// JSON up to this size, in bytes, is decoded in a short job of the read pool. Longer JSON is
/// decoded in a job of the kind `Continued`, which delays long jobs but not short reads.
const SHORT_JSON_BYTES_MAX: usize = 1 << 20;
/// Maximum number of requests of a network thread whose long JSON (more than
/// [`SHORT_JSON_BYTES_MAX`]) is decoded in the read pool at the same time. While its JSON is being
/// decoded, a request may need forty times as much memory as the JSON itself.
const LONG_JSON_MAX: usize = 1;

/// Decodes the JSON requests of one network thread.
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
            // Hold the permit until the job ends. The job may run for some time after its request
            // was dropped.
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

/// Returns the body of a stream of requests, and a receiver that is notified if the HTTP request
/// was cut off. In this case the client has left, and nobody reads the responses. After a request
/// stream that ends normally, the client may still receive responses for a long time.
///
/// The function waits for the first message, so that an error in it can be reported in the status
/// of the response.
pub(super) async fn stream(
    decoder: JsonDecoder,
    body: Body,
    binding: &'static Binding,
) -> Result<(Body, oneshot::Receiver<()>), Status> {
    let (sender, cut_off) = oneshot::channel();
    let splitter = JsonSplitter::default();
    let mut messages =
        RequestMessages { decoder, body, binding, splitter, cut_off_to: Some(sender) };
    let first = messages.next().await?;
    let later = stream::unfold(messages, |mut messages| async {
        let next = messages.next().await.transpose()?;
        Some((next, messages))
    });
    let frames = stream::iter(first.map(Ok)).chain(later).map(|message| message.map(Frame::data));
    Ok((Body::new(StreamBody::new(frames.fuse())), cut_off))
}

/// Receives the bytes of JSON objects, and returns a frame for each object.
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
                    // Nobody receives the signal if there is no response yet.
                    let _ = self.cut_off_to.take().map(|sender| sender.send(()));
                    return Err(Status::cancelled("the request was cut off"));
                }
            }
        }
    }
}
