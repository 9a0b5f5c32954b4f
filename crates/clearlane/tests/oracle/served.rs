//! The server that a scenario calls: Clearlane, in this process, on a free port. To check the
//! replay itself, a test can use etcd instead.

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clearlane::data::{MemberConfig, OpenedMember};
use clearlane_auth::{AuthConfig, TokenConfig};
use clearlane_backend::Era;
use clearlane_net::tls::Dialer;
use clearlane_peer as peer;
use clearlane_peer::Peers;
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::RpcServer;
use clearlane_server::threads::ServerThreads;
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::etcd::{self, Etcd};
use crate::http;
use crate::wire::{self, PATIENCE};

#[derive(Clone, Debug)]
pub(crate) enum ServerKind {
    Clearlane(Era),
    Etcd(PathBuf),
}

#[derive(Clone)]
pub(crate) struct MemberSpec {
    pub(crate) name: &'static str,
    pub(crate) peer_url: String,
    pub(crate) peer_listen: SocketAddr,
    /// The advertised client URL. No process listens there.
    pub(crate) client_url: &'static str,
    pub(crate) initial_cluster: String,
    pub(crate) state: &'static str,
}

impl MemberSpec {
    /// Returns the member that was recorded. Ids are derived from the peer URL and the cluster's
    /// token, so Clearlane has the same ids as etcd. No process listens at the recorded peer URL.
    pub(crate) fn recorded_member() -> MemberSpec {
        let mut place = MemberSpec::first(etcd::free_address());
        place.peer_url = "http://127.0.0.1:27001".to_owned();
        place.initial_cluster = format!("default={}", place.peer_url);
        place
    }

    /// Returns the first member of a cluster. Other members can reach it at `peer`.
    pub(crate) fn first(peer: SocketAddr) -> MemberSpec {
        let peer_url = format!("http://{peer}");
        MemberSpec {
            name: "default",
            initial_cluster: format!("default={peer_url}"),
            peer_url,
            peer_listen: peer,
            client_url: "http://127.0.0.1:27000",
            state: "new",
        }
    }

    /// Returns the second member, which joins the cluster of the first member.
    pub(crate) fn second(first: &MemberSpec, peer: SocketAddr) -> MemberSpec {
        let peer_url = format!("http://{peer}");
        MemberSpec {
            name: "m1",
            initial_cluster: format!("{},m1={peer_url}", first.initial_cluster),
            peer_url,
            peer_listen: peer,
            client_url: "http://127.0.0.1:27002",
            state: "existing",
        }
    }
}

/// The quota of Clearlane in scenarios with a quota. etcd's quota counts pages of its file, and
/// Clearlane's quota counts keys and values. With this value Clearlane accepts and rejects the same
/// requests as etcd with 2 MiB. The third put of 500 kB is accepted: with all other data it makes
/// 1,500,593 bytes. Every later put is rejected: the smallest would make 1,500,694 bytes.
const OUR_QUOTA: i64 = 1_500_640;

pub(crate) struct RunningServer {
    dir: TempDir,
    kind: ServerKind,
    member_spec: MemberSpec,
    flags: Vec<String>,
    running: ServerProcess,
    channel: Channel,
}

enum ServerProcess {
    Clearlane { node: Arc<ServerThreads>, peers: Peers, server: RpcServer },
    Etcd(Etcd),
}

impl ServerProcess {
    async fn start(
        dir: &Path,
        kind: &ServerKind,
        place: &MemberSpec,
        flags: &[String],
    ) -> Result<ServerProcess, String> {
        let running = match kind {
            ServerKind::Clearlane(era) => {
                start_clearlane(dir, *era, place, flags).map_err(|error| error.to_string())?
            }
            ServerKind::Etcd(program) => {
                ServerProcess::Etcd(Etcd::start(program, dir, place, flags)?)
            }
        };
        let ready = tokio::time::timeout(PATIENCE, wait_until_ready(running.address()));
        ready.await.map_err(|_| "the server is not ready")?;
        Ok(running)
    }

    fn address(&self) -> SocketAddr {
        match self {
            ServerProcess::Clearlane { server, .. } => server.address(),
            ServerProcess::Etcd(etcd) => etcd.address,
        }
    }

    /// Stops the server. Returns the error of the server, if there was one.
    fn stop(self) -> Result<(), String> {
        let (node, peers, server) = match self {
            ServerProcess::Clearlane { node, peers, server } => (node, peers, server),
            ServerProcess::Etcd(etcd) => return etcd.stop(),
        };
        let stopped = server.stop().and_then(|()| peers.stop()).map_err(|error| error.to_string());
        node.stop();
        match &*node.failure().borrow() {
            Some(failure) => Err(failure.to_string()),
            None => stopped,
        }
    }
}

fn start_clearlane(
    dir: &Path,
    era: Era,
    place: &MemberSpec,
    flags: &[String],
) -> Result<ServerProcess, Box<dyn Error>> {
    let mut start = MemberConfig::new(place.name, dir, &place.peer_url, era);
    start.initial_cluster = place.initial_cluster.parse()?;
    start.initial_cluster_state = place.state.parse()?;
    let set = RecordedFlags::from_flags(flags)?;
    start.replica.quota_bytes = set.quota_bytes;
    start.replica.auth = set.auth;
    let listener = TcpListener::bind(place.peer_listen)?;
    let OpenedMember { threads: node, transport: ends } = start.open()?;
    node.watch_server().set_progress_interval(set.progress_interval);
    let settings = peer::PeersConfig {
        name: place.name.to_owned(),
        client_urls: vec![place.client_url.to_owned()],
        peer_urls: vec![place.peer_url.clone()],
        listeners: vec![listener.into()],
        dialer: Dialer::default(),
    };
    let peers = Peers::start(&node, ends, settings)?;
    let free = "127.0.0.1:0".parse()?;
    let server = RpcServer::start(&node, free, 2, Limits::default())?;
    Ok(ServerProcess::Clearlane { node, peers, server })
}

/// The settings that are made from the flags in a recording.
struct RecordedFlags {
    progress_interval: Duration,
    quota_bytes: i64,
    auth: AuthConfig,
}

impl RecordedFlags {
    fn from_flags(flags: &[String]) -> Result<RecordedFlags, Box<dyn Error>> {
        let mut set = RecordedFlags {
            progress_interval: Duration::from_secs(600),
            quota_bytes: 0,
            auth: AuthConfig::default(),
        };
        for pair in flags.chunks(2) {
            match pair {
                [name, value] if name == "--watch-progress-notify-interval" => {
                    let seconds = value.strip_suffix('s').ok_or("not in seconds")?.parse()?;
                    set.progress_interval = Duration::from_secs(seconds);
                }
                [name, value] if name == "--quota-backend-bytes" => {
                    assert_eq!(value, "2097152", "what OUR_QUOTA stands for");
                    set.quota_bytes = OUR_QUOTA;
                }
                [name, value] if name == "--bcrypt-cost" => set.auth.bcrypt_cost = value.parse()?,
                [name, value] if name == "--auth-token-ttl" => {
                    let ttl = Duration::from_secs(value.parse()?);
                    set.auth.tokens = TokenConfig::Simple { ttl };
                }
                other => return Err(format!("there is no flag {other:?}").into()),
            }
        }
        Ok(set)
    }
}

impl RunningServer {
    /// Starts a server with a new data directory.
    pub(crate) async fn start(
        kind: ServerKind,
        place: MemberSpec,
        flags: Vec<String>,
    ) -> Result<RunningServer, String> {
        let dir = tempfile::tempdir().unwrap();
        let running = ServerProcess::start(dir.path(), &kind, &place, &flags).await?;
        let channel = connect(running.address()).await;
        Ok(RunningServer { dir, kind, member_spec: place, flags, running, channel })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running.address()
    }

    pub(crate) fn member_spec(&self) -> &MemberSpec {
        &self.member_spec
    }

    pub(crate) fn kind(&self) -> &ServerKind {
        &self.kind
    }

    /// Waits until a compaction has removed its records. etcd does not report this. So for etcd the
    /// function sleeps for 400 ms. The compactions in the recordings take less time.
    pub(crate) async fn wait_until_compacted(&self, revision: i64) {
        match &self.running {
            ServerProcess::Clearlane { node, .. } => {
                let mut compacted = node.compacted();
                let done = compacted.wait_for(|compacted| *compacted >= revision);
                let done = tokio::time::timeout(PATIENCE, done).await;
                done.expect("a compaction ends").expect("the member runs");
            }
            ServerProcess::Etcd(_) => tokio::time::sleep(Duration::from_millis(400)).await,
        }
    }

    /// Restarts the server with the same data.
    pub(crate) async fn restart(mut self) -> Result<RunningServer, String> {
        drop(self.channel);
        stop(self.running).await?;
        self.running =
            ServerProcess::start(self.dir.path(), &self.kind, &self.member_spec, &self.flags)
                .await?;
        self.channel = connect(self.running.address()).await;
        Ok(self)
    }

    pub(crate) async fn stop(self) -> Result<(), String> {
        drop(self.channel);
        stop(self.running).await
    }
}

/// Waits until there is a leader and the version of the cluster is known. The first call of each
/// recording was made in this state.
async fn wait_until_ready(address: SocketAddr) {
    loop {
        if let Ok(answer) = http::ask(address, "GET /version", "").await
            && let Ok(answer) = serde_json::from_str::<Value>(&answer.body)
            && answer["etcdcluster"] != "not_decided"
            && has_leader(address).await
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn has_leader(address: SocketAddr) -> bool {
    if wire::status(connect(address).await).await.get("leader").is_some() {
        return true;
    }
    // If authentication is enabled, the status requires a user, and this page does not.
    let health = http::ask(address, "GET /health", "").await;
    health.is_ok_and(|health| health.status == 200)
}

/// Stops a server on another thread, because the client's connections end only while the client
/// runs.
async fn stop(running: ServerProcess) -> Result<(), String> {
    tokio::task::spawn_blocking(|| running.stop()).await.unwrap()
}

async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}
