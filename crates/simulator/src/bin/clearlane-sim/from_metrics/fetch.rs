//! One page over HTTP, by hyper, which speaks it for the server, too.

use std::error::Error as _;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, HOST, LOCATION};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::{self, Files};

/// A server that says nothing for so long is taken for one that will not.
const TIMEOUT: Duration = Duration::from_secs(15);
/// The pages of etcd have less than a hundredth of it.
const PAGE_MAX: usize = 64 << 20;

/// Where metrics are.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    host: String,
    port: u16,
    path: String,
    is_tls: bool,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let example = "say one such as http://127.0.0.1:2379";
        let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri =
            whole.parse().map_err(|error| format!("it is no URL ({error}); {example}"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            other => {
                let other = other.unwrap_or_default();
                return Err(format!("metrics are read over http or https, not {other}; {example}"));
            }
        };
        let host = uri
            .host()
            .filter(|host| !host.is_empty())
            .ok_or_else(|| format!("it has no host; {example}"))?;
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { "/metrics" } else { path };
        Ok(Address { host: host.to_owned(), port, path: path.to_owned(), is_tls })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Reads the page.
pub(crate) fn fetch(address: &Address, files: &Files) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("this machine gives no runtime: {error}"))?;
    let fetched = async { tokio::time::timeout(TIMEOUT, fetched(address, files)).await };
    let nothing = || format!("no answer came within {} s", TIMEOUT.as_secs());
    runtime.block_on(fetched).map_err(|_| nothing())?
}

async fn fetched(address: &Address, files: &Files) -> Result<String, String> {
    // As in a URL, an address of IPv6 has brackets.
    let host = address.host.trim_start_matches('[').trim_end_matches(']');
    let stream = TcpStream::connect((host, address.port)).await;
    let stream = stream.map_err(|error| format!("no server can be reached there: {error}"))?;
    match address.is_tls {
        true => ask(tls::connect(stream, host, files).await?, address).await,
        false => ask(stream, address).await,
    }
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: &Address,
) -> Result<String, String> {
    let no_http = |error: hyper::Error| {
        let why = error.source().map_or_else(String::new, |why| format!(": {why}"));
        let is_tls = address.is_tls;
        let hint = if is_tls {
            "does it want a certificate (--cert, --key)?"
        } else {
            "is it a port for https?"
        };
        format!("no HTTP is spoken there: {error}{why}; {hint}")
    };
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(no_http)?;
    tokio::spawn(connection);
    let request = Request::get(&address.path)
        .header(HOST, format!("{}:{}", address.host, address.port))
        .header(ACCEPT, "text/plain")
        .body(Empty::<Bytes>::new());
    let request = request.map_err(|error| format!("it cannot be asked for: {error}"))?;
    let answer = sender.send_request(request).await.map_err(no_http)?;
    check(&answer)?;
    let body = Limited::new(answer.into_body(), PAGE_MAX).collect().await;
    let body = body.map_err(|error| format!("the page broke off: {error}"))?.to_bytes();
    String::from_utf8(body.into()).map_err(|_| "what is there is no text".to_owned())
}

fn check<B>(answer: &Response<B>) -> Result<(), String> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let location = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
    Err(match location.filter(|_| status.is_redirection()) {
        Some(to) => format!("it sends us to {to}; ask there"),
        None => format!("it answers {status}; metrics of etcd are at /metrics"),
    })
}
