//! Converts the values of all flags to a [`Config`], and checks whether they fit together.
//!
//! The rules are etcd's. The messages that tools look for are also etcd's.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_contention::now_ns;
use clearlane_mvcc::AutoCompaction;
use clearlane_net::listener::{BindAddress, ListenAddress};
use clearlane_net::tls::{self, ConnectionRules};
use clearlane_raft::read_index::{ReadMode, ReadNeed};
use clearlane_replica::apply::Limits;
use clearlane_replica::{ApplyTimer, EraPolicy};
use clearlane_rpc::cluster::ReconfigRules;
use clearlane_rpc::health::ServingState;
use clearlane_rpc::http::{AccessControl, HttpServiceConfig};
use clearlane_rpc::metrics::RpcMetrics;
use clearlane_rpc::serve::{ConnectionConfig, RpcConfig};

use super::address::{Url, listen_addresses};
use super::arguments::{FlagReader, FlagValues};
use super::auth;
use super::discovery;
use super::error::ConfigError;
use super::feature_gates::FeatureGates;
use super::security;
use super::table;
use super::value;
use crate::corruption_check::CorruptionChecks;
use crate::data::{self, InitialCluster, MemberConfig};
use crate::discovery::Discovery;
use crate::logging::RotationConfig;

#[derive(Debug)]
pub struct Config {
    /// The configuration of the member. Its dialer is set when the listeners are bound. If
    /// `discovery` is set, discovery finds the members of its cluster.
    pub member: MemberConfig,
    pub discovery: Option<Discovery>,
    pub listen_clients: Vec<ListenAddress>,
    /// Additional listeners for clients. Like all listeners for clients, they serve HTTP and gRPC.
    pub listen_clients_http: Vec<ListenAddress>,
    /// The advertised URLs in their original text, with the scheme in lower case.
    pub advertise_clients: Vec<String>,
    pub listen_peers: Vec<ListenAddress>,
    pub peer_connections: ConnectionRules,
    /// If true, the first election starts sooner once a majority of the voters is connected.
    pub advances_election: bool,
    pub tls: tls::TlsConfig,
    pub tls_handshake_timeout: Duration,
    pub core_files: bool,
    pub locks_memory: bool,
    pub serves_profiles: bool,
    pub limits: Limits,
    pub http: HttpConfig,
    /// Number of network threads. 0 if the number depends on the machine.
    pub net_threads: usize,
    /// The settings of the RPC server. Its maximum number of connections is 0 if the limit of open
    /// files determines that number.
    pub rpc: RpcConfig,
    pub progress_interval: Duration,
    pub auto_compaction: Option<AutoCompaction>,
    pub checks: CorruptionChecks,
    pub log: LogConfig,
    pub timeline: Option<PathBuf>,
    /// If true, other programs may listen on the same ports.
    pub shares_ports: bool,
    /// Warnings about the configuration, which are logged once the log is open.
    pub warnings: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpConfig {
    /// Additional listeners for metrics and health.
    pub listen_metrics: Vec<ListenAddress>,
    /// True for `--metrics=extensive`.
    pub is_extensive: bool,
    /// The value of `--host-whitelist`.
    pub hosts: Vec<String>,
    /// The value of `--cors`.
    pub origins: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    pub level: String,
    pub format: LogFormat,
    pub outputs: Vec<LogOutput>,
    /// The rotation of the only file among the outputs. `None` if rotation is off.
    pub rotation: Option<RotationConfig>,
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
    /// A file to which the log is appended.
    File(PathBuf),
}

impl FlagReader {
    /// Returns a count as `usize`, or `usize::MAX` if it does not fit.
    fn size(&self, name: &str) -> usize {
        usize::try_from(self.count(name)).unwrap_or(usize::MAX)
    }

    fn time(&self, name: &str) -> Result<Duration, ConfigError> {
        let text = self.text(name);
        let below = || ConfigError::fatal(format!("--{name} must not be below 0 (set to {text})"));
        value::time(text).ok_or_else(below)
    }

    pub(super) fn nonzero_time(&self, name: &str) -> Result<Duration, ConfigError> {
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

    /// Returns the addresses of a flag. Fails if an address is listed both with and without TLS.
    fn single_security_addresses(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let all = self.listen_addresses(name)?;
        if let Some(both) = all.iter().find(|one| one.is_plain && one.is_secure) {
            let at = &both.address;
            return Err(ConfigError::fatal(format!(
                "--{name}: {at} must not be listed both with and without TLS"
            )));
        }
        Ok(all)
    }

    /// Same as [`single_security_addresses`](Self::single_security_addresses), but fails if an
    /// address is a socket.
    fn ports(&self, name: &str) -> Result<Vec<ListenAddress>, ConfigError> {
        let ports = self.single_security_addresses(name)?;
        for port in &ports {
            if let BindAddress::Unix(path) = &port.address {
                let wrong = format!("it must be a port, not a socket ({path:?})");
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

    /// Same as [`list`](Self::list), without empty words.
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
    if !member.engine.syncs {
        warnings.push(NO_SYNCS.to_owned());
    }
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
    let discovery = discovery::discovery(&flags)?;
    if let Some(Discovery::Service(service)) = &discovery {
        // etcd also uses the discovery token as the token of the cluster.
        member.cluster_token.clone_from(&service.token);
    }
    Ok(Config {
        member,
        discovery,
        listen_clients: non_empty(flags.listen_addresses(listen)?, listen)?,
        listen_clients_http: flags.listen_addresses("listen-client-http-urls")?,
        advertise_clients: non_empty(flags.url_strings(advertise), advertise)?,
        listen_peers: non_empty(flags.single_security_addresses(listen_peers)?, listen_peers)?,
        advances_election: flags.switch("initial-election-tick-advance"),
        peer_connections: peer_connections(&flags, &gates, &mut warnings)?,
        tls,
        core_files: flags.switch("core-files"),
        locks_memory: flags.switch("memory-mlock"),
        serves_profiles: flags.switch("enable-pprof"),
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
        log: log(&flags)?,
        timeline: flags.path("timeline"),
        shares_ports: flags.switch("socket-reuse-port"),
        warnings,
    })
}

const NO_SYNCS: &str = "--unsafe-no-fsync: the log and the store are not synced, so a crash of the \
    machine may lose acknowledged writes or damage the data";

/// The interval between two checkpoints of a lease, as in etcd, if checkpoints are on.
const LEASE_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5 * 60);

/// etcd's minimum of `--watch-progress-notify-interval`. `PROGRESS_DEFAULT` is etcd's default.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
const PROGRESS_DEFAULT: Duration = Duration::from_secs(600);

/// Returns the interval of progress notifications. As in etcd, an interval below the minimum is
/// raised to the minimum, with a warning. Zero means the default.
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
        serves_gateway: flags.switch("enable-grpc-gateway"),
        serving: ServingState::new(flags.gates().is_on("StopGRPCServiceOnDefrag")),
        ..RpcConfig::default()
    })
}

fn connections(flags: &FlagReader) -> Result<ConnectionConfig, ConfigError> {
    let mut connections = ConnectionConfig::default();
    let interval = flags.time("grpc-keepalive-interval")?;
    let timeout = flags.time("grpc-keepalive-timeout")?;
    // As in etcd, keep-alive has gRPC's defaults unless both values are above zero.
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

/// Minimum of `--max-request-head-bytes`. A usual gRPC request needs about this much.
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

/// Maximum number of network threads. Each thread has a queue of requests, and a request ID has
/// eight bits for the number of its queue. So there can be at most 256 queues. 64 threads leave
/// enough queues for the background tasks, which need one, and for the metrics listeners, which
/// need one each.
const NET_THREADS_MAX: usize = 64;

fn ignored_flag_warnings(values: &FlagValues) -> impl Iterator<Item = String> {
    values.iter().filter_map(|(name, text)| {
        let flag = table::find(name)?;
        if let Some(warning) = flag.deprecated {
            return Some(warning.to_owned());
        }
        if flag.is_default(text) {
            return None;
        }
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

/// etcd's minimum of `--raft-read-timeout` and `--raft-write-timeout`.
const PEER_TIMEOUT_MIN: Duration = Duration::from_secs(5);

fn peer_connections(
    flags: &FlagReader,
    gates: &FeatureGates,
    warnings: &mut Vec<String>,
) -> Result<ConnectionRules, ConfigError> {
    let mut timeout = |name| -> Result<Duration, ConfigError> {
        let time = flags.time(name)?;
        if time < PEER_TIMEOUT_MIN {
            warnings.push(format!("{name} increased to minimum value: 5s"));
        }
        Ok(time.max(PEER_TIMEOUT_MIN))
    };
    let (read_timeout, write_timeout) =
        (timeout("raft-read-timeout")?, timeout("raft-write-timeout")?);
    let local_address = match gates.is_on("SetMemberLocalAddr") {
        true => local_address(flags, warnings),
        false => None,
    };
    Ok(ConnectionRules { read_timeout, write_timeout, local_address })
}

/// Returns the first advertised peer address of this member that is an IP address, and that is
/// neither a loopback nor an unspecified address. If there is none, returns `None` and adds a
/// warning.
fn local_address(flags: &FlagReader, warnings: &mut Vec<String>) -> Option<IpAddr> {
    let urls = flags.urls("initial-advertise-peer-urls");
    let mut addresses = urls.iter().filter_map(|url| url.host()?.parse::<IpAddr>().ok());
    let found = addresses.find(|ip| !ip.is_loopback() && !ip.is_unspecified());
    if found.is_none() {
        warnings.push(
            "SetMemberLocalAddr: --initial-advertise-peer-urls has no IP address of this machine \
             that others can reach, so the system chooses the local address"
                .to_owned(),
        );
    }
    found
}

/// etcd's maximum election timeout, in milliseconds.
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
    member.replica.raft.pre_vote = flags.switch("pre-vote");
    member.replica.snapshot_count = flags.count("snapshot-count");
    if member.replica.snapshot_count == 0 {
        return Err(ConfigError::fatal("--snapshot-count must be >0 (set to 0)"));
    }
    member.replica.catch_up_entries = flags.count("snapshot-catchup-entries");
    member.wal.segments_max = Some(flags.size("max-wals")).filter(|segments| *segments > 0);
    member.learners_max = flags.size("max-learners");
    Ok(())
}

/// Minimum of `--engine-cache-bytes`. With a smaller cache, each operation would read the inner
/// pages of the file again.
const ENGINE_CACHE_BYTES_MIN: usize = 1 << 20;
/// A commit syncs each time it has written this number of bytes. A sync of the log may have to wait
/// until the disk has written the data of a commit. Because of these syncs, the log then waits for
/// no more than this number of bytes.
const SYNC_BYTES: usize = 1 << 20;

/// Returns `value`, or `default` if the value is zero, as in etcd.
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
    member.engine.syncs = !flags.switch("unsafe-no-fsync");
    member.era = flags.text("era").parse().unwrap_or(Era::Clearlane);
    // In an old era a commit holds a lock while it syncs. So it syncs all its pages together, and
    // not after each megabyte. The sync of the meta page follows, as in the default era.
    member.engine.sync_bytes = (member.era == Era::Clearlane).then_some(SYNC_BYTES);
    let mode = flags.text("read-mode");
    let chosen = ReadMode::ALL.into_iter().find(|known| known.name() == mode);
    member.replica.read_mode = chosen.unwrap_or(EraPolicy::of(member.era).read_mode);
    member.replica.quota_bytes =
        value::number(flags.text("quota-backend-bytes")).expect("checked when it came");
    let threshold = flags.count("bootstrap-defrag-threshold-megabytes");
    member.replica.defragment_at =
        Some(threshold).filter(|mebibytes| *mebibytes > 0).map(|mib| mib.saturating_mul(1 << 20));
    let gates = flags.gates();
    // If this gate is on, a renewal does not wait for the applied index. But if checkpoints are on,
    // it waits, because a checkpoint in the log must be applied before a renewal.
    if gates.is_on("FastLeaseKeepAlive") && !gates.is_on("LeaseCheckpoint") {
        member.replica.need_of_renewals = ReadNeed::Confirmed;
    }
    member.replica.prefers_revocations = gates.is_on("PriorityRequest");
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

fn log(flags: &FlagReader) -> Result<LogConfig, ConfigError> {
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
    let rotation = match flags.switch("enable-log-rotation") {
        true => Some(log_rotation(flags, &outputs)?),
        false => None,
    };
    Ok(LogConfig { level: flags.text("log-level").to_owned(), format, outputs, rotation })
}

/// Returns the settings of the log rotation. Each error starts with a text of etcd.
fn log_rotation(flags: &FlagReader, outputs: &[LogOutput]) -> Result<RotationConfig, ConfigError> {
    let files = outputs.iter().filter(|output| matches!(output, LogOutput::File(_))).count();
    if files != 1 {
        return Err(ConfigError::fatal(
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ));
    }
    RotationConfig::parse(flags.text("log-rotation-config-json"))
        .map_err(|wrong| ConfigError::fatal(format!("invalid log rotation config: {wrong}")))
}
