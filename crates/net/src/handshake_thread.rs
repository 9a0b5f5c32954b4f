//! The steps before the first request: which protocol a connection speaks, and its TLS handshake.
//!
//! ```text
//!   accepted ─▶ tls-N: first byte, hello, handshake ─▶ net-N: requests
//! ```
//!
//! On the port for members, the two threads are `peer-tls` and the raft loop's thread.
//!
//! A handshake takes up to a few milliseconds of a core, and the server cannot know in advance
//! whether a client will send requests or only make it compute. So handshakes run on a thread of
//! class [`SchedClass::Batch`]: a storm of handshakes delays new clients, but not connected
//! clients.
//!
//! The number of handshakes in progress is limited, and further connections wait. At the limit, one
//! handshake is closed when its client is late:
//!
//! * If at least half of the clients have sent no hello, the oldest handshake without a hello is
//!   chosen. Otherwise the oldest of all handshakes is chosen.
//! * The chosen client is late after 1 s, or after 200 ms if it has sent no hello. If more than
//!   half of the places for waiting connections are taken, a client without a hello is late
//!   immediately.
//!
//! An honest client needs a few milliseconds. Before a handshake is closed, the thread reads
//! everything that has arrived, so a client that is only waiting for this thread is not considered
//! late.
//!
//! A waiting connection is closed without a handshake if it has waited for more than 5 s. It is
//! also closed if too many connections wait while the limit of handshakes is reached, or if its
//! client has left and it has waited for more than 1 s.
//!
//! The numbers in [`HandshakeConfig`] are for one thread. On the client port, `handshake_config` in
//! `crates/rpc/src/serve.rs` divides two numbers among the threads. Up to
//! `--max-pending-handshakes` handshakes, and at most half of `--max-connections`, may be in
//! progress. A quarter of `--max-connections` may wait. On the port for members the numbers are 64
//! and 32 (`crates/peer/src/listener.rs`). On both ports, `crates/net/src/tls/acceptor.rs` ends a
//! handshake after `--tls-handshake-timeout`, 10 s by default.
//!
//! On the client port, the accepting thread assigns connections to the network threads in turn,
//! whatever their load. It never waits for a network thread or a handshake thread: their queues
//! have no limit, and `--max-connections` also counts the queued connections.

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
use crate::sched::{EVENT_INTERVAL, SchedClass, offer_core, reset_sched_class};
use crate::tls::ClientName;

/// The TLS record type of a handshake.
const TLS_FIRST_BYTE: u8 = 0x16;
/// Number of turns of the runtime before a handshake may be closed. In the first turn new tasks
/// register their sockets. In the second turn the tasks are notified of data that has arrived. One
/// more turn is needed if more sockets have data than one check of the runtime returns.
const TURNS_TO_LOOK: usize = 3;
/// Time from the start of a handshake until it may be closed, if the client has sent its hello and
/// another connection waits. A connection that has waited longer than this for the start of its
/// handshake is closed if its client has left.
const GRACE: Duration = Duration::from_secs(1);
/// Time from the start of a handshake until it may be closed, if the client has sent no hello and
/// another connection waits. If more than half of [`waiting_max`](HandshakeConfig::waiting_max)
/// connections wait, the time is zero.
const HELLO_GRACE: Duration = Duration::from_millis(200);
/// Maximum time that a connection may wait until its handshake starts. Clients give up after about
/// this time.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// A handshake step that takes longer than this has computed or checked a signature. After such a
/// step the thread offers its core to other threads.
const LONG_STEP: Duration = Duration::from_micros(100);

/// A connection that a listener has accepted. Its TLS handshake has not started yet.
#[derive(Debug)]
pub struct IncomingConnection {
    pub connection: Connection,
    pub security: TransportSecurity,
    pub permit: ConnectionPermit,
}

/// A connection whose next byte belongs to HTTP.
#[derive(Debug)]
pub struct EstablishedConnection {
    pub stream: EstablishedStream,
    /// The client's address; `None` for a Unix socket.
    pub remote: Option<SocketAddr>,
    pub permit: ConnectionPermit,
}

/// A stream whose socket belongs to no runtime. The receiver must attach the socket to its own
/// runtime.
#[derive(Debug)]
pub enum EstablishedStream {
    Plain(Connection),
    Tls(Box<TlsStream<MovableSocket>>, Option<ClientName>),
}

impl IncomingConnection {
    /// Returns a connection that is served without TLS. Fails if the client has already left.
    pub fn without_tls(self) -> io::Result<EstablishedConnection> {
        let IncomingConnection { connection, permit, .. } = self;
        let remote = connection.remote()?;
        Ok(EstablishedConnection { stream: EstablishedStream::Plain(connection), remote, permit })
    }
}

/// The limits of one handshake thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeConfig {
    /// Maximum number of connections whose handshake is in progress.
    pub pending_max: usize,
    /// Maximum number of connections that wait for their handshake.
    pub waiting_max: usize,
    /// Maximum time until the first byte arrives on a port that accepts both TLS and plain text.
    /// The `TlsAcceptor` of the port limits the time of the handshake itself.
    pub first_byte_timeout: Duration,
}

/// The queue into which a listener puts its accepted connections. The queue's handshake thread ends
/// when all clones of the queue are dropped.
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

    /// Starts the handshake thread, and waits until its runtime exists. Fails if the thread or its
    /// runtime cannot be created.
    pub fn with_tls(
        established: mpsc::UnboundedSender<EstablishedConnection>,
        thread_name: String,
        config: HandshakeConfig,
    ) -> io::Result<(ConnectionQueue, JoinHandle<()>)> {
        let (handshakes, incoming) = mpsc::unbounded_channel();
        let queue = established.clone();
        // The thread creates its own runtime. If the runtime were created here, it could be dropped
        // on another thread.
        let (started, result) = blocking::sync_channel(1);
        let thread = thread::Builder::new()
            .name(thread_name)
            .spawn(move || run(incoming, config, queue, &started))?;
        result.recv().map_err(io::Error::other)??;
        Ok((ConnectionQueue { established, handshakes: Some(handshakes) }, thread))
    }

    /// Passes a connection of a port with TLS to the handshake thread, and any other connection
    /// directly to the server. If the server has stopped, the connection is closed.
    pub fn add(&self, incoming: IncomingConnection) {
        match incoming.security {
            TransportSecurity::Plain => {
                // This fails only if the client has already left.
                if let Ok(connection) = incoming.without_tls() {
                    let _ = self.established.send(connection);
                }
            }
            TransportSecurity::Tls(_) | TransportSecurity::PlainOrTls(_) => {
                // Without a handshake thread the connection is closed. It must not be served in
                // plain text.
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
    // The accept loop is a task like the handshakes that it spawns, so the handshakes run whenever
    // the accept loop yields.
    let accepting = runtime.spawn(accept(incoming, config, established));
    if let Err(error) = runtime.block_on(accepting) {
        tracing::error!(%error, "the thread for handshakes has failed");
    }
    // The shutdown does not wait for a DNS query in progress. The query may take a long time, and
    // its result is no longer needed.
    runtime.shutdown_background();
}

/// Starts a handshake for each connection. Closes a connection instead in the cases that the
/// module's head lists. Returns when no more connections can arrive.
async fn accept(
    mut incoming: mpsc::UnboundedReceiver<(Instant, IncomingConnection)>,
    config: HandshakeConfig,
    established: mpsc::UnboundedSender<EstablishedConnection>,
) {
    let mut pending = PendingHandshakes::new(config.pending_max);
    while let Some((since, connection)) = incoming.recv().await {
        // If the server has stopped, waiting connections are dropped.
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

/// Offers the core to another thread after each long step.
fn offering_core<T>(handshake: impl Future<Output = T>) -> impl Future<Output = T> {
    let mut handshake = Box::pin(handshake);
    poll_fn(move |context| {
        let began = Instant::now();
        let polled = handshake.as_mut().poll(context);
        if began.elapsed() > LONG_STEP {
            offer_core();
        }
        polled
    })
}

struct PendingHandshakes {
    max: usize,
    tasks: JoinSet<()>,
    /// The handshakes, oldest first. A handshake that has ended stays in the list until the list is
    /// next cleaned up.
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

    /// Returns when fewer than `max` handshakes are in progress. If none ends, closes a handshake
    /// that is late. `is_crowded` returns true if more than half of the places for waiting
    /// connections are taken.
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

    /// Chooses one handshake (see the module's head) and closes it if it is late. Otherwise fails
    /// with the time until it is late. If many connections wait (`is_crowded`), a client without a
    /// hello is late immediately.
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
        self.warn("closed the oldest connection without a handshake: too many are waiting");
        Ok(())
    }

    fn warn(&self, what: &str) {
        if let Some(left_out) = self.log.admit() {
            tracing::warn!(max = self.max, "lines-left-out" = left_out, "{what}");
        }
    }
}

/// Returns the connection after its handshake. Returns `None` if the client has left, sends nothing
/// in time, or is rejected. A rejection is logged.
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
    /// Returns true if the client has closed its side, even if bytes that the client sent earlier
    /// are unread.
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

    /// Returns the client's address, or `None` for a Unix socket. Also sets `TCP_NODELAY` on a TCP
    /// connection.
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
