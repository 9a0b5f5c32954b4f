//! From the answer of a call to an HTTP response.
//!
//! A gRPC answer has HTTP status 200, and its outcome in the trailers or among the headers; an HTTP
//! client needs it in the status line. So a response begins when the first message or the status
//! has come, and with a large message when its first piece has.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use http::Response;
use http_body::{Body as _, Frame};
use http_body_util::Full;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::{Code, Status};

use super::bindings::Binding;
use super::json_transcoder::{CHUNK_BYTES, JsonTranscoder};
use super::{json, json_response};
use crate::grpc_frame::{FRAME_HEAD_BYTES, read_head};

pub(super) async fn single(
    answer: Response<Body>,
    binding: &'static Binding,
) -> Result<Response<Body>, Status> {
    let mut messages = ResponseMessages::new(answer, binding);
    if let Some(large) = messages.first_if_large().await? {
        return Ok(json_response(Body::new(large)));
    }
    let json = messages.next().await.unwrap_or_else(|| Err(Status::unknown("no answer")))?;
    // What follows is the status, which may still be an error.
    if let Some(more) = messages.next().await {
        more?;
    }
    Ok(json_response(Body::new(Full::from(json))))
}

/// Ends early when the request was cut off.
pub(super) async fn stream(
    answer: Response<Body>,
    binding: &'static Binding,
    cut_off: Option<oneshot::Receiver<()>>,
) -> Result<Response<Body>, Status> {
    let messages = ResponseMessages::new(answer, binding);
    let mut lines = JsonLinesBody { first: None, messages, request_aborted: cut_off };
    let first = std::future::poll_fn(|context| lines.poll_next(context)).await;
    lines.first = first.transpose()?;
    Ok(json_response(Body::new(lines)))
}

struct ResponseMessages {
    /// `None` once the status has come.
    body: Option<Body>,
    /// The status, if it came among the headers.
    failed: Option<Status>,
    binding: &'static Binding,
    /// Frames, the last one perhaps incomplete.
    gathered: BytesMut,
}

impl ResponseMessages {
    fn new(answer: Response<Body>, binding: &'static Binding) -> ResponseMessages {
        let (parts, body) = answer.into_parts();
        let failed = Status::from_header_map(&parts.headers);
        let failed = failed.filter(|status| status.code() != Code::Ok);
        ResponseMessages { body: Some(body), failed, binding, gathered: BytesMut::new() }
    }

    async fn first_if_large(&mut self) -> Result<Option<LargeResponseBody>, Status> {
        if self.failed.is_some() {
            return Ok(None);
        }
        let Some(mut body) = self.body.take() else { return Ok(None) };
        let first = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let mut piece = match first.transpose()?.map(Frame::into_data) {
            Some(Ok(piece)) => piece,
            Some(Err(frame)) => return check_trailers(frame).map(|()| None),
            None => return Ok(None),
        };
        match message_len(&piece)? {
            // A head comes in one piece; if it does not, the message is translated whole.
            Some(length) if length > CHUNK_BYTES => {
                piece.advance(FRAME_HEAD_BYTES);
                let transcoder = JsonTranscoder::new(self.binding.method.output(), length as u64);
                Ok(Some(LargeResponseBody { body, piece, transcoder, yields_next: false }))
            }
            _ => {
                self.gathered.extend_from_slice(&piece);
                self.body = Some(body);
                Ok(None)
            }
        }
    }

    async fn next(&mut self) -> Option<Result<Vec<u8>, Status>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// An error is the last item.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        let next = self.poll_message(context);
        if matches!(next, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        next
    }

    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        if let Some(status) = self.failed.take() {
            return Poll::Ready(Some(Err(status)));
        }
        while let Some(body) = &mut self.body {
            if let Some(message) = next_message(&mut self.gathered)? {
                return Poll::Ready(Some(json::of_message(&self.binding.method.output(), message)));
            }
            match ready!(Pin::new(body).poll_frame(context)?).map(Frame::into_data) {
                Some(Ok(data)) => self.gathered.extend_from_slice(&data),
                Some(Err(frame)) => return Poll::Ready(check_trailers(frame).err().map(Err)),
                None => break,
            }
        }
        Poll::Ready(None)
    }
}

/// Takes a message out of its frame, once it is whole.
fn next_message(gathered: &mut BytesMut) -> Result<Option<Bytes>, Status> {
    let Some(length) = message_len(gathered)? else { return Ok(None) };
    if gathered.len() < FRAME_HEAD_BYTES + length {
        gathered.reserve(FRAME_HEAD_BYTES + length - gathered.len());
        return Ok(None);
    }
    gathered.advance(FRAME_HEAD_BYTES);
    Ok(Some(gathered.split_to(length).freeze()))
}

/// `None` if the head of the frame is incomplete.
fn message_len(frame: &[u8]) -> Result<Option<usize>, Status> {
    match read_head(frame) {
        Some((0, length)) => Ok(Some(length)),
        None => Ok(None),
        Some(_) => {
            Err(Status::internal("a compressed answer to a request that did not ask for it"))
        }
    }
}

fn check_trailers(trailers: Frame<Bytes>) -> Result<(), Status> {
    let trailers = trailers.into_trailers().unwrap_or_default();
    match Status::from_header_map(&trailers) {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// The JSON of a large message, made while the client takes it.
struct LargeResponseBody {
    body: Body,
    /// Bytes of the message that are not translated yet.
    piece: Bytes,
    transcoder: JsonTranscoder,
    /// The task yields between two pieces of text.
    yields_next: bool,
}

impl LargeResponseBody {
    /// Ready when there are bytes of the message, or it has ended without an error.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<(), Status>>> {
        while self.piece.is_empty() {
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
            match frame.map(Frame::into_data) {
                Some(Ok(piece)) => {
                    self.piece = piece;
                    continue;
                }
                Some(Err(trailers)) => check_trailers(trailers)?,
                None => {}
            }
            return Poll::Ready(if self.transcoder.is_done() {
                None
            } else {
                Some(Err(Status::internal("an answer that is shorter than it said")))
            });
        }
        Poll::Ready(Some(if self.transcoder.is_done() {
            Err(Status::internal("more than one answer to a call that has one"))
        } else {
            Ok(())
        }))
    }
}

impl http_body::Body for LargeResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if std::mem::replace(&mut this.yields_next, false) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let mut text = Vec::new();
        while text.is_empty() {
            if ready!(this.poll_chunk(context)?).is_none() {
                return Poll::Ready(None);
            }
            this.transcoder.transcode(&mut this.piece, &mut text)?;
        }
        this.yields_next = true;
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

struct JsonLinesBody {
    first: Option<Vec<u8>>,
    messages: ResponseMessages,
    request_aborted: Option<oneshot::Receiver<()>>,
}

impl JsonLinesBody {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        let aborted = self.request_aborted.as_mut().map(|aborted| Pin::new(aborted).poll(context));
        if let Some(Poll::Ready(aborted)) = aborted {
            self.request_aborted = None;
            // Without a sender the request has come to its end.
            if aborted.is_ok() {
                self.messages.body = None;
                return Poll::Ready(None);
            }
        }
        self.messages.poll_next(context)
    }
}

impl http_body::Body for JsonLinesBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let next = ready!(self.poll_next(context));
        let line = next.map(|next| match next {
            Ok(json) => line(b"{\"result\":", &json),
            Err(status) => line(b"{\"error\":", json::of_status(&status).as_bytes()),
        });
        Poll::Ready(line.map(|line| Ok(Frame::data(line))))
    }
}

fn line(begin: &[u8], json: &[u8]) -> Bytes {
    [begin, json, b"}\n"].concat().into()
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http::HeaderMap;
    use http_body_util::{BodyExt, StreamBody};

    use super::super::bindings;
    use super::*;
    use crate::grpc_frame::frame_bytes;

    /// A range with one record, which is large: its count is written behind.
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

    fn told(frames: Vec<Result<Frame<Bytes>, Status>>) -> Result<(usize, Option<Status>), Status> {
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

        assert_eq!(told(vec![lost()]).unwrap_err().code(), Code::DataLoss);
        assert_eq!(told(vec![Ok(trailers("11"))]).unwrap_err().code(), Code::OutOfRange);

        let (text, error) = told(vec![data(&begin), data(&rest), Ok(trailers("0"))]).unwrap();
        assert!(text == whole && error.is_none(), "{text} of {whole}, {error:?}");
        for (frames, code) in [
            (vec![data(&begin), lost()], Code::DataLoss),
            (vec![data(&begin)], Code::Internal),
            (vec![data(&begin), Ok(trailers("0"))], Code::Internal),
            (vec![data(&begin), Ok(trailers("11"))], Code::OutOfRange),
            (vec![data(&begin), data(&rest), data(&rest)], Code::Internal),
            (vec![data(&begin), data(&rest), Ok(trailers("11"))], Code::OutOfRange),
        ] {
            let (text, error) = told(frames).unwrap();
            assert!(
                text > CHUNK_BYTES && error.is_some_and(|error| error.code() == code),
                "{code:?}"
            );
        }
    }
}
