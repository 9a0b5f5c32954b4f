//! Sends expensive requests of one kind in a closed loop, while another process measures the
//! latency of cheap requests. `benches/stalls` uses it, and `docs/load.md` describes it. A kind is
//! called a *row*, after its row in the table of results.
//!
//! ```text
//!   prepare   checks that the keys exist; makes an old revision or a lease if the row needs it
//!   run       sends the calls: again and again, or once, or holds them open
//! ```
//!
//! * One thread sends and reads everything. So on a machine with two cores, one is left for the
//!   server.
//! * After the end of the window, no request is repeated. There is one exception: if a request has
//!   failed in the last 100 ms, one more is sent. Requests in flight may run for up to
//!   [`DRAIN`](crate::run::DRAIN) longer. So even a request that takes longer than the window is
//!   answered once. Only requests of the row `authenticate` are cut off at the end of the window.

mod plan;
mod report;
mod window;

use std::time::Duration;

use clap::Args;
use clearlane_proto::etcdserverpb::LeaseGrantRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::transport::Channel;

pub use self::plan::Row;
use self::plan::{Plan, Prepared, Repetition};
pub use self::report::StallReport;
use self::window::Window;
use crate::connection::{Connection, Endpoints, open_direct};
use crate::fill::{check_filled, fill_with_lease};
use crate::keys::KeySpace;
use crate::process::Process;
use crate::within::within;
use crate::{Result, connection, users, workload};

/// The size in bytes of the keys that are read. `benches/stalls` fills servers with keys and values
/// of these sizes.
pub const KEY_SIZE: u64 = 32;
pub const VALUE_SIZE: u64 = 64;

const LEASE_TTL_SECONDS: i64 = 24 * 60 * 60;
const FILL_CONNECTIONS: u64 = 4;

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct StallOptions {
    /// Number of keys that `clearlane-load keys` has put
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    #[arg(value_parser = within(1000..=100_000_000))]
    pub keys: u64,
    // Probes start with a count of their keys. Without the head start, the count would wait for the
    // first expensive request.
    /// Time from the start of the probes to the first expensive request, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = within(0..=3600))]
    pub head_start: u64,
    /// Number of clients in the row authenticate, each with its own connection
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = within(1..=100_000))]
    pub clients: u64,
}

/// The server that gets the expensive requests.
#[derive(Clone, Debug)]
pub struct StallTarget {
    pub endpoint: Endpoints,
    /// The seed for the values that are written.
    pub seed: u64,
    /// The server process whose processor time is in the report, if it is known.
    pub process: Option<Process>,
}

/// A row that is ready to send its first request.
#[derive(Clone, Debug)]
pub struct Stall {
    row: Row,
    target: StallTarget,
    head_start: Duration,
    /// Number of keys that the row reads.
    keys: u64,
    plan: Plan,
    connections: Vec<Connection>,
}

impl Stall {
    /// Prepares a row. Fails if the server does not have the keys that the row reads, or if a
    /// connection cannot be opened. The row `authenticate` enables authentication.
    pub async fn prepare(row: Row, target: StallTarget, options: StallOptions) -> Result<Stall> {
        let space = workload::key_space(options.keys, KEY_SIZE, VALUE_SIZE)?;
        let channel = connection::channel(&target.endpoint).await?;
        let mut prepared = Prepared::default();
        if row == Row::Authenticate {
            // This row reads no keys, so they are not counted. Once authentication is enabled, a
            // count would need a token.
            users::enable(channel.clone()).await?;
        } else {
            let keys = space.count;
            let remedy = format!(
                "clearlane-load keys --count {keys} --key-size {KEY_SIZE} --value-size {VALUE_SIZE}"
            );
            prepared.old_revision =
                check_filled(channel.clone(), &space, None, "row", &remedy).await?;
        }
        match row {
            Row::RangeOld | Row::CountOld => {
                // After one write, the revision before it is an old revision.
                let put = KvClient::new(channel).put(plan::put("now")).await;
                put.map_err(connection::error("the put before the row failed"))?;
            }
            Row::Revoke => prepared.lease = lease_with_keys(channel, &space, &target).await?,
            _ => {}
        }
        let plan = plan::plan(row, &space, prepared, (target.seed, options.clients));
        let connections = match &plan {
            Plan::Calls(calls, _) => calls.len(),
            Plan::Held(_) => 0,
        };
        let connections = open_direct(&target.endpoint, 0, connections as u64).await?;
        let head_start = Duration::from_secs(options.head_start);
        Ok(Stall { row, target, head_start, keys: space.count, plan, connections })
    }

    /// Waits for the head start, and then sends requests for the time `length`. Returns when all
    /// requests are answered or given up.
    pub async fn run(self, length: Duration) -> Result<StallReport> {
        sleep(self.head_start).await;
        let StallTarget { endpoint, process, .. } = self.target;
        let processor = || process.as_ref().map(Process::usage).transpose();
        let usage_before = processor()?;
        let window = Window::start(length);
        match self.plan {
            Plan::Held(held) => window.hold(held, endpoint).await,
            Plan::Calls(calls, repetition) => {
                let pairs = self.connections.into_iter().zip(calls);
                let send = |(connection, call)| window.clone().send(connection, call, repetition);
                let mut loops: JoinSet<()> = pairs.map(send).collect();
                if repetition == Repetition::CutOff {
                    window.wait_for_end().await;
                    loops.shutdown().await;
                }
                loops.join_all().await;
            }
        }
        window.wait_for_end().await;
        let (elapsed, metrics) = (window.metrics.start.elapsed(), window.metrics.take());
        let usage = usage_before.zip(processor()?);
        let processor = usage.map(|(before, after)| after.processor - before.processor);
        Ok(StallReport { row: self.row, keys: self.keys, elapsed, processor, metrics })
    }
}

async fn lease_with_keys(
    channel: Channel,
    space: &KeySpace,
    StallTarget { endpoint, seed, .. }: &StallTarget,
) -> Result<i64> {
    let grant = LeaseGrantRequest { ttl: LEASE_TTL_SECONDS, id: 0 };
    let granted = LeaseClient::new(channel)
        .lease_grant(grant)
        .await
        .map_err(connection::error("the lease was not granted"))?;
    let (lease, space) = (granted.into_inner().id, plan::lease_space(space));
    fill_with_lease(&space, lease, endpoint, FILL_CONNECTIONS, *seed).await?;
    Ok(lease)
}
