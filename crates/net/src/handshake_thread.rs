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
//! Handshakes under way are bounded in number, others wait. Then the oldest is closed if its client
//! has let a second pass; of those that have not said hello, if these are the half, and sooner. An
//! honest client needs some milliseconds. Before one is closed, all that has arrived is looked at:
//! a client that waits for this thread is not late.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::os::fd::AsFd as _;
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
/// Two turns of the runtime: in the first, new tasks register their sockets, in the second they are
/// told what has arrived. And one more, should there be more than one look of the runtime finds.
const TURNS_TO_LOOK: usize = 3;
/// What a client that has said hello has for its handshake, if others wait.
const GRACE: Duration = Duration::from_secs(1);
/// What a client has for its hello, if others wait, and none if they are many.
const HELLO_GRACE: Duration = Duration::from_millis(200);
/// How long a connection may wait for its handshake to begin: clients give up about then.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A step of a handshake that took so long was a signature or a check of one.
const LONG_STEP: Duration = Duration::from_micros(100);

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
    /// For the first byte on a port with and without TLS. What follows has the limit of its
    /// acceptor.
    pub first_byte_timeout: Duration,
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
    while let Some((since, connection)) = incoming.recv().await {
        // What waits has no server to wait for.
        if incoming.is_closed() {
            return;
        }
        let waited = since.elapsed();
        if waited > WAIT_MAX || (pending.is_full() && incoming.len() > config.waiting_max) {
            pending.warn("closed a connection that waited for its handshake");
            continue;
        }
        if waited > GRACE && connection.connection.is_ending() {
            continue;
        }
        pending.wait_for_place(|| incoming.len() > config.waiting_max / 2).await;
        let has_said_hello = Arc::new(AtomicBool::new(false));
        let (queue, said_hello) = (established.clone(), Arc::clone(&has_said_hello));
        pending.spawn(has_said_hello, async move {
            let handshake = establish(connection, config.first_byte_timeout, &said_hello);
            if let Some(done) = offering_core(handshake).await {
                let _ = queue.send(done);
            }
        });
    }
}

/// Offers the core after each long step.
fn offering_core<T>(handshake: impl Future<Output = T>) -> impl Future<Output = T> {
    let (mut handshake, mut steps) = (Box::pin(handshake), YieldPoints::default());
    poll_fn(move |context| {
        let began = Instant::now();
        let polled = handshake.as_mut().poll(context);
        if began.elapsed() > LONG_STEP {
            steps.advance(YieldPoints::BYTES_PER_STEP);
        }
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
    since: Instant,
    task: AbortHandle,
    has_said_hello: Arc<AtomicBool>,
}

impl PendingHandshake {
    fn is_silent(&self) -> bool {
        !self.has_said_hello.load(Ordering::Relaxed)
    }
}

impl PendingHandshakes {
    fn new(max: usize) -> PendingHandshakes {
        let (tasks, by_age, log) = (JoinSet::new(), VecDeque::new(), LogLimiter::default());
        PendingHandshakes { max, tasks, by_age, log }
    }

    fn is_full(&mut self) -> bool {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.len() >= self.max
    }

    /// Waits until a handshake has ended, or is late and closed.
    async fn wait_for_place(&mut self, is_crowded: impl Fn() -> bool) {
        while self.is_full() {
            for _ in 0..TURNS_TO_LOOK {
                yield_now().await;
            }
            if !self.is_full() {
                return;
            }
            self.by_age.retain(|pending| !pending.task.is_finished());
            let Err(left) = self.close_oldest(is_crowded()) else { continue };
            let _ = timeout(left, self.tasks.join_next()).await;
        }
    }

    fn spawn(
        &mut self,
        has_said_hello: Arc<AtomicBool>,
        handshake: impl Future<Output = ()> + Send + 'static,
    ) {
        if self.by_age.len() >= 2 * self.max {
            self.by_age.retain(|pending| !pending.task.is_finished());
        }
        let task = self.tasks.spawn(handshake);
        self.by_age.push_back(PendingHandshake { since: Instant::now(), task, has_said_hello });
    }

    /// Fails with the time until the oldest is late.
    fn close_oldest(&mut self, is_crowded: bool) -> Result<(), Duration> {
        let silent = self.by_age.iter().filter(|pending| pending.is_silent()).count();
        let place = match 2 * silent >= self.max {
            true => self.by_age.iter().position(PendingHandshake::is_silent).unwrap_or(0),
            false => 0,
        };
        let Some(oldest) = self.by_age.get(place) else { return Ok(()) };
        let grace = match (oldest.is_silent(), is_crowded) {
            (true, true) => Duration::ZERO,
            (true, false) => HELLO_GRACE,
            (false, _) => GRACE,
        };
        let left = grace.saturating_sub(oldest.since.elapsed());
        if !left.is_zero() {
            return Err(left);
        }
        oldest.task.abort();
        self.by_age.remove(place);
        self.warn("closed the oldest connection without a handshake: there are too many");
        Ok(())
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
    /// The client has closed its side, whatever it has sent before.
    #[cfg(target_os = "linux")]
    fn is_ending(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let socket = match self {
            Connection::Tcp(connection) => connection.as_fd(),
            Connection::Unix(connection) => connection.as_fd(),
        };
        let mut asked = [PollFd::from_borrowed_fd(socket, PollFlags::RDHUP)];
        matches!(poll(&mut asked, Some(&Timespec::default())), Ok(1..))
    }

    #[cfg(not(target_os = "linux"))]
    fn is_ending(&self) -> bool {
        false
    }

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
