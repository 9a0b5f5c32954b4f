//! The server that a scenario calls: ours, in this process, on a port that is free.
//!
//! Or etcd, if the replay itself is in question.

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
use clearlane_rpc::serve::RpcServer;
use clearlane_server::apply::Limits;
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
    /// Its advertised client URL. No process listens there.
    pub(crate) client_url: &'static str,
    pub(crate) initial_cluster: String,
    pub(crate) state: &'static str,
}

impl MemberSpec {
    /// The member that etcd was recorded as. Ids are made of the name and the peer address, so ours
    /// are etcd's. No process listens there.
    pub(crate) fn recorded_member() -> MemberSpec {
        let mut place = MemberSpec::first(etcd::free_address());
        place.peer_url = "http://127.0.0.1:27001".to_owned();
        place.initial_cluster = format!("default={}", place.peer_url);
        place
    }

    /// Other members can reach it.
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

    /// It joins the first.
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

/// etcd's quota is of its file, in pages; ours of keys and values. This one says yes and no where
/// etcd's 2 MiB did: there is capacity for the third put of 500 kB (1,500,593 B with what else is
/// there), and when those are in, for none at all (the least takes 1,500,694).
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

    /// An error of the server, if there was one.
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

/// Flags of the recordings.
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
    /// In a new data directory.
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

    /// Waits until what a compaction has to remove is gone. etcd does not tell when that is; it
    /// needs less time than the recorder waits.
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

    /// On the same data.
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

/// The first call of a recording came when the version of the cluster was known, and there was a
/// leader.
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
    // With authentication enabled the status is for users, and this page is for all.
    let health = http::ask(address, "GET /health", "").await;
    health.is_ok_and(|health| health.status == 200)
}

/// Beside the client, whose connections end only while it runs.
async fn stop(running: ServerProcess) -> Result<(), String> {
    tokio::task::spawn_blocking(|| running.stop()).await.unwrap()
}

async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}
