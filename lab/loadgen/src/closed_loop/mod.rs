//! The closed loops of `clearlane-load`, with the names and flags of etcd's `benchmark`.
//!
//! `watch` and `watch-latency` put keys, and count the events of watches ([`watch`]). The others
//! have clients with one request at a time ([`engine`]).

pub mod arguments;
pub(crate) mod engine;
mod hashes;
mod sources;
mod watch;

use std::time::Duration;

use clearlane_proto::etcdserverpb::CompactionRequest;
use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tonic::transport::Channel;

use self::arguments::{ClosedLoop, CommonArguments, LoopArguments};
use self::engine::LoopOptions;
use self::sources::Sources;
use crate::class_metrics::ClassMetrics;
use crate::process::{DriverUsage, Process};
use crate::report::{ClassReport, Report};
use crate::requests::Call;
use crate::run::compare;
use crate::server_latency::ServerLatency;
use crate::stop::Stop;
use crate::target::OpenTarget;
use crate::users::Session;
use crate::{Error, Result, connection};

impl ClosedLoop {
    pub fn common(&self) -> &CommonArguments {
        match self {
            ClosedLoop::Put { options, .. }
            | ClosedLoop::Range { options, .. }
            | ClosedLoop::TxnPut { options, .. }
            | ClosedLoop::TxnMixed { options, .. }
            | ClosedLoop::LeaseKeepalive { options } => &options.common,
            ClosedLoop::Watch { common, .. } | ClosedLoop::WatchLatency { common, .. } => common,
        }
    }

    fn options(&self) -> Option<&LoopArguments> {
        match self {
            ClosedLoop::Put { options, .. }
            | ClosedLoop::Range { options, .. }
            | ClosedLoop::TxnPut { options, .. }
            | ClosedLoop::TxnMixed { options, .. }
            | ClosedLoop::LeaseKeepalive { options } => Some(options),
            ClosedLoop::Watch { .. } | ClosedLoop::WatchLatency { .. } => None,
        }
    }
}

/// `tell` is called once a second with the progress.
pub async fn run(
    asked: &ClosedLoop,
    target: OpenTarget,
    stop: Stop,
    tell: &mut dyn FnMut(&str),
) -> Result<Report> {
    let common = asked.common();
    let process = common.pid.map(Process::open).transpose()?;
    let usage = || process.as_ref().map(Process::usage).transpose();
    let latency_before = ServerLatency::read(&target.endpoints).await;
    let before = usage()?;
    let (outcome, notes) = match asked.options() {
        Some(options) => run_requests(asked, options, &target, stop, tell).await?,
        None => (watch::run(asked, &target, stop, tell).await?, Vec::new()),
    };
    let LoopOutcome { classes, window, driver } = outcome;
    // The process may be gone.
    let usage = before.zip(usage().unwrap_or_default());
    Ok(Report {
        endpoints: target.endpoints.text(),
        server_latency: compare(latency_before, &target.endpoints, &classes).await,
        servers: target.servers,
        seed: common.target.seed,
        window,
        is_open_loop: false,
        classes,
        usage,
        notes,
        driver,
    })
}

struct LoopOutcome {
    classes: Vec<ClassReport>,
    /// How long requests were sent.
    window: Duration,
    driver: DriverUsage,
}

async fn run_requests(
    asked: &ClosedLoop,
    options: &LoopArguments,
    target: &OpenTarget,
    stop: Stop,
    tell: &mut dyn FnMut(&str),
) -> Result<(LoopOutcome, Vec<String>)> {
    let session = target.session.as_deref();
    let has_check = matches!(asked, ClosedLoop::Put { check_hashkv: true, .. });
    if has_check && target.endpoints.list().len() < 2 {
        let allowed = "it compares members, and --endpoints has one";
        return Err(Error::Local(format!("--check-hashkv: {allowed}")));
    }
    let channel = connection::open(&target.endpoints, 1).await?.remove(0);
    let sources = Sources::prepare(asked, options, &target.endpoints, session).await?;
    let LoopArguments { common, total, rate, seconds, threads } = options;
    let loop_options = LoopOptions {
        endpoints: target.endpoints.clone(),
        session: target.session.clone(),
        connections: common.conns,
        clients: common.clients,
        threads: *threads,
        total: *total,
        rate: (*rate > 0).then_some(*rate),
        warm_up: None,
        window: seconds.map(Duration::from_secs),
        stop,
    };
    let (names, mut notes) = (sources.classes(), Vec::new());
    let driver = DriverUsage::begin(loop_options.threads());
    let mut source = |thread| sources.source(common.target.seed.wrapping_add(thread << 32));
    let work = engine::run(loop_options, names.len(), &mut source, tell);
    let (metrics, elapsed) = match *asked {
        ClosedLoop::Put { compact_interval, compact_index_delta, .. } if compact_interval > 0 => {
            let every = Duration::from_secs(compact_interval);
            tokio::pin!(work);
            tokio::select! {
                done = &mut work => done?,
                failed = compact(channel.clone(), session, every, compact_index_delta) => {
                    notes.push(format!("there were no further compactions: {failed}"));
                    work.await?
                }
            }
        }
        _ => work.await?,
    };
    let driver = driver.end();
    if has_check && let Err(error) = hashes::compare(&target.endpoints, session).await {
        notes.push(error.to_string());
    }
    let class = |(name, metrics): (&&'static str, ClassMetrics)| ClassReport {
        name: (*name).to_owned(),
        operation: sources.operation(name),
        rate: None,
        metrics,
    };
    let classes = names.iter().zip(metrics).map(class).collect();
    Ok((LoopOutcome { classes, window: elapsed, driver }, notes))
}

/// Until a compaction fails, which is returned.
async fn compact(
    channel: Channel,
    session: Option<&Session>,
    every: Duration,
    delta: u64,
) -> Error {
    let mut client = KvClient::new(channel);
    loop {
        tokio::time::sleep(every).await;
        let range = RangeRequest { key: "0".into(), limit: 1, ..RangeRequest::default() };
        let revision = match client.range(Session::request_of(session, range)).await {
            Ok(answer) => answer.into_inner().header.map_or(0, |header| header.revision),
            Err(status) => return failed("a read", &status),
        };
        let revision = revision - i64::try_from(delta).unwrap_or(i64::MAX);
        if revision <= 0 {
            continue;
        }
        let compaction = CompactionRequest { revision, physical: false };
        match client.compact(Session::request_of(session, compaction)).await {
            Ok(_) => {}
            Err(status) if status.code() == tonic::Code::OutOfRange => {}
            Err(status) => return failed("a compaction", &status),
        }
    }
}

fn failed(what: &str, status: &tonic::Status) -> Error {
    Error::Server(format!("{what} failed: {}", status.message()))
}

/// A call whose answer is read and not checked.
fn call(path: &'static str, message: &impl clearlane_proto::Message) -> Call {
    Call::new(path, message, None)
}
