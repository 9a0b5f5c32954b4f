//! A server that stores nothing. A request costs only the time that the driver, the sockets and the
//! CPU take, so its latencies are a lower bound for the figures of `benches/stalls`.
//!
//! ```text
//!   accept ── in turn ──▶ stub-0, stub-1 ── answers: pieces of the response ── body ──▶ writer
//! ```
//!
//! Its two threads have the scheduling class, the event interval and the writer of Clearlane's
//! network threads. Its HTTP/2 windows differ from the windows of Clearlane's client port; its
//! connection window is the same as between members. Puts are answered but not stored. The number
//! of keys in a range is the difference of the numbers at the end of `key` and `range_end`, or 1
//! without a `range_end`.

mod answers;

use std::convert::Infallible;
use std::future;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream as StdTcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::thread;

use bytes::{Bytes, BytesMut};
use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::coalescing_writer::{
    ActiveLargeResponses, CoalescingWriter, LargeResponseGuard,
};
use clearlane_net::sched::{EVENT_INTERVAL, SchedClass};
use futures_util::stream::{self, Stream, StreamExt as _};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use self::answers::Answers;
pub use self::answers::StubSizes;
use crate::requests::WATCH;
use crate::{Error, Result};

const THREADS: usize = 2;
const STREAM_WINDOW_BYTES: u32 = 512 << 10;
const GRPC_PREFIX_BYTES: usize = 5;
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const OK: &str = "0";
const UNIMPLEMENTED: &str = "12";
/// Largest response that the writer sends without taking turns. Between two parts of a longer
/// response, other responses go first.
const SHORT_ANSWER_BYTES: usize = 256 << 10;

/// Starts the stub, which answers until the process ends. Returns the stub's address.
pub fn start(listen: SocketAddr, sizes: StubSizes) -> Result<SocketAddr> {
    let failed = |error: io::Error| Error::Local(format!("--listen {listen}: {error}"));
    let listener = TcpListener::bind(listen).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let answers = Arc::new(Answers::new(sizes));
    let mut queues = Vec::new();
    for number in 0..THREADS {
        let (queue, connections) = mpsc::unbounded_channel();
        queues.push(queue);
        let answers = Arc::clone(&answers);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .event_interval(EVENT_INTERVAL)
            .build()
            .map_err(failed)?;
        let serve = move || {
            SchedClass::Latency.apply_to_thread();
            runtime.block_on(serve_connections(connections, answers));
        };
        thread::Builder::new().name(format!("stub-{number}")).spawn(serve).map_err(failed)?;
    }
    let accept = move || {
        SchedClass::Latency.apply_to_thread();
        let accepted = listener.incoming().flatten();
        for (connection, queue) in accepted.zip(queues.iter().cycle()) {
            // Sending does not fail, because the thread never ends.
            let _ = queue.send(connection);
        }
    };
    thread::Builder::new().name("accept".to_owned()).spawn(accept).map_err(failed)?;
    Ok(address)
}

async fn serve_connections(
    mut connections: mpsc::UnboundedReceiver<StdTcpStream>,
    answers: Arc<Answers>,
) {
    let turns = BulkTurns::start();
    while let Some(connection) = connections.recv().await {
        // Errors of a broken connection are ignored.
        tokio::spawn(serve(connection, Arc::clone(&answers), turns.clone()));
    }
}

async fn serve(
    connection: StdTcpStream,
    answers: Arc<Answers>,
    turns: BulkTurns,
) -> io::Result<()> {
    connection.set_nonblocking(true)?;
    connection.set_nodelay(true)?;
    let large = ActiveLargeResponses::default();
    let connection = CoalescingWriter::new(TcpStream::from_std(connection)?, large.clone(), turns);
    let mut protocol = http2::Builder::new(TokioExecutor::new());
    protocol
        .auto_date_header(false)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_concurrent_streams(u32::MAX);
    let service = service_fn(move |request| answer(request, Arc::clone(&answers), large.clone()));
    protocol.serve_connection(TokioIo::new(connection), service).await.map_err(io::Error::other)
}

async fn answer(
    request: Request<Incoming>,
    answers: Arc<Answers>,
    large: ActiveLargeResponses,
) -> std::result::Result<Response<impl Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let path = request.uri().path().to_owned();
    let is_watch = path == WATCH;
    let mut body = request.into_body();
    let message = message(&mut body, is_watch).await;
    let body = match message.and_then(|message| answers.answer(&path, &message)) {
        Some(answer) => {
            let guard = (length(&answer) > SHORT_ANSWER_BYTES).then(|| large.start());
            // The body of a watch request must stay open as long as its response.
            response_body(answer, OK, is_watch.then_some(body), guard)
        }
        None => response_body(Vec::new(), UNIMPLEMENTED, None, None),
    };
    let mut response = Response::new(body);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    Ok(response)
}

/// Reads the body of a request and returns its message without the prefix. A watch has an endless
/// body: `is_first_enough` stops the reading after the first message. Returns `None` if the body
/// breaks off or is shorter than a prefix.
async fn message(body: &mut Incoming, is_first_enough: bool) -> Option<Bytes> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.ok()?.into_data() {
            read.extend_from_slice(&data);
        }
        if is_first_enough && read.len() >= GRPC_PREFIX_BYTES {
            let length = u32::from_be_bytes([read[1], read[2], read[3], read[4]]) as usize;
            if read.len() >= GRPC_PREFIX_BYTES + length {
                read.truncate(GRPC_PREFIX_BYTES + length);
                break;
            }
        }
    }
    (read.len() >= GRPC_PREFIX_BYTES).then(|| read.split_off(GRPC_PREFIX_BYTES).freeze())
}

/// The bytes of one or more messages, split into pieces. A piece may occur several times. Its bytes
/// are then shared instead of copied.
type Pieces = Vec<Bytes>;

fn length(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

type Frames = Pin<Box<dyn Stream<Item = std::result::Result<Frame<Bytes>, Infallible>> + Send>>;

/// Returns a body that sends the pieces and then the status. For a watch, `watch` is the body of
/// its request. Then no status is sent, and the response stays open until the client or its
/// connection ends it. `large` is dropped as soon as the connection has taken the last piece.
fn response_body(
    pieces: Pieces,
    status: &'static str,
    watch: Option<Incoming>,
    large: Option<LargeResponseGuard>,
) -> StreamBody<Frames> {
    let pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
    let data = stream::iter(pieces.map(|piece| Ok(Frame::data(piece))));
    let end = async move {
        drop(large);
        if let Some(_open) = watch {
            future::pending::<()>().await;
        }
        let status = (GRPC_STATUS, HeaderValue::from_static(status));
        Ok(Frame::trailers(HeaderMap::from_iter([status])))
    };
    StreamBody::new(Box::pin(data.chain(stream::once(end))))
}
