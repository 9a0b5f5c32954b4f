//! So many clients, each of which sends its next request when the one before is answered: what a
//! server can do at most, and how long a client waits then.
//!
//! Threads of their own, half as many as there are cores: the other half is the server's.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout_at;

use super::load::warn_of_failures;
use super::measurements::Measurements;
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::connection::Connection;
use crate::requests::RequestGenerator;
use crate::workload::{Class, Workload};
use crate::{Error, Result, connection};

const THREADS_MAX: usize = 8;
/// For what is under way when the time is over.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug)]
pub(super) struct ClosedLoop<'a> {
    /// Clients are spread over them.
    pub(super) endpoints: &'a [String],
    pub(super) workload: &'a Workload,
    /// The name of the class whose requests are sent; its rate and arrivals do not count.
    pub(super) class: &'a str,
    pub(super) clients: u64,
    pub(super) window: Duration,
    pub(super) seed: u64,
}

#[derive(Clone, Debug)]
pub(super) struct ClosedLoopReport {
    pub(super) metrics: ClassMetrics,
    pub(super) window: Duration,
}

impl ClosedLoopReport {
    pub(super) fn per_second(&self) -> f64 {
        self.metrics.answered_per_second(self.window)
    }

    /// `FIGURE/per second`, `FIGURE/p50` and `FIGURE/p99`, at a point if there are several.
    pub(super) fn record(
        &self,
        figure: &str,
        at: impl Into<Option<f64>>,
        server: &str,
        into: &mut Measurements,
    ) {
        let at = at.into();
        into.add_at(server, &format!("{figure}/per second"), at, self.per_second());
        for (name, quantile) in [("p50", 0.5), ("p99", 0.99)] {
            if let Some(latency) = self.metrics.latency_ms(quantile) {
                into.add_at(server, &format!("{figure}/{name}"), at, latency);
            }
        }
        warn_of_failures(&self.metrics, &format!("{server}, {figure}"), into);
    }
}

impl ClosedLoop<'_> {
    pub(super) async fn run(self) -> Result<ClosedLoopReport> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, THREADS_MAX) as u64;
        let metrics = Arc::<Mutex<ClassMetrics>>::default();
        let mut ends = Vec::new();
        for number in 0..threads.min(self.clients) {
            let own = (number..self.clients).step_by(threads as usize);
            let clients = own.map(|client| self.client(client)).collect::<Result<Vec<_>>>()?;
            let (metrics, window) = (Arc::clone(&metrics), self.window);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.map_err(no_thread)?;
            let (done, end) = oneshot::channel();
            let work = move || _ = done.send(runtime.block_on(send_all(clients, window, metrics)));
            let thread = thread::Builder::new().name("clients".to_owned());
            thread.spawn(work).map_err(no_thread)?;
            ends.push(end);
        }
        for end in ends {
            end.await.map_err(|_| Error::Local("a thread of clients failed".to_owned()))??;
        }
        let metrics = std::mem::take(&mut *metrics.lock());
        Ok(ClosedLoopReport { metrics, window: self.window })
    }

    fn client(&self, number: u64) -> Result<Client> {
        let class = class(self.workload, self.class)?;
        let seed = self.seed.wrapping_mul(1 << 20).wrapping_add(number);
        let requests = RequestGenerator::new(class, self.workload, (None, 0), seed)?;
        let endpoint = self.endpoints[number as usize % self.endpoints.len()].clone();
        Ok(Client { endpoint, requests })
    }
}

#[derive(Debug)]
struct Client {
    endpoint: String,
    requests: RequestGenerator,
}

fn no_thread(error: std::io::Error) -> Error {
    Error::Local(format!("no thread for clients: {error}"))
}

fn class<'w>(workload: &'w Workload, name: &str) -> Result<&'w Class> {
    let found = workload.classes.iter().find(|class| class.name == name);
    found.ok_or_else(|| Error::Workload(format!("there is no class {name}")))
}

/// At most so many clients share a connection, as in etcd's own measurements.
const CLIENTS_PER_CONNECTION: usize = 10;

async fn send_all(
    clients: Vec<Client>,
    window: Duration,
    metrics: Arc<Mutex<ClassMetrics>>,
) -> Result<()> {
    let mut connected: Vec<(String, Connection, usize)> = Vec::new();
    let mut ready = Vec::new();
    for Client { endpoint, requests } in clients {
        let shared = connected
            .iter_mut()
            .find(|(to, _, users)| *to == endpoint && *users < CLIENTS_PER_CONNECTION);
        let connection = match shared {
            Some((_, connection, users)) => {
                *users += 1;
                connection.clone()
            }
            None => {
                let to = connection::endpoint(&endpoint)?.into();
                let opened = connection::open_direct(&to, 0, 1).await?.remove(0);
                connected.push((endpoint, opened.clone(), 1));
                opened
            }
        };
        ready.push((connection, requests));
    }
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (connection, requests) in ready {
        tasks.spawn(send_in_turn(connection, requests, start, window, Arc::clone(&metrics)));
    }
    while tasks.join_next().await.is_some() {}
    Ok(())
}

async fn send_in_turn(
    connection: Connection,
    mut requests: RequestGenerator,
    start: Instant,
    window: Duration,
    metrics: Arc<Mutex<ClassMetrics>>,
) {
    let deadline = start + window + DRAIN;
    while start.elapsed() < window {
        let sent = start.elapsed();
        let call = requests.next_call();
        let result = timeout_at(deadline.into(), connection.call(&call)).await;
        let result = result.unwrap_or_else(|_| Err("no answer".to_owned()));
        let is_broken = result.is_err();
        let done = CompletedRequest { due: sent, sent, answered: start.elapsed(), result };
        metrics.lock().add(done);
        if is_broken {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
