//! The network threads and their connections.
//!
//! Each network thread has its own runtime, and no task moves between threads. The thread that
//! accepts connections assigns them to the network threads in turn.
//!
//! ```text
//!   accept ── assigns ─┬─▶ (tls-0) ─▶ net-0   its connections, services and request queue
//!                      └─▶ (tls-1) ─▶ net-1
//! ```
//!
//! On a port with TLS, a connection first goes to the network thread's [handshake
//! thread](clearlane_net::handshake_thread). Then its first bytes show whether it is HTTP/2 or
//! HTTP/1.1. Each request goes to the thread's [`Router`]. `docs/http.md` lists the limits that
//! apply to clients.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::coalescing_writer::CoalescingWriter;
use clearlane_net::connection_limit::ConnectionLimit;
use clearlane_net::departed_client::DepartedClient;
use clearlane_net::handshake_thread::{
    ConnectionQueue, EstablishedConnection, EstablishedStream, HandshakeConfig, IncomingConnection,
};
use clearlane_net::listener::{AsyncListener, BindAddress, Connection, ListenAddress, Listener};
use clearlane_net::ping_limiter::PingLimiter;
use clearlane_net::sched::{EVENT_INTERVAL, SchedClass, reset_sched_class};
use clearlane_proto::etcdserverpb::auth_server::AuthServer;
use clearlane_proto::etcdserverpb::cluster_server::ClusterServer;
use clearlane_proto::etcdserverpb::lease_server::LeaseServer;
use clearlane_proto::etcdserverpb::maintenance_server::MaintenanceServer;
use clearlane_proto::etcdserverpb::watch_server::WatchServer;
use clearlane_proto::grpc::health::v1::health_server::HealthServer;
use clearlane_proto::v3electionpb::election_server::ElectionServer;
use clearlane_proto::v3lockpb::lock_server::LockServer;
use clearlane_replica::apply::Limits;
use clearlane_server::Server;
use clearlane_server::threads::ServerThreads;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tonic::Request;
use tonic::service::Routes;

use crate::auth::AuthService;
use crate::client_info::{ClientInfo, RemoteAddress};
use crate::cluster::{ClusterService, ReconfigRules};
use crate::context::ThreadServices;
use crate::election::ElectionService;
use crate::health::{HealthService, ServingState};
use crate::http::{HttpService, HttpServiceConfig};
use crate::interceptors::{RequiredRole, check_member_can_serve};
use crate::kv_service::KvService;
use crate::lease::LeaseService;
use crate::lock::LockService;
use crate::lock_queue::LockQueue;
use crate::maintenance::MaintenanceService;
use crate::metrics::{RpcMetrics, ThreadMetrics};
use crate::read_ahead::ReadAheadMemory;
use crate::router::Router;
use crate::stream_executor::StreamExecutor;
use crate::watch::WatchService;

/// Maximum number of blocking threads in the runtime of a network thread. An old era uses one of
/// these threads for each read in progress; the default era uses few. A thread ends after 10 s
/// without work. If all of them are busy, further work is queued.
const WAITING_THREADS_MAX: usize = 1024;
/// etcd's default of `--warning-unary-request-duration`.
const SLOW_REQUEST_THRESHOLD: Duration = Duration::from_millis(300);
/// etcd's default of `--warning-apply-duration`.
pub const SLOW_APPLY_THRESHOLD: Duration = Duration::from_millis(100);
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(7);
pub(crate) const REQUEST_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum length of the head of a request: Go's `http.DefaultMaxHeaderBytes`. Over HTTP/2 without
/// TLS, etcd accepts 16 times as much.
const REQUEST_HEAD_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of streams of a connection that the client has opened and reset before the server
/// has read them. A connection with more such streams is closed. The limit is high, because after a
/// pause of the server all calls whose deadlines have passed are such streams. The connection must
/// stay open, because it may also have watches. Each stream takes about a kibibyte until the server
/// has read it.
const UNSEEN_RESETS_MAX: usize = 10_000;
/// Maximum number of streams of a connection that the server had to reset because of an error. A
/// connection with more such streams is closed. This is h2's default.
const ERROR_RESETS_MAX: usize = 1024;
/// Over HTTP/1.1, the head of a request may exceed the limit by this number of bytes, as in Go.
const HTTP1_HEAD_EXTRA_BYTES: usize = 4 << 10;
/// The smallest buffer that hyper accepts.
const HTTP1_BUFFER_MIN: usize = 8 << 10;
/// The default of `--max-connections`, if the process may open that many files.
pub const CONNECTIONS_MAX: usize = 1 << 16;
pub const PENDING_HANDSHAKES_MAX: usize = 1024;

/// Limits of connections. The defaults are etcd's, except where etcd has no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionConfig {
    /// `--grpc-keepalive-min-time`: the minimum time between two pings of a client.
    pub ping_min_interval: Duration,
    /// `--grpc-keepalive-interval`: the idle time after which the server sends a ping.
    pub keep_alive_interval: Duration,
    /// `--grpc-keepalive-timeout`: the time limit for the client's response to a ping.
    pub keep_alive_timeout: Duration,
    /// `--max-concurrent-streams`: the maximum number of open streams of one connection.
    pub concurrent_streams_max: u32,
    /// `--client-cert-auth`: if true, the common name of a client's certificate is the name of its
    /// user.
    pub certificates_name_users: bool,
    /// `--max-connections`: the maximum number of connections of all listeners together.
    pub connections_max: usize,
    /// `--max-pending-handshakes`: the maximum number of handshakes of all listeners together.
    pub pending_handshakes_max: usize,
    /// `--request-head-timeout`: the time limit for receiving the head of a request.
    pub request_head_timeout: Duration,
    /// `--max-request-head-bytes`: the maximum length of the head of a request.
    pub request_head_bytes_max: u32,
}

impl Default for ConnectionConfig {
    fn default() -> Self {
        ConnectionConfig {
            ping_min_interval: Duration::from_secs(5),
            keep_alive_interval: Duration::from_secs(2 * 60 * 60),
            keep_alive_timeout: Duration::from_secs(20),
            concurrent_streams_max: u32::MAX,
            certificates_name_users: false,
            connections_max: CONNECTIONS_MAX,
            pending_handshakes_max: PENDING_HANDSHAKES_MAX,
            request_head_timeout: REQUEST_HEAD_TIMEOUT,
            request_head_bytes_max: REQUEST_HEAD_BYTES_MAX,
        }
    }
}

#[derive(Clone, Debug)]
pub struct RpcConfig {
    /// A unary call of KV, or a call of Authenticate, is logged if it takes longer than this time.
    pub slow_request_threshold: Duration,
    /// A range or a read-only transaction is also logged if its read takes longer than this time.
    pub slow_apply_threshold: Duration,
    pub connections: ConnectionConfig,
    pub reconfig_rules: ReconfigRules,
    pub metrics: Arc<RpcMetrics>,
    pub http: Arc<HttpServiceConfig>,
    /// If true, the API is also served in JSON.
    pub serves_gateway: bool,
    pub serving: ServingState,
    /// Longest time for which [`RpcServer::stop`] waits for calls in progress.
    pub drain_timeout: Duration,
}

impl Default for RpcConfig {
    fn default() -> Self {
        RpcConfig {
            slow_request_threshold: SLOW_REQUEST_THRESHOLD,
            slow_apply_threshold: SLOW_APPLY_THRESHOLD,
            connections: ConnectionConfig::default(),
            reconfig_rules: ReconfigRules::default(),
            metrics: Arc::default(),
            http: Arc::default(),
            serves_gateway: true,
            serving: ServingState::new(false),
            drain_timeout: DRAIN_TIMEOUT,
        }
    }
}

impl RpcConfig {
    pub fn http_service(&self, server: &Server, thread: &ThreadMetrics) -> HttpService {
        let (metrics, config) = (Arc::clone(&self.metrics), Arc::clone(&self.http));
        HttpService::new(server.clone(), metrics, thread.clone(), config)
    }
}

#[derive(Debug)]
pub struct RpcServer {
    addresses: Vec<ListenAddress>,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    handshake_threads: Vec<JoinHandle<()>>,
}

impl RpcServer {
    pub fn start(
        node: &Arc<ServerThreads>,
        listen: SocketAddr,
        threads: usize,
        limits: Limits,
    ) -> io::Result<RpcServer> {
        let listeners = vec![Listener::bind(&BindAddress::Tcp(listen))?];
        RpcServer::start_on_listeners(node, listeners, threads, limits, RpcConfig::default())
    }

    pub fn start_on_listeners(
        node: &Arc<ServerThreads>,
        listeners: Vec<Listener>,
        threads: usize,
        limits: Limits,
        config: RpcConfig,
    ) -> io::Result<RpcServer> {
        let (stop, stopped) = watch::channel(false);
        let addresses: Vec<ListenAddress> =
            listeners.iter().map(Listener::listen_address).collect::<io::Result<_>>()?;
        let has_tls = addresses.iter().any(|address| address.is_secure);
        let (mut queues, mut started, mut handshake_threads) = (Vec::new(), Vec::new(), Vec::new());
        let handshakes = handshake_config(&config.connections, threads);
        let limit = ConnectionLimit::new("--max-connections", config.connections.connections_max);
        for number in 0..threads {
            let (established, connections) = mpsc::unbounded_channel();
            let (server, config) = (Server::new(node, limits), config.clone());
            let stopped = stopped.clone();
            let thread = thread::Builder::new().name(format!("net-{number}"));
            started
                .push(thread.spawn(move || run_net_thread(server, config, connections, stopped))?);
            if has_tls {
                let name = format!("tls-{number}");
                let (queue, thread) = ConnectionQueue::with_tls(established, name, handshakes)?;
                queues.push(queue);
                handshake_threads.push(thread);
            } else {
                queues.push(ConnectionQueue::without_tls(established));
            }
        }
        let thread = thread::Builder::new().name("accept".to_owned());
        started.push(thread.spawn(move || run_accept_thread(listeners, queues, limit, stopped))?);
        Ok(RpcServer { addresses, stop, threads: started, handshake_threads })
    }

    pub fn listen_addresses(&self) -> &[ListenAddress] {
        &self.addresses
    }

    /// Returns the first TCP address, or `0.0.0.0:0` if there are only Unix sockets.
    pub fn address(&self) -> SocketAddr {
        let mut ports = self.addresses.iter().filter_map(|place| match &place.address {
            BindAddress::Tcp(address) => Some(*address),
            BindAddress::Unix(_) => None,
        });
        ports.next().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)))
    }

    /// Stops accepting connections, and returns when the calls in progress have ended. Calls that
    /// take longer than [`RpcConfig::drain_timeout`] are cut off. Streams of watchers and waits for
    /// locks end immediately.
    pub fn stop(mut self) -> io::Result<()> {
        let _ = self.stop.send(true);
        let panicked = |_| io::Error::other("a network thread has panicked");
        for thread in self.threads.drain(..) {
            thread.join().map_err(panicked)??;
        }
        for thread in self.handshake_threads.drain(..) {
            thread.join().map_err(panicked)?;
        }
        Ok(())
    }
}

/// Returns the handshake limits of one network thread. In all threads together, at most half of the
/// allowed connections may be in a handshake, and a quarter may wait for a handshake. Otherwise
/// silent clients could use up all allowed connections before the handshake thread closes any of
/// them. Each thread may have at least one connection of each kind.
fn handshake_config(config: &ConnectionConfig, threads: usize) -> HandshakeConfig {
    let ConnectionConfig { pending_handshakes_max, connections_max, .. } = *config;
    let share = |of_all: usize| (of_all / threads.max(1)).max(1);
    HandshakeConfig {
        pending_max: share(pending_handshakes_max.min(connections_max / 2)),
        waiting_max: share(connections_max / 4),
        first_byte_timeout: config.request_head_timeout,
    }
}

fn run_accept_thread(
    listeners: Vec<Listener>,
    queues: Vec<ConnectionQueue>,
    limit: ConnectionLimit,
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    Builder::new_current_thread().enable_all().build()?.block_on(async {
        let next_thread = Arc::new(AtomicUsize::new(0));
        let mut accepting = JoinSet::new();
        for listener in listeners {
            let (listener, queues) = (listener.into_async()?, queues.clone());
            accepting.spawn(accept(listener, queues, limit.clone(), Arc::clone(&next_thread)));
        }
        let _ = stopped.changed().await;
        Ok(())
    })
}

/// Accepts connections. Does not return.
async fn accept(
    listener: AsyncListener,
    queues: Vec<ConnectionQueue>,
    limit: ConnectionLimit,
    next_thread: Arc<AtomicUsize>,
) {
    loop {
        let (connection, security) = listener.accept("a connection").await;
        let Some(permit) = limit.admit() else { continue };
        let turn = next_thread.fetch_add(1, Ordering::Relaxed) % queues.len();
        queues[turn].add(IncomingConnection { connection, security, permit });
    }
}

fn run_net_thread(
    server: Server,
    config: RpcConfig,
    mut connections: mpsc::UnboundedReceiver<EstablishedConnection>,
    stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    SchedClass::Latency.apply_to_thread();
    let mut builder = Builder::new_current_thread();
    let runtime = builder
        .on_thread_start(reset_sched_class)
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .max_blocking_threads(WAITING_THREADS_MAX)
        .build()?;
    runtime.block_on(async {
        let request_task = tokio::spawn(server.requests().clone().run());
        let turns = BulkTurns::start();
        let services = ThreadServices {
            grpc: grpc_services(&server, &config, &stopped, &turns).prepare(),
            metrics: config.metrics.register_thread(),
            turns: turns.clone(),
            slow_thresholds: (config.slow_request_threshold, config.slow_apply_threshold),
            server,
        };
        let http = config.http_service(&services.server, &services.metrics);
        let http = match config.serves_gateway {
            true => {
                let grpc = services.grpc.clone();
                http.with_gateway(grpc, turns.clone(), services.slow_thresholds)
            }
            false => http,
        };
        let client = ClientInfo::without_tls(RemoteAddress::Unix);
        let (read_ahead, streams) = Default::default();
        let router = Router { services, http, client, read_ahead, streams };
        let mut open = JoinSet::new();
        // This loop ends when the accept thread and the handshake threads have ended.
        while let Some(connection) = connections.recv().await {
            let turn = turns.request();
            let conditions = Conditions {
                router: router.clone(),
                config: config.connections,
                stopped: stopped.clone(),
                turns: turns.clone(),
            };
            open.spawn(async move {
                turn.await;
                serve_connection(connection, conditions).await;
            });
            while open.try_join_next().is_some() {}
        }
        // Connections that are still open after the time-out are cut off.
        let _ = tokio::time::timeout(config.drain_timeout, async {
            while open.join_next().await.is_some() {}
        })
        .await;
        request_task.abort();
        Ok(())
    })
}

/// Returns all services that tonic serves.
fn grpc_services(
    server: &Server,
    config: &RpcConfig,
    stopped: &watch::Receiver<bool>,
    turns: &BulkTurns,
) -> Routes {
    let voters = {
        let server = server.clone();
        move |request: Request<()>| {
            check_member_can_serve(&server, request.metadata().as_ref(), RequiredRole::Voter)
                .map(|()| request)
        }
    };
    let server = || server.clone();
    let watch = WatchService::new(server(), stopped.clone(), turns.clone());
    let queue = LockQueue { server: server(), watch: watch.clone(), stopped: stopped.clone() };
    let lease = LeaseService { server: server(), turns: turns.clone() };
    let cluster = ClusterService { server: server(), reconfig_rules: config.reconfig_rules };
    let slow_threshold = config.slow_request_threshold;
    let auth = AuthService { server: server(), slow_threshold };
    let lock = LockService { queue: queue.clone() };
    let serving = &config.serving;
    let health = HealthService { state: serving.clone() };
    let mut services = Routes::builder();
    services
        .add_service(KvService { server: server() })
        .add_service(MaintenanceServer::new(MaintenanceService::new(server(), serving.clone())))
        .add_service(WatchServer::new(watch))
        .add_service(HealthServer::with_interceptor(health, voters.clone()))
        .add_service(LeaseServer::with_interceptor(lease, voters.clone()))
        .add_service(ClusterServer::with_interceptor(cluster, voters.clone()))
        .add_service(AuthServer::with_interceptor(auth, voters.clone()))
        .add_service(LockServer::with_interceptor(lock, voters.clone()))
        .add_service(ElectionServer::with_interceptor(ElectionService { queue }, voters));
    services.routes()
}

/// The context of each connection of a thread.
struct Conditions {
    router: Router,
    config: ConnectionConfig,
    stopped: watch::Receiver<bool>,
    turns: BulkTurns,
}

async fn serve_connection(connection: EstablishedConnection, conditions: Conditions) {
    let EstablishedConnection { stream, remote, permit: _counted } = connection;
    let client = ClientInfo::without_tls(match remote {
        Some(address) => RemoteAddress::Tcp(address),
        None => RemoteAddress::Unix,
    });
    // Registering a socket fails only if too many files are open. The connection is then closed.
    match stream {
        EstablishedStream::Plain(Connection::Tcp(stream)) => {
            if let Ok(stream) = TcpStream::from_std(stream) {
                serve_http(stream, client, conditions).await;
            }
        }
        EstablishedStream::Plain(Connection::Unix(stream)) => {
            if let Ok(stream) = UnixStream::from_std(stream) {
                serve_http(stream, client, conditions).await;
            }
        }
        EstablishedStream::Tls(mut stream, name) => {
            if stream.get_mut().0.attach().is_ok() {
                let is_user = conditions.config.certificates_name_users;
                let client = ClientInfo { is_secure: true, name, is_user, ..client };
                // The future of a TLS connection is boxed. Otherwise the future of every connection
                // would be as large as the future of a TLS connection.
                Box::pin(serve_http(stream, client, conditions)).await;
            }
        }
    }
}

async fn serve_http<C: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: C,
    client: ClientInfo,
    Conditions { router, config, mut stopped, turns }: Conditions,
) {
    let streams = StreamExecutor::default();
    let protocols = http_builder(&config, streams.clone());
    let large_responses = client.large_responses.clone();
    let connection = CoalescingWriter::new(connection, large_responses, turns.clone());
    let connection =
        PingLimiter::new(connection, config.ping_min_interval, config.request_head_timeout, turns);
    let connection = DepartedClient::new(connection);
    let router = Router { client, read_ahead: ReadAheadMemory::default(), streams, ..router };
    let served = protocols.serve_connection(TokioIo::new(connection), router);
    let mut served = pin!(served);
    tokio::select! {
        // Errors of a broken connection are ignored.
        _ = served.as_mut() => return,
        _ = stopped.changed() => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

/// Maximum number of bytes that a client may send on a connection before they are read.
///
/// This window also determines how many small frames may be unread on a connection. h2 counts 256
/// bytes minus the length of the frame for each small frame. The sum may be up to half of this
/// window, which allows 263,000 frames of 1 byte, or 280,000 frames of 16 bytes.
const CONNECTION_WINDOW_BYTES: u32 = 128 << 20;
/// Maximum number of bytes that a client may send on one stream before they are read. A stream
/// whose [queue](crate::read_ahead) is full leaves up to this number of bytes unread. 16 streams
/// with full queues reach the limit of their connection. The unread frames of these 16 streams stay
/// below the limit of small frames if each frame has 16 bytes or more.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;

fn http_builder(
    config: &ConnectionConfig,
    streams: StreamExecutor,
) -> auto::Builder<StreamExecutor> {
    let mut protocols = auto::Builder::new(streams);
    let head_bytes_max = config.request_head_bytes_max;
    protocols
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(config.request_head_timeout)
        .max_buf_size((head_bytes_max as usize + HTTP1_HEAD_EXTRA_BYTES).max(HTTP1_BUFFER_MIN));
    protocols
        .http2()
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_header_list_size(head_bytes_max)
        .max_concurrent_streams(config.concurrent_streams_max)
        .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
        .max_local_error_reset_streams(ERROR_RESETS_MAX)
        .keep_alive_interval(config.keep_alive_interval)
        .keep_alive_timeout(config.keep_alive_timeout);
    protocols
}
