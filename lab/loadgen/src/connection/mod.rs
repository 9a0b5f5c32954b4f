//! Connections to the servers, and a call on one.
//!
//! What is measured goes over a [`Connection`]. tonic's channels, with generated stubs, are used
//! elsewhere. The bytes of an answer go to [`response_scanner`](crate::response_scanner): a stub
//! would hold a whole message until it is complete.

mod answer;
mod direct;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version, header};
use http_body::Frame;
use http_body_util::{BodyExt, Full};
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use self::answer::Answer;
pub use self::direct::{Connection, open_direct};
use crate::requests::Call;
use crate::response_scanner::{ResponseShape, ResponseStats};
use crate::users::TOKEN;
use crate::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers of a load; at least one.
#[derive(Clone, Debug)]
pub struct Endpoints {
    list: Vec<Endpoint>,
    /// For those with TLS.
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Endpoints {
    pub fn new(list: Vec<Endpoint>) -> Result<Endpoints> {
        let none = || Error::Local("--endpoints: there is none".to_owned());
        if list.is_empty() { Err(none()) } else { Ok(Endpoints { list, tls: None }) }
    }

    /// The same, for a [`Connection`].
    pub(crate) fn with_tls(self, tls: Option<Arc<rustls::ClientConfig>>) -> Endpoints {
        Endpoints { tls, ..self }
    }

    /// One of these, alone.
    pub(crate) fn only(&self, number: usize) -> Endpoints {
        Endpoints { list: vec![self.list[number].clone()], tls: self.tls.clone() }
    }

    pub fn list(&self) -> &[Endpoint] {
        &self.list
    }

    /// As a report has it.
    pub fn text(&self) -> String {
        self.list.iter().map(|of| of.uri().to_string()).collect::<Vec<_>>().join(",")
    }
}

impl From<Endpoint> for Endpoints {
    fn from(endpoint: Endpoint) -> Endpoints {
        Endpoints { list: vec![endpoint], tls: None }
    }
}

/// Parses an address of a server without TLS, with or without a scheme before it.
pub fn endpoint(text: &str) -> Result<Endpoint> {
    endpoint_with(text, None)
}

pub(crate) fn endpoint_with(text: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint> {
    let wrong = |why: &str| {
        let allowed = "it must be HOST:PORT, http://HOST:PORT, or https://HOST:PORT with --cacert";
        Error::Local(format!("--endpoints {text}: {why}; {allowed}"))
    };
    let (scheme, host) = match text.split_once("://") {
        None => (if tls.is_some() { "https" } else { "http" }, text),
        Some(("http", host)) => ("http", host),
        Some(("https", host)) => ("https", host),
        Some((scheme, _)) => return Err(wrong(&format!("cannot speak {scheme}"))),
    };
    let host = host.trim_end_matches('/');
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"));
    let mut endpoint = endpoint.map_err(|_| wrong("not an address"))?;
    if endpoint.uri().port().is_none() || endpoint.uri().path() != "/" {
        return Err(wrong("not an address"));
    }
    if scheme == "https" {
        let tls = tls.ok_or_else(|| wrong("its certificate cannot be checked"))?;
        endpoint = endpoint.tls_config(tls.clone()).map_err(|error| wrong(&innermost(&error)))?;
    }
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
}

/// Opens connections to the servers in turn.
pub async fn open(endpoints: &Endpoints, count: u64) -> Result<Vec<Channel>> {
    let mut opened = Vec::new();
    for endpoint in endpoints.list.iter().cycle().take(count as usize) {
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
    let (head, mut body) = answer.into_parts();
    let mut answer = Answer::new(&call, &head.headers);
    while let Some(frame) = body.frame().await {
        match frame.map_err(text)?.into_data() {
            Ok(data) => {
                if answer.feed(&data)? {
                    return Ok(answer.stats());
                }
            }
            Err(frame) => frame.trailers_ref().into_iter().for_each(|of| answer.set_trailers(of)),
        }
    }
    answer.finish()
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

/// Of a call: what the server says, or why there was no answer.
pub(crate) fn reason(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => innermost(source),
        None => status.message().to_owned(),
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
        ResponseShape::Message | ResponseShape::Stream | ResponseShape::KeepAlive => {
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
        for text in ["a:1", "https://a:1"] {
            let uri = endpoint_with(text, Some(&ClientTlsConfig::new()));
            assert_eq!(uri.map(|of| of.uri().to_string()), Ok("https://a:1/".to_owned()));
        }
    }

    #[test]
    fn what_is_no_address_is_told_in_one_line() {
        for (text, why) in [
            ("https://a:1", "its certificate cannot be checked"),
            ("unix://a:1", "cannot speak unix"),
            ("localhost", "not an address"),
            ("http://a:1/path", "not an address"),
            ("", "not an address"),
            ("a b:1", "not an address"),
        ] {
            let told = endpoint(text).map(drop).expect_err(text).to_string();
            let allowed =
                "it must be HOST:PORT, http://HOST:PORT, or https://HOST:PORT with --cacert";
            assert_eq!(told, format!("--endpoints {text}: {why}; {allowed}"));
        }
        assert!(Endpoints::new(Vec::new()).is_err());
    }
}
