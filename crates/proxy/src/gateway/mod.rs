//! The TCP gateway: it forwards each connection of a client to one endpoint, byte by byte.
//!
//! ```text
//!   client ─▶ accept ─▶ first byte ─▶ choose an endpoint ─▶ dial ─▶ copy both halves ─▶ end
//!                                          ▲                 │ failed: the endpoint is down,
//!                                          └─────────────────┘ the next endpoint is tried
//!   probes ─▶ each endpoint, every few seconds: up or down
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`endpoints`] | the state of each endpoint, and the choice among them |
//! | `probe` | connects to each endpoint regularly, and notes whether that worked |
//! | `copy` | forwards bytes between a client and an endpoint |
//! | [`metrics`] | counters, and their page over HTTP |
//!
//! The gateway reads nothing from a client before a dial has succeeded, so a failed dial loses no
//! data. It dials when the client's first byte has arrived, or after a short time without one. A
//! client that leaves earlier, such as a probe, gets no dial. Otherwise two gateways that are each
//! other's endpoint would pass each probe on to each other without end. The gateway cannot detect a
//! hung member whose system still accepts connections.
//!
//! etcd's gateway has no dial timeout and no probes, and it ends both halves of a connection when
//! one half ends.

pub mod endpoints;
mod probe;
mod copy;
pub mod metrics;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clearlane_net::connection_limit::ConnectionLimit;
use clearlane_net::listener::ACCEPT_RETRY_DELAY;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use endpoints::{Endpoint, EndpointConfig, Endpoints};
use metrics::Metrics;

/// Longest time that open connections may take when the gateway stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct GatewayConfig {
    pub endpoints: Vec<EndpointConfig>,
    /// Time limit of one dial and of one probe.
    pub dial_timeout: Duration,
    /// Time for the first byte of a client. If it does not arrive, an endpoint is dialled anyway:
    /// in some protocols, the server sends first.
    pub first_byte_patience: Duration,
    /// Time between two probes of one endpoint.
    pub probe_interval: Duration,
    /// Time until an endpoint that is down is probed again, if that is less than `probe_interval`.
    pub retry_delay: Duration,
    /// A connection whose one half has ended is closed after this time without data.
    pub half_closed_idle_max: Duration,
    /// Maximum number of open connections of clients.
    pub connections_max: usize,
    /// The seed of the random choice among endpoints with a weight.
    pub seed: u64,
}

impl Default for GatewayConfig {
    fn default() -> GatewayConfig {
        GatewayConfig {
            endpoints: Vec::new(),
            dial_timeout: Duration::from_secs(3),
            first_byte_patience: Duration::from_millis(100),
            probe_interval: Duration::from_secs(5),
            retry_delay: Duration::from_secs(60),
            half_closed_idle_max: Duration::from_secs(5 * 60),
            connections_max: 1 << 16,
            seed: 0,
        }
    }
}

/// A running gateway. Dropping it ends the probes.
#[derive(Debug)]
pub struct Gateway {
    shared: Arc<Shared>,
    config: GatewayConfig,
    stop: watch::Sender<bool>,
    _probes: JoinSet<()>,
}

/// The data that all connections use.
#[derive(Debug)]
struct Shared {
    endpoints: Endpoints,
    metrics: Metrics,
    dial_timeout: Duration,
    first_byte_patience: Duration,
    half_closed_idle_max: Duration,
}

impl Gateway {
    /// Starts the probes. Must be called on a runtime.
    pub fn start(config: GatewayConfig) -> Gateway {
        let endpoints = Endpoints::new(config.endpoints.clone(), config.seed);
        let mut probes = JoinSet::new();
        for endpoint in endpoints.all() {
            let endpoint = Arc::clone(endpoint);
            let probe = probe::Probe {
                endpoint,
                interval: config.probe_interval,
                interval_if_down: config.retry_delay.min(config.probe_interval),
                timeout: config.dial_timeout,
            };
            probes.spawn(probe.run());
        }
        let shared = Arc::new(Shared {
            endpoints,
            metrics: Metrics::default(),
            dial_timeout: config.dial_timeout,
            first_byte_patience: config.first_byte_patience,
            half_closed_idle_max: config.half_closed_idle_max,
        });
        Gateway { shared, config, stop: watch::channel(false).0, _probes: probes }
    }

    pub fn endpoints(&self) -> &Endpoints {
        &self.shared.endpoints
    }

    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Ends [`serve`](Gateway::serve) and [`serve_metrics`](Gateway::serve_metrics).
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Serves clients until [`stop`](Gateway::stop) is called. After that, open connections may
    /// continue for up to 5 s.
    pub async fn serve(&self, listener: TcpListener) {
        let limit = ConnectionLimit::new("the gateway", self.config.connections_max);
        let mut stopped = self.stop.subscribe();
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|stopped| *stopped) => break,
            };
            while connections.try_join_next().is_some() {}
            let Ok((client, _)) = accepted else {
                // Too many files are open, or the client has left.
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            };
            self.shared.metrics.accepted.fetch_add(1, Ordering::Relaxed);
            let Some(permit) = limit.admit() else { continue };
            let shared = Arc::clone(&self.shared);
            connections.spawn(async move {
                shared.forward(client).await;
                drop(permit);
            });
        }
        drop(listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, drained).await;
    }

    /// Serves the page `/metrics` until [`stop`](Gateway::stop) is called.
    pub async fn serve_metrics(&self, listener: TcpListener) {
        let page = {
            let shared = Arc::clone(&self.shared);
            move || metrics::page(&shared.metrics, &shared.endpoints)
        };
        let mut stopped = self.stop.subscribe();
        tokio::select! {
            () = metrics::serve(listener, page) => {}
            _ = stopped.wait_for(|stopped| *stopped) => {}
        }
    }
}

impl Shared {
    async fn forward(&self, client: TcpStream) {
        let _open = Counted::new(&self.metrics.open);
        let first = tokio::time::timeout(self.first_byte_patience, client.peek(&mut [0])).await;
        if matches!(first, Ok(Ok(0) | Err(_))) {
            return;
        }
        let Some((server, endpoint)) = self.dial().await else {
            self.metrics.unserved.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let _at_endpoint = Counted::new(&endpoint.connections);
        // An option that cannot be set costs speed, but no data.
        let _ = copy::tune(&client);
        let _ = copy::tune(&server);
        copy::both_ways(client, server, &self.metrics, self.half_closed_idle_max).await;
    }

    /// Connects to the first endpoint that accepts. `None` if no endpoint does. An endpoint that
    /// fails is noted as down, except if the cause is in this process or system.
    async fn dial(&self) -> Option<(TcpStream, Arc<Endpoint>)> {
        let mut tried = Vec::new();
        while let Some(index) = self.endpoints.choose(&tried) {
            tried.push(index);
            let endpoint = &self.endpoints.all()[index];
            match endpoint.connect(self.dial_timeout).await {
                Ok(server) => {
                    endpoint.note_up();
                    return Some((server, Arc::clone(endpoint)));
                }
                Err(error) => {
                    endpoint.failed_dials.fetch_add(1, Ordering::Relaxed);
                    if !is_local(&error) {
                        endpoint.note_down(&error);
                    }
                }
            }
        }
        None
    }
}

/// Returns whether a dial has failed because of this process or system: it has too many open
/// files, or no free local port.
fn is_local(error: &io::Error) -> bool {
    let too_many_files = [Some(libc::EMFILE), Some(libc::ENFILE)];
    too_many_files.contains(&error.raw_os_error())
        || error.kind() == io::ErrorKind::AddrNotAvailable
}

/// Counts one open connection until it is dropped. The task of a connection may be cancelled.
struct Counted<'a>(&'a AtomicU64);

impl Counted<'_> {
    fn new(count: &AtomicU64) -> Counted<'_> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
