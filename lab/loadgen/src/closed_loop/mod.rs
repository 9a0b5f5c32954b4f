//! The closed loops of `clearlane-load`, with the names and flags of etcd's `benchmark`.
//!
//! Each client has one request at a time ([`engine`]). `watch` and `watch-latency` also count the
//! events of watches ([`watch`]).

pub mod arguments;
pub(crate) mod engine;
mod hashes;
mod sources;
mod watch;

use std::time::Duration;

use clearlane_proto::etcdserverpb::CompactionRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;

use self::arguments::{ClosedLoop, LoopArguments};
use self::engine::LoopOptions;
use self::sources::Sources;
use crate::class_metrics::ClassMetrics;
use crate::keys::{KeySpace, Sizes};
use crate::observation::{LoadResult, observe};
use crate::process::{DriverUsage, Process};
use crate::report::{ClassReport, Report};
use crate::stop::Stop;
use crate::target::OpenTarget;
use crate::users::Session;
use crate::{Error, Result, connection, fill};

/// Runs a closed loop. `tell` is called once a second with the progress.
pub async fn run(
    asked: &ClosedLoop,
    target: OpenTarget,
    stop: Stop,
    tell: &mut dyn FnMut(&str),
) -> Result<Report> {
    let (common, options) = asked.options();
    let process = common.pid.map(Process::open).transpose()?;
    let load = async {
        match options {
            Some(options) => run_requests(asked, options, &target, stop, tell).await,
            None => watch::run(asked, &target, stop, tell).await,
        }
    };
    observe(&target, process.as_ref(), common.target.seed, load).await
}

async fn run_requests(
    asked: &ClosedLoop,
    options: &LoopArguments,
    target: &OpenTarget,
    stop: Stop,
    tell: &mut dyn FnMut(&str),
) -> Result<LoadResult> {
    let session = target.session.as_deref();
    let has_check = matches!(asked, ClosedLoop::Put { check_hashkv: true, .. });
    if has_check && target.endpoints.list().len() < 2 {
        let allowed = "it compares members, but --endpoints has one address";
        return Err(Error::Local(format!("--check-hashkv: {allowed}")));
    }
    let channel = connection::channel(&target.endpoints).await?;
    let LoopArguments { common, total, rate, seconds, threads } = options;
    let sources = Sources::prepare(asked, common, target).await?;
    let loop_options = LoopOptions {
        session: target.session.clone(),
        connections: if sources.has_calls { common.conns } else { 0 },
        threads: *threads,
        total: *total,
        rate: (*rate > 0).then_some(*rate),
        window: seconds.map(Duration::from_secs),
        stop,
        ..LoopOptions::new(target.endpoints.clone(), common.clients)
    };
    let (names, mut notes) = (sources.classes, Vec::new());
    let driver = DriverUsage::begin(loop_options.threads());
    let mut source = |thread| sources.source(common.target.seed.wrapping_add(thread << 32));
    let work = engine::run(loop_options, names.len(), &mut source, tell);
    tokio::pin!(work);
    let (metrics, window) = match *asked {
        ClosedLoop::Put { compact_interval, compact_index_delta, .. } if compact_interval > 0 => {
            let every = Duration::from_secs(compact_interval);
            tokio::select! {
                done = &mut work => done?,
                failed = compact(channel, session, every, compact_index_delta) => {
                    notes.push(format!("compactions ended with an error: {failed}"));
                    work.await?
                }
            }
        }
        _ => work.await?,
    };
    let driver = driver();
    if has_check && let Err(error) = hashes::compare(&target.endpoints, session).await {
        notes.push(error.to_string());
    }
    let class = |(name, metrics)| class_report(name, sources.operation.unwrap_or(name), metrics);
    let classes = names.iter().copied().zip(metrics).map(class).collect();
    Ok(LoadResult { is_open_loop: false, classes, window, driver, notes })
}

fn class_report(name: &str, operation: &'static str, metrics: ClassMetrics) -> ClassReport {
    ClassReport { name: name.to_owned(), operation, rate: None, metrics }
}

/// Compacts the store at intervals of `every`. Each compaction keeps the last `delta` revisions.
/// Ends only when a compaction fails, or the revision cannot be read, and returns that error. A
/// revision that is already compacted is not considered a failure.
async fn compact(
    channel: Channel,
    session: Option<&Session>,
    every: Duration,
    delta: u64,
) -> Error {
    let mut client = KvClient::new(channel.clone());
    loop {
        tokio::time::sleep(every).await;
        let revision = match fill::revision(channel.clone(), session).await {
            Ok(revision) => revision - i64::try_from(delta).unwrap_or(i64::MAX),
            Err(error) => return error,
        };
        if revision <= 0 {
            continue;
        }
        let compaction = CompactionRequest { revision, physical: false };
        match client.compact(Session::request_of(session, compaction)).await {
            Err(status) if status.code() != tonic::Code::OutOfRange => {
                return connection::error("a compaction failed")(status);
            }
            _ => {}
        }
    }
}

/// Creates a key space without a prefix. Fails if the keys are too short for `count` numbers.
fn key_space(count: u64, key_size: u64, value_size: u64) -> Result<KeySpace> {
    let shortest = KeySpace::min_key_size("", count);
    if key_size < shortest {
        let allowed = format!("{count} different keys need at least {shortest} bytes each");
        return Err(Error::Local(format!("--key-size {key_size}: {allowed}")));
    }
    let value = Sizes::constant(value_size);
    Ok(KeySpace { prefix: String::new(), count, key_size, value })
}
