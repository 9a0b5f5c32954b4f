//! A server that does no work: what a request takes here is taken by the driver, the sockets and
//! the cores, and by no store. It is the floor below the figures of `benches/stalls`.
//!
//! ```text
//!   accept ── deals ──▶ stub-0, stub-1 ── answers: how long ── body: what the socket takes
//! ```
//!
//! Its threads, windows and writes are those of Clearlane. It keeps nothing: a put is answered and
//! forgotten, and a range has as many keys as the numbers at the ends of its keys say.

mod answers;
mod body;

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream as StdTcpStream};
use std::sync::Arc;
use std::thread;

use bytes::{Bytes, BytesMut};
use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::coalescing_writer::{ActiveLargeResponses, CoalescingWriter};
use clearlane_net::sched::{EVENT_INTERVAL, SchedClass};
use http::{HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use self::answers::Answers;
pub use self::answers::StubSizes;
use self::body::AnswerBody;
use crate::{Error, Result};

const THREADS: usize = 2;
const STREAM_WINDOW_BYTES: u32 = 512 << 10;
const GRPC_PREFIX_BYTES: usize = 5;
/// A longer answer lets others go first between its parts.
const SHORT_ANSWER_BYTES: usize = 256 << 10;

/// Listens, and answers until the process ends. Returns the address.
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
            // Its thread does not end.
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
        // A connection that is broken is its client's business.
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
) -> std::result::Result<Response<AnswerBody>, Infallible> {
    let path = request.uri().path().to_owned();
    let is_watch = path == answers::WATCH;
    let mut body = request.into_body();
    let answer = match message(&mut body, is_watch).await {
        Some(message) => answers.answer(&path, &message),
        None => None,
    };
    let answer = match answer {
        Some(answer) => {
            let guard = (answer.length() > SHORT_ANSWER_BYTES).then(|| large.start());
            // The request of a watch goes on as long as its answer.
            AnswerBody::new(answer, is_watch.then_some(body), guard)
        }
        None => AnswerBody::unimplemented(),
    };
    let mut response = Response::new(answer);
    let grpc = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, grpc);
    Ok(response)
}

/// The message of a request, without its prefix; of a watch the first one. `None` if it does not
/// come.
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
