//! From the answer of a call to an HTTP response.
//!
//! A gRPC answer has HTTP status 200, and its outcome in the trailers or among the headers; an HTTP
//! client needs it in the status line. So a response begins when the first message or the status
//! has come, and with a large message when its first piece has.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::Full;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::{Code, Status};

use super::bindings::Binding;
use super::frame_decoder::{FrameDecoder, frame_len};
use super::json_transcoder::{CHUNK_BYTES, JsonTranscoder};
use super::{json, json_response};
use crate::grpc_frame::FRAME_HEAD_BYTES;

pub(super) async fn single(
    answer: Response<Body>,
    binding: &'static Binding,
) -> Result<Response<Body>, Status> {
    let mut messages = ResponseMessages::new(answer, binding);
    if let Some(large) = messages.first_if_large().await? {
        return Ok(json_response(StatusCode::OK, Body::new(large)));
    }
    let json = messages.next().await.unwrap_or_else(|| Err(Status::unknown("no answer")))?;
    // What follows is the status, which may still be an error.
    if let Some(more) = messages.next().await {
        more?;
    }
    Ok(json_response(StatusCode::OK, Body::new(Full::from(json))))
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
    Ok(json_response(StatusCode::OK, Body::new(lines)))
}

struct ResponseMessages {
    /// `None` once the status has come.
    body: Option<Body>,
    /// The status, if it came among the headers.
    failed: Option<Status>,
    binding: &'static Binding,
    frames: FrameDecoder,
}

impl ResponseMessages {
    fn new(answer: Response<Body>, binding: &'static Binding) -> ResponseMessages {
        let (parts, body) = answer.into_parts();
        let failed = Status::from_header_map(&parts.headers);
        let failed = failed.filter(|status| status.code() != Code::Ok);
        ResponseMessages { body: Some(body), failed, binding, frames: FrameDecoder::default() }
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
        match frame_len(&piece)? {
            // A head comes in one piece; if it does not, the message is translated whole.
            Some(length) if length > CHUNK_BYTES => {
                piece.advance(FRAME_HEAD_BYTES);
                let walk = JsonTranscoder::new(self.binding.output.clone(), length as u64);
                Ok(Some(LargeResponseBody { body, piece, transcoder: walk, yields_next: false }))
            }
            _ => {
                self.frames.push(&piece);
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
        if let Some(status) = self.failed.take() {
            self.body = None;
            return Poll::Ready(Some(Err(status)));
        }
        while let Some(body) = &mut self.body {
            match self.frames.next() {
                Ok(None) => {}
                Ok(Some(message)) => {
                    let json = json::of_message(&self.binding.output, message);
                    return Poll::Ready(Some(json));
                }
                Err(status) => return self.fail(status),
            }
            match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.frames.push(&data),
                    Err(frame) => {
                        self.body = None;
                        return Poll::Ready(check_trailers(frame).err().map(Err));
                    }
                },
                Some(Err(status)) => return self.fail(status),
                None => self.body = None,
            }
        }
        Poll::Ready(None)
    }

    fn fail(&mut self, status: Status) -> Poll<Option<Result<Vec<u8>, Status>>> {
        self.body = None;
        Poll::Ready(Some(Err(status)))
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
            let frame = match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None if self.transcoder.is_done() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(truncated_response()))),
            };
            match frame.into_data() {
                Ok(piece) => self.piece = piece,
                Err(frame) => match check_trailers(frame) {
                    Ok(()) if self.transcoder.is_done() => return Poll::Ready(None),
                    Ok(()) => return Poll::Ready(Some(Err(truncated_response()))),
                    Err(status) => return Poll::Ready(Some(Err(status))),
                },
            }
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
            match ready!(this.poll_chunk(context)) {
                Some(Ok(())) => {}
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            }
            if let Err(status) = this.transcoder.transcode(&mut this.piece, &mut text) {
                return Poll::Ready(Some(Err(status)));
            }
        }
        this.yields_next = true;
        Poll::Ready(Some(Ok(Frame::data(text.into()))))
    }
}

fn truncated_response() -> Status {
    Status::internal("an answer that is shorter than it said")
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
        match self.request_aborted.as_mut().map(|cut_off| Pin::new(cut_off).poll(context)) {
            Some(Poll::Ready(Ok(()))) => {
                self.request_aborted = None;
                self.messages.body = None;
                Poll::Ready(None)
            }
            // The request has come to its end.
            Some(Poll::Ready(Err(_))) => {
                self.request_aborted = None;
                self.messages.poll_next(context)
            }
            Some(Poll::Pending) | None => self.messages.poll_next(context),
        }
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

    fn framed(message: &[u8]) -> Bytes {
        let head = (message.len() as u32).to_be_bytes();
        [&[0], &head[..], message].concat().into()
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
        let whole =
            json::of_message(&bindings::find("/kv/range").unwrap().output, message.clone().into());
        let whole = whole.unwrap().len();
        let all = framed(&message);
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
