//! Sends expensive requests of one kind, in a closed loop, while another process measures what
//! cheap ones feel: `benches/stalls`, and `docs/load.md`.
//!
//! ```text
//!   prepare ── the keys are there; an old revision, a lease ──▶ run ── repeated / once / held
//! ```
//!
//! * One thread sends and reads all, so that of two cores it leaves one to the server.
//! * When the time is over, no request is sent any more; what is under way has [`DRAIN`] to end, so
//!   that also a request that takes longer than the time is answered once.

mod held;
mod plan;
mod report;
mod row;

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::LeaseGrantRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout_at};
use tonic::transport::{Channel, Endpoint};

use self::plan::{Plan, Prepared};
pub use self::report::StallReport;
pub use self::row::Row;
use crate::class_metrics::{ClassMetrics, CompletedRequest};
use crate::fill::{check_filled, fill_with_lease};
use crate::keys::KeySpace;
use crate::process::Process;
use crate::requests::Call;
use crate::run::DRAIN;
use crate::{Error, Result, connection, users, workload};

/// Of the keys that are read; `benches/stalls` fills servers with as many of as many bytes.
pub const KEY_SIZE: u64 = 32;
pub const VALUE_SIZE: u64 = 64;

/// After a request that failed.
const PAUSE: Duration = Duration::from_millis(100);
const LEASE_TTL_SECONDS: i64 = 24 * 60 * 60;
const FILL_CONNECTIONS: u64 = 4;

#[derive(Clone, Debug)]
pub struct StallOptions {
    pub endpoint: Endpoint,
    /// How many keys there are.
    pub keys: u64,
    /// For values that are written.
    pub seed: u64,
    /// Before the first request. Probes begin with a count of their keys, which would wait for it,
    /// and they with it.
    pub head_start: Duration,
    /// Of the row `authenticate`.
    pub clients: u64,
    /// Its processor time is told.
    pub process: Option<Process>,
}

/// All is ready for the first request.
#[derive(Clone, Debug)]
pub struct Stall {
    row: Row,
    options: StallOptions,
    space: KeySpace,
    prepared: Prepared,
    channels: Vec<Channel>,
}

type SharedMetrics = Arc<Mutex<ClassMetrics>>;

impl Stall {
    /// An error if the server has not the keys that the row reads.
    pub async fn prepare(row: Row, options: StallOptions) -> Result<Stall> {
        let space = workload::key_space(options.keys, KEY_SIZE, VALUE_SIZE)?;
        let channel = connection::open(&options.endpoint.clone().into(), 1).await?.remove(0);
        let remedy = format!(
            "clearlane-load keys --count {} --key-size {KEY_SIZE} --value-size {VALUE_SIZE}",
            space.count
        );
        let mut prepared = Prepared::default();
        if row == Row::Authenticate {
            // It reads no keys, and has no token to count them.
            users::enable(channel.clone()).await?;
        } else {
            let none = None;
            prepared.old_revision =
                check_filled(channel.clone(), &space, none, "row", &remedy).await?;
        }
        match row {
            Row::RangeOld | Row::CountOld => write_once(channel).await?,
            Row::Revoke => prepared.lease = lease_with_keys(channel, &space, &options).await?,
            _ => {}
        }
        let connections = match plan::plan(row, &space, prepared, &options) {
            Plan::Repeated(calls) | Plan::UpToTheEnd(calls) => calls.len(),
            Plan::Once(_) => 1,
            Plan::Held(..) => 0,
        };
        let channels =
            connection::open(&options.endpoint.clone().into(), connections as u64).await?;
        Ok(Stall { row, options, space, prepared, channels })
    }

    /// Sends requests for so long, and returns when they are answered or given up.
    pub async fn run(self, window: Duration) -> Result<StallReport> {
        sleep(self.options.head_start).await;
        let process = self.options.process.clone();
        let processor = || process.as_ref().map(Process::usage).transpose();
        let usage_before = processor()?;
        let start = Instant::now();
        let metrics = SharedMetrics::default();
        match plan::plan(self.row, &self.space, self.prepared, &self.options) {
            Plan::Repeated(calls) => {
                let mut loops = JoinSet::new();
                for (channel, call) in self.channels.into_iter().zip(calls) {
                    let metrics = Arc::clone(&metrics);
                    loops.spawn(repeat(channel, call, start, window, metrics));
                }
                loops.join_all().await;
            }
            Plan::Once(call) => {
                for channel in self.channels {
                    send(channel, &call, start, window, &metrics).await;
                }
            }
            Plan::Held(kind, count) => {
                let crowd = held::Crowd::new(&self.options.endpoint, &self.space, kind, count);
                crowd.hold(start, window, &metrics).await;
            }
            Plan::UpToTheEnd(calls) => {
                let mut loops = JoinSet::new();
                for (channel, call) in self.channels.into_iter().zip(calls) {
                    let metrics = Arc::clone(&metrics);
                    loops.spawn(repeat(channel, call, start, window, metrics));
                }
                sleep_until((start + window).into()).await;
                loops.shutdown().await;
            }
        }
        sleep(window.saturating_sub(start.elapsed())).await;
        let (elapsed, metrics) = (start.elapsed(), std::mem::take(&mut *metrics.lock()));
        let usage = usage_before.zip(processor()?);
        let processor = usage.map(|(before, after)| after.processor - before.processor);
        Ok(StallReport { row: self.row, keys: self.space.count, elapsed, processor, metrics })
    }
}

/// At least once.
async fn repeat(
    channel: Channel,
    call: Call,
    start: Instant,
    window: Duration,
    metrics: SharedMetrics,
) {
    loop {
        let is_answered = send(channel.clone(), &call, start, window, &metrics).await;
        if start.elapsed() >= window {
            return;
        }
        if !is_answered {
            sleep(PAUSE).await;
        }
    }
}

/// Returns whether the request was answered.
async fn send(
    channel: Channel,
    call: &Call,
    start: Instant,
    window: Duration,
    metrics: &SharedMetrics,
) -> bool {
    let sent = start.elapsed();
    let deadline = start + window + DRAIN;
    let result = timeout_at(deadline.into(), connection::call(channel, call.clone())).await;
    let result = result.unwrap_or_else(|_| Err(no_answer()));
    let is_answered = result.is_ok();
    let done = CompletedRequest { due: sent, sent, answered: start.elapsed(), result };
    metrics.lock().add(done);
    is_answered
}

fn no_answer() -> String {
    format!("no answer {} s after the end", DRAIN.as_secs())
}

/// The revision before is an old one afterwards.
async fn write_once(channel: Channel) -> Result<()> {
    let put = KvClient::new(channel).put(plan::put("now")).await;
    put.map(drop).map_err(|status| {
        Error::Server(format!("a put before the row failed: {}", status.message()))
    })
}

async fn lease_with_keys(
    channel: Channel,
    space: &KeySpace,
    options: &StallOptions,
) -> Result<i64> {
    let grant = LeaseGrantRequest { ttl: LEASE_TTL_SECONDS, id: 0 };
    let granted = LeaseClient::new(channel)
        .lease_grant(grant)
        .await
        .map_err(|status| Error::Server(format!("no lease was granted: {}", status.message())))?;
    let (lease, space) = (granted.into_inner().id, plan::lease_space(space));
    let StallOptions { endpoint, seed, .. } = options;
    fill_with_lease(&space, lease, &endpoint.clone().into(), FILL_CONNECTIONS, *seed).await?;
    Ok(lease)
}
