//! Translates the response of a call to an HTTP response.
//!
//! A gRPC response has HTTP status 200, and its result is in the trailers or in the headers. An
//! HTTP client needs the result in the status line. So an HTTP response does not start before the
//! first message, the first chunk of a large message, or the status has arrived.

use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream::{self, StreamExt};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tonic::body::Body;
use tonic::{Code, Status};

use super::bindings::Binding;
use super::json_transcoder::{CHUNK_BYTES, JsonTranscoder};
use super::{json, json_response, stream_error_response};
use crate::grpc_frame::{FRAME_HEAD_BYTES, read_head};

pub(super) async fn single(
    answer: Response<Body>,
    binding: &'static Binding,
) -> Result<Response<Body>, Status> {
    let mut messages = ResponseMessages::new(answer, binding)?;
    if let Some(mut piece) = messages.next_data().await? {
        match message_len(&piece)? {
            // The head of a frame usually arrives in one piece. If it does not, the message is
            // translated as a whole, even if it is large.
            Some(length) if length > CHUNK_BYTES => {
                piece.advance(FRAME_HEAD_BYTES);
                let transcoder = JsonTranscoder::new(binding.method.output(), length as u64);
                return Ok(LargeResponse { messages, piece, transcoder }.into_response());
            }
            _ => messages.gathered.extend_from_slice(&piece),
        }
    }
    let json = messages.next().await?.ok_or_else(|| Status::unknown("no response"))?;
    // Wait for the status after the message, because the status may be an error.
    messages.next().await?;
    Ok(json_response(Body::new(Full::from(json))))
}

/// Translates a stream of responses. If the request was cut off, the translated stream ends early.
pub(super) async fn stream(
    answer: Response<Body>,
    binding: &'static Binding,
    cut_off: Option<oneshot::Receiver<()>>,
) -> Response<Body> {
    let first = async {
        let messages = ResponseMessages::new(answer, binding)?;
        let mut lines = JsonLines { messages, request_aborted: cut_off };
        Ok((lines.next().await?, lines))
    };
    let (first, lines) = match first.await {
        Ok(begun) => begun,
        Err(status) => return stream_error_response(&status),
    };
    let is_empty = first.is_none();
    let later = stream::unfold(lines, |mut lines| async {
        let next = lines.next().await.transpose()?;
        Some((next, lines))
    });
    let frames = stream::iter(first.map(Ok)).chain(later).map(|next| {
        let line = match next {
            Ok(json) => [b"{\"result\":", &json[..], b"}\n"].concat(),
            Err(status) => json::error_line(&status).into_bytes(),
        };
        Ok::<_, Status>(Frame::data(Bytes::from(line)))
    });
    let mut response = json_response(Body::new(StreamBody::new(frames.fuse())));
    if is_empty {
        // As in etcd, a response without a message has no content type. etcd's gateway sets this
        // header when the first message arrives.
        response.headers_mut().remove(CONTENT_TYPE);
    }
    response
}

struct JsonLines {
    messages: ResponseMessages,
    request_aborted: Option<oneshot::Receiver<()>>,
}

impl JsonLines {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Status> {
        if let Some(aborted) = &mut self.request_aborted {
            tokio::select! {
                biased;
                aborted = aborted => {
                    self.request_aborted = None;
                    // If the sender was dropped, the request has ended normally.
                    if aborted.is_ok() {
                        self.messages.body = None;
                        return Ok(None);
                    }
                }
                next = self.messages.next() => return next,
            }
        }
        self.messages.next().await
    }
}

struct ResponseMessages {
    /// The body of the call's response. `None` after the status has arrived, after an error, or
    /// after the request was cut off.
    body: Option<Body>,
    binding: &'static Binding,
    /// The received frames that were not returned yet. The last frame may be incomplete.
    gathered: BytesMut,
}

impl ResponseMessages {
    /// Fails if the headers contain an error status.
    fn new(answer: Response<Body>, binding: &'static Binding) -> Result<ResponseMessages, Status> {
        let (parts, body) = answer.into_parts();
        check_status(&parts.headers)?;
        Ok(ResponseMessages { body: Some(body), binding, gathered: BytesMut::new() })
    }

    /// Returns the next message as JSON, or `None` at the end. After it has returned an error, it
    /// returns `None`.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Status> {
        let next = self.next_message().await;
        if !matches!(next, Ok(Some(_))) {
            self.body = None;
        }
        next
    }

    async fn next_message(&mut self) -> Result<Option<Vec<u8>>, Status> {
        while self.body.is_some() {
            if let Some(message) = take_message(&mut self.gathered)? {
                return json::of_message(&self.binding.method.output(), message).map(Some);
            }
            let Some(data) = self.next_data().await? else { break };
            self.gathered.extend_from_slice(&data);
        }
        Ok(None)
    }

    /// Returns the next data, or `None` when the call has ended with status OK. Fails if the call
    /// has ended with another status.
    async fn next_data(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(body) = &mut self.body else { return Ok(None) };
        match body.frame().await.transpose()?.map(Frame::into_data) {
            Some(Ok(data)) => return Ok(Some(data)),
            Some(Err(frame)) => check_status(&frame.into_trailers().unwrap_or_default())?,
            None => {}
        }
        self.body = None;
        Ok(None)
    }
}

/// Removes the first frame and returns its message, or returns `None` if the frame is incomplete.
fn take_message(gathered: &mut BytesMut) -> Result<Option<Bytes>, Status> {
    let Some(length) = message_len(gathered)? else { return Ok(None) };
    if gathered.len() < FRAME_HEAD_BYTES + length {
        gathered.reserve(FRAME_HEAD_BYTES + length - gathered.len());
        return Ok(None);
    }
    gathered.advance(FRAME_HEAD_BYTES);
    Ok(Some(gathered.split_to(length).freeze()))
}

/// Returns the length of the message, or `None` if the head of the frame is incomplete. Fails if
/// the message is compressed.
fn message_len(frame: &[u8]) -> Result<Option<usize>, Status> {
    match read_head(frame) {
        Some((0, length)) => Ok(Some(length)),
        None => Ok(None),
        Some(_) => {
            Err(Status::internal("a compressed response to a request that did not accept one"))
        }
    }
}

fn check_status(headers: &HeaderMap) -> Result<(), Status> {
    match Status::from_header_map(headers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// A response with one large message, whose JSON is made while the client reads it.
struct LargeResponse {
    messages: ResponseMessages,
    /// Bytes of the message that are not translated yet.
    piece: Bytes,
    transcoder: JsonTranscoder,
}

impl LargeResponse {
    /// Returns the response. The task that sends the response yields before each chunk of text.
    fn into_response(self) -> Response<Body> {
        let texts = stream::unfold(self, |mut large| async {
            yield_now().await;
            let next = large.next_text().await.transpose()?;
            Some((next, large))
        });
        let frames = texts.map(|text| text.map(|text| Frame::data(Bytes::from(text))));
        json_response(Body::new(StreamBody::new(frames.fuse())))
    }

    async fn next_text(&mut self) -> Result<Option<Vec<u8>>, Status> {
        let mut text = Vec::new();
        while text.is_empty() {
            let is_done = self.transcoder.is_done();
            if !self.piece.is_empty() {
                if is_done {
                    return Err(Status::internal("more than one response to a call that has one"));
                }
                self.transcoder.transcode(&mut self.piece, &mut text)?;
                continue;
            }
            match self.messages.next_data().await? {
                Some(piece) => self.piece = piece,
                None if is_done => return Ok(None),
                None => {
                    return Err(Status::internal(
                        "a response that is shorter than its announced length",
                    ));
                }
            }
        }
        Ok(Some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::super::bindings;
    use super::*;
    use crate::grpc_frame::frame_bytes;

    /// Returns the response to a range as a message. It has one large record, and the count of the
    /// range is encoded after this record.
    fn message() -> Vec<u8> {
        let value = vec![7; 2 * CHUNK_BYTES];
        let record =
            clearlane_proto::mvccpb::KeyValue { value: value.into(), ..Default::default() };
        let range = clearlane_proto::etcdserverpb::RangeResponse {
            kvs: vec![record],
            count: 1,
            ..Default::default()
        };
        prost::Message::encode_to_vec(&range)
    }

    fn trailers(code: &'static str) -> Frame<Bytes> {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        Frame::trailers(trailers)
    }

    fn converted(
        frames: Vec<Result<Frame<Bytes>, Status>>,
    ) -> Result<(usize, Option<Status>), Status> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let body = Body::new(StreamBody::new(stream::iter(frames)));
            let binding = bindings::find("/kv/range").unwrap();
            let mut body = single(Response::new(body), binding).await?.into_body();
            let mut text = 0;
            while let Some(frame) = body.frame().await {
                match frame {
                    Ok(frame) => text += frame.into_data().unwrap().len(),
                    Err(status) => return Ok((text, Some(status))),
                }
            }
            Ok((text, None))
        })
    }

    #[test]
    fn what_goes_wrong_at_first_is_the_status_and_what_goes_wrong_later_breaks_the_body() {
        let message = message();
        let whole = json::of_message(
            &bindings::find("/kv/range").unwrap().method.output(),
            message.clone().into(),
        );
        let whole = whole.unwrap().len();
        let all = frame_bytes(&message);
        let (begin, rest) = (all.slice(..CHUNK_BYTES), all.slice(CHUNK_BYTES..));
        let data = |bytes: &Bytes| Ok(Frame::data(bytes.clone()));
        let lost = || Err(Status::data_loss("lost"));

        assert_eq!(converted(vec![lost()]).unwrap_err().code(), Code::DataLoss);
        assert_eq!(converted(vec![Ok(trailers("11"))]).unwrap_err().code(), Code::OutOfRange);

        let (text, error) = converted(vec![data(&begin), data(&rest), Ok(trailers("0"))]).unwrap();
        assert!(text == whole && error.is_none(), "{text} of {whole}, {error:?}");
        for (frames, code) in [
            (vec![data(&begin), lost()], Code::DataLoss),
            (vec![data(&begin)], Code::Internal),
            (vec![data(&begin), Ok(trailers("0"))], Code::Internal),
            (vec![data(&begin), Ok(trailers("11"))], Code::OutOfRange),
            (vec![data(&begin), data(&rest), data(&rest)], Code::Internal),
            (vec![data(&begin), data(&rest), Ok(trailers("11"))], Code::OutOfRange),
        ] {
            let (text, error) = converted(frames).unwrap();
            assert!(
                text > CHUNK_BYTES && error.is_some_and(|error| error.code() == code),
                "{code:?}"
            );
        }
    }
}
