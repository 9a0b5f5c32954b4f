//! What the values mean, and whether they fit together.
//!
//! The rules are etcd's, and so are the words where tools look for them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_contention::now_ns;
use clearlane_mvcc::AutoCompaction;
use clearlane_net::listener::{BindAddress, ListenAddress};
use clearlane_net::tls;
use clearlane_raft::read_index::ReadMode;
use clearlane_rpc::cluster::ReconfigRules;
use clearlane_rpc::http::{AccessControl, HttpServiceConfig};
use clearlane_rpc::metrics::RpcMetrics;
use clearlane_rpc::serve::{ConnectionConfig, RpcConfig};
use clearlane_server::apply::Limits;
use clearlane_server::replica::ApplyTimer;

use super::address::{Url, listen_addresses};
use super::arguments::{FlagReader, FlagValues};
use super::auth;
use super::error::ConfigError;
use super::feature_gates::FeatureGates;
use super::security;
use super::table;
use super::value;
use crate::corruption_check::CorruptionChecks;
use crate::data::{self, InitialCluster, MemberConfig};

#[derive(Debug)]
pub struct Config {
    /// Its dialer is made when the listeners are bound.
    pub member: MemberConfig,
    pub listen_clients: Vec<ListenAddress>,
    /// More listeners, to have HTTP apart from gRPC.
    pub listen_clients_http: Vec<ListenAddress>,
    /// As they were written.
    pub advertise_clients: Vec<String>,
    pub listen_peers: Vec<ListenAddress>,
    pub tls: tls::TlsConfig,
    pub tls_handshake_timeout: Duration,
    pub core_files: bool,
    pub limits: Limits,
    pub http: HttpConfig,
    /// 0 if it depends on the machine.
    pub net_threads: usize,
    /// Its number of connections is 0 if it depends on the limit of open files.
    pub rpc: RpcConfig,
    pub progress_interval: Duration,
    pub auto_compaction: Option<AutoCompaction>,
    pub checks: CorruptionChecks,
    pub log: LogConfig,
    pub timeline: Option<PathBuf>,
    /// Logged when there is a log.
    pub warnings: Vec<String>,
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

impl FlagReader {
    /// A count that fits into `usize`.
    fn size(&self, name: &str) -> usize {
        usize::try_from(self.count(name)).unwrap_or(usize::MAX)
    }

    fn time(&self, name: &str) -> Result<Duration, ConfigError> {
        let text = self.text(name);
        let below = || ConfigError::fatal(format!("--{name} must not be below 0 (set to {text})"));
        value::time(text).ok_or_else(below)
    }

    fn nonzero_time(&self, name: &str) -> Result<Duration, ConfigError> {
        let zero = || ConfigError::fatal(format!("--{name} must be >0 (set to 0s)"));
        Some(self.time(name)?).filter(|time| !time.is_zero()).ok_or_else(zero)
    }

    fn at_least(&self, name: &str, least: usize) -> Result<usize, ConfigError> {
        let size = self.size(name);
        if size < least {
            let wrong = format!("--{name} must be at least {least} (set to {size})");
            return Err(ConfigError::fatal(wrong));
        }
        Ok(size)
    }

    pub(super) fn urls(&self, name: &str) -> Vec<Url> {
        value::urls(self.text(name)).expect("checked when they came")
    }

    fn url_strings(&self, name: &str) -> Vec<String> {
        self.urls(name).iter().map(ToString::to_string).collect()
    }

    fn listen_addresses(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let all = listen_addresses(&self.urls(name));
        all.map_err(|wrong| ConfigError::fatal(format!("--{name}: {wrong}")))
    }

    /// Each place is either with TLS or without.
    fn single_security_addresses(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let all = self.listen_addresses(name)?;
        if let Some(both) = all.iter().find(|one| one.is_plain && one.is_secure) {
            let at = &both.address;
            return Err(ConfigError::fatal(format!("--{name}: {at} speaks with TLS or without")));
        }
        Ok(all)
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

    /// As [`list`](Self::list), without those that are empty.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        self.list(name).into_iter().filter(|word| !word.is_empty()).collect()
    }
}

pub(super) fn config(values: FlagValues, mut warnings: Vec<String>) -> Result<Config, ConfigError> {
    warnings.extend(ignored_flag_warnings(&values));
    let flags = FlagReader { values, flags: table::all().collect() };
    let gates = flags.gates();
    warnings.extend(gates.warnings());
    if flags.is_set("listen-client-urls") && !flags.is_set("advertise-client-urls") {
        return Err(ConfigError::fatal(
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        ));
    }
    let name = flags.text("name");
    let data_dir = flags.path("data-dir").unwrap_or_else(|| format!("{name}.etcd").into());
    let net_threads = flags.size("net-threads");
    if net_threads > NET_THREADS_MAX {
        let wrong = format!("--net-threads must be 0 to {NET_THREADS_MAX} (set to {net_threads})");
        return Err(ConfigError::fatal(wrong));
    }
    let mut member = MemberConfig::new(name, &data_dir, "", Era::Clearlane);
    member.wal_dir = flags.path("wal-dir");
    set_bootstrap(&mut member, &flags)?;
    let tls = security::tls_config(&flags, &data_dir, &mut warnings)?;
    set_raft(&mut member, &flags)?;
    set_store(&mut member, &flags)?;
    let http = http(&flags)?;
    let rpc = rpc(&flags, &http)?;
    member.replica.auth = auth::auth(&flags, &mut warnings)?;
    member.replica.apply_timer = Some(ApplyTimer { limit: rpc.slow_apply_threshold, now_ns });
    gates.check_dependencies().map_err(ConfigError::fatal)?;
    member.replica.lease_checkpoint_interval =
        gates.is_on("LeaseCheckpoint").then_some(LEASE_CHECKPOINT_INTERVAL);
    let mode = flags.text("auto-compaction-mode");
    let listen = "listen-client-urls";
    let (advertise, listen_peers) = ("advertise-client-urls", "listen-peer-urls");
    Ok(Config {
        member,
        listen_clients: non_empty(flags.listen_addresses(listen)?, listen)?,
        listen_clients_http: flags.listen_addresses("listen-client-http-urls")?,
        advertise_clients: non_empty(flags.url_strings(advertise), advertise)?,
        listen_peers: non_empty(flags.single_security_addresses(listen_peers)?, listen_peers)?,
        tls,
        core_files: flags.switch("core-files"),
        tls_handshake_timeout: flags.nonzero_time("tls-handshake-timeout")?,
        limits: Limits {
            txn_ops_max: flags.size("max-txn-ops"),
            request_bytes_max: flags.size("max-request-bytes"),
        },
        http,
        net_threads,
        rpc,
        progress_interval: progress_interval(&flags, &mut warnings)?,
        auto_compaction: AutoCompaction::parse(mode, flags.text("auto-compaction-retention"))
            .map_err(|wrong| ConfigError::fatal(format!("--auto-compaction-retention: {wrong}")))?,
        checks: checks(&flags, &gates)?,
        log: log(&flags),
        timeline: flags.path("timeline"),
        warnings,
    })
}

/// Between two checkpoints of leases, if there are any: etcd's.
const LEASE_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// etcd's minimum and default of `--watch-progress-notify-interval`.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
const PROGRESS_DEFAULT: Duration = Duration::from_secs(600);

/// As in etcd, a shorter interval is raised to the minimum with a warning, and zero is the default.
fn progress_interval(
    flags: &FlagReader,
    warnings: &mut Vec<String>,
) -> Result<Duration, ConfigError> {
    let name = "watch-progress-notify-interval";
    match flags.time(name)? {
        Duration::ZERO => Ok(PROGRESS_DEFAULT),
        time if time < PROGRESS_MIN => {
            let text = flags.text(name);
            warnings.push(format!("--{name}={text} is below the minimum: 100ms is used"));
            Ok(PROGRESS_MIN)
        }
        time => Ok(time),
    }
}

fn rpc(flags: &FlagReader, http: &HttpConfig) -> Result<RpcConfig, ConfigError> {
    let metrics = RpcMetrics::new(http.is_extensive);
    let access_control = AccessControl::new(http.hosts.clone(), http.origins.clone());
    let is_strict = flags.switch("strict-reconfig-check");
    Ok(RpcConfig {
        slow_request_threshold: flags.time("warning-unary-request-duration")?,
        connections: connections(flags)?,
        slow_apply_threshold: flags.time("warning-apply-duration")?,
        reconfig_rules: ReconfigRules { is_strict, ..ReconfigRules::default() },
        metrics: Arc::new(metrics),
        http: Arc::new(HttpServiceConfig { access_control, ..HttpServiceConfig::default() }),
        ..RpcConfig::default()
    })
}

fn connections(flags: &FlagReader) -> Result<ConnectionConfig, ConfigError> {
    let mut connections = ConnectionConfig::default();
    let interval = flags.time("grpc-keepalive-interval")?;
    let timeout = flags.time("grpc-keepalive-timeout")?;
    // As in etcd, which leaves both to gRPC unless there are both.
    if !interval.is_zero() && !timeout.is_zero() {
        connections.keep_alive_interval = interval;
        connections.keep_alive_timeout = timeout;
    }
    connections.concurrent_streams_max = match flags.count("max-concurrent-streams") {
        0 => u32::MAX,
        max => u32::try_from(max).unwrap_or(u32::MAX),
    };
    connections.certificates_name_users = flags.switch("client-cert-auth");
    connections.ping_min_interval = flags.time("grpc-keepalive-min-time")?;
    connections.connections_max = flags.size("max-connections");
    connections.pending_handshakes_max = flags.at_least("max-pending-handshakes", 1)?;
    connections.request_head_timeout = flags.nonzero_time("request-head-timeout")?;
    let head_bytes_max = flags.at_least("max-request-head-bytes", REQUEST_HEAD_BYTES_MIN)?;
    connections.request_head_bytes_max = u32::try_from(head_bytes_max).unwrap_or(u32::MAX);
    Ok(connections)
}

/// With less, a usual request of gRPC has no place.
const REQUEST_HEAD_BYTES_MIN: usize = 1 << 10;

fn checks(flags: &FlagReader, gates: &FeatureGates) -> Result<CorruptionChecks, ConfigError> {
    let at_compactions = flags.time("compact-hash-check-time")?;
    if at_compactions.is_zero() {
        return Err(ConfigError::fatal("--compact-hash-check-time must be >0 (set to 0s)"));
    }
    let periodic = flags.time("corrupt-check-time")?;
    Ok(CorruptionChecks {
        is_initial: gates.is_on("InitialCorruptCheck"),
        periodic: (!periodic.is_zero()).then_some(periodic),
        after_compactions: gates.is_on("CompactHashCheck").then_some(at_compactions),
    })
}

/// The id of a request has eight bits for its queue.
const NET_THREADS_MAX: usize = 64;

/// The second may have a password behind the user's name.
const SECRET_FLAGS: [&str; 2] = ["discovery-password", "discovery-user"];

fn ignored_flag_warnings(values: &FlagValues) -> impl Iterator<Item = String> {
    values.iter().filter_map(|(name, text)| {
        let flag = table::find(name).filter(|flag| !flag.is_default(text))?;
        let text = if SECRET_FLAGS.contains(&flag.name) { "***" } else { text };
        Some(format!("--{name}={text} is not honoured: {}", flag.ignored?))
    })
}

fn non_empty<T>(list: Vec<T>, name: &str) -> Result<Vec<T>, ConfigError> {
    let empty = || ConfigError::fatal(format!("--{name} must name at least one address"));
    Some(list).filter(|list| !list.is_empty()).ok_or_else(empty)
}

fn set_bootstrap(member: &mut MemberConfig, flags: &FlagReader) -> Result<(), ConfigError> {
    let name = "initial-advertise-peer-urls";
    member.peer_urls = non_empty(flags.url_strings(name), name)?;
    let fatal = |error: data::Error| ConfigError::fatal(error.to_string());
    member.initial_cluster = if flags.is_set("initial-cluster") {
        flags.text("initial-cluster").parse().map_err(fatal)?
    } else {
        InitialCluster::single(&member.name, &member.peer_urls)
    };
    member.initial_cluster_state = flags.text("initial-cluster-state").parse().map_err(fatal)?;
    member.cluster_token = flags.text("initial-cluster-token").to_owned();
    member.force_new_cluster = flags.switch("force-new-cluster");
    member.wal.accept_loss = flags.switch("unsafe-accept-log-loss");
    Ok(())
}

/// etcd's maximum, in milliseconds.
const ELECTION_MS_MAX: u64 = 50_000;

fn set_raft(member: &mut MemberConfig, flags: &FlagReader) -> Result<(), ConfigError> {
    let heartbeat = flags.count("heartbeat-interval");
    let election = flags.count("election-timeout");
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
    member.heartbeat = Duration::from_millis(heartbeat);
    member.election_timeout = Duration::from_millis(election);
    member.replica.snapshot_count = flags.count("snapshot-count");
    if member.replica.snapshot_count == 0 {
        return Err(ConfigError::fatal("--snapshot-count must be >0 (set to 0)"));
    }
    member.replica.catch_up_entries = flags.count("snapshot-catchup-entries");
    member.wal.segments_max = Some(flags.size("max-wals")).filter(|segments| *segments > 0);
    member.learners_max = flags.size("max-learners");
    Ok(())
}

/// With less, every step reads the file's inner pages again.
const ENGINE_CACHE_BYTES_MIN: usize = 1 << 20;
/// What a commit writes before it syncs: the log's next sync waits for no more.
const SYNC_BYTES: usize = 1 << 20;

/// As in etcd, zero means the default.
fn or_default<T: Default + PartialEq>(value: T, default: T) -> T {
    if value == T::default() { default } else { value }
}

fn set_store(member: &mut MemberConfig, flags: &FlagReader) -> Result<(), ConfigError> {
    let backend = &mut member.backend;
    backend.batch_interval =
        or_default(flags.time("backend-batch-interval")?, backend.batch_interval);
    backend.batch_limit = or_default(flags.count("backend-batch-limit"), backend.batch_limit);
    member.engine_kind = flags.text("engine").parse().expect("its names are those of the table");
    member.engine.cache_bytes = flags.size("engine-cache-bytes");
    if member.engine.cache_bytes < ENGINE_CACHE_BYTES_MIN {
        return Err(ConfigError::fatal(format!(
            "--engine-cache-bytes must be at least {ENGINE_CACHE_BYTES_MIN} (set to {})",
            member.engine.cache_bytes
        )));
    }
    member.era = flags.text("era").parse().unwrap_or(Era::Clearlane);
    // In an old era a commit holds a lock meanwhile.
    member.engine.sync_bytes = (member.era == Era::Clearlane).then_some(SYNC_BYTES);
    // etcd 3.0 writes each linearizable read into the log.
    let by_era = if member.era == Era::V3_0 { ReadMode::Log } else { ReadMode::ReadIndex };
    let mode = flags.text("read-mode");
    let chosen = ReadMode::ALL.into_iter().find(|known| known.name() == mode);
    member.replica.read_mode = chosen.unwrap_or(by_era);
    member.replica.quota_bytes =
        value::number(flags.text("quota-backend-bytes")).expect("checked when it came");
    let compaction = &mut member.replica.compaction;
    compaction.batch = or_default(flags.size("compaction-batch-limit"), compaction.batch);
    compaction.pause = or_default(flags.time("compaction-sleep-interval")?, compaction.pause);
    Ok(())
}

fn http(flags: &FlagReader) -> Result<HttpConfig, ConfigError> {
    Ok(HttpConfig {
        listen_metrics: flags.ports("listen-metrics-urls")?,
        is_extensive: flags.text("metrics") == "extensive",
        hosts: flags.list("host-whitelist"),
        origins: flags.list("cors"),
    })
}

fn log(flags: &FlagReader) -> LogConfig {
    let mut outputs = Vec::new();
    for output in flags.text("log-outputs").split(',').filter(|output| !output.is_empty()) {
        let output = match output {
            "default" | "stderr" | "/dev/stderr" => LogOutput::Stderr,
            "stdout" | "/dev/stdout" => LogOutput::Stdout,
            path => LogOutput::File(path.into()),
        };
        if !outputs.contains(&output) {
            outputs.push(output);
        }
    }
    let format = match flags.text("log-format") {
        "console" => LogFormat::Console,
        _ => LogFormat::Json,
    };
    LogConfig { level: flags.text("log-level").to_owned(), format, outputs }
}
