//! How the process starts and ends.
//!
//! ```text
//!   flags ─▶ log ─▶ listeners bound ─▶ data opened, threads ─▶ a leader ─▶ "ready"
//!                                                                            │
//!            ┌───────────────────────────────────────────────────────────────┤
//!   SIGTERM, SIGINT                     the member fails            a thread panics
//!     transfer leadership, finish         error, status 1             error, status 1
//!     open requests, write timeline,
//!     end as by that signal (process 1: status 128 + its number)
//! ```
//!
//! Errors in the flags are reported before any file is written. A port in use is reported before
//! data is opened for writing; only the version of the store is checked earlier. Scripts wait for
//! the log line `ready to serve client requests`. A second signal ends the process without waiting.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_backend::Era;
use clearlane_net::listener::{BindAddress, ListenAddress, Listener};
use clearlane_peer::{Peers, PeersConfig};
use clearlane_rpc::http;
use clearlane_rpc::maintenance;
use clearlane_rpc::serve::RpcServer;
use clearlane_server::Server;
use clearlane_server::threads::ServerThreads;
use tokio::runtime::Builder;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::command_line::{self, Invocation};
use crate::config::{Config, LogFormat};
use crate::data::{Identity, MemberConfig, OpenedMember};
use crate::discovery::Discovery;
use crate::listeners::{Listeners, MetricsListener};
use crate::tools::ToolCall;
use crate::{
    allocator, auto_compaction, corruption_check, logging, process_limits, profiling, timeline,
};

/// Maximum number of network threads, unless a flag sets the number.
const NET_THREADS_DEFAULT_MAX: usize = 4;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

pub fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let environment: Vec<_> = std::env::vars_os().collect();
    let open = |path: &Path| std::fs::read_to_string(path);
    match command_line::read(&arguments, &environment, &open) {
        Ok(Invocation::Help(text)) => print(&text),
        Ok(Invocation::Tool(call)) => {
            process_limits::keep_files_private();
            run_tool(&call)
        }
        Ok(Invocation::Member(config)) => {
            if config.member.era != Era::Clearlane {
                allocator::configure_old_era();
            }
            let Err(error) = run_member(*config);
            print_error(&error.to_string(), 1)
        }
        Err(error) => print_error(&error.to_string(), error.status),
    }
}

/// Runs a tool. It is no error if the reader of the output closes the pipe early.
fn run_tool(call: &ToolCall) -> ExitCode {
    let mut out = BufWriter::new(ToolOutput { is_closed: false });
    let done = call.run(&mut out);
    // Flushes the output before an error is printed.
    let done = done.and(out.flush().map_err(BoxError::from));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) if out.get_ref().is_closed => ExitCode::SUCCESS,
        Err(error) => print_error(&error.to_string(), 1),
    }
}

/// The standard output. It records whether its reader has closed the pipe.
struct ToolOutput {
    is_closed: bool,
}

impl Write for ToolOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = io::stdout().write(bytes);
        self.is_closed |=
            written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        let flushed = io::stdout().flush();
        self.is_closed |=
            flushed.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
        flushed
    }
}

/// Prints `text`. A failed write is ignored.
fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn print_error(words: &str, status: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "clearlane: {words}");
    ExitCode::from(status)
}

struct RunningMember {
    threads: Arc<ServerThreads>,
    /// The sockets for clients. They are served once the member is ready.
    client_listeners: Vec<Listener>,
    server: Option<RpcServer>,
    peers: Peers,
    metrics_listeners: Vec<MetricsListener>,
    /// The time limit for the transfer of leadership.
    election_timeout: Duration,
    /// The stop signals, if the process already listens to them because the member had to wait for
    /// its identity. `None` if the member had data.
    signals: Option<StopSignals>,
}

/// The signals SIGTERM and SIGINT, which stop the member.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    /// Starts to listen to both signals. After this call, the signals no longer end the process by
    /// themselves.
    fn listen() -> io::Result<StopSignals> {
        let terminate = signal(SignalKind::terminate())?;
        Ok(StopSignals { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.interrupt.recv() => SignalKind::interrupt(),
        }
    }
}

fn log_signal(kind: SignalKind) {
    tracing::info!(signal = kind.as_raw_value(), "received signal; shutting down");
}

/// Runs a member until it fails. A signal ends the process, so this function returns only errors.
fn run_member(mut config: Config) -> Result<Infallible, BoxError> {
    // The log is opened before `set_process_limits` restricts the umask. So log files get their
    // mode from the operator's umask: programs of other users may collect them. Log rotation
    // gives each later file the mode of the file that it replaces.
    logging::start(&config.log)?;
    exit_on_panic();
    set_process_limits(&mut config)?;
    log_settings(&config);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.serves_profiles {
        Arc::make_mut(&mut config.rpc.http).profiles = Some(profiling::start());
        tracing::info!(path = "/debug/pprof", "pprof is enabled");
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let error = match start_member(&mut config) {
        Ok(running) => runtime.block_on(supervise(running, config)),
        Err(error) => error,
    };
    // The error is also logged, because standard error may have no reader.
    tracing::error!(%error, "the member has ended");
    Err(error)
}

/// Logs the settings that an operator looks for first, under etcd's names. The full arguments are
/// not logged, because they may contain a password.
fn log_settings(config: &Config) {
    let member = &config.member;
    tracing::info!(
        version = maintenance::ETCD_VERSION,
        clearlane = env!("CARGO_PKG_VERSION"),
        pid = std::process::id(),
        name = member.name,
        "data-dir" = %member.data_dir.display(),
        era = %member.era,
        "heartbeat-interval" = ?member.heartbeat,
        "election-timeout" = ?member.election_timeout,
        "snapshot-count" = member.replica.snapshot_count,
        "snapshot-catchup-entries" = member.replica.catch_up_entries,
        "quota-backend-bytes" = member.replica.quota_bytes,
        "initial-advertise-peer-urls" = member.peer_urls.join(","),
        "advertise-client-urls" = config.advertise_clients.join(","),
        // As in etcd, this value is constant and does not depend on the flag with this name.
        "v2-deprecation" = "write-only",
        "starting a member"
    );
}

fn set_process_limits(config: &mut Config) -> Result<(), BoxError> {
    process_limits::keep_files_private();
    if !config.core_files {
        process_limits::prevent_core_files();
    }
    if config.locks_memory {
        process_limits::lock_memory()?;
    }
    let net_threads = net_thread_count(config);
    let connections_max = &mut config.rpc.connections.connections_max;
    let allowed =
        process_limits::allowed_connections(net_threads, config.http.listen_metrics.len())?;
    if *connections_max > allowed.max {
        tracing::warn!(
            wanted = *connections_max,
            allowed = allowed.max,
            "--max-connections is more than the limit of open files allows"
        );
    }
    *connections_max = match *connections_max {
        0 => allowed.default,
        wanted => wanted.min(allowed.max),
    };
    Ok(())
}

fn start_member(config: &mut Config) -> Result<RunningMember, BoxError> {
    // This check comes first, because the next steps may create files in the data directory:
    // certificates and a timeline.
    config.member.check_store()?;
    if let Some(file) = &config.timeline {
        timeline::check_writable(file)?;
    }
    let listeners = Listeners::bind(config)?;
    config.member.dialer = listeners.dialer;
    let member = &config.member;
    let had_data = member.has_data()?;
    let (identity, signals) =
        ask_for_identity(&mut config.member, config.discovery.as_ref(), &listeners.peers)?;
    let member = &config.member;
    let OpenedMember { threads, transport } = member.open_as(identity)?;
    if config.timeline.is_some() {
        timeline::Recorder::start(&*threads);
    }
    let metadata = threads.metadata();
    tracing::info!(
        "local-member-id" = format!("{:x}", metadata.node_id),
        "cluster-id" = format!("{:x}", metadata.cluster_id),
        "data-dir" = %member.data_dir.display(),
        applied = threads.status().applied(),
        era = %member.era,
        "opened the member's data"
    );
    if had_data && config.checks.is_initial {
        corruption_check::initial_check(&threads, &member.peer_urls, &member.dialer)?;
    }
    let peers_config = PeersConfig {
        name: member.name.clone(),
        client_urls: config.advertise_clients.clone(),
        peer_urls: member.peer_urls.clone(),
        listeners: listeners.peers,
        dialer: member.dialer.clone(),
    };
    Ok(RunningMember {
        peers: Peers::start(&threads, transport, peers_config)?,
        threads,
        client_listeners: listeners.clients,
        server: None,
        metrics_listeners: listeners.metrics,
        election_timeout: member.election_timeout,
        signals,
    })
}

/// Finds the other members and asks them whether this member may start. During this wait, SIGTERM
/// or SIGINT ends the process. After the wait, the returned `StopSignals` receive these signals.
/// Does nothing, and returns no signals, if this member has data.
fn ask_for_identity(
    member: &mut MemberConfig,
    discovery: Option<&Discovery>,
    listeners: &[Listener],
) -> Result<(Option<Identity>, Option<StopSignals>), BoxError> {
    if member.has_data()? {
        if discovery.is_some() {
            tracing::warn!("discovery is ignored, because this member has data of its cluster");
        }
        return Ok((None, None));
    }
    // Connections to the waiting member end when this runtime is dropped.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = StopSignals::listen()?;
        let ask = async {
            if let Some(discovery) = discovery {
                member.discover(discovery).await?;
            }
            Ok::<_, BoxError>(member.ask_for_identity(listeners).await?)
        };
        tokio::select! {
            identity = ask => Ok((identity?, Some(signals))),
            kind = signals.recv() => {
                log_signal(kind);
                end_by_signal(kind)
            }
        }
    })
}

/// Returns the number of network threads: by default half of the cores, up to four. The other cores
/// serve the log, the store, and long reads. With fewer, busier threads there are fewer wake-ups,
/// and wake-ups are a large part of the cost of a small request: a sixth to a quarter for three
/// members on two cores.
fn net_thread_count(config: &Config) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match config.net_threads {
        0 => (cores / 2).clamp(1, NET_THREADS_DEFAULT_MAX),
        count => count,
    }
}

/// Spawns tasks on the calling thread that serve the metrics listeners. Fails if a listener cannot
/// be registered with the runtime.
fn serve_metrics(running: &mut RunningMember, config: &Config) -> std::io::Result<()> {
    for (listener, tls) in running.metrics_listeners.drain(..) {
        let at = listener.local_addr()?;
        let member = Server::new(&running.threads, config.limits);
        tokio::spawn(member.requests().clone().run());
        let endpoints = config.rpc.http_service(&member, &config.rpc.metrics.register_thread());
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(http::serve(listener, tls, endpoints));
        tracing::info!(address = %at, "serving metrics");
    }
    Ok(())
}

/// Starts the background tasks of a member on the calling thread.
fn spawn_background_tasks(running: &RunningMember, config: &mut Config) {
    running.threads.watch_server().set_progress_interval(config.progress_interval);
    let member = Server::new(&running.threads, config.limits);
    tokio::spawn(member.requests().clone().run());
    if config.advances_election {
        let limit = config.peer_connections.read_timeout;
        tokio::spawn(advance_first_election(Arc::clone(&running.threads), limit));
    }
    if let Some(policy) = config.auto_compaction.take() {
        tokio::spawn(auto_compaction::run_auto_compaction(member.clone(), policy));
    }
    if let Some(every) = config.checks.periodic {
        tokio::spawn(corruption_check::run_periodic_checks(member.clone(), every));
    }
    if let Some(every) = config.checks.after_compactions {
        tokio::spawn(corruption_check::run_compaction_checks(member, every));
    }
}

/// Shortens the wait for the first election once a majority of the voters is connected, as in etcd.
/// Does nothing if there is only one voter, if a leader is known earlier, or if no majority is
/// connected within `limit`.
async fn advance_first_election(threads: Arc<ServerThreads>, limit: Duration) {
    const INTERVAL: Duration = Duration::from_millis(50);
    let own = threads.metadata().node_id;
    let give_up = Instant::now() + limit;
    while threads.status().leader() == 0 && Instant::now() < give_up {
        let members = threads.members();
        let voters = members.iter().filter(|member| !member.is_learner);
        let clients = threads.peer_clients();
        let is_active =
            |id| id == own || clients.is_some_and(|others| others.active_since(id).is_some());
        let (active, all) = voters.fold((0, 0), |(active, all), voter| {
            (active + usize::from(is_active(voter.id)), all + 1)
        });
        if all > 1 && active > all / 2 {
            threads.advance_election();
            return;
        }
        sleep(INTERVAL).await;
    }
}

/// Runs the member. Returns only if it has failed; a signal ends the process.
async fn supervise(mut running: RunningMember, mut config: Config) -> BoxError {
    if let Err(error) = serve_metrics(&mut running, &config) {
        return error.into();
    }
    spawn_background_tasks(&running, &mut config);
    let threads = Arc::clone(&running.threads);
    let stopped = wait_for_stop(running, &config).await;
    // The timeline of a failed member is also written, because it may show the cause.
    let header = timeline::header_of_member(config.member.era);
    timeline::write(&*threads, &header, config.timeline.as_deref());
    match stopped {
        Ok(kind) => end_by_signal(kind),
        Err(error) => error,
    }
}

/// Ends the process by the signal itself, so that the exit status shows this cause to the parent
/// process. The system ignores signals that process 1, for example in a container, sends to itself.
/// That process exits with the status that a shell uses for this signal.
fn end_by_signal(kind: SignalKind) -> ! {
    if std::process::id() != 1 {
        let _ = signal_hook::low_level::emulate_default_handler(kind.as_raw_value());
    }
    exit(128 + kind.as_raw_value())
}

/// Returns the signal after the member has stopped, or an error if the member cannot continue.
async fn wait_for_stop(
    mut running: RunningMember,
    config: &Config,
) -> Result<SignalKind, BoxError> {
    let mut signals = running.signals.take().map_or_else(StopSignals::listen, Ok)?;
    let threads = Arc::clone(&running.threads);
    let mut failure = threads.failure();
    let (header, recording) =
        (timeline::header_of_member(config.member.era), config.timeline.as_deref());
    let kind = tokio::select! {
        Err(failure) = serve_clients(&mut running, config) => return Err(failure.into()),
        failed = timeline::record_on_signal(&threads, &header, recording) => {
            return Err(failed.into());
        }
        kind = signals.recv() => kind,
        failed = failure.wait_for(Option::is_some) => return Err(match failed.as_deref() {
            Ok(Some(error)) => error.to_string().into(),
            _ => "the member has stopped".into(),
        }),
    };
    log_signal(kind);
    tokio::select! {
        ended = shut_down(running) => ended?,
        _ = signals.recv() => tracing::warn!("received a second signal; exiting without waiting"),
    }
    Ok(kind)
}

/// Serves clients once the member is published, as in etcd, and logs that it is ready. A member
/// that has just joined and is not published yet may have none of the cluster's data. Such a member
/// would respond as if there were no keys.
async fn serve_clients(
    running: &mut RunningMember,
    config: &Config,
) -> std::io::Result<Infallible> {
    let mut published = running.peers.published();
    if published.wait_for(|published| *published).await.is_err() {
        // The member is ending, and another task reports its failure.
        return std::future::pending().await;
    }
    let server = running.server.insert(RpcServer::start_on_listeners(
        &running.threads,
        std::mem::take(&mut running.client_listeners),
        net_thread_count(config),
        config.limits,
        config.rpc.clone(),
    )?);
    config.rpc.serving.log_start();
    for ListenAddress { address, is_plain, is_secure } in server.listen_addresses() {
        tracing::info!("ready to serve client requests");
        let traffic = "grpc+http";
        if *is_plain {
            tracing::info!(
                traffic,
                %address,
                "serving client traffic insecurely; this is strongly discouraged!"
            );
        }
        if *is_secure {
            tracing::info!(traffic, %address, "serving client traffic securely");
        }
    }
    tracing::info!(
        "advertise-client-urls" = config.advertise_clients.join(","),
        "now serving peer/client/metrics"
    );
    // The greeting is not JSON. So it is not printed if the log is in JSON, because a program may
    // read standard error even if that is a terminal.
    if config.log.format == LogFormat::Console && std::io::stderr().is_terminal() {
        let text = greeting(server.listen_addresses(), &config.member.data_dir);
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
    notify_systemd();
    std::future::pending().await
}

/// Returns the text that is shown to a person at a terminal.
fn greeting(addresses: &[ListenAddress], data_dir: &Path) -> String {
    let url = |listens: &ListenAddress| match &listens.address {
        BindAddress::Unix(path) => format!("unix://{}", path.display()),
        BindAddress::Tcp(address) if listens.is_plain => format!("http://{address}"),
        BindAddress::Tcp(address) => format!("https://{address}"),
    };
    let urls: Vec<String> = addresses.iter().map(url).collect();
    let data = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
    format!(
        "\nClearlane serves etcd's API at {}, and its data is in {}. Ctrl-c stops it.\n\
         Try: etcdctl --endpoints={} put greeting hello\n\n",
        urls.join(" and "),
        data.display(),
        urls.first().map_or("", String::as_str),
    )
}

/// Transfers leadership and stops the member. Network threads stop before the peers and the member,
/// so that open requests get their responses. The network threads wait for up to
/// `RpcConfig::drain_timeout`, and then cut off the requests that are still open.
async fn shut_down(running: RunningMember) -> Result<(), BoxError> {
    let RunningMember { threads, server, peers, election_timeout, .. } = running;
    if timeout(election_timeout, transfer_leadership(&threads)).await.is_err() {
        tracing::warn!("no member has taken over leadership");
    }
    let stopped = tokio::task::spawn_blocking(move || {
        server.map_or(Ok(()), RpcServer::stop)?;
        peers.stop()?;
        threads.stop();
        Ok::<_, std::io::Error>(())
    });
    stopped.await??;
    tracing::info!("closed the member");
    Ok(())
}

/// Transfers leadership to the voter that has been connected longest, so that no member waits for
/// an election timeout. Does nothing if this member is not the leader, or if no other voter is
/// connected. Has no time limit.
async fn transfer_leadership(node: &ServerThreads) {
    let own = node.metadata().node_id;
    let members = node.members();
    let connected = |id| node.peer_clients().and_then(|others| others.active_since(id));
    let heirs = members.iter().filter(|member| member.id != own && !member.is_learner);
    let longest = heirs.filter_map(|heir| connected(heir.id).map(|since| (since, heir.id))).min();
    let Some((_, heir)) = longest.filter(|_| node.status().leader() == own) else { return };
    tracing::info!(to = format!("{heir:x}"), "transferring leadership");
    let mut leadership = node.leadership();
    node.transfer_leader(heir);
    // If the node is closed, it sends no more notifications, and there is nothing to wait for.
    let _ = leadership.wait_for(|now| ![0, own].contains(&now.leader)).await;
    // Other members forward requests to this member until they know the new leader. This member
    // keeps running for a short time to pass on such requests.
    sleep(node.election_timeout() / 10).await;
}

/// Ends the process if any thread panics. Otherwise the runtime would catch the panic of a task,
/// and the task's locks and other resources would never be released.
fn exit_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let words = panic.payload_as_str().unwrap_or("no message");
        let thread = thread.name().unwrap_or("unnamed");
        tracing::error!(thread, at, "a thread has panicked: {words}");
        let _ = print_error(&format!("thread {thread} has panicked at {at}: {words}"), 1);
        exit(1)
    }));
}

/// Notifies systemd that the server is ready. Does nothing if `NOTIFY_SOCKET` is not set.
pub(crate) fn notify_systemd() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1", &path));
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %path.to_string_lossy(), "failed to notify systemd");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_told_where_and_how() {
        let at =
            |address, is_secure: bool| ListenAddress { address, is_plain: !is_secure, is_secure };
        let port = |port| BindAddress::Tcp(([127, 0, 0, 1], port).into());
        let addresses = [at(port(2379), false), at(port(2479), true)];
        let text = greeting(&addresses, Path::new("/data/default.etcd"));
        assert!(text.contains("at http://127.0.0.1:2379 and https://127.0.0.1:2479,"), "{text}");
        assert!(text.contains("data is in /data/default.etcd. Ctrl-c stops it.\n"), "{text}");
        assert!(text.contains("etcdctl --endpoints=http://127.0.0.1:2379 put "), "{text}");
        let socket = at(BindAddress::Unix("/run/etcd".into()), false);
        assert!(greeting(&[socket], Path::new("/")).contains("at unix:///run/etcd,"));
    }
}
