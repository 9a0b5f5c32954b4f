//! The listeners and connections of the proxy.
//!
//! ```text
//!   caller's runtime   accepts, feeds of the cache, keep-alives, the health of members
//!   net-0, net-1, ...  connections of clients: all their requests and streams; and connections to
//!                      members for forwarded calls and for the probes of readers
//! ```
//!
//! A connection stays on its network thread. So the responses to requests that arrive together are
//! written together. A cached serializable read involves no other thread, and neither do most
//! forwarded calls. A linearizable read may wait for a probe of another thread. HTTP/2 and HTTP/1.1
//! share a port.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::connection_limit::{ConnectionLimit, ConnectionPermit};
use clearlane_net::listener::{ACCEPT_RETRY_DELAY, bind_tcp};
use clearlane_net::ping_limiter::PingLimiter;
use clearlane_net::tls::TlsAcceptor;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;

use crate::cache::{Cache, CacheConfig};
use crate::cluster::Members;
use crate::hops::HopCounter;
use crate::lease::KeepAlives;
use crate::login::{CertificateUsers, Login};
use crate::metrics::Metrics;
use crate::namespace::Namespace;
use crate::pages::{self, ProfilePages};
use crate::registration::{Registration, RegistrationConfig};
use crate::router::Router;
use crate::services::Services;
use crate::trace::ProxyTrace;
use crate::upstream::{Upstream, UpstreamConfig, local};

/// Maximum number of connections to the port for metrics.
const PAGE_CONNECTIONS_MAX: usize = 64;
/// The bytes that a client may send on a connection, and on a stream, before they are read.
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Maximum length of the head of a request. This is the limit of a member.
const REQUEST_HEAD_BYTES_MAX: u32 = 1 << 20;
/// Maximum number of streams of a connection that the client has opened and reset before the proxy
/// has read them. A connection with more such streams is closed. This is the limit of a member.
const UNSEEN_RESETS_MAX: usize = 10_000;
/// Maximum number of streams of a connection that the proxy had to reset because of an error. A
/// connection with more such streams is closed. This is the limit of a member.
const ERROR_RESETS_MAX: usize = 1024;
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Idle time after which the system checks that the client still exists.
const KEEP_ALIVE_TIME: Duration = Duration::from_secs(30);
/// gRPC's defaults of the pings to clients.
const PING_INTERVAL: Duration = Duration::from_secs(2 * 60 * 60);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum size of a request message if the configuration has 0. etcd's client has the same one.
const REQUEST_BYTES_MAX: usize = 2 << 20;
/// Longest time that calls in progress may take when the proxy stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct ProxyConfig {
    pub upstream: UpstreamConfig,
    pub cache: CacheConfig,
    pub namespace: Option<Namespace>,
    /// The pages below `/debug/pprof/`. `None`: they are not served.
    pub profiles: Option<ProfilePages>,
    /// The users for the certificates of clients.
    pub certificate_users: CertificateUsers,
    pub advertised_url: String,
    pub host_name: String,
    pub registration: Option<RegistrationConfig>,
    /// Maximum size of a request message in bytes. Zero: 2 MiB.
    pub request_bytes_max: usize,
    /// Idle time after which a client is pinged. Zero: two hours.
    pub keep_alive_interval: Duration,
    /// Time for a client's answer to a ping. Zero: 20 s.
    pub keep_alive_timeout: Duration,
    /// A client that pings more often loses its connection. Zero: clients may ping at any rate.
    pub ping_interval_min: Duration,
    /// Maximum number of open streams of one connection. Zero: no limit.
    pub concurrent_streams_max: u32,
    /// Maximum number of open connections of clients.
    pub connections_max: usize,
    /// Number of network threads.
    pub threads: NonZeroUsize,
}

impl Default for ProxyConfig {
    fn default() -> ProxyConfig {
        ProxyConfig {
            upstream: UpstreamConfig::default(),
            cache: CacheConfig::default(),
            namespace: None,
            profiles: None,
            certificate_users: CertificateUsers::default(),
            advertised_url: String::new(),
            host_name: String::new(),
            registration: None,
            request_bytes_max: 64 << 20,
            keep_alive_interval: PING_INTERVAL,
            keep_alive_timeout: PING_TIMEOUT,
            ping_interval_min: Duration::from_secs(5),
            concurrent_streams_max: u32::MAX,
            connections_max: 1 << 16,
            threads: thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        }
    }
}

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    services: Arc<Services>,
    config: ProxyConfig,
    stop: watch::Sender<bool>,
}

impl Proxy {
    /// Connects to the cluster. Must be called on a runtime.
    pub fn start(config: ProxyConfig) -> Proxy {
        let (stop, stopped) = watch::channel(false);
        let upstream = Upstream::start(&config.upstream);
        let keep_alives = Arc::new(KeepAlives::new(Arc::clone(&upstream)));
        let registration = config.registration.clone().map(|config| {
            Registration::start(config, Arc::clone(&upstream), Arc::clone(&keep_alives))
        });
        let trace = Arc::<ProxyTrace>::default();
        let services = Arc::new(Services {
            cache: Cache::start(Arc::clone(&upstream), config.cache.clone(), Arc::clone(&trace)),
            upstream,
            keep_alives,
            members: Members {
                advertised_url: config.advertised_url.clone(),
                host_name: config.host_name.clone(),
                registration,
            },
            namespace: config.namespace.clone(),
            profiles: config.profiles.clone(),
            certificate_users: config.certificate_users.clone(),
            metrics: Metrics::default(),
            trace,
            stopped,
            request_bytes_max: match config.request_bytes_max {
                0 => REQUEST_BYTES_MAX,
                max => max,
            },
        });
        Proxy { services, config, stop }
    }

    pub fn services(&self) -> &Arc<Services> {
        &self.services
    }

    /// Ends [`serve`](Proxy::serve).
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Serves clients until [`stop`](Proxy::stop) is called, and the calls in progress have ended.
    pub async fn serve(
        &self,
        listener: TcpListener,
        tls: Option<Arc<TlsAcceptor>>,
    ) -> io::Result<()> {
        let limit = ConnectionLimit::new("the proxy", self.config.connections_max);
        let mut stopped = self.stop.subscribe();
        let threads: Vec<NetThread> =
            (0..self.config.threads.get()).map(NetThread::start).collect::<io::Result<_>>()?;
        for thread in threads.iter().cycle() {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            let Ok(stream) = accepted.and_then(|(stream, _)| stream.into_std()) else {
                // Too many files are open, or the client has left.
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let Some(permit) = limit.admit() else { continue };
            let connection = ClientConnection {
                services: Arc::clone(&self.services),
                protocols: self.protocols(),
                stopped: self.stop.subscribe(),
                ping_interval_min: self.config.ping_interval_min,
            };
            // The thread runs until its sender is dropped.
            let _ = thread.accepted.send(Accepted { stream, connection, tls: tls.clone(), permit });
        }
        drop(listener);
        if let Some(registration) = &self.services.members.registration {
            registration.stop().await;
        }
        let (accepted, ends): (Vec<_>, Vec<_>) = threads
            .into_iter()
            .map(|NetThread { accepted, ended, release }| (accepted, (ended, release)))
            .unzip();
        drop(accepted);
        let mut releases = Vec::new();
        for (ended, release) in ends {
            let _ = ended.await;
            releases.push(release);
        }
        Ok(())
    }

    /// Serves the pages about health and metrics over HTTP/1.1 on a second address. Does not
    /// return.
    pub async fn serve_pages(&self, listener: TcpListener, tls: Option<Arc<TlsAcceptor>>) {
        let limit = ConnectionLimit::new("the port for metrics", PAGE_CONNECTIONS_MAX);
        loop {
            let Ok((stream, remote)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            let Some(permit) = limit.admit() else { continue };
            let (services, tls) = (Arc::clone(&self.services), tls.clone());
            tokio::spawn(async move {
                match tls {
                    None => serve_pages(stream, services).await,
                    Some(tls) => {
                        if let Some((stream, _)) = tls.accept(stream, Some(remote), || ()).await {
                            serve_pages(stream, services).await;
                        }
                    }
                }
                drop(permit);
            });
        }
    }

    fn protocols(&self) -> auto::Builder<TokioExecutor> {
        let or_default = |time: Duration, default| if time.is_zero() { default } else { time };
        let streams_max = match self.config.concurrent_streams_max {
            0 => u32::MAX,
            max => max,
        };
        let mut protocols = auto::Builder::new(TokioExecutor::new());
        protocols.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        protocols
            .http2()
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .max_concurrent_streams(streams_max)
            .max_header_list_size(REQUEST_HEAD_BYTES_MAX)
            .max_pending_accept_reset_streams(UNSEEN_RESETS_MAX)
            .max_local_error_reset_streams(ERROR_RESETS_MAX)
            .keep_alive_interval(or_default(self.config.keep_alive_interval, PING_INTERVAL))
            .keep_alive_timeout(or_default(self.config.keep_alive_timeout, PING_TIMEOUT));
        protocols
    }
}

/// A thread that serves a part of the connections.
struct NetThread {
    accepted: mpsc::UnboundedSender<Accepted>,
    /// Returns when the connections of the thread have ended.
    ended: oneshot::Receiver<()>,
    /// The thread ends when this is dropped. Until then its probes may serve other threads.
    release: oneshot::Sender<()>,
}

struct Accepted {
    stream: std::net::TcpStream,
    connection: ClientConnection,
    tls: Option<Arc<TlsAcceptor>>,
    permit: ConnectionPermit,
}

impl NetThread {
    fn start(number: usize) -> io::Result<NetThread> {
        let (accepted, connections) = mpsc::unbounded_channel();
        let (end, ended) = oneshot::channel();
        let (release, released) = oneshot::channel();
        let runtime = Builder::new_current_thread().enable_all().build()?;
        thread::Builder::new().name(format!("net-{number}")).spawn(move || {
            local::use_local_channels();
            runtime.block_on(async {
                serve_connections(connections).await;
                let _ = end.send(());
                let _: Result<(), _> = released.await;
            });
        })?;
        Ok(NetThread { accepted, ended, release })
    }
}

/// Serves connections until the sender is dropped. Then calls in progress have some time to end.
async fn serve_connections(mut accepted: mpsc::UnboundedReceiver<Accepted>) {
    let mut connections = JoinSet::new();
    let turns = BulkTurns::start();
    while let Some(Accepted { stream, connection, tls, permit }) = accepted.recv().await {
        while connections.try_join_next().is_some() {}
        let Ok(stream) = TcpStream::from_std(stream) else { continue };
        let turns = turns.clone();
        connections.spawn(async move {
            connection.serve(stream, tls, turns).await;
            drop(permit);
        });
    }
    let drained = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
}

struct ClientConnection {
    services: Arc<Services>,
    protocols: auto::Builder<TokioExecutor>,
    stopped: watch::Receiver<bool>,
    ping_interval_min: Duration,
}

impl ClientConnection {
    async fn serve(self, stream: TcpStream, tls: Option<Arc<TlsAcceptor>>, turns: BulkTurns) {
        // This fails only if the client has left, which the first read shows.
        let _ = tune(&stream);
        let mut stopped = self.stopped.clone();
        let stopped = async { drop(stopped.wait_for(|stopped| *stopped).await) };
        let Some(tls) = tls else {
            // A connection that sends nothing must not stay open, and must not delay the end.
            let mut byte = [0];
            let first = tokio::select! {
                first = tokio::time::timeout(HEAD_TIMEOUT, stream.peek(&mut byte)) => first,
                () = stopped => return,
            };
            if matches!(first, Ok(Ok(1..))) {
                self.serve_http(stream, None, turns).await;
            }
            return;
        };
        let remote = stream.peer_addr().ok();
        let secured = tokio::select! {
            secured = tls.accept(stream, remote, || ()) => secured,
            () = stopped => return,
        };
        if let Some((stream, name)) = secured {
            let users = &self.services.certificate_users;
            let login = name.and_then(|name| users.login_of(&name).cloned());
            self.serve_http(stream, login, turns).await;
        }
    }

    /// `login` is the login for the certificate of the client, if there is one.
    async fn serve_http<C>(mut self, stream: C, login: Option<Arc<Login>>, turns: BulkTurns)
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let services = Arc::clone(&self.services);
        services.metrics.connections.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::default();
        let router = Router { services: Arc::clone(&services), connection, login };
        let stream = PingLimiter::new(stream, self.ping_interval_min, HEAD_TIMEOUT, turns);
        let stream = TokioIo::new(WholeWrites(stream));
        let served = self.protocols.serve_connection(stream, HopCounter(router));
        let mut served = std::pin::pin!(served);
        let is_stopped = tokio::select! {
            _ = served.as_mut() => false,
            () = async { drop(self.stopped.wait_for(|stopped| *stopped).await) } => true,
        };
        if is_stopped {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
        services.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that reports that it does not support vectored writes. Then h2 copies small frames
/// into one buffer, which costs less than a list of them.
struct WholeWrites<C>(C);

impl<C: AsyncRead + Unpin> AsyncRead for WholeWrites<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for WholeWrites<C> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

async fn serve_pages<C>(connection: C, services: Arc<Services>)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let answer = service_fn(|request: Request<Incoming>| {
        let services = Arc::clone(&services);
        async move { Ok::<_, Infallible>(pages::answer(&services, request.map(drop)).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let _ = http.serve_connection(TokioIo::new(connection), answer).await;
}

/// Sends small messages immediately, and notices that the other end has vanished.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keep_alive = TcpKeepalive::new().with_time(KEEP_ALIVE_TIME).with_interval(KEEP_ALIVE_TIME);
    SockRef::from(stream).set_tcp_keepalive(&keep_alive)
}

/// Listens on a TCP address.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = bind_tcp(address, false)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}
