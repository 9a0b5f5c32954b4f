//! A connection for requests that are measured: HTTP/2 without the layers of tonic.
//!
//! A request costs the driver half of what it costs over a [`Channel`](tonic::transport::Channel),
//! which has a task and a queue before those of HTTP/2, and the driver shares the machine with the
//! server. A connection that has broken is opened anew by the next request.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::coalescing_writer::{ActiveLargeResponses, CoalescingWriter};
use h2::client::{self, SendRequest};
use http::{Request, StatusCode, Uri};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;

use super::answer::Answer;
use super::{CONNECT_TIMEOUT, Endpoints, innermost, with_grpc_headers};
use crate::requests::Call;
use crate::response_scanner::{ResponseShape, ResponseStats};
use crate::users::TOKEN;
use crate::{Error, Result};

/// As hyper has them for a client.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
/// How long requests fail with the error of an attempt to connect, before the next attempt.
const FAILURE_HOLDS: Duration = Duration::from_millis(100);

/// Clones share the connection, and belong to the runtime that has opened it.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<SharedConnection>,
}

#[derive(Debug)]
struct SharedConnection {
    uri: Uri,
    tls: Option<Arc<rustls::ClientConfig>>,
    sender: Mutex<Option<SendRequest<Bytes>>>,
    /// One request opens it, and the others wait: for this failure, too.
    opening: tokio::sync::Mutex<Option<(Instant, String)>>,
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Opens connections to the servers in turn, as the ones behind the `first` that were opened.
pub async fn open_direct(endpoints: &Endpoints, first: u64, count: u64) -> Result<Vec<Connection>> {
    let mut opened = Vec::new();
    let turns = endpoints.list.iter().cycle().skip(first as usize % endpoints.list.len());
    for endpoint in turns.take(count as usize) {
        let connection = Connection::new(endpoint, endpoints.tls.clone());
        let why = connection.sender().await;
        why.map_err(|why| Error::Server(format!("no connection to {}: {why}", endpoint.uri())))?;
        opened.push(connection);
    }
    Ok(opened)
}

impl Connection {
    fn new(endpoint: &Endpoint, tls: Option<Arc<rustls::ClientConfig>>) -> Connection {
        let uri = endpoint.uri().clone();
        let tls = tls.filter(|_| uri.scheme_str() == Some("https"));
        let opening = tokio::sync::Mutex::default();
        let shared = SharedConnection { uri, tls, sender: Mutex::default(), opening };
        Connection { shared: Arc::new(shared) }
    }

    /// Sends a request, and reads its answer to the end, or of a watch what is enough. The error is
    /// a short text, by which errors are counted.
    pub async fn call(&self, call: &Call) -> std::result::Result<ResponseStats, String> {
        let mut sender = self.sender().await?;
        let is_open = call.answer == ResponseShape::Watch;
        let (answer, mut request) =
            sender.send_request(self.request(call), false).map_err(broken)?;
        request.send_data(call.body.clone(), !is_open).map_err(broken)?;
        let (head, mut body) = answer.await.map_err(broken)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(format!("HTTP status {}", head.status.as_u16()));
        }
        let mut answer = Answer::new(call, &head.headers);
        while let Some(data) = body.data().await {
            let data = data.map_err(broken)?;
            // The window is for more of this answer: what was read is forgotten.
            body.flow_control().release_capacity(data.len()).map_err(broken)?;
            if answer.feed(&data)? {
                // Both halves of the stream are dropped, which ends it.
                return Ok(answer.stats());
            }
        }
        if let Some(trailers) = body.trailers().await.map_err(broken)? {
            answer.set_trailers(&trailers);
        }
        answer.finish()
    }

    fn request(&self, call: &Call) -> Request<()> {
        let mut parts = self.shared.uri.clone().into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static(call.path));
        let uri = Uri::from_parts(parts).expect("all of its parts are there");
        let mut request = with_grpc_headers(uri, ());
        if let Some(token) = &call.token {
            request.headers_mut().insert(TOKEN, token.clone());
        }
        request
    }

    /// Returns when a request may be sent: the server bounds how many are open.
    async fn sender(&self) -> std::result::Result<SendRequest<Bytes>, String> {
        let present = self.shared.sender.lock().clone();
        if let Some(sender) = present
            && let Ok(sender) = sender.ready().await
        {
            return Ok(sender);
        }
        let mut failure = self.shared.opening.lock().await;
        let present = self.shared.sender.lock().clone();
        // Another request may have opened it meanwhile.
        if let Some(sender) = present
            && let Ok(sender) = sender.ready().await
        {
            return Ok(sender);
        }
        if let Some((_, why)) = failure.as_ref().filter(|(at, _)| at.elapsed() < FAILURE_HOLDS) {
            return Err(why.clone());
        }
        let sender = self.open().await.inspect_err(|why| {
            *failure = Some((Instant::now(), why.clone()));
        })?;
        *self.shared.sender.lock() = Some(sender.clone());
        sender.ready().await.map_err(broken)
    }

    async fn open(&self) -> std::result::Result<SendRequest<Bytes>, String> {
        let opened = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let stream = match opened {
            Ok(stream) => stream.map_err(|error| innermost(&error))?,
            Err(_) => return Err(format!("no answer in {} s", CONNECT_TIMEOUT.as_secs())),
        };
        let mut builder = client::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false);
        // h2 would write each put of more than 256 bytes by a system call of its own.
        let stream =
            CoalescingWriter::new(stream, ActiveLargeResponses::default(), BulkTurns::start());
        let (sender, connection) = builder.handshake(stream).await.map_err(broken)?;
        // It ends with the connection; its error is that of the requests, too.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn connect(&self) -> io::Result<Box<dyn ByteStream>> {
        let SharedConnection { uri, tls, .. } = &*self.shared;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let stream = TcpStream::connect((host.as_str(), uri.port_u16().unwrap_or(0))).await?;
        stream.set_nodelay(true)?;
        let Some(config) = tls else { return Ok(Box::new(stream)) };
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await?;
        Ok(Box::new(stream))
    }
}

fn broken(error: h2::Error) -> String {
    innermost(&error)
}
