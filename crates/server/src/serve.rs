//! Which thread has which connection?
//!
//! A few threads with a runtime each, and no task ever moves from one to another: what a connection
//! needs is in the cache of one core, and waking a task is a push on a list. Connections are dealt in
//! turn by the thread that accepts them.
//!
//! ```text
//!   accept ── deals ──┬─▶ net-0   its connections, its services, its desk
//!                     └─▶ net-1
//! ```
//!
//! With TLS the handshake comes first, in the task of its connection. Then a connection speaks HTTP/2
//! or HTTP/1.1; its first bytes say which. Each request goes to the thread's [`Front`], which does not
//! see a difference between plain and TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clearlane_member::Handle;
use clearlane_member::node::Node;
use clearlane_member::requests::Limits;
use clearlane_proto::etcdserverpb::auth_server::AuthServer;
use clearlane_proto::etcdserverpb::cluster_server::ClusterServer;
use clearlane_proto::etcdserverpb::kv_server::KvServer;
use clearlane_proto::etcdserverpb::lease_server::LeaseServer;
use clearlane_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use clearlane_proto::etcdserverpb::watch_server::WatchServer;
use clearlane_proto::grpc::health::v1::health_server::HealthServer;
use clearlane_proto::v3electionpb::election_server::ElectionServer;
use clearlane_proto::v3lockpb::lock_server::LockServer;
use clearlane_turns::Turn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::Request;
use tonic::service::Routes;

use crate::auth_off::{AuthService, BCRYPT_COST};
use crate::caller::{Who, admit};
use crate::calm::Calm;
use crate::cluster::{ClusterService, Rules};
use crate::config::address::{Entrance, Listen};
use crate::data::SLOW_APPLY;
use crate::election::ElectionService;
use crate::front::{Caller, Front, Remote};
use crate::health::HealthService;
use crate::http::{Endpoints, Settings};
use crate::kv::KvService;
use crate::lease::LeaseService;
use crate::listen::{Connection, Listener, Speech, Waiting};
use crate::lock::LockService;
use crate::maintenance::MaintenanceService;
use crate::metrics::{Metrics, Options, ThreadMetrics};
use crate::one_piece::OnePiece;
use crate::succession::Succession;
use crate::tls::Incoming;
use crate::watch::WatchService;

/// So long nobody is accepted when the last attempt has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
/// What takes longer is worth a line in the log: etcd's `--warning-unary-request-duration`.
const SLOW: Duration = Duration::from_millis(300);
/// So long a server that stops waits for the requests that are under way.
pub const DRAIN: Duration = Duration::from_secs(7);
/// A client of HTTP/1.1 has so long for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The head of a request may be so long: Go's `http.DefaultMaxHeaderBytes`. Over HTTP/2 without TLS
/// etcd takes 16 times as much.
const HEAD_MAX: u32 = 1 << 20;
/// And some more over HTTP/1.1, as in Go.
const HEAD_ROOM: usize = 4 << 10;
/// The first byte of a TLS connection.
const TLS_BEGINS: [u8; 1] = [0x16];

/// What connections are held to. By default it is what etcd does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// A client waits so long between two pings: `--grpc-keepalive-min-time`.
    pub ping_pause: Duration,
    /// One on which nothing happens is asked after so long whether its client is still there.
    pub keep_alive: Duration,
    /// And has so long to answer.
    pub keep_alive_timeout: Duration,
    /// So many calls may be under way on one.
    pub streams_max: u32,
}

impl Default for Connections {
    fn default() -> Self {
        Connections {
            ping_pause: Duration::from_secs(5),
            keep_alive: Duration::from_secs(2 * 60 * 60),
            keep_alive_timeout: Duration::from_secs(20),
            streams_max: u32::MAX,
        }
    }
}

/// What all threads have in common.
#[derive(Clone, Debug)]
pub struct Common {
    /// A call that takes longer is told of in the log.
    pub slow: Duration,
    /// So is a read that takes longer than this.
    pub slow_apply: Duration,
    /// What connections are held to.
    pub connections: Connections,
    /// How much work it is to hash a password.
    pub bcrypt_cost: u32,
    /// What changes of members are held to.
    pub rules: Rules,
    /// The figures of the server.
    pub metrics: Arc<Metrics>,
    /// How HTTP is answered.
    pub settings: Arc<Settings>,
    /// Requests that are under way when the server stops have so long to end.
    pub drain: Duration,
}

impl Default for Common {
    fn default() -> Self {
        let metrics = Arc::new(Metrics::new(Options::default()));
        let (rules, settings) = (Rules::default(), Arc::default());
        Common {
            slow: SLOW,
            slow_apply: SLOW_APPLY,
            connections: Connections::default(),
            bcrypt_cost: BCRYPT_COST,
            rules,
            metrics,
            settings,
            drain: DRAIN,
        }
    }
}

impl Common {
    /// Health, version and metrics, for one thread.
    pub fn endpoints(&self, member: &Handle, thread: &ThreadMetrics) -> Endpoints {
        let (metrics, settings) = (Arc::clone(&self.metrics), Arc::clone(&self.settings));
        Endpoints::new(member.clone(), metrics, thread.clone(), settings)
    }
}

/// A server, on ports and sockets.
#[derive(Debug)]
pub struct Server {
    places: Vec<Entrance>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Listens on a port, and answers from so many threads.
    pub fn start(
        node: &Arc<Node>,
        listen: SocketAddr,
        threads: usize,
        limits: Limits,
    ) -> io::Result<Server> {
        Server::start_with(node, listen, threads, limits, Common::default())
    }

    /// The same, with what is not gRPC set up by the caller.
    pub fn start_with(
        node: &Arc<Node>,
        listen: SocketAddr,
        threads: usize,
        limits: Limits,
        common: Common,
    ) -> io::Result<Server> {
        let listener = Listener::bind(&Listen::Tcp(listen))?;
        Server::start_on(node, vec![listener], threads, limits, common)
    }

    /// Answers whoever comes through these listeners, from so many threads.
    pub fn start_on(
        node: &Arc<Node>,
        listeners: Vec<Listener>,
        threads: usize,
        limits: Limits,
        common: Common,
    ) -> io::Result<Server> {
        let (stop, stopped) = watch::channel(false);
        let places = listeners.iter().map(Listener::place).collect::<io::Result<_>>()?;
        let mut dealt = Vec::new();
        let mut started = Vec::new();
        for number in 0..threads {
            let (deal, connections) = mpsc::unbounded_channel();
            dealt.push(deal);
            let member = Handle::new(node, limits);
            let stopped = stopped.clone();
            let common = common.clone();
            let thread = thread::Builder::new().name(format!("net-{number}"));
            started.push(thread.spawn(move || run(member, common, connections, stopped))?);
        }
        let thread = thread::Builder::new().name("accept".to_owned());
        started.push(thread.spawn(move || accept(listeners, dealt, stopped))?);
        Ok(Server { places, stop, threads: started })
    }

    /// Where it listens.
    pub fn places(&self) -> &[Entrance] {
        &self.places
    }

    /// The first port on which it listens; port 0 of nowhere if there is none.
    pub fn address(&self) -> SocketAddr {
        let mut ports = self.places.iter().filter_map(|place| match &place.at {
            Listen::Tcp(address) => Some(*address),
            Listen::Unix(_) => None,
        });
        ports.next().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    /// Stops to accept, lets what is under way come to its end, and returns then.
    pub fn stop(mut self) -> io::Result<()> {
        let _ = self.stop.send(true);
        for thread in self.threads.drain(..) {
            thread.join().map_err(|_| io::Error::other("a network thread has panicked"))??;
        }
        Ok(())
    }
}

/// A connection, and how it speaks.
type Accepted = (Connection, Speech);

/// Takes connections and deals them in turn.
fn accept(
    listeners: Vec<Listener>,
    dealt: Vec<mpsc::UnboundedSender<Accepted>>,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let dealer = Arc::new(Dealer { threads: dealt, turn: AtomicUsize::new(0) });
        let mut accepting = JoinSet::new();
        for listener in listeners {
            accepting.spawn(accept_from(listener.into_waiting()?, Arc::clone(&dealer)));
        }
        let _ = stopped.changed().await;
        Ok(())
    })
}

/// Who gets the next connection.
struct Dealer {
    threads: Vec<mpsc::UnboundedSender<Accepted>>,
    turn: AtomicUsize,
}

impl Dealer {
    fn deal(&self, connection: Accepted) {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % self.threads.len();
        // A thread that has gone has said why.
        let _ = self.threads[turn].send(connection);
    }
}

/// Takes the connections of one listener, for ever.
async fn accept_from(listener: Waiting, dealer: Arc<Dealer>) {
    let mut has_failed = false;
    loop {
        match listener.accept().await {
            Ok(connection) => {
                has_failed = false;
                dealer.deal(connection);
            }
            // Too many files are open, or the client has gone: the next one may do.
            Err(error) => {
                if !has_failed {
                    tracing::warn!(%error, "failed to accept a connection");
                }
                has_failed = true;
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// After so many tasks a thread looks for what has arrived. Left to itself it would do so after 61, and
/// while a few connections send large answers, a piece in each turn, that is milliseconds.
pub(crate) const TURNS: u32 = 16;

/// A thread for what blocks is started by one that answers, and would inherit its turns.
pub(crate) fn blocking_begins() {
    Turn::Usual.take();
}

/// One network thread.
fn run(
    member: Handle,
    common: Common,
    mut connections: mpsc::UnboundedReceiver<Accepted>,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    Turn::Soon.take();
    let mut builder = Builder::new_current_thread();
    let runtime =
        builder.on_thread_start(blocking_begins).enable_all().event_interval(TURNS).build()?;
    runtime.block_on(async {
        let desk = tokio::spawn(member.desk().clone().run());
        let (services, thread) = (services(&member, &common, &stopped), common.metrics.thread());
        let slow = (common.slow, common.slow_apply);
        let endpoints = common.endpoints(&member, &thread);
        let endpoints = endpoints.with_gateway(services.clone(), slow);
        let front = Front::new(member.clone(), services, endpoints, thread, slow);
        let mut open = JoinSet::new();
        // It ends when the accepting thread does.
        while let Some(connection) = connections.recv().await {
            let (connection, speech) = connection;
            let (front, held_to) = (front.clone(), common.connections);
            open.spawn(serve(connection, speech, front, held_to, stopped.clone()));
            while open.try_join_next().is_some() {}
        }
        // What is not done by then is cut off.
        let _ =
            tokio::time::timeout(common.drain, async { while open.join_next().await.is_some() {} })
                .await;
        desk.abort();
        Ok(())
    })
}

/// All that is answered by tonic.
fn services(member: &Handle, common: &Common, stopped: &watch::Receiver<bool>) -> Routes {
    let mut services = Routes::builder();
    services.add_service(KvServer::new(KvService::new(member.clone())));
    services.add_service(MaintenanceServer::new(MaintenanceService::new(member.clone())));
    let voters = |member: &Handle| {
        let member = member.clone();
        move |request: Request<()>| {
            admit(&member, request.metadata().as_ref(), Who::Voters).map(|()| request)
        }
    };
    services.add_service(HealthServer::with_interceptor(HealthService, voters(member)));
    let lease = LeaseService::new(member.clone());
    services.add_service(LeaseServer::with_interceptor(lease, voters(member)));
    let cluster = ClusterService::new(member.clone(), common.rules);
    services.add_service(ClusterServer::with_interceptor(cluster, voters(member)));
    let watch = WatchService::new(member.clone(), stopped.clone());
    let line = Succession::new(member.clone(), watch.clone(), stopped.clone());
    services.add_service(WatchServer::new(watch));
    let auth = AuthService::new(member.clone(), common.bcrypt_cost);
    services.add_service(AuthServer::new(auth));
    services.add_service(LockServer::new(LockService::new(line.clone())));
    services.add_service(ElectionServer::new(ElectionService::new(line)));
    services.routes()
}

/// One connection, to its end.
async fn serve(
    connection: Connection,
    speech: Speech,
    front: Front,
    held_to: Connections,
    stopped: watch::Receiver<bool>,
) {
    // A client that has gone already, and nothing else, makes these fail.
    match connection {
        Connection::Tcp(connection) => {
            let Ok(remote) = connection.peer_addr() else { return };
            if connection.set_nodelay(true).is_ok()
                && let Ok(connection) = TcpStream::from_std(connection)
                && let Some(tls) = heard(&connection, speech).await
            {
                listen_to(connection, tls, Remote::Tcp(remote), (front, held_to), stopped).await;
            }
        }
        Connection::Unix(connection) => {
            let tls = match speech {
                Speech::Plain => None,
                Speech::Secure(tls) | Speech::Either(tls) => Some(tls),
            };
            if let Ok(connection) = UnixStream::from_std(connection) {
                listen_to(connection, tls, Remote::Unix, (front, held_to), stopped).await;
            }
        }
    }
}

/// Which kind of connection it is. Nothing comes back if it ends before it says that.
async fn heard(connection: &TcpStream, speech: Speech) -> Option<Option<Arc<Incoming>>> {
    match speech {
        Speech::Plain => Some(None),
        Speech::Secure(tls) => Some(Some(tls)),
        Speech::Either(tls) => {
            let mut first = [0];
            let heard = tokio::time::timeout(HEAD_TIMEOUT, connection.peek(&mut first)).await;
            let is_there = matches!(heard, Ok(Ok(1)));
            is_there.then(|| (first == TLS_BEGINS).then_some(tls))
        }
    }
}

async fn listen_to<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: C,
    tls: Option<Arc<Incoming>>,
    remote: Remote,
    (front, held_to): (Front, Connections),
    stopped: watch::Receiver<bool>,
) {
    match tls {
        None => {
            speak(connection, front.at(Caller::plain(remote)), held_to, stopped).await;
        }
        // In a box of its own: its size would be that of all connections.
        Some(tls) => Box::pin(greet(connection, tls, remote, (front, held_to), stopped)).await,
    }
}

async fn greet<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: C,
    tls: Arc<Incoming>,
    remote: Remote,
    (front, held_to): (Front, Connections),
    mut stopped: watch::Receiver<bool>,
) {
    let address = match remote {
        Remote::Tcp(address) => Some(address),
        Remote::Unix | Remote::Gateway => None,
    };
    let greeted = tokio::select! {
        greeted = tls.greet(connection, address) => greeted,
        _ = stopped.changed() => None,
    };
    if let Some((stream, name)) = greeted {
        let caller = Caller { is_secure: true, name, ..Caller::plain(remote) };
        speak(stream, front.at(caller), held_to, stopped).await;
    }
}

async fn speak<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: C,
    front: Front,
    held_to: Connections,
    mut stopped: watch::Receiver<bool>,
) {
    let protocols = protocols(&held_to);
    let connection = OnePiece::new(connection, front.long_answers());
    let connection = Calm::new(connection, held_to.ping_pause);
    let served = protocols.serve_connection(TokioIo::new(connection), front);
    let mut served = pin!(served);
    tokio::select! {
        // A broken connection is the client's business.
        _ = served.as_mut() => return,
        _ = stopped.changed() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

/// What a client may send before the tasks of its streams have read it: on a connection, and on one of its streams.
///
/// h2 takes small frames for an attack if too many lie unread: each counts what it lacks to 256 bytes, and all together
/// may count half of the connection's window. So these are 64,000 frames of a few bytes. The window also bounds the
/// memory that the unread data of a connection take.
pub(crate) const CONNECTION_WINDOW: u32 = 32 << 20;
const STREAM_WINDOW: u32 = 512 << 10;

fn protocols(held_to: &Connections) -> auto::Builder<TokioExecutor> {
    let mut protocols = auto::Builder::new(TokioExecutor::new());
    protocols
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_MAX as usize + HEAD_ROOM);
    protocols
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_header_list_size(HEAD_MAX)
        .max_concurrent_streams(held_to.streams_max)
        .keep_alive_interval(held_to.keep_alive)
        .keep_alive_timeout(held_to.keep_alive_timeout);
    protocols
}
