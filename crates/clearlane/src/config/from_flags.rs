//! What the values mean, and whether they fit together.
//!
//! The rules are etcd's, and so are the words where tools look for them.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_engine::EngineKind;
use clearlane_mvcc::AutoCompaction;
use clearlane_net::listener::{BindAddress, ListenAddress};
use clearlane_net::tls;
use clearlane_raft::read_index::ReadMode;
use clearlane_rpc::auth::BCRYPT_COST;
use clearlane_rpc::serve::ConnectionConfig;
use clearlane_server::apply::Limits;
use clearlane_server::replica::CompactionConfig;

use super::address::{Url, listen_addresses};
use super::arguments::FlagValues;
use super::error::ConfigError;
use super::feature_gates::FeatureGates;
use super::security;
use super::table::{self, FlagStatus};
use super::value;
use crate::corruption_check::CorruptionChecks;
use crate::data::{self, InitialCluster, InitialClusterState};

#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub data_dir: PathBuf,
    /// `None`: in the data directory.
    pub wal_dir: Option<PathBuf>,
    pub listen_clients: Vec<ListenAddress>,
    /// More listeners, to have HTTP apart from gRPC.
    pub listen_clients_http: Vec<ListenAddress>,
    /// As they were written.
    pub advertise_clients: Vec<String>,
    pub listen_peers: Vec<ListenAddress>,
    pub tls: tls::TlsConfig,
    /// Not used if the member has data.
    pub bootstrap: BootstrapConfig,
    pub raft: RaftConfig,
    pub store: StoreConfig,
    pub limits: Limits,
    pub http: HttpConfig,
    /// 0 if it depends on the machine.
    pub net_threads: usize,
    pub slow_request_threshold: Duration,
    pub connections: ConnectionConfig,
    pub bcrypt_cost: u32,
    /// Of applying an entry, and of a read.
    pub slow_apply_threshold: Duration,
    pub background: BackgroundConfig,
    pub log: LogConfig,
    pub timeline: Option<PathBuf>,
    /// Logged when there is a log.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackgroundConfig {
    pub progress_interval: Duration,
    /// `--strict-reconfig-check`.
    pub is_strict: bool,
    /// Policy and retention.
    pub auto_compaction: (String, String),
    pub checks: CorruptionChecks,
    pub gates: FeatureGates,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootstrapConfig {
    pub advertise_peers: Vec<String>,
    pub initial_cluster: InitialCluster,
    pub initial_cluster_state: InitialClusterState,
    /// Tells clusters of equal members apart.
    pub cluster_token: String,
    pub force_new_cluster: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftConfig {
    /// raft's tick.
    pub heartbeat: Duration,
    pub election_timeout: Duration,
    /// Applied entries between two snapshot records in the log.
    pub snapshot_count: u64,
    /// Entries that are kept behind such a record.
    pub catch_up_entries: u64,
    /// `None`: all segments are kept.
    pub segments_max: Option<usize>,
    pub learners_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreConfig {
    pub engine: EngineKind,
    pub engine_cache_bytes: usize,
    pub era: Era,
    pub read_mode: ReadMode,
    /// Bytes of data that are taken; 0 is etcd's default, and below 0 there is no limit.
    pub quota_bytes: i64,
    /// Between two commits.
    pub batch_interval: Duration,
    /// Changes in one commit.
    pub batch_limit: u64,
    pub compactions: CompactionConfig,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// More listeners, for metrics and health.
    pub listen_metrics: Vec<ListenAddress>,
    /// `--metrics=extensive`.
    pub is_extensive: bool,
    /// `--host-whitelist`.
    pub hosts: Vec<String>,
    /// `--cors`.
    pub origins: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub level: String,
    pub format: LogFormat,
    pub outputs: Vec<LogOutput>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Console,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogOutput {
    Stderr,
    Stdout,
    /// Appended to.
    File(PathBuf),
}

/// Checked values, and the defaults of those that were not given.
pub(super) struct FlagReader<'v> {
    values: &'v FlagValues,
}

impl FlagReader<'_> {
    pub(super) fn text(&self, name: &str) -> &str {
        let flag = table::find(name).expect("asked for by its name in the table");
        self.values.get(name).map_or(flag.default, String::as_str)
    }

    pub(super) fn is_set(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    pub(super) fn switch(&self, name: &str) -> bool {
        value::switch(self.text(name)).expect("checked when it came")
    }

    pub(super) fn count(&self, name: &str) -> u64 {
        value::count(self.text(name)).expect("checked when it came")
    }

    /// A count that fits into `usize`.
    fn size(&self, name: &str) -> usize {
        usize::try_from(self.count(name)).unwrap_or(usize::MAX)
    }

    fn time(&self, name: &str) -> Result<Duration, ConfigError> {
        let text = self.text(name);
        let below = || ConfigError::fatal(format!("--{name} must not be below 0 (set to {text})"));
        value::time(text).ok_or_else(below)
    }

    pub(super) fn urls(&self, name: &str) -> Vec<Url> {
        value::urls(self.text(name)).expect("checked when they came")
    }

    fn url_strings(&self, name: &str) -> Vec<String> {
        self.urls(name).iter().map(ToString::to_string).collect()
    }

    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    fn listen_addresses(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let all = listen_addresses(&self.urls(name));
        all.map_err(|wrong| ConfigError::fatal(format!("--{name}: {wrong}")))
    }

    /// Each place is either with TLS or without.
    fn single_security_addresses(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let entrances = self.listen_addresses(name)?;
        match entrances.iter().find(|entrance| entrance.is_plain && entrance.is_secure) {
            Some(ListenAddress { address: at, .. }) => {
                Err(ConfigError::fatal(format!("--{name}: {at} speaks with TLS or without")))
            }
            None => Ok(entrances),
        }
    }

    /// As [`single_security_addresses`](Self::single_security_addresses), and each place is a port.
    fn ports(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let ports = self.single_security_addresses(name)?;
        for port in &ports {
            if let BindAddress::Unix(path) = &port.address {
                let wrong = format!("a port is wanted, not a socket ({path:?})");
                return Err(ConfigError::fatal(format!("--{name}: {wrong}")));
            }
        }
        Ok(ports)
    }

    fn gates(&self) -> FeatureGates {
        FeatureGates::parse(self.text("feature-gates")).expect("checked when they came")
    }

    pub(super) fn list(&self, name: &str) -> Vec<String> {
        self.text(name).split(',').map(|word| word.trim().to_owned()).collect()
    }
}

pub(super) fn config(
    values: &FlagValues,
    mut warnings: Vec<String>,
) -> Result<Config, ConfigError> {
    warnings.extend(ignored_flag_warnings(values));
    let typed = FlagReader { values };
    warnings.extend(typed.gates().warnings());
    if typed.is_set("listen-client-urls") && !typed.is_set("advertise-client-urls") {
        return Err(ConfigError::fatal(
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        ));
    }
    let name = typed.text("name").to_owned();
    let data_dir = typed.path("data-dir").unwrap_or_else(|| format!("{name}.etcd").into());
    let limits = Limits {
        txn_ops_max: typed.size("max-txn-ops"),
        request_bytes_max: typed.size("max-request-bytes"),
    };
    let net_threads = typed.size("net-threads");
    if net_threads > NET_THREADS_MAX {
        let wrong = format!("--net-threads must be 0 to {NET_THREADS_MAX} (set to {net_threads})");
        return Err(ConfigError::fatal(wrong));
    }
    Ok(Config {
        bootstrap: bootstrap(&typed, &name)?,
        tls: security::tls_config(&typed, &data_dir, &mut warnings)?,
        name,
        data_dir,
        wal_dir: typed.path("wal-dir"),
        listen_clients: require_non_empty(
            typed.listen_addresses("listen-client-urls")?,
            "listen-client-urls",
        )?,
        listen_clients_http: typed.listen_addresses("listen-client-http-urls")?,
        advertise_clients: require_non_empty(
            typed.url_strings("advertise-client-urls"),
            "advertise-client-urls",
        )?,
        listen_peers: require_non_empty(
            typed.single_security_addresses("listen-peer-urls")?,
            "listen-peer-urls",
        )?,
        raft: raft(&typed)?,
        store: store(&typed)?,
        limits,
        http: http(&typed)?,
        net_threads,
        slow_request_threshold: typed.time("warning-unary-request-duration")?,
        connections: connections(&typed)?,
        bcrypt_cost: bcrypt_cost(&typed, &mut warnings),
        slow_apply_threshold: typed.time("warning-apply-duration")?,
        background: background_config(&typed, &mut warnings)?,
        log: log(&typed),
        timeline: typed.path("timeline"),
        warnings,
    })
}

/// etcd's minimum and default of `--watch-progress-notify-interval`.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
const PROGRESS_DEFAULT: Duration = Duration::from_secs(600);

/// As in etcd, a shorter interval is raised to the minimum with a warning, and zero is the default.
fn progress_interval(
    typed: &FlagReader<'_>,
    warnings: &mut Vec<String>,
) -> Result<Duration, ConfigError> {
    let name = "watch-progress-notify-interval";
    match typed.time(name)? {
        Duration::ZERO => Ok(PROGRESS_DEFAULT),
        time if time < PROGRESS_MIN => {
            let text = typed.text(name);
            warnings.push(format!("--{name}={text} is below the minimum: 100ms is used"));
            Ok(PROGRESS_MIN)
        }
        time => Ok(time),
    }
}

fn background_config(
    typed: &FlagReader<'_>,
    warnings: &mut Vec<String>,
) -> Result<BackgroundConfig, ConfigError> {
    let progress_interval = progress_interval(typed, warnings)?;
    let mode = typed.text("auto-compaction-mode").to_owned();
    let retention = typed.text("auto-compaction-retention").to_owned();
    AutoCompaction::parse(&mode, &retention)
        .map_err(|wrong| ConfigError::fatal(format!("--auto-compaction-retention: {wrong}")))?;
    let is_strict = typed.switch("strict-reconfig-check");
    let gates = typed.gates();
    gates.check_dependencies().map_err(ConfigError::fatal)?;
    let checks = checks(typed, &gates)?;
    Ok(BackgroundConfig {
        progress_interval,
        is_strict,
        auto_compaction: (mode, retention),
        checks,
        gates,
    })
}

fn connections(typed: &FlagReader<'_>) -> Result<ConnectionConfig, ConfigError> {
    let by_default = ConnectionConfig::default();
    let (keep_alive, keep_alive_timeout) =
        (typed.time("grpc-keepalive-interval")?, typed.time("grpc-keepalive-timeout")?);
    // As in etcd, which leaves both to gRPC unless there are both.
    let is_said = !keep_alive.is_zero() && !keep_alive_timeout.is_zero();
    let (keep_alive, keep_alive_timeout) = if is_said {
        (keep_alive, keep_alive_timeout)
    } else {
        (by_default.keep_alive_interval, by_default.keep_alive_timeout)
    };
    let streams_max = u32::try_from(typed.count("max-concurrent-streams")).unwrap_or(u32::MAX);
    let ping_pause = typed.time("grpc-keepalive-min-time")?;
    Ok(ConnectionConfig {
        ping_min_interval: ping_pause,
        keep_alive_interval: keep_alive,
        keep_alive_timeout,
        concurrent_streams_max: streams_max,
    })
}

const BCRYPT_COSTS: RangeInclusive<u64> = 4..=31;

/// As in etcd, for a cost that bcrypt does not have the default is taken, with a warning.
fn bcrypt_cost(typed: &FlagReader<'_>, warnings: &mut Vec<String>) -> u32 {
    let cost = typed.count("bcrypt-cost");
    if !BCRYPT_COSTS.contains(&cost) {
        let (least, most) = BCRYPT_COSTS.into_inner();
        let words =
            format!("--bcrypt-cost={cost} is not {least} to {most}: {BCRYPT_COST} is taken");
        warnings.push(words);
        return BCRYPT_COST;
    }
    u32::try_from(cost).unwrap_or(BCRYPT_COST)
}

fn checks(typed: &FlagReader<'_>, gates: &FeatureGates) -> Result<CorruptionChecks, ConfigError> {
    let at_compactions = typed.time("compact-hash-check-time")?;
    if at_compactions.is_zero() {
        return Err(ConfigError::fatal("--compact-hash-check-time must be >0 (set to 0s)"));
    }
    let periodic = typed.time("corrupt-check-time")?;
    Ok(CorruptionChecks {
        is_initial: gates.is_on("InitialCorruptCheck"),
        periodic: (!periodic.is_zero()).then_some(periodic),
        after_compactions: gates.is_on("CompactHashCheck").then_some(at_compactions),
    })
}

/// The id of a request has eight bits for its queue.
const NET_THREADS_MAX: usize = 64;

fn ignored_flag_warnings(values: &FlagValues) -> impl Iterator<Item = String> {
    values.iter().filter_map(|(name, text)| {
        let flag = table::find(name)?;
        match flag.status {
            FlagStatus::Ignored(why) if !flag.is_default(text) => {
                let text = if name.contains("password") { "***" } else { text };
                Some(format!("--{name}={text} is not honoured: {why}"))
            }
            _ => None,
        }
    })
}

fn require_non_empty<T>(list: Vec<T>, name: &str) -> Result<Vec<T>, ConfigError> {
    if list.is_empty() {
        Err(ConfigError::fatal(format!("--{name} must name at least one address")))
    } else {
        Ok(list)
    }
}

fn bootstrap(typed: &FlagReader<'_>, name: &str) -> Result<BootstrapConfig, ConfigError> {
    let advertise_peers = require_non_empty(
        typed.url_strings("initial-advertise-peer-urls"),
        "initial-advertise-peer-urls",
    )?;
    let told = |error: data::Error| ConfigError::fatal(error.to_string());
    let members = if typed.is_set("initial-cluster") {
        typed.text("initial-cluster").parse().map_err(told)?
    } else {
        InitialCluster::single(name, &advertise_peers)
    };
    Ok(BootstrapConfig {
        advertise_peers,
        initial_cluster: members,
        initial_cluster_state: typed.text("initial-cluster-state").parse().map_err(told)?,
        cluster_token: typed.text("initial-cluster-token").to_owned(),
        force_new_cluster: typed.switch("force-new-cluster"),
    })
}

/// etcd's maximum, in milliseconds.
const ELECTION_MS_MAX: u64 = 50_000;

fn raft(typed: &FlagReader<'_>) -> Result<RaftConfig, ConfigError> {
    let (heartbeat, election) =
        (typed.count("heartbeat-interval"), typed.count("election-timeout"));
    for (name, ms) in [("heartbeat-interval", heartbeat), ("election-timeout", election)] {
        if ms == 0 {
            return Err(ConfigError::fatal(format!("--{name} must be >0 (set to {ms}ms)")));
        }
    }
    if heartbeat.saturating_mul(5) > election {
        return Err(ConfigError::fatal(format!(
            "--election-timeout[{election}ms] should be at least as 5 times as \
             --heartbeat-interval[{heartbeat}ms]"
        )));
    }
    if election > ELECTION_MS_MAX {
        return Err(ConfigError::fatal(format!(
            "--election-timeout[{election}ms] is too long, and should be set less than \
             {ELECTION_MS_MAX}ms"
        )));
    }
    let snapshot_count = typed.count("snapshot-count");
    if snapshot_count == 0 {
        return Err(ConfigError::fatal("--snapshot-count must be >0 (set to 0)"));
    }
    let segments = typed.size("max-wals");
    Ok(RaftConfig {
        heartbeat: Duration::from_millis(heartbeat),
        election_timeout: Duration::from_millis(election),
        snapshot_count,
        catch_up_entries: typed.count("snapshot-catchup-entries"),
        segments_max: (segments > 0).then_some(segments),
        learners_max: typed.size("max-learners"),
    })
}

/// With less, every step reads the file's inner pages again.
const ENGINE_CACHE_BYTES_MIN: usize = 1 << 20;

fn store(typed: &FlagReader<'_>) -> Result<StoreConfig, ConfigError> {
    let engine = typed.text("engine").parse();
    let (interval, limit) =
        (typed.time("backend-batch-interval")?, typed.count("backend-batch-limit"));
    let by_default = clearlane_backend::Config::default();
    let engine_cache_bytes = typed.size("engine-cache-bytes");
    if engine_cache_bytes < ENGINE_CACHE_BYTES_MIN {
        let least =
            format!("must be at least {ENGINE_CACHE_BYTES_MIN} (set to {engine_cache_bytes})");
        return Err(ConfigError::fatal(format!("--engine-cache-bytes {least}")));
    }
    let (era, read_mode) = era(typed);
    Ok(StoreConfig {
        engine: engine.expect("its names are those of the table"),
        engine_cache_bytes,
        era,
        read_mode,
        quota_bytes: value::number(typed.text("quota-backend-bytes"))
            .expect("checked when it came"),
        batch_interval: if interval.is_zero() { by_default.batch_interval } else { interval },
        batch_limit: if limit == 0 { by_default.batch_limit } else { limit },
        compactions: compactions(typed)?,
    })
}

/// As in etcd, zero means the default.
fn compactions(typed: &FlagReader<'_>) -> Result<CompactionConfig, ConfigError> {
    let by_default = CompactionConfig::default();
    let (batch, pause) =
        (typed.size("compaction-batch-limit"), typed.time("compaction-sleep-interval")?);
    Ok(CompactionConfig {
        batch: if batch == 0 { by_default.batch } else { batch },
        pause: if pause.is_zero() { by_default.pause } else { pause },
    })
}

fn http(typed: &FlagReader<'_>) -> Result<HttpConfig, ConfigError> {
    Ok(HttpConfig {
        listen_metrics: typed.ports("listen-metrics-urls")?,
        is_extensive: typed.text("metrics") == "extensive",
        hosts: typed.list("host-whitelist"),
        origins: typed.list("cors"),
    })
}

/// etcd 3.0 writes each linearizable read into the log.
fn era(typed: &FlagReader<'_>) -> (Era, ReadMode) {
    let era: Era = typed.text("era").parse().unwrap_or(Era::Clearlane);
    let by_era = if era == Era::V3_0 { ReadMode::Log } else { ReadMode::ReadIndex };
    let mode = typed.text("read-mode");
    let chosen = ReadMode::ALL.into_iter().find(|known| known.name() == mode);
    (era, chosen.unwrap_or(by_era))
}

fn log(typed: &FlagReader<'_>) -> LogConfig {
    let mut outputs: Vec<LogOutput> = Vec::new();
    let written = typed.text("log-outputs").split(',').filter(|output| !output.is_empty());
    for output in written {
        let output = match output {
            "default" | "stderr" | "/dev/stderr" => LogOutput::Stderr,
            "stdout" | "/dev/stdout" => LogOutput::Stdout,
            path => LogOutput::File(Path::new(path).to_owned()),
        };
        if !outputs.contains(&output) {
            outputs.push(output);
        }
    }
    let format = match typed.text("log-format") {
        "console" => LogFormat::Console,
        _ => LogFormat::Json,
    };
    LogConfig { level: typed.text("log-level").to_owned(), format, outputs }
}
