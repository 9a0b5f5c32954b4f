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
//! Connections that have not come through are bounded in number. Beyond the bound the *oldest* is
//! closed: an honest client needs some milliseconds, so the one that has taken longest is likely to
//! say nothing, and silent clients cannot keep others out.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
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

/// Ends when all clones are dropped.
#[derive(Clone, Debug)]
pub struct HandshakeQueue(mpsc::UnboundedSender<IncomingConnection>);

impl HandshakeQueue {
    pub fn submit(&self, incoming: IncomingConnection) {
        // A thread that has ended has logged why.
        let _ = self.0.send(incoming);
    }
}

/// `established` is called on the thread.
pub fn start<F>(
    name: String,
    config: HandshakeConfig,
    established: F,
) -> io::Result<(HandshakeQueue, JoinHandle<io::Result<()>>)>
where
    F: Fn(EstablishedConnection) + Clone + Send + 'static,
{
    let (queue, incoming) = mpsc::unbounded_channel();
    let thread = thread::Builder::new().name(name);
    let thread = thread.spawn(move || run(incoming, config, established))?;
    Ok((HandshakeQueue(queue), thread))
}

fn run<F>(
    mut incoming: mpsc::UnboundedReceiver<IncomingConnection>,
    config: HandshakeConfig,
    established: F,
) -> io::Result<()>
where
    F: Fn(EstablishedConnection) + Clone + Send + 'static,
{
    SchedClass::Batch.apply_to_thread();
    let mut builder = Builder::new_current_thread();
    let runtime = builder.on_thread_start(reset_sched_class).enable_all().build()?;
    runtime.block_on(async {
        let mut pending = PendingHandshakes::new(config.pending_max);
        while let Some(connection) = incoming.recv().await {
            let established = established.clone();
            pending.spawn(async move {
                if let Some(done) = establish(connection, config.first_byte_timeout).await {
                    established(done);
                }
            });
        }
    });
    // A question to DNS may take long, and its answer is wanted no more.
    runtime.shutdown_background();
    Ok(())
}

/// In the order of their arrival.
struct PendingHandshakes {
    max: usize,
    tasks: JoinSet<()>,
    /// Also of tasks that have ended since.
    by_age: VecDeque<AbortHandle>,
    log: LogLimiter,
}

impl PendingHandshakes {
    fn new(max: usize) -> PendingHandshakes {
        let (tasks, by_age, log) = (JoinSet::new(), VecDeque::new(), LogLimiter::default());
        PendingHandshakes { max, tasks, by_age, log }
    }

    fn spawn(&mut self, handshake: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        // A handle keeps what is around the future: it must not outlive the handshake by much.
        if self.by_age.len() >= 2 * self.max {
            self.by_age.retain(|task| !task.is_finished());
        }
        if self.tasks.len() >= self.max {
            self.close_oldest();
        }
        self.by_age.push_back(self.tasks.spawn(Box::pin(handshake)));
    }

    fn close_oldest(&mut self) {
        while let Some(oldest) = self.by_age.pop_front() {
            if oldest.is_finished() {
                continue;
            }
            oldest.abort();
            if let Some(left_out) = self.log.admit() {
                let max = self.max;
                tracing::warn!(
                    max,
                    "lines-left-out" = left_out,
                    "closed the oldest connection without a handshake: there are too many"
                );
            }
            return;
        }
    }
}

/// `None` if the client is gone, says nothing in time, or is refused, which is logged.
async fn establish(
    incoming: IncomingConnection,
    first_byte_timeout: Duration,
) -> Option<EstablishedConnection> {
    let remote = incoming.connection.remote().ok()?;
    let tls = match &incoming.security {
        TransportSecurity::Plain => None,
        TransportSecurity::Tls(tls) => Some(Arc::clone(tls)),
        TransportSecurity::PlainOrTls(tls) => {
            let tls = Arc::clone(tls);
            let speaks_tls = speaks_tls(&incoming.connection, first_byte_timeout).await?;
            speaks_tls.then_some(tls)
        }
    };
    let IncomingConnection { connection, permit, .. } = incoming;
    let stream = match tls {
        None => EstablishedStream::Plain(connection),
        Some(tls) => shake_hands(connection, &tls, remote).await?,
    };
    Some(EstablishedConnection { stream, remote, permit })
}

async fn shake_hands(
    connection: Connection,
    tls: &TlsAcceptor,
    remote: Option<SocketAddr>,
) -> Option<EstablishedStream> {
    let socket = MovableSocket::from_connection(connection).ok()?;
    let (mut stream, name) = tls.accept(socket, remote).await?;
    stream.get_mut().0.detach().ok()?;
    Some(EstablishedStream::Tls(Box::new(stream), name))
}

/// `None` if the connection ends before that is known.
async fn speaks_tls(connection: &Connection, patience: Duration) -> Option<bool> {
    // A clone, so that what was accepted stays as it is for its runtime.
    let Connection::Tcp(connection) = connection else { return Some(true) };
    let connection = TcpStream::from_std(connection.try_clone().ok()?).ok()?;
    let mut first = [0];
    let heard = timeout(patience, connection.peek(&mut first)).await;
    matches!(heard, Ok(Ok(1))).then(|| first == TLS_FIRST_BYTE)
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
