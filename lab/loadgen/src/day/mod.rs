//! Sends a day of a cluster's steady load, as fast as the server accepts it, and checks whether the
//! server's memory and data grow. `benches/day` runs it, and `docs/load.md` has a section about it.
//!
//! ```text
//!   prepare ─▶ 12 periods ─▶ sample ─▶ 12 periods ─▶ sample ... clean up ─▶ verdict ─▶ curves
//! ```
//!
//! * A *period* represents five minutes of a real day, and an hour has [`PERIODS_PER_HOUR`]
//!   periods. The jobs of a period run in random order, many at a time.
//! * Each period except the first ends with a compaction at the revision at which the previous
//!   period ended. Kubernetes' API server also compacts every five minutes. The next period starts
//!   when the compacted records have been removed from the disk.
//! * The TTL of a lease is real time, so an hour ends only when the expiring leases have been
//!   removed. Each hour ends with the same number of keys, leases and watch streams. So if the
//!   server still grows from hour to hour, it keeps data that it does not need. The number of
//!   watchers may vary, because a compaction cancels watchers that lag too far behind.

mod curves;
mod job;
mod mix;
mod report;
mod sample;
mod verdict;

use std::collections::VecDeque;
use std::iter::repeat_n;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, LeaseGrantRequest, SnapshotRequest,
};
use futures_util::TryFutureExt as _;
use futures_util::future::try_join_all;
use parking_lot::Mutex;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use tonic::transport::{Channel, Endpoint};

pub use self::curves::{check_comparable, markdown, svg};
use self::job::{JobContext, SlowWatch};
pub use self::mix::REQUESTS_MIN;
use self::mix::{Job, JobKind, SLOW_WATCHES, deletions, period_jobs};
pub use self::report::DayReport;
pub use self::sample::Sample;
use self::sample::{LiveCounts, Sampler};
pub use self::verdict::{HOURS_MIN, Verdict, Windows};
use crate::connection::{self, text};
use crate::fill::{self, fill};
use crate::keys::{KeySpace, Sizes, ValueGenerator};
use crate::process::Process;
use crate::waiting::{answered, read_until};
use crate::within::within;
use crate::{Error, Result};

pub const PERIODS_PER_HOUR: u64 = 12;

const KEY_SIZE: u64 = 48;
const VALUE_SIZE: u64 = 512;
/// Prefix of the keys that are updated again and again.
const UPDATED_PREFIX: &str = "/day/nodes/";
const KEPT_LEASES: u64 = 50;
const KEPT_TTL_SECONDS: i64 = 24 * 60 * 60;
/// Number of jobs in progress on each connection.
const IN_FLIGHT: usize = 8;
/// Number of periods that a slow watch stays open.
const SLOW_PERIODS: usize = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a snapshot or a defragmentation. Both take longer if the database is larger.
const LONG_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Time limit within which the server must remove leases and watches. During this time, only the
/// check sends requests.
const END_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct DayOptions {
    /// The server's data directory, whose size on disk is measured
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Simulated hours, of 12 periods each
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = within(HOURS_MIN..=1000))]
    pub hours: u64,
    /// Number of keys that are updated again and again
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = within(1..=10_000_000))]
    pub keys: u64,
    /// Approximate number of requests in each period
    #[arg(long, value_name = "N", default_value_t = 4000)]
    #[arg(value_parser = within(REQUESTS_MIN..=10_000_000))]
    pub requests: u64,
    /// Number of connections that stay open, with 8 jobs at a time on each
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = within(1..=1000))]
    pub connections: u64,
    /// Reads a snapshot at the end of each hour
    #[arg(long)]
    pub snapshots: bool,
    /// Defragments once, at the end of this hour
    #[arg(long, value_name = "HOUR", value_parser = within(1..=1000))]
    pub defragment: Option<u64>,
    /// Maximum growth of the resident set, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 5, value_parser = within(0..=10_000))]
    pub bound: u64,
}

/// The server that a day is sent to.
#[derive(Clone, Debug)]
pub struct DayTarget {
    pub endpoint: Endpoint,
    pub process: Process,
    /// The seed for the order of jobs, and for keys and values.
    pub seed: u64,
}

/// Runs a day. `tell` is called with the names of the columns, and then with a line for each hour.
/// Fails if the day cannot start. An error that ends the day early is in the report, with the hours
/// before it.
pub async fn run(
    target: DayTarget,
    options: DayOptions,
    tell: &mut dyn FnMut(&str),
) -> Result<DayReport> {
    let DayOptions { hours, keys, requests, bound, .. } = options;
    let (seed, bound_percent) = (target.seed, bound as f64);
    if let Some(hour) = options.defragment.filter(|hour| *hour > hours) {
        let allowed = format!("must be at most {hours}, the value of --hours");
        return Err(Error::Local(format!("--defragment {hour}: {allowed}")));
    }
    let mut load = Load::prepare(target, options).await?;
    tell(&Sample::head());
    let (left_over, ended_early) = match load.run(tell).await {
        Ok(left_over) => (left_over, None),
        Err(error) => {
            let done = load.samples.len();
            (None, Some(format!("after {done} of {hours} hours: {error}")))
        }
    };
    let samples = load.samples;
    Ok(DayReport { samples, hours, bound_percent, keys, requests, seed, left_over, ended_early })
}

/// The state of a running day.
struct Load {
    options: DayOptions,
    /// The context of the current period.
    context: JobContext,
    channels: Vec<Channel>,
    sampler: Sampler,
    slow_watches: VecDeque<Vec<SlowWatch>>,
    rng: SmallRng,
    begin: Instant,
    requests: u64,
    /// The numbers of keys, leases, watchers and watch streams before the first period.
    live_before: LiveCounts,
    samples: Vec<Sample>,
}

impl Load {
    async fn prepare(target: DayTarget, options: DayOptions) -> Result<Load> {
        let value = Sizes::constant(VALUE_SIZE);
        let prefix = UPDATED_PREFIX.to_owned();
        let space = KeySpace { prefix, count: options.keys, key_size: KEY_SIZE, value };
        let (endpoints, connections) = (target.endpoint.clone().into(), options.connections);
        let channels = connection::open(&endpoints, connections).await?;
        fill(&space, &endpoints, None, connections, target.seed, &mut |_| {}).await?;
        let kept_leases = grant_kept_leases(channels[0].clone()).await?;
        let updates = [JobKind::Update, JobKind::ComparedUpdate];
        let context = JobContext {
            endpoint: target.endpoint.clone(),
            kept_leases,
            period_ends: [revision(channels[0].clone()).await?; 2],
            updates: updates.map(|kind| kind.count(options.requests)).iter().sum(),
            period: 0,
            values: ValueGenerator::new(value, target.seed),
            space,
        };
        let rng = SmallRng::seed_from_u64(target.seed);
        let (data_dir, channel) = (options.data_dir.clone(), channels[0].clone());
        let sampler = Sampler { target, channel, data_dir };
        Ok(Load {
            rng,
            live_before: sampler.live_counts().await?,
            begin: Instant::now(),
            slow_watches: VecDeque::new(),
            requests: 0,
            samples: Vec::new(),
            options,
            context,
            channels,
            sampler,
        })
    }

    /// Runs all hours. Returns a line about keys, leases or watches that are left over, or `None`
    /// if nothing is left over.
    async fn run(&mut self, tell: &mut dyn FnMut(&str)) -> Result<Option<String>> {
        for hour in 1..=self.options.hours {
            for period in (hour - 1) * PERIODS_PER_HOUR..hour * PERIODS_PER_HOUR {
                self.context.period = period;
                self.run_period().await?;
            }
            self.end_hour(hour).await?;
            let sample = self.sampler.sample(hour, self.requests, self.begin.elapsed()).await?;
            tell(&sample.line());
            self.samples.push(sample);
        }
        self.clean_up().await
    }

    async fn run_period(&mut self) -> Result<()> {
        let DayOptions { requests, keys, .. } = self.options;
        let mut jobs = period_jobs(requests, self.context.period, keys, &mut self.rng);
        jobs.shuffle(&mut self.rng);
        self.open_slow_watches().await?;
        self.run_jobs(jobs).await?;

        let end = revision(self.channels[0].clone()).await?;
        self.requests += 1;
        let [_, before] = self.context.period_ends;
        // The first period does not compact, because no earlier period has ended.
        if self.context.period > 0 {
            // A real server has five minutes to remove the records from the disk. Here the
            // compaction is physical: its response arrives when the records have been removed.
            let compaction = CompactionRequest { revision: before, physical: true };
            let mut client = KvClient::new(self.channels[0].clone());
            let compacted = client.compact(compaction).map_err(text);
            answered("a compaction", ANSWER_TIMEOUT, compacted).await?;
            self.requests += 1;
        }
        self.context.period_ends = [before, end];
        Ok(())
    }

    /// Runs the jobs of a period on all connections. If a job fails, the other jobs are dropped and
    /// the error is returned.
    async fn run_jobs(&mut self, jobs: Vec<Job>) -> Result<()> {
        let (jobs, context) = (Mutex::new(jobs.into_iter()), &self.context);
        let next = || jobs.lock().next();
        let work = async |channel: &Channel| {
            let mut requests = 0;
            while let Some(job) = next() {
                let done = context.run(job, channel.clone());
                requests += answered(job.kind.name(), ANSWER_TIMEOUT, done).await?;
            }
            Ok::<u64, Error>(requests)
        };
        let workers = self.channels.iter().flat_map(|channel| repeat_n(channel, IN_FLIGHT));
        let requests = try_join_all(workers.map(work)).await?;
        self.requests += requests.into_iter().sum::<u64>();
        Ok(())
    }

    /// Opens the watches of this period, which nobody reads. Closes such watches of an earlier
    /// period after [`SLOW_PERIODS`] periods.
    async fn open_slow_watches(&mut self) -> Result<()> {
        let mut opened = Vec::new();
        for _ in 0..SLOW_WATCHES {
            let watch = self.context.open_slow_watch();
            opened.push(answered("a watch that nobody reads", ANSWER_TIMEOUT, watch).await?);
        }
        self.requests += SLOW_WATCHES;
        self.slow_watches.push_back(opened);
        if self.slow_watches.len() > SLOW_PERIODS {
            self.slow_watches.pop_front();
        }
        Ok(())
    }

    async fn end_hour(&mut self, hour: u64) -> Result<()> {
        let mut client = MaintenanceClient::new(self.channels[0].clone());
        if self.options.snapshots {
            let taken = async {
                let chunks = client.snapshot(SnapshotRequest::default()).await.map_err(text)?;
                let mut chunks = chunks.into_inner();
                while chunks.message().await.map_err(text)?.is_some() {}
                Ok(())
            };
            answered("a snapshot", LONG_ANSWER_TIMEOUT, taken).await?;
            self.requests += 1;
        }
        if self.options.defragment == Some(hour) {
            let defragmented = client.defragment(DefragmentRequest {}).map_err(text);
            answered("a defragmentation", LONG_ANSWER_TIMEOUT, defragmented).await?;
            self.requests += 1;
        }
        // The number of leases that still expire depends on the speed of the server. Samples are
        // taken only after these leases have expired, so that hours can be compared.
        let expected = self.live_before.leases;
        let leases = read_until(
            END_TIMEOUT,
            POLL_INTERVAL,
            |leases| *leases <= expected,
            async || self.sampler.leases().await,
        )
        .await?;
        if leases > expected {
            let what = format!("{} leases did not expire", leases - expected);
            return Err(Error::Server(format!("{what} within {} s", END_TIMEOUT.as_secs())));
        }
        Ok(())
    }

    /// Closes the watches and deletes the keys that the last periods have left. Returns a line if
    /// the numbers of keys, leases or watches then differ from the numbers before the first period.
    async fn clean_up(&mut self) -> Result<Option<String>> {
        self.slow_watches.clear();
        let jobs = deletions(self.options.requests, self.context.period).collect();
        self.run_jobs(jobs).await?;
        let before = self.live_before;
        let live = read_until(
            END_TIMEOUT,
            POLL_INTERVAL,
            |live| *live == before,
            async || self.sampler.live_counts().await,
        )
        .await?;
        Ok((live != before).then(|| format!("{live} (before the first period: {before})")))
    }
}

/// Returns the store's revision, as a linearizable read reports it.
async fn revision(channel: Channel) -> Result<i64> {
    let revision = fill::revision(channel, None).map_err(|error| error.to_string());
    answered("a range for the revision", ANSWER_TIMEOUT, revision).await
}

async fn grant_kept_leases(channel: Channel) -> Result<Vec<i64>> {
    let mut client = LeaseClient::new(channel);
    let mut leases = Vec::new();
    for _ in 0..KEPT_LEASES {
        let granted = client.lease_grant(LeaseGrantRequest { ttl: KEPT_TTL_SECONDS, id: 0 });
        let granted = answered("a grant", ANSWER_TIMEOUT, granted.map_err(text)).await?;
        leases.push(granted.into_inner().id);
    }
    Ok(leases)
}
