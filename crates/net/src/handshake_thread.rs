//! What comes before the first request: which protocol a connection speaks, and its handshake.
//!
//! ```text
//!   accepted ─▶ tls-N: first byte, hello, handshake ─▶ net-N: requests
//! ```
//!
//! A handshake takes up to some milliseconds of a core, and whether a client comes to send requests
//! or to make the server compute is known later. So it is done on a thread of class
//! [`SchedClass::Batch`]: a storm of handshakes makes new clients wait, and connected ones do not.
//!
//! Handshakes under way are bounded in number. Beyond the bound the oldest is closed, and of those
//! that are silent if these are the half: an honest client needs some milliseconds, so silent ones
//! cannot keep others out. Before that, all that has arrived is looked at: a client that waits for
//! this thread is not silent. What has not begun waits, bounded in number and time.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as blocking;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::connection_limit::ConnectionPermit;
use crate::listener::{Connection, TransportSecurity};
use crate::log_limiter::LogLimiter;
use crate::movable_socket::MovableSocket;
use crate::sched::{EVENT_INTERVAL, SchedClass, YieldPoints, reset_sched_class};
use crate::tls::ClientName;

/// TLS's record type of a handshake.
const TLS_FIRST_BYTE: u8 = 0x16;
/// Connections that are begun without a look at what has arrived for others.
const BATCH: usize = 32;
/// Two turns of the runtime: in the first, new tasks register their sockets, in the second they are
/// told what has arrived. And one more, should there be more than one look of the runtime finds.
const TURNS_TO_LOOK: usize = 3;

/// A connection as the listener has it.
#[derive(Debug)]
pub struct IncomingConnection {
    pub connection: Connection,
    pub security: TransportSecurity,
    pub permit: ConnectionPermit,
}

/// A connection whose next byte is one of HTTP.
#[derive(Debug)]
pub struct EstablishedConnection {
    pub stream: EstablishedStream,
    /// `None` of a Unix socket.
    pub remote: Option<SocketAddr>,
    pub permit: ConnectionPermit,
}

/// Of no runtime: the one that takes it has to adopt it.
#[derive(Debug)]
pub enum EstablishedStream {
    Plain(Connection),
    Tls(Box<TlsStream<MovableSocket>>, Option<ClientName>),
}

impl IncomingConnection {
    /// Fails if the client has gone already.
    pub fn without_tls(self) -> io::Result<EstablishedConnection> {
        let IncomingConnection { connection, permit, .. } = self;
        let remote = connection.remote()?;
        Ok(EstablishedConnection { stream: EstablishedStream::Plain(connection), remote, permit })
    }
}

/// Of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// Connections that have begun.
    pub pending_max: usize,
    /// Connections that have not.
    pub waiting_max: usize,
    /// For a connection to begin, and for its first byte on a port with and without TLS. What
    /// follows has the limit of its acceptor.
    pub patience: Duration,
}

/// Where the connections of a listener go. Its threads end when all clones are dropped.
#[derive(Clone, Debug)]
pub struct ConnectionQueue {
    established: mpsc::UnboundedSender<EstablishedConnection>,
    handshakes: Option<mpsc::UnboundedSender<(Instant, IncomingConnection)>>,
}

impl ConnectionQueue {
    pub fn without_tls(
        established: mpsc::UnboundedSender<EstablishedConnection>,
    ) -> ConnectionQueue {
        ConnectionQueue { established, handshakes: None }
    }

    /// Starts the thread for handshakes.
    pub fn with_tls(
        established: mpsc::UnboundedSender<EstablishedConnection>,
        thread_name: String,
        config: HandshakeConfig,
    ) -> io::Result<(ConnectionQueue, JoinHandle<()>)> {
        let (handshakes, incoming) = mpsc::unbounded_channel();
        let queue = established.clone();
        // The thread makes its runtime: one that is dropped here could be dropped on another.
        let (started, result) = blocking::sync_channel(1);
        let thread = thread::Builder::new()
            .name(thread_name)
            .spawn(move || run(incoming, config, queue, &started))?;
        result.recv().map_err(io::Error::other)??;
        Ok((ConnectionQueue { established, handshakes: Some(handshakes) }, thread))
    }

    /// A receiver that is gone has ended with its server.
    pub fn add(&self, incoming: IncomingConnection) {
        match incoming.security {
            TransportSecurity::Plain => {
                // It fails only if the client has gone already.
                if let Ok(connection) = incoming.without_tls() {
                    let _ = self.established.send(connection);
                }
            }
            TransportSecurity::Tls(_) | TransportSecurity::PlainOrTls(_) => {
                // Without the thread it is closed: in plain text it must not be served.
                debug_assert!(self.handshakes.is_some(), "a port with TLS has a thread for it");
                if let Some(handshakes) = &self.handshakes {
                    let _ = handshakes.send((Instant::now(), incoming));
                }
            }
        }
    }
}

fn run(
    incoming: mpsc::UnboundedReceiver<(Instant, IncomingConnection)>,
    config: HandshakeConfig,
    established: mpsc::UnboundedSender<EstablishedConnection>,
    started: &blocking::SyncSender<io::Result<()>>,
) {
    SchedClass::Batch.apply_to_thread();
    let mut builder = Builder::new_current_thread();
    builder.on_thread_start(reset_sched_class).enable_all().event_interval(EVENT_INTERVAL);
    let (runtime, result) = match builder.build() {
        Ok(runtime) => (Some(runtime), Ok(())),
        Err(error) => (None, Err(error)),
    };
    let _ = started.send(result);
    let Some(runtime) = runtime else { return };
    // A task like those that it starts, so that it is behind them when it yields.
    let accepting = runtime.spawn(accept(incoming, config, established));
    if let Err(error) = runtime.block_on(accepting) {
        tracing::error!(%error, "the thread for handshakes has failed");
    }
    // A question to DNS may take long, and its answer is wanted no more.
    runtime.shutdown_background();
}

/// Returns when no more connections can come.
async fn accept(
    mut incoming: mpsc::UnboundedReceiver<(Instant, IncomingConnection)>,
    config: HandshakeConfig,
    established: mpsc::UnboundedSender<EstablishedConnection>,
) {
    let mut pending = PendingHandshakes::new(config.pending_max);
    let mut batch = Vec::new();
    while incoming.recv_many(&mut batch, BATCH).await > 0 && !incoming.is_closed() {
        if incoming.len() > config.waiting_max {
            pending.refuse(batch.drain(..).count());
            continue;
        }
        if pending.count() + batch.len() > pending.max {
            for _ in 0..TURNS_TO_LOOK {
                yield_now().await;
            }
        }
        for (since, connection) in batch.drain(..) {
            if since.elapsed() > config.patience {
                pending.refuse(1);
                continue;
            }
            let has_said_hello = Arc::new(AtomicBool::new(false));
            let (queue, said_hello) = (established.clone(), Arc::clone(&has_said_hello));
            pending.spawn(has_said_hello, async move {
                let handshake = establish(connection, config.patience, &said_hello);
                if let Some(done) = offering_core(handshake).await {
                    let _ = queue.send(done);
                }
            });
        }
    }
}

/// Offers the core after each step: a signature, or the reading of what a client has sent.
fn offering_core<T>(handshake: impl Future<Output = T>) -> impl Future<Output = T> {
    let (mut handshake, mut steps) = (Box::pin(handshake), YieldPoints::default());
    poll_fn(move |context| {
        let polled = handshake.as_mut().poll(context);
        steps.advance(YieldPoints::BYTES_PER_STEP);
        polled
    })
}

struct PendingHandshakes {
    max: usize,
    tasks: JoinSet<()>,
    /// In the order of their arrival, also of tasks that have ended since.
    by_age: VecDeque<PendingHandshake>,
    log: LogLimiter,
}

struct PendingHandshake {
    task: AbortHandle,
    has_said_hello: Arc<AtomicBool>,
}

impl PendingHandshakes {
    fn new(max: usize) -> PendingHandshakes {
        let (tasks, by_age, log) = (JoinSet::new(), VecDeque::new(), LogLimiter::default());
        PendingHandshakes { max, tasks, by_age, log }
    }

    fn count(&mut self) -> usize {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.len()
    }

    /// Closes another connection if there are too many.
    fn spawn(
        &mut self,
        has_said_hello: Arc<AtomicBool>,
        handshake: impl Future<Output = ()> + Send + 'static,
    ) {
        if self.by_age.len() >= self.max {
            self.by_age.retain(|pending| !pending.task.is_finished());
            if self.by_age.len() >= self.max {
                self.close_oldest();
            }
        }
        let task = self.tasks.spawn(handshake);
        self.by_age.push_back(PendingHandshake { task, has_said_hello });
    }

    fn close_oldest(&mut self) {
        let is_silent =
            |pending: &&PendingHandshake| !pending.has_said_hello.load(Ordering::Relaxed);
        let silent = self.by_age.iter().filter(is_silent).count();
        // Else those that have said hello and no more could fill all places but one.
        let place = match 2 * silent >= self.max {
            true => self.by_age.iter().position(|pending| is_silent(&pending)),
            false => Some(0),
        };
        if let Some(oldest) = place.and_then(|place| self.by_age.remove(place)) {
            oldest.task.abort();
            self.warn("closed the oldest connection without a handshake: there are too many");
        }
    }

    /// Connections that have not begun have been closed.
    fn refuse(&self, count: usize) {
        for _ in 0..count {
            self.warn("closed a waiting connection without a handshake: there are too many");
        }
    }

    fn warn(&self, what: &str) {
        if let Some(left_out) = self.log.admit() {
            tracing::warn!(max = self.max, "lines-left-out" = left_out, "{what}");
        }
    }
}

/// `None` if the client is gone, says nothing in time, or is refused, which is logged.
async fn establish(
    incoming: IncomingConnection,
    first_byte_timeout: Duration,
    has_said_hello: &AtomicBool,
) -> Option<EstablishedConnection> {
    let IncomingConnection { connection, security, permit } = incoming;
    let remote = connection.remote().ok()?;
    let is_asked =
        matches!((&security, &connection), (TransportSecurity::PlainOrTls(_), Connection::Tcp(_)));
    let (TransportSecurity::Tls(tls) | TransportSecurity::PlainOrTls(tls)) = security else {
        let stream = EstablishedStream::Plain(connection);
        return Some(EstablishedConnection { stream, remote, permit });
    };
    let socket = MovableSocket::from_connection(connection).ok()?;
    if is_asked && timeout(first_byte_timeout, socket.peek()).await.ok()?.ok()? != TLS_FIRST_BYTE {
        let stream = EstablishedStream::Plain(socket.into_connection().ok()?);
        return Some(EstablishedConnection { stream, remote, permit });
    }
    let on_hello = || has_said_hello.store(true, Ordering::Relaxed);
    let (mut stream, name) = tls.accept(socket, remote, on_hello).await?;
    stream.get_mut().0.detach().ok()?;
    let stream = EstablishedStream::Tls(Box::new(stream), name);
    Some(EstablishedConnection { stream, remote, permit })
}

impl Connection {
    /// Sets also what each connection has: `TCP_NODELAY`.
    fn remote(&self) -> io::Result<Option<SocketAddr>> {
        match self {
            Connection::Tcp(connection) => {
                connection.set_nodelay(true)?;
                connection.peer_addr().map(Some)
            }
            Connection::Unix(_) => Ok(None),
        }
    }
}
