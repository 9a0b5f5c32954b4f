//! Connections to the server, and a call on one.
//!
//! tonic has the connection: HTTP/2, many calls at once, and a new one if it breaks. Generated
//! stubs are used where nothing is measured. In a run, the bytes of an answer go to
//! [`response_scanner`](crate::response_scanner) instead: a stub would hold a whole message until
//! it is complete.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use crate::requests::Call;
use crate::response_scanner::{ResponseShape, ResponseStats, Scanner};
use crate::users::TOKEN;
use crate::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Parses an address, with or without `http://` before it.
pub fn endpoint(text: &str) -> Result<Endpoint> {
    let wrong = |why: &str| {
        let allowed = "it must be HOST:PORT or http://HOST:PORT";
        Error::Local(format!("--endpoint {text}: {why}; {allowed}"))
    };
    let host = match text.split_once("://") {
        None => text,
        Some(("http", host)) => host,
        Some((scheme, _)) => return Err(wrong(&format!("cannot speak {scheme}"))),
    };
    let host = host.trim_end_matches('/');
    let endpoint = Endpoint::from_shared(format!("http://{host}"));
    let endpoint = endpoint.map_err(|_| wrong("not an address"))?;
    if endpoint.uri().port().is_none() || endpoint.uri().path() != "/" {
        return Err(wrong("not an address"));
    }
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
}

pub async fn open(endpoint: &Endpoint, count: u64) -> Result<Vec<Channel>> {
    let mut opened = Vec::new();
    for _ in 0..count {
        let channel = endpoint.connect().await.map_err(|error| {
            let why = innermost(&error);
            Error::Server(format!("no connection to {}: {why}", endpoint.uri()))
        });
        opened.push(channel?);
    }
    Ok(opened)
}

/// The innermost cause; the errors around it say only that something below went wrong.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Sends a request, and reads its answer to the end, or of a watch what is enough. The error is a
/// short text, by which errors are counted.
pub async fn call(mut channel: Channel, call: Call) -> std::result::Result<ResponseStats, String> {
    let (answer, _open) = send(&mut channel, &call).await?;
    // An answer that is an error has no body, and its status is in the headers.
    let mut status = Status::from_header_map(answer.headers());
    let mut body = answer.into_body();
    let mut scanner = Scanner::new(call.answer);
    let is_enough = |scanner: &Scanner| {
        let enough = call.keys.filter(|_| call.answer == ResponseShape::Watch);
        enough.is_some_and(|events| scanner.stats().keys >= events)
    };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(text)?;
        match frame.into_data() {
            Ok(data) => {
                scanner.feed(&data)?;
                if is_enough(&scanner) {
                    return Ok(scanner.stats());
                }
            }
            Err(frame) => {
                status = frame.trailers_ref().and_then(Status::from_header_map).or(status)
            }
        }
    }
    match status {
        None => return Err("the answer has no status".to_owned()),
        Some(status) if status.code() != Code::Ok => return Err(text(status)),
        Some(_) => {}
    }
    let seen = scanner.finish()?;
    match call.keys {
        Some(keys) if keys != seen.keys => Err(format!("{} keys instead of {keys}", seen.keys)),
        _ => Ok(seen),
    }
}

/// Its body is not read, and it is open until this is dropped.
#[derive(Debug)]
pub struct UnreadAnswer {
    _body: Body,
    _open: OpenRequest,
}

/// Sends a request, and waits until its answer begins.
pub async fn call_unread(
    mut channel: Channel,
    call: &Call,
) -> std::result::Result<UnreadAnswer, String> {
    let (answer, open) = send(&mut channel, call).await?;
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() != Code::Ok => Err(text(status)),
        _ => Ok(UnreadAnswer { _body: answer.into_body(), _open: open }),
    }
}

pub(crate) fn text(status: Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

/// The request of a watch ends when this is dropped. Others have none.
type OpenRequest = Option<oneshot::Sender<Infallible>>;

/// Waits until the answer begins. An error if its HTTP status is one.
async fn send(
    channel: &mut Channel,
    call: &Call,
) -> std::result::Result<(Response<Body>, OpenRequest), String> {
    let broken = |error: tonic::transport::Error| innermost(&error);
    std::future::poll_fn(|context| channel.poll_ready(context)).await.map_err(broken)?;
    let (request, open) = request(call);
    let answer = channel.call(request).await.map_err(broken)?;
    match answer.status() {
        StatusCode::OK => Ok((answer, open)),
        status => Err(format!("HTTP status {}", status.as_u16())),
    }
}

fn request(call: &Call) -> (Request<Body>, OpenRequest) {
    let (message, path) = (call.body.clone(), Uri::from_static(call.path));
    let (mut request, open) = match call.answer {
        ResponseShape::Message | ResponseShape::Stream => {
            (with_grpc_headers(path, Body::new(Full::new(message))), None)
        }
        ResponseShape::Watch => {
            let (open, end) = oneshot::channel();
            let body = OpenBody { message: Some(message), end };
            (with_grpc_headers(path, Body::new(body)), Some(open))
        }
    };
    if let Some(token) = &call.token {
        request.headers_mut().insert(TOKEN, token.clone());
    }
    (request, open)
}

pub(crate) fn with_grpc_headers<B>(uri: Uri, body: B) -> Request<B> {
    Request::post(uri)
        .version(Version::HTTP_2)
        .header(header::TE, HeaderValue::from_static("trailers"))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .body(body)
        .expect("a URI and headers that are known")
}

/// A request that goes on behind its message: with it, a watch would be over.
struct OpenBody {
    message: Option<Bytes>,
    end: oneshot::Receiver<Infallible>,
}

impl http_body::Body for OpenBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Infallible>>> {
        match self.message.take() {
            Some(message) => Poll::Ready(Some(Ok(Frame::data(message)))),
            None => Pin::new(&mut self.end).poll(context).map(|_| None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_with_and_without_a_scheme() {
        for text in ["127.0.0.1:2379", "http://127.0.0.1:2379", "http://127.0.0.1:2379/"] {
            let uri = endpoint(text).map(|endpoint| endpoint.uri().to_string());
            assert_eq!(uri, Ok("http://127.0.0.1:2379/".to_owned()), "{text}");
        }
        assert!(endpoint("[::1]:2379").is_ok());
    }

    #[test]
    fn what_is_no_address_is_told_in_one_line() {
        for (text, why) in [
            ("https://a:1", "cannot speak https"),
            ("localhost", "not an address"),
            ("http://a:1/path", "not an address"),
            ("", "not an address"),
            ("a b:1", "not an address"),
        ] {
            let told = endpoint(text).map(drop).expect_err(text).to_string();
            let expected =
                format!("--endpoint {text}: {why}; it must be HOST:PORT or http://HOST:PORT");
            assert_eq!(told, expected);
        }
    }
}
