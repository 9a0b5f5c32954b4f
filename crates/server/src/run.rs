//! How does the process begin, and how does it end?
//!
//! ```text
//!   flags ─▶ log ─▶ listeners bound ─▶ data opened, threads ─▶ a leader ─▶ "ready"
//!                                                                            │
//!            ┌───────────────────────────────────────────────────────────────┤
//!   SIGTERM, SIGINT                     the member fails            a thread panics
//!     hand leadership over                error, status 1             error, status 1
//!     answer what is under way
//!     end as by that signal
//! ```
//!
//! The order at the beginning is one of blame: whatever is wrong with the command line is told before
//! a file is touched, and a port in use before data is opened. A log line `ready to serve client
//! requests` for each listener is what tools wait for.
//!
//! # What holds
//!
//! * Nothing goes on after a thread has panicked: what it was to do, nobody does.
//! * Who is stopped twice does not wait.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::time::Duration;

use clearlane_member::Handle;
use clearlane_member::node::Node;
use clearlane_mvcc::AutoCompaction;
use clearlane_raft_log::wal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::cluster::Rules;
use crate::config::{self, Config, Refusal, Upkeep, Wanted, help};
use crate::data::{Opened, Start};
use crate::http::{self, Access};
use crate::listen::Listener;
use crate::metrics::{self, Metrics};
use crate::peer::{self, Peers};
use crate::serve::{Common, Server};
use crate::{logging, maintenance, tools, upkeep};

/// Between two looks at who leads.
const LOOK: Duration = Duration::from_millis(10);

/// Why the process ends with a word and a status.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The whole program.
pub fn main() -> ExitCode {
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    if let Some(ended) = tools::run(&arguments) {
        return ended;
    }
    let environment = std::env::vars_os().map(|(name, value)| {
        (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
    });
    match config::read(&arguments, environment, &|path: &Path| std::fs::read_to_string(path)) {
        Ok(Wanted::Help) => say(&help::help()),
        Ok(Wanted::Version) => say(&version()),
        Ok(Wanted::Member(config)) => match member(&config) {
            Ok(never) => match never {},
            Err(failure) => complain(&failure.to_string(), 1),
        },
        Err(refusal) => refused(&refusal),
    }
}

/// What tools read the version of etcd from, and people ours.
pub fn version() -> String {
    format!(
        "etcd Version: {}\nGit SHA: clearlane-{}\nGo Version: none, this is Rust\n\
         Go OS/Arch: {}/{}\n",
        maintenance::VERSION,
        env!("CARGO_PKG_VERSION"),
        std::env::consts::OS,
        std::env::consts::ARCH,
    )
}

/// Says something on standard output. Who does not listen does not mind.
pub(crate) fn say(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

/// Says on standard error why the process ends.
pub(crate) fn complain(words: &str, status: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "clearlane: {words}");
    ExitCode::from(status)
}

fn refused(refusal: &Refusal) -> ExitCode {
    let ended = complain(&refusal.to_string(), refusal.status());
    if refusal.shows_usage() {
        let _ = std::io::stderr().write_all(help::USAGE.as_bytes());
    }
    ended
}

/// What a member's start needs of its configuration.
fn start_of(config: &Config) -> Start {
    let Config { bootstrap, raft, store, .. } = config;
    let parts = store.eras.parts;
    let by_default = Start::new(&config.name, &config.data_dir, "", parts);
    Start {
        wal_dir: config.wal_dir.clone(),
        peer_urls: bootstrap.advertise_peers.clone(),
        initial_cluster: bootstrap.members.clone(),
        token: bootstrap.token.clone(),
        state: bootstrap.state,
        force_new: bootstrap.force_new,
        backend: clearlane_backend::Config {
            batch_interval: store.batch_interval,
            batch_limit: store.batch_limit,
            ..Default::default()
        },
        engine_kind: store.engine,
        wal: wal::Options { segments_max: raft.segments_max, ..Default::default() },
        read_mode: store.eras.read_mode,
        learners_max: raft.learners_max,
        heartbeat: raft.heartbeat,
        election_timeout: raft.election_timeout,
        snapshot_count: raft.snapshot_count,
        catch_up_entries: raft.catch_up_entries,
        quota_bytes: store.quota_bytes,
        ..by_default
    }
}

/// What all threads have in common.
fn common_of(config: &Config) -> Common {
    let options = metrics::Options { is_extensive: config.http.is_extensive };
    let access = Access::new(config.http.hosts.clone(), config.http.origins.clone());
    let settings = http::Settings { access, ..http::Settings::default() };
    Common {
        slow: config.slow,
        rules: Rules { is_strict: config.upkeep.is_strict, ..Rules::default() },
        metrics: Arc::new(Metrics::new(options)),
        settings: Arc::new(settings),
    }
}

/// Nothing has this type: a member that runs ends the process.
enum Never {}

/// All that runs.
struct Running {
    node: Arc<Node>,
    server: Server,
    peers: Peers,
    /// Where metrics are served apart.
    metrics: Vec<TcpListener>,
    common: Common,
    /// So long a transfer of leadership may take.
    election_timeout: Duration,
}

fn member(config: &Config) -> Result<Never, Failure> {
    logging::start(&config.log)?;
    end_by_panic();
    let (ours, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
    // Not with its arguments: there may be a password among them.
    tracing::info!(version = maintenance::VERSION, clearlane = ours, pid, "starting a member");
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let failed = match begin(config) {
        Ok(running) => runtime.block_on(attend(running, config)),
        Err(failure) => failure,
    };
    // In the log, too: standard error may be nobody's.
    tracing::error!(error = %failed, "the member has ended");
    Err(failed)
}

/// From listeners to threads.
fn begin(config: &Config) -> Result<Running, Failure> {
    let mut clients = Vec::new();
    for at in &config.listen_clients {
        let bound = Listener::bind(at);
        clients.push(bound.map_err(|error| format!("--listen-client-urls: {at}: {error}"))?);
    }
    let listeners = bind("listen-peer-urls", &config.listen_peers)?;
    let metrics = bind("listen-metrics-urls", &config.http.listen_metrics)?;
    let Opened { node, ends } = start_of(config).open()?;
    let metadata = node.metadata();
    tracing::info!(
        "local-member-id" = format!("{:x}", metadata.node_id),
        "cluster-id" = format!("{:x}", metadata.cluster_id),
        "data-dir" = %config.data_dir.display(),
        applied = node.status().applied(),
        "opened the member's data"
    );
    let settings = peer::Settings {
        name: config.name.clone(),
        client_urls: config.advertise_clients.clone(),
        peer_urls: config.bootstrap.advertise_peers.clone(),
        listeners,
    };
    let peers = Peers::start(&node, ends, settings)?;
    let common = common_of(config);
    let (threads, limits) = (config.net_threads, config.limits);
    let server = Server::start_on(&node, clients, threads, limits, common.clone())?;
    let election_timeout = config.raft.election_timeout;
    Ok(Running { node, server, peers, metrics, common, election_timeout })
}

fn bind(flag: &str, places: &[SocketAddr]) -> Result<Vec<TcpListener>, Failure> {
    let bound = places.iter().map(|at| {
        let listener = TcpListener::bind(at).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|error| format!("--{flag}: {at}: {error}").into())
    });
    bound.collect()
}

/// Serves metrics apart, from this thread.
fn serve_metrics(running: &mut Running, config: &Config) -> std::io::Result<()> {
    for listener in running.metrics.drain(..) {
        let at = listener.local_addr()?;
        let member = Handle::new(&running.node, config.limits);
        tokio::spawn(member.desk().clone().run());
        let endpoints = running.common.endpoints(&member, &running.common.metrics.thread());
        tokio::spawn(http::serve(tokio::net::TcpListener::from_std(listener)?, endpoints));
        tracing::info!(address = %at, "serving metrics");
    }
    Ok(())
}

/// Starts what the member does by itself, on this thread.
fn mind(running: &Running, config: &Config) {
    let Upkeep { progress_interval, compaction: (mode, retention), .. } = &config.upkeep;
    running.node.watching().set_progress_interval(*progress_interval);
    let policy = AutoCompaction::parse(mode, retention).expect("checked when it came");
    if let Some(policy) = policy {
        let member = Handle::new(&running.node, config.limits);
        tokio::spawn(member.desk().clone().run());
        tokio::spawn(upkeep::compact_by_the_clock(member, policy));
    }
}

/// Waits until there is something to say, or to do. Comes back when the member has failed.
async fn attend(mut running: Running, config: &Config) -> Failure {
    if let Err(error) = serve_metrics(&mut running, config) {
        return error.into();
    }
    mind(&running, config);
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
    let (mut terminate, mut interrupt) = match signals {
        (Ok(terminate), Ok(interrupt)) => (terminate, interrupt),
        (Err(error), _) | (_, Err(error)) => return error.into(),
    };
    let mut failure = running.node.failure();
    let kind = tokio::select! {
        never = be_ready(&running, config) => match never {},
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
        failed = failure.wait_for(Option::is_some) => return match failed.as_deref() {
            Ok(Some(error)) => error.to_string().into(),
            _ => "the member has gone".into(),
        },
    };
    let number = kind.as_raw_value();
    tracing::info!(signal = number, "received signal; shutting down");
    tokio::select! {
        ended = end(running) => if let Err(error) = ended {
            return error;
        },
        _ = terminate.recv() => tracing::warn!("a second signal: not waiting"),
        _ = interrupt.recv() => tracing::warn!("a second signal: not waiting"),
    }
    // Who has sent the signal finds the process ended by it.
    let _ = signal_hook::low_level::emulate_default_handler(number);
    exit(1)
}

/// Tells the world when somebody leads, and nothing more.
async fn be_ready(running: &Running, config: &Config) -> Never {
    while running.node.status().leader() == 0 {
        sleep(LOOK).await;
    }
    for place in running.server.places() {
        tracing::info!("ready to serve client requests");
        tracing::info!(
            traffic = "grpc+http",
            address = %place,
            "serving client traffic insecurely; this is strongly discouraged!"
        );
    }
    tracing::info!(
        "advertise-client-urls" = config.advertise_clients.join(","),
        "now serving peer/client/metrics"
    );
    notify();
    std::future::pending().await
}

/// Ends in an order in which nobody is left without an answer.
async fn end(running: Running) -> Result<(), Failure> {
    let Running { node, server, peers, election_timeout, .. } = running;
    if timeout(election_timeout, hand_over(&node)).await.is_err() {
        tracing::warn!("nobody has taken over leadership");
    }
    let stopped = tokio::task::spawn_blocking(move || {
        server.stop()?;
        peers.stop()?;
        node.stop();
        Ok::<_, std::io::Error>(())
    });
    stopped.await??;
    tracing::info!("closed the member");
    Ok(())
}

/// A leader that goes lets another one lead, so that nobody has to notice that it is gone.
async fn hand_over(node: &Node) {
    let own = node.metadata().node_id;
    let members = node.members();
    let connected = |id| node.others().and_then(|others| others.active_since(id));
    let heirs = members.iter().filter(|member| member.id != own && !member.is_learner);
    let longest = heirs.filter_map(|heir| connected(heir.id).map(|since| (since, heir.id))).min();
    let Some((_, heir)) = longest.filter(|_| node.status().leader() == own) else { return };
    tracing::info!(to = format!("{heir:x}"), "handing leadership over");
    node.transfer_leader(heir);
    while node.status().leader() == own {
        sleep(LOOK).await;
    }
}

/// A thread that panics ends the process: tasks would be caught by their runtime, and what they held
/// would stay held.
fn end_by_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let at = panic.location().map(ToString::to_string).unwrap_or_default();
        let words = panic.payload_as_str().unwrap_or("without a word");
        let thread = thread.name().unwrap_or("without a name");
        tracing::error!(thread, at, "a thread has panicked: {words}");
        let _ = complain(&format!("thread {thread} has panicked at {at}: {words}"), 1);
        exit(1)
    }));
}

/// Tells systemd, if it has started us and wants to know.
fn notify() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1", &path));
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %path.to_string_lossy(), "failed to notify systemd");
    }
}
