//! From the answer of a call to an HTTP response.
//!
//! A gRPC answer always has HTTP status 200; how it went is in the trailers behind the last message,
//! or among the headers if there is no message. An HTTP client wants to know first. So the first
//! message or the status, whatever comes earlier, is waited for before the response begins.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use http_body::{Body as _, Frame};
use http_body_util::Full;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::{Code, Status};

use super::bindings::Binding;
use super::frames::Frames;
use super::{answered, json};

/// The answer of one message.
pub(super) async fn single(
    answer: Response<Body>,
    binding: &'static Binding,
) -> Result<Response<Body>, Status> {
    let mut messages = Messages::new(answer, binding);
    let json = messages.next().await.unwrap_or_else(|| Err(Status::unknown("no answer")))?;
    // What follows is the status, which may still say that it went wrong.
    if let Some(more) = messages.next().await {
        more?;
    }
    Ok(answered(StatusCode::OK, Body::new(Full::from(json))))
}

/// A stream of answers. It ends early when its request was cut off.
pub(super) async fn stream(
    answer: Response<Body>,
    binding: &'static Binding,
    cut_off: Option<oneshot::Receiver<()>>,
) -> Result<Response<Body>, Status> {
    let messages = Messages::new(answer, binding);
    let mut lines = Lines { first: None, messages, cut_off };
    let first = std::future::poll_fn(|context| lines.poll_next(context)).await;
    lines.first = first.transpose()?;
    Ok(answered(StatusCode::OK, Body::new(lines)))
}

/// What a call answers, as JSON, one message after the other.
struct Messages {
    /// Until the status has come.
    body: Option<Body>,
    /// A status among the headers.
    failed: Option<Status>,
    binding: &'static Binding,
    frames: Frames,
}

impl Messages {
    fn new(answer: Response<Body>, binding: &'static Binding) -> Messages {
        let (parts, body) = answer.into_parts();
        let failed = Status::from_header_map(&parts.headers);
        let failed = failed.filter(|status| status.code() != Code::Ok);
        Messages { body: Some(body), failed, binding, frames: Frames::default() }
    }

    async fn next(&mut self) -> Option<Result<Vec<u8>, Status>> {
        std::future::poll_fn(|context| self.poll_next(context)).await
    }

    /// The next message; an error is the last.
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
                Err(status) => return self.end_with(status),
            }
            match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.frames.push(&data),
                    Err(frame) => {
                        let trailers = frame.into_trailers().unwrap_or_default();
                        let status = Status::from_header_map(&trailers);
                        let ok = Status::ok("");
                        return self.end_with(status.unwrap_or(ok));
                    }
                },
                Some(Err(status)) => return self.end_with(status),
                None => self.body = None,
            }
        }
        Poll::Ready(None)
    }

    fn end_with(&mut self, status: Status) -> Poll<Option<Result<Vec<u8>, Status>>> {
        self.body = None;
        Poll::Ready((status.code() != Code::Ok).then_some(Err(status)))
    }
}

/// One line per message.
struct Lines {
    first: Option<Vec<u8>>,
    messages: Messages,
    cut_off: Option<oneshot::Receiver<()>>,
}

impl Lines {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Vec<u8>, Status>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(first)));
        }
        match self.cut_off.as_mut().map(|cut_off| Pin::new(cut_off).poll(context)) {
            Some(Poll::Ready(Ok(()))) => {
                self.cut_off = None;
                self.messages.body = None;
                Poll::Ready(None)
            }
            // The request has come to its end.
            Some(Poll::Ready(Err(_))) => {
                self.cut_off = None;
                self.messages.poll_next(context)
            }
            Some(Poll::Pending) | None => self.messages.poll_next(context),
        }
    }
}

impl http_body::Body for Lines {
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
