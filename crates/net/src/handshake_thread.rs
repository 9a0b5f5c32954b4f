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
//! Connections that have not come through are bounded in number. Beyond the bound the oldest one
//! without a complete hello is closed, else the oldest: an honest client needs some milliseconds,
//! so silent clients cannot keep others out. Before that, all that has arrived is looked at: a
//! client that waits for this thread does not count as silent.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use crate::connection_limit::ConnectionPermit;
use crate::listener::{Connection, TransportSecurity};
use crate::log_limiter::LogLimiter;
use crate::movable_socket::MovableSocket;
use crate::sched::{SchedClass, reset_sched_class};
use crate::tls::{ClientName, TlsAcceptor};

/// TLS's record type of a handshake.
const TLS_FIRST_BYTE: [u8; 1] = [0x16];

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// Of one thread.
    pub pending_max: usize,
    /// For the first byte on a port with and without TLS. What follows has the limit of its
    /// [`TlsAcceptor`].
    pub first_byte_timeout: Duration,
}

/// Where the connections of a listener go. Its threads end when all clones are dropped.
#[derive(Clone, Debug)]
pub struct ConnectionQueue {
    established: mpsc::UnboundedSender<EstablishedConnection>,
    handshakes: Option<mpsc::UnboundedSender<IncomingConnection>>,
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
        let mut builder = Builder::new_current_thread();
        let runtime = builder.on_thread_start(reset_sched_class).enable_all().build()?;
        let queue = established.clone();
        let thread = thread::Builder::new()
            .name(thread_name)
            .spawn(move || run(runtime, incoming, config, queue))?;
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
                    let _ = handshakes.send(incoming);
                }
            }
        }
    }
}

fn run(
    runtime: Runtime,
    incoming: mpsc::UnboundedReceiver<IncomingConnection>,
    config: HandshakeConfig,
    established: mpsc::UnboundedSender<EstablishedConnection>,
) {
    SchedClass::Batch.apply_to_thread();
    // A task like those that it starts, so that it is behind them when it yields.
    let accepting = runtime.spawn(accept(incoming, config, established));
    if let Err(error) = runtime.block_on(accepting) {
        tracing::error!(%error, "the thread for handshakes has failed");
    }
    // A question to DNS may take long, and its answer is wanted no more.
    runtime.shutdown_background();
}

async fn accept(
    mut incoming: mpsc::UnboundedReceiver<IncomingConnection>,
    config: HandshakeConfig,
    established: mpsc::UnboundedSender<EstablishedConnection>,
) {
    let mut pending = PendingHandshakes::new(config.pending_max);
    while let Some(connection) = incoming.recv().await {
        pending.wait_for_place().await;
        let (queue, has_said_hello) = (established.clone(), Arc::new(AtomicBool::new(false)));
        let said_hello = Arc::clone(&has_said_hello);
        pending.spawn(has_said_hello, async move {
            if let Some(done) = establish(connection, config.first_byte_timeout, &said_hello).await
            {
                let _ = queue.send(done);
            }
        });
    }
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

    /// Closes a connection if there are too many.
    async fn wait_for_place(&mut self) {
        if self.is_full() {
            // The runtime looks at its sockets before it comes back here, and the tasks at theirs.
            yield_now().await;
            if self.is_full() {
                self.close_oldest();
            }
        }
    }

    fn is_full(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.len() >= self.max
    }

    fn spawn(
        &mut self,
        has_said_hello: Arc<AtomicBool>,
        handshake: impl Future<Output = ()> + Send + 'static,
    ) {
        // A handle keeps what is around the future: it must not outlive the handshake by much.
        if self.by_age.len() >= 2 * self.max {
            self.by_age.retain(|pending| !pending.task.is_finished());
        }
        let task = self.tasks.spawn(Box::pin(handshake));
        self.by_age.push_back(PendingHandshake { task, has_said_hello });
    }

    fn close_oldest(&mut self) {
        self.by_age.retain(|pending| !pending.task.is_finished());
        let is_silent = |pending: &PendingHandshake| {
            let PendingHandshake { has_said_hello, .. } = pending;
            !has_said_hello.load(Ordering::Relaxed)
        };
        let place = self.by_age.iter().position(is_silent).unwrap_or(0);
        let Some(oldest) = self.by_age.remove(place) else { return };
        oldest.task.abort();
        if let Some(left_out) = self.log.admit() {
            let max = self.max;
            tracing::warn!(
                max,
                "lines-left-out" = left_out,
                "closed the oldest connection without a handshake: there are too many"
            );
        }
    }
}

/// `None` if the client is gone, says nothing in time, or is refused, which is logged.
async fn establish(
    incoming: IncomingConnection,
    first_byte_timeout: Duration,
    has_said_hello: &AtomicBool,
) -> Option<EstablishedConnection> {
    let IncomingConnection { mut connection, security, permit } = incoming;
    let remote = connection.remote().ok()?;
    let tls = match security {
        TransportSecurity::Plain => None,
        TransportSecurity::Tls(tls) => Some(tls),
        TransportSecurity::PlainOrTls(tls) => {
            let speaks_tls;
            (connection, speaks_tls) = find_protocol(connection, first_byte_timeout).await?;
            speaks_tls.then_some(tls)
        }
    };
    let stream = match tls {
        None => EstablishedStream::Plain(connection),
        Some(tls) => shake_hands(connection, &tls, remote, has_said_hello).await?,
    };
    Some(EstablishedConnection { stream, remote, permit })
}

async fn shake_hands(
    connection: Connection,
    tls: &TlsAcceptor,
    remote: Option<SocketAddr>,
    has_said_hello: &AtomicBool,
) -> Option<EstablishedStream> {
    let socket = MovableSocket::from_connection(connection).ok()?;
    let on_hello = || has_said_hello.store(true, Ordering::Relaxed);
    let (mut stream, name) = tls.accept(socket, remote, on_hello).await?;
    stream.get_mut().0.detach().ok()?;
    Some(EstablishedStream::Tls(Box::new(stream), name))
}

/// Whether the connection speaks TLS; `None` if it ends before that is known.
async fn find_protocol(connection: Connection, patience: Duration) -> Option<(Connection, bool)> {
    let Connection::Tcp(connection) = connection else { return Some((connection, true)) };
    let connection = TcpStream::from_std(connection).ok()?;
    let mut first = [0];
    let heard = timeout(patience, connection.peek(&mut first)).await;
    let speaks_tls = matches!(heard, Ok(Ok(1))).then(|| first == TLS_FIRST_BYTE)?;
    Some((Connection::Tcp(connection.into_std().ok()?), speaks_tls))
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
