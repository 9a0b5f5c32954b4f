//! Connections to the servers.
//!
//! Most measured requests use a [`Connection`]. The loops of watches, reads in pages, the requests
//! of a `day` and everything else use tonic's channels with generated stubs. A `Connection` passes
//! the bytes of a response to [`response_scanner`](crate::response_scanner) as they arrive. A
//! generated stub would keep the whole message in memory until it is complete.

mod direct;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use clearlane_proto::etcdserverpb::watch_client::WatchClient;
use clearlane_proto::etcdserverpb::{WatchCreateRequest, WatchRequest, WatchResponse};
use clearlane_proto::mvccpb::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Status, Streaming};

pub(crate) use self::direct::open_within;
pub use self::direct::{Connection, open_direct};
use crate::requests::watch_request;
use crate::users::Session;
use crate::{Error, Result, TextResult};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The servers of a load. There is at least one.
#[derive(Clone, Debug)]
pub struct Endpoints {
    list: Vec<Endpoint>,
    /// The TLS configuration for [`Connection`]s to `https` addresses.
    tls: Option<Arc<rustls::ClientConfig>>,
}

impl Endpoints {
    pub fn new(list: Vec<Endpoint>) -> Result<Endpoints> {
        let none = || Error::Local("--endpoints: at least one address is needed".to_owned());
        if list.is_empty() { Err(none()) } else { Ok(Endpoints { list, tls: None }) }
    }

    /// Sets the TLS configuration that a [`Connection`] uses.
    pub(crate) fn with_tls(self, tls: Option<Arc<rustls::ClientConfig>>) -> Endpoints {
        Endpoints { tls, ..self }
    }

    /// Returns only the endpoint with this number.
    pub(crate) fn only(&self, number: usize) -> Endpoints {
        Endpoints { list: vec![self.list[number].clone()], tls: self.tls.clone() }
    }

    pub fn list(&self) -> &[Endpoint] {
        &self.list
    }

    /// Returns the addresses as a report shows them.
    pub fn text(&self) -> String {
        self.list.iter().map(|of| of.uri().to_string()).collect::<Vec<_>>().join(",")
    }
}

impl From<Endpoint> for Endpoints {
    fn from(endpoint: Endpoint) -> Endpoints {
        Endpoints { list: vec![endpoint], tls: None }
    }
}

/// Parses the address of a server without TLS. The scheme may be missing.
pub fn endpoint(text: &str) -> Result<Endpoint> {
    endpoint_with(text, None)
}

pub(crate) fn endpoint_with(text: &str, tls: Option<&ClientTlsConfig>) -> Result<Endpoint> {
    let wrong = |why: &str| {
        let allowed = "must be HOST:PORT, http://HOST:PORT, or https://HOST:PORT with --cacert";
        Error::Local(format!("--endpoints {text}: {why}; {allowed}"))
    };
    let (scheme, host) = match text.split_once("://") {
        None => (if tls.is_some() { "https" } else { "http" }, text),
        Some(("http", host)) => ("http", host),
        Some(("https", host)) => ("https", host),
        Some((scheme, _)) => return Err(wrong(&format!("unknown scheme {scheme}"))),
    };
    let host = host.trim_end_matches('/');
    let endpoint = Endpoint::from_shared(format!("{scheme}://{host}"));
    let mut endpoint = endpoint.map_err(|_| wrong("not an address"))?;
    if endpoint.uri().port().is_none() || endpoint.uri().path() != "/" {
        return Err(wrong("not an address"));
    }
    if scheme == "https" {
        let tls = tls.ok_or_else(|| wrong("the server's certificate cannot be checked"))?;
        endpoint = endpoint.tls_config(tls.clone()).map_err(|error| wrong(&innermost(&error)))?;
    }
    Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true))
}

/// Opens `count` connections, which use the servers in turn.
pub async fn open(endpoints: &Endpoints, count: u64) -> Result<Vec<Channel>> {
    let mut opened = Vec::new();
    for endpoint in endpoints.list.iter().cycle().take(count as usize) {
        let channel = endpoint.connect().await.map_err(|error| {
            let why = innermost(&error);
            Error::Server(format!("cannot connect to {}: {why}", endpoint.uri()))
        });
        opened.push(channel?);
    }
    Ok(opened)
}

/// Opens one connection to the first server.
pub async fn channel(endpoints: &Endpoints) -> Result<Channel> {
    Ok(open(endpoints, 1).await?.remove(0))
}

/// An open watch stream: the sender of its requests, and the receiver of its responses. The stream
/// ends when both are dropped.
pub(crate) type OpenWatch = (mpsc::Sender<WatchRequest>, Streaming<WatchResponse>);

/// Opens a watch stream that starts with this watch.
pub(crate) async fn open_watch(
    channel: Channel,
    session: Option<&Session>,
    create: WatchCreateRequest,
) -> std::result::Result<OpenWatch, Status> {
    let (sender, requests) = mpsc::channel(1);
    // A server answers a stream only when its first request has arrived. Sending does not fail,
    // because the receiver exists.
    let _ = sender.send(watch_request(create)).await;
    let request = Session::request_of(session, ReceiverStream::new(requests));
    let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
    Ok((sender, client.watch(request).await?.into_inner()))
}

/// Receives the next response of a watch stream, and returns its events. A response that only
/// reports the creation of a watch has no events. The error is the reason why the stream or a watch
/// has ended.
pub(crate) async fn next_events(
    responses: &mut Streaming<WatchResponse>,
) -> TextResult<Vec<Event>> {
    match responses.message().await {
        Ok(Some(response)) if response.canceled => {
            Err(format!("a watch was canceled: {}", response.cancel_reason))
        }
        Ok(Some(response)) => Ok(response.events),
        Ok(None) => Err("the server closed a watch stream".to_owned()),
        Err(status) => Err(text(status)),
    }
}

/// Returns the text of the innermost cause of an error. The outer errors only report that a lower
/// layer failed.
fn innermost(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Returns why a call failed: the message of the server, or the reason why there was no response.
pub(crate) fn reason(status: &Status) -> String {
    match std::error::Error::source(status) {
        Some(source) => innermost(source),
        None => status.message().to_owned(),
    }
}

/// Returns a function that converts a status to an error. `what` describes the operation that
/// failed.
pub(crate) fn error(what: impl Display) -> impl FnOnce(Status) -> Error {
    move |status| Error::Server(format!("{what}: {}", status.message()))
}

pub(crate) fn text(status: Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
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
            ("https://a:1", "the server's certificate cannot be checked"),
            ("unix://a:1", "unknown scheme unix"),
            ("localhost", "not an address"),
            ("http://a:1/path", "not an address"),
            ("", "not an address"),
            ("a b:1", "not an address"),
        ] {
            let told = endpoint(text).map(drop).expect_err(text).to_string();
            let allowed = "must be HOST:PORT, http://HOST:PORT, or https://HOST:PORT with --cacert";
            assert_eq!(told, format!("--endpoints {text}: {why}; {allowed}"));
        }
        assert!(Endpoints::new(Vec::new()).is_err());
    }
}
