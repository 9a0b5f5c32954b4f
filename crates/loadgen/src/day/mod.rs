//! A day of a cluster's steady load, as fast as the server takes it: `benches/day`, and the section
//! on it in `docs/load.md`.
//!
//! ```text
//!   prepare ─▶ 12 periods ─▶ sample ─▶ 12 periods ─▶ sample ... clean up ─▶ verdict ─▶ curves
//! ```
//!
//! * A *period* stands for five minutes, an hour is [`PERIODS_PER_HOUR`] of them. Within a period
//!   the jobs are in random order, many at once.
//! * A period ends with a compaction of what is older than a period, as the API server of
//!   Kubernetes has it every five minutes, and the next begins when that is gone from the disk.
//! * Time to live is real time, so an hour ends when the leases that expire are gone. Then there
//!   are as many keys, leases and watch streams as after any other hour, and what grows is kept
//!   without a reason. Of the watchers that are not read, compactions may have cancelled some.

mod curves;
mod job;
mod mix;
mod report;
mod sample;
mod verdict;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, LeaseGrantRequest, SnapshotRequest,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

pub use self::curves::{check_comparable, markdown, svg};
use self::job::{Job, JobContext, SlowWatch};
pub use self::mix::REQUESTS_MIN;
use self::mix::{Mix, period_jobs};
pub use self::report::DayReport;
pub use self::sample::Sample;
use self::sample::{LiveCounts, Sampler};
pub use self::verdict::{HOURS_MIN, Verdict, Windows};
use crate::connection::{self, text};
use crate::fill::fill;
use crate::keys::{KeySpace, Sizes, ValueGenerator};
use crate::process::Process;
use crate::requests::{Call, range};
use crate::response_scanner::ResponseShape;
use crate::{Error, Result};

pub const PERIODS_PER_HOUR: u64 = 12;

const KEY_SIZE: u64 = 48;
const VALUE_SIZE: u64 = 512;
/// Keys that are updated again and again.
const UPDATED_PREFIX: &str = "/day/nodes/";
const KEPT_LEASES: u64 = 50;
const KEPT_TTL_SECONDS: i64 = 24 * 60 * 60;
/// Jobs under way on each connection.
const IN_FLIGHT: u64 = 8;
/// A slow watch is closed when it has been open for so many periods.
const SLOW_PERIODS: usize = 3;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Of a snapshot or a defragmentation: they take longer the larger the database is.
const LONG_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// For leases and watches to be gone, when nothing else is under way.
const END_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Clone, Debug)]
pub struct DayOptions {
    pub endpoint: Endpoint,
    /// The server's.
    pub process: Process,
    /// The server's, of which the size on disk is told.
    pub data_dir: Option<PathBuf>,
    pub seed: u64,
    pub hours: u64,
    /// How many keys are updated again and again.
    pub keys: u64,
    /// In each period, about.
    pub requests: u64,
    pub connections: u64,
    /// Takes one at the end of each hour.
    pub takes_snapshots: bool,
    /// Defragments at the end of this hour.
    pub defragment_hour: Option<u64>,
    /// By how many per cent the resident set may have grown.
    pub bound_percent: f64,
}

/// `tell` is called with a line for each hour, after one with the names of the columns. Returns an
/// error if the day cannot begin; one that ends it early is in the report, with the hours before.
pub async fn run(options: DayOptions, tell: &mut dyn FnMut(&str)) -> Result<DayReport> {
    let mut load = Load::prepare(options).await?;
    tell(&Sample::head());
    let (left_over, ended_early) = match load.run(tell).await {
        Ok(left_over) => (left_over, None),
        Err(error) => {
            let (done, hours) = (load.samples.len(), load.options.hours);
            (None, Some(format!("after {done} of {hours} hours: {error}")))
        }
    };
    let Load { options, samples, .. } = load;
    let windows = Windows::of(options.hours);
    let DayOptions { bound_percent, keys, requests, seed, .. } = options;
    Ok(DayReport { samples, windows, bound_percent, keys, requests, seed, left_over, ended_early })
}

/// The day so far.
struct Load {
    options: DayOptions,
    space: KeySpace,
    mix: Mix,
    channels: Vec<Channel>,
    sampler: Sampler,
    kept_leases: Arc<[i64]>,
    /// The revisions at which the last two periods have ended, the older one first.
    period_ends: [i64; 2],
    slow_watches: VecDeque<Vec<SlowWatch>>,
    rng: SmallRng,
    begin: Instant,
    requests: u64,
    /// What there was before the first period.
    live_before: LiveCounts,
    samples: Vec<Sample>,
}

impl Load {
    async fn prepare(options: DayOptions) -> Result<Load> {
        let value = Sizes::constant(VALUE_SIZE);
        let prefix = UPDATED_PREFIX.to_owned();
        let space = KeySpace { prefix, count: options.keys, key_size: KEY_SIZE, value };
        let DayOptions { endpoint, connections, seed, .. } = &options;
        let channels = connection::open(&endpoint.clone().into(), *connections).await?;
        fill(&space, &endpoint.clone().into(), None, *connections, *seed, &mut |_| {}).await?;
        let kept_leases = grant_kept_leases(channels[0].clone()).await?;
        let revision = revision(channels[0].clone(), &space).await?;
        let sampler = Sampler::new(&options, channels[0].clone());
        Ok(Load {
            mix: Mix::of(options.requests),
            rng: SmallRng::seed_from_u64(options.seed),
            live_before: sampler.live_counts().await?,
            begin: Instant::now(),
            kept_leases,
            period_ends: [revision; 2],
            slow_watches: VecDeque::new(),
            requests: 0,
            samples: Vec::new(),
            options,
            space,
            channels,
            sampler,
        })
    }

    /// All hours. Returns what is left over.
    async fn run(&mut self, tell: &mut dyn FnMut(&str)) -> Result<Option<String>> {
        for hour in 1..=self.options.hours {
            for period in (hour - 1) * PERIODS_PER_HOUR..hour * PERIODS_PER_HOUR {
                self.run_period(period).await?;
            }
            self.end_hour(hour).await?;
            let sample = self.sampler.sample(hour, self.requests, self.begin.elapsed()).await?;
            tell(&sample.line());
            self.samples.push(sample);
        }
        self.clean_up().await
    }

    async fn run_period(&mut self, period: u64) -> Result<()> {
        let mut jobs = period_jobs(&self.mix, period, self.options.keys, &mut self.rng);
        jobs.shuffle(&mut self.rng);
        let context = Arc::new(self.context(period));
        self.open_slow_watches(&context).await?;
        self.requests += run_jobs(&self.channels, jobs, &context).await?;

        let channel = self.channels[0].clone();
        let end = revision(channel.clone(), &self.space).await?;
        // A real server has five minutes until the next one.
        let compaction = CompactionRequest { revision: self.period_ends[1], physical: true };
        // In the first period there is no revision yet that is old.
        if period > 0 {
            let mut client = KvClient::new(channel);
            let compacted = async { client.compact(compaction).await.map_err(text) };
            answered("a compaction", ANSWER_TIMEOUT, compacted).await?;
            self.requests += 1;
        }
        self.period_ends = [self.period_ends[1], end];
        self.requests += 1;
        Ok(())
    }

    fn context(&self, period: u64) -> JobContext {
        JobContext {
            space: self.space.clone(),
            endpoint: self.options.endpoint.clone(),
            kept_leases: Arc::clone(&self.kept_leases),
            old_revision: self.period_ends[0],
            updates: self.mix.updates + self.mix.compared_updates,
            period,
            values: ValueGenerator::new(self.space.value, self.options.seed),
        }
    }

    /// They are not read while they are open.
    async fn open_slow_watches(&mut self, context: &JobContext) -> Result<()> {
        let mut opened = Vec::new();
        for _ in 0..self.mix.slow_watches {
            let watch = context.open_slow_watch();
            opened.push(answered("a watch that is not read", ANSWER_TIMEOUT, watch).await?);
        }
        self.requests += self.mix.slow_watches;
        self.slow_watches.push_back(opened);
        if self.slow_watches.len() > SLOW_PERIODS {
            self.slow_watches.pop_front();
        }
        Ok(())
    }

    async fn end_hour(&mut self, hour: u64) -> Result<()> {
        let channel = self.channels[0].clone();
        if self.options.takes_snapshots {
            let path = "/etcdserverpb.Maintenance/Snapshot";
            let call = Call::new(path, &SnapshotRequest::default(), None);
            let taken =
                connection::call(channel.clone(), Call { answer: ResponseShape::Stream, ..call });
            answered("a snapshot", LONG_ANSWER_TIMEOUT, taken).await?;
            self.requests += 1;
        }
        if self.options.defragment_hour == Some(hour) {
            let mut client = MaintenanceClient::new(channel);
            let defragmented =
                async { client.defragment(DefragmentRequest {}).await.map_err(text) };
            answered("a defragmentation", LONG_ANSWER_TIMEOUT, defragmented).await?;
            self.requests += 1;
        }
        self.await_expiry().await
    }

    /// How many of the leases that expire are there depends on how fast the server is. So that
    /// hours can be compared, none is in a sample.
    async fn await_expiry(&self) -> Result<()> {
        let deadline = Instant::now() + END_TIMEOUT;
        let expected = self.live_before.leases;
        loop {
            let leases = self.sampler.leases().await?;
            if leases <= expected {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let what = format!("{} leases have not expired", leases - expected);
                return Err(Error::Server(format!("{what} in {} s", END_TIMEOUT.as_secs())));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Closes and deletes what the last periods have left, and returns what is then there beyond
    /// what was there before the first, in a line.
    async fn clean_up(&mut self) -> Result<Option<String>> {
        self.slow_watches.clear();
        let last = self.options.hours * PERIODS_PER_HOUR - 1;
        let jobs = mix::deletions(&self.mix, last).collect();
        self.requests += run_jobs(&self.channels, jobs, &Arc::new(self.context(last))).await?;
        let deadline = Instant::now() + END_TIMEOUT;
        loop {
            let live = self.sampler.live_counts().await?;
            if live == self.live_before {
                return Ok(None);
            }
            if Instant::now() >= deadline {
                return Ok(Some(format!("{live} (before the first period {})", self.live_before)));
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Of a linearizable read.
async fn revision(channel: Channel, space: &KeySpace) -> Result<i64> {
    let mut client = KvClient::new(channel);
    let answer = async { client.range(range(space, 0, 1)).await.map_err(text) };
    let answer = answered("a range for the revision", ANSWER_TIMEOUT, answer).await?;
    Ok(answer.into_inner().header.unwrap_or_default().revision)
}

async fn grant_kept_leases(channel: Channel) -> Result<Arc<[i64]>> {
    let mut client = LeaseClient::new(channel);
    let mut leases = Vec::new();
    for _ in 0..KEPT_LEASES {
        let grant = LeaseGrantRequest { ttl: KEPT_TTL_SECONDS, id: 0 };
        let granted = async { client.lease_grant(grant).await.map_err(text) };
        leases.push(answered("a grant", ANSWER_TIMEOUT, granted).await?.into_inner().id);
    }
    Ok(leases.into())
}

/// The error names `what`: it has failed, or has no answer within the limit.
async fn answered<T>(
    what: &str,
    limit: Duration,
    answer: impl Future<Output = std::result::Result<T, String>>,
) -> Result<T> {
    let why = match timeout(limit, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(why)) => why,
        Err(_) => format!("no answer in {} s", limit.as_secs()),
    };
    Err(Error::Server(format!("{what} failed: {why}")))
}

/// Returns how many requests they were. The first that fails ends all.
async fn run_jobs(channels: &[Channel], jobs: Vec<Job>, context: &Arc<JobContext>) -> Result<u64> {
    let jobs = Arc::new((AtomicUsize::new(0), jobs));
    let mut workers = JoinSet::new();
    for worker in 0..channels.len() as u64 * IN_FLIGHT {
        let channel = channels[(worker / IN_FLIGHT) as usize].clone();
        let (jobs, context) = (Arc::clone(&jobs), Arc::clone(context));
        workers.spawn(async move {
            let (next, jobs) = &*jobs;
            let mut requests = 0;
            while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let done = job.run(channel.clone(), &context);
                requests += answered(job.name(), ANSWER_TIMEOUT, done).await?;
            }
            Ok(requests)
        });
    }
    let mut requests = 0;
    while let Some(done) = workers.join_next().await {
        requests += done.expect("a worker neither panics nor is stopped")?;
    }
    Ok(requests)
}
