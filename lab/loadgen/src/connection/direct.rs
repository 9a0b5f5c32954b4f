//! A connection for measured requests: HTTP/2 without the layers of tonic.
//!
//! A request costs the driver half as much as on a [`Channel`](tonic::transport::Channel), because
//! the channel has an additional task and queue. The cost matters, because the driver often shares
//! the machine with the server. If a connection breaks, the next request opens it again.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::coalescing_writer::{ActiveLargeResponses, CoalescingWriter};
use h2::client::{self, ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderValue, Request, StatusCode, Uri, Version, header};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use super::{CONNECT_TIMEOUT, Endpoints, innermost, text};
use crate::requests::Call;
use crate::response_scanner::{ResponseShape, ResponseStats, Scanner};
use crate::users::TOKEN;
use crate::{Error, Result, TextResult};

/// The windows that hyper uses for a client.
const STREAM_WINDOW: u32 = 2 << 20;
const CONNECTION_WINDOW: u32 = 5 << 20;
/// After an attempt to connect has failed, requests fail with the same error for this time. Then
/// the next request tries again.
const FAILURE_HOLDS: Duration = Duration::from_millis(100);

/// A connection. All clones of this value use the same connection. Use it only on the runtime that
/// has opened it.
#[derive(Clone, Debug)]
pub struct Connection {
    shared: Arc<SharedConnection>,
}

#[derive(Debug)]
struct SharedConnection {
    uri: Uri,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Maximum time to connect.
    limit: Duration,
    sender: Mutex<Option<SendRequest<Bytes>>>,
    /// Held by the request that opens the connection, while the other requests wait. It contains
    /// the time and the text of the last failure, so that the waiting requests also fail with it.
    opening: tokio::sync::Mutex<Option<(Instant, String)>>,
}

trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Opens `count` connections, which use the servers in turn. `first` is the number of connections
/// that were opened before. It decides which server is next.
pub async fn open_direct(endpoints: &Endpoints, first: u64, count: u64) -> Result<Vec<Connection>> {
    let mut opened = Vec::new();
    let turns = endpoints.list.iter().cycle().skip(first as usize % endpoints.list.len());
    for endpoint in turns.take(count as usize) {
        let connection = Connection::new(endpoint, endpoints.tls.clone(), CONNECT_TIMEOUT);
        let why = connection.ready().await;
        why.map_err(|why| Error::Server(format!("cannot connect to {}: {why}", endpoint.uri())))?;
        opened.push(connection);
    }
    Ok(opened)
}

/// Opens a connection to the first server. Fails if connecting fails or takes longer than `limit`.
pub(crate) async fn open_within(endpoints: &Endpoints, limit: Duration) -> TextResult<Connection> {
    let connection = Connection::new(&endpoints.list[0], endpoints.tls.clone(), limit);
    connection.ready().await.map(|()| connection)
}

impl Connection {
    fn new(
        endpoint: &Endpoint,
        tls: Option<Arc<rustls::ClientConfig>>,
        limit: Duration,
    ) -> Connection {
        let uri = endpoint.uri().clone();
        let tls = tls.filter(|_| uri.scheme_str() == Some("https"));
        let opening = tokio::sync::Mutex::default();
        let shared = SharedConnection { uri, tls, limit, sender: Mutex::default(), opening };
        Connection { shared: Arc::new(shared) }
    }

    /// Sends a request and reads its response to the end. A watch is read only until it has enough
    /// events. Any other call fails if its response does not have the expected number of keys. The
    /// error is a short text, so that equal errors can be counted together.
    pub async fn call(&self, call: &Call) -> TextResult<ResponseStats> {
        let OpenCall { answer, request: _open } =
            self.begin(call, call.answer != ResponseShape::Watch).await?;
        let (head, mut body) = answer.await.map_err(broken)?.into_parts();
        if head.status != StatusCode::OK {
            return Err(format!("HTTP status {}", head.status.as_u16()));
        }
        // A response that only reports an error has no body. Its status is in the headers.
        let mut status = Status::from_header_map(&head.headers);
        let mut scanner = Scanner::new(call.answer);
        let enough = call.keys.filter(|_| call.answer == ResponseShape::Watch);
        while let Some(data) = body.data().await {
            let data = data.map_err(broken)?;
            // The bytes are not kept, so their part of the window is released immediately for the
            // rest of this response.
            body.flow_control().release_capacity(data.len()).map_err(broken)?;
            scanner.feed(&data)?;
            let stats = scanner.stats();
            // A watch of 0 events is complete after its first message, which reports that the watch
            // has been created.
            if enough.is_some_and(|events| stats.keys >= events && scanner.is_between_messages()) {
                // Returning drops both halves of the stream, which ends it.
                return Ok(stats);
            }
        }
        if let Some(trailers) = body.trailers().await.map_err(broken)? {
            status = Status::from_header_map(&trailers).or(status);
        }
        let status = status.ok_or("the response has no status")?;
        if status.code() != Code::Ok {
            return Err(text(status));
        }
        let stats = scanner.finish()?;
        match call.keys {
            Some(keys) if keys != stats.keys => {
                Err(format!("{} keys instead of {keys}", stats.keys))
            }
            _ => Ok(stats),
        }
    }

    /// Sends the headers and the body of a request. If `is_whole` is false, the request stays open,
    /// as if more bytes were to follow.
    pub(crate) async fn begin(&self, call: &Call, is_whole: bool) -> TextResult<OpenCall> {
        let mut sender = self.sender().await?;
        let (answer, mut request) =
            sender.send_request(self.request(call), false).map_err(broken)?;
        request.send_data(call.body.clone(), is_whole).map_err(broken)?;
        Ok(OpenCall { answer, request })
    }

    /// Opens the connection if it is not open, and waits until the server allows another stream.
    pub(crate) async fn ready(&self) -> TextResult<()> {
        self.sender().await.map(drop)
    }

    fn request(&self, call: &Call) -> Request<()> {
        let mut parts = self.shared.uri.clone().into_parts();
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static(call.path));
        let uri = Uri::from_parts(parts).expect("all of its parts are there");
        let mut request = Request::post(uri)
            .version(Version::HTTP_2)
            .header(header::TE, HeaderValue::from_static("trailers"))
            .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
            .body(())
            .expect("a URI and headers that are known");
        if let Some(token) = &call.token {
            request.headers_mut().insert(TOKEN, token.clone());
        }
        request
    }

    /// Returns the sender of requests. Opens the connection if it is not open. Waits until the
    /// server allows another stream.
    async fn sender(&self) -> TextResult<SendRequest<Bytes>> {
        if let Some(sender) = self.open_sender().await {
            return Ok(sender);
        }
        let mut failure = self.shared.opening.lock().await;
        // While this request waited, another request may have opened the connection.
        if let Some(sender) = self.open_sender().await {
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

    /// Returns the sender as soon as the server allows another stream. `None` if the connection is
    /// not open.
    async fn open_sender(&self) -> Option<SendRequest<Bytes>> {
        let sender = self.shared.sender.lock().clone();
        sender?.ready().await.ok()
    }

    async fn open(&self) -> TextResult<SendRequest<Bytes>> {
        let limit = self.shared.limit;
        let opened = timeout(limit, self.connect()).await;
        let stream = match opened {
            Ok(stream) => stream.map_err(|error| innermost(&error))?,
            Err(_) => return Err(format!("no response within {} s", limit.as_secs())),
        };
        let mut builder = client::Builder::new();
        builder
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false);
        // Without this writer, h2 makes a separate system call for each put of more than 256 bytes.
        let stream =
            CoalescingWriter::new(stream, ActiveLargeResponses::default(), BulkTurns::start());
        let (sender, connection) = builder.handshake(stream).await.map_err(broken)?;
        // The task ends with the connection. Its error is not needed, because the requests get the
        // same error.
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

/// A request whose response has not been read. Dropping an `OpenCall` ends the request's stream.
#[derive(Debug)]
pub(crate) struct OpenCall {
    answer: ResponseFuture,
    request: SendStream<Bytes>,
}

impl OpenCall {
    /// Waits for the first bytes of the response. Returns their number, and both halves of the
    /// stream. The stream ends when the halves are dropped.
    pub(crate) async fn first_bytes(self) -> TextResult<(u64, (SendStream<Bytes>, RecvStream))> {
        let mut body = self.answer.await.map_err(broken)?.into_body();
        let data = body.data().await.ok_or("the call was refused")?.map_err(broken)?;
        body.flow_control().release_capacity(data.len()).map_err(broken)?;
        Ok((data.len() as u64, (self.request, body)))
    }
}

fn broken(error: h2::Error) -> String {
    innermost(&error)
}
