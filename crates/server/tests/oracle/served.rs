//! The server that a scenario talks to: ours, in this process, on a port that is free.
//!
//! Or etcd, if the replay itself is in question.

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clearlane_backend::Design;
use clearlane_member::node::Node;
use clearlane_member::requests::Limits;
use clearlane_server::data::{Opened, Start};
use clearlane_server::peer::{self, Peers};
use clearlane_server::serve::Server;
use clearlane_server::tls::Outgoing;
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::etcd::{self, Etcd};
use crate::http;
use crate::wire::{self, PATIENCE};

/// Whose server.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    Ours(Design),
    /// The program of etcd.
    Etcds(PathBuf),
}

/// What a member is called, and where its peers find it.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) name: &'static str,
    pub(crate) peer_url: String,
    pub(crate) peer_listen: SocketAddr,
    /// What it tells clients. Nobody listens there.
    pub(crate) client_url: &'static str,
    pub(crate) initial_cluster: String,
    pub(crate) state: &'static str,
}

impl Place {
    /// The member that etcd was recorded as. Ids are made of the name and the peer address, so ours
    /// are etcd's. Nobody listens there.
    pub(crate) fn alone() -> Place {
        let mut place = Place::first(etcd::free_address());
        place.peer_url = "http://127.0.0.1:27001".to_owned();
        place.initial_cluster = format!("default={}", place.peer_url);
        place
    }

    /// One that others can reach.
    pub(crate) fn first(peer: SocketAddr) -> Place {
        let peer_url = format!("http://{peer}");
        Place {
            name: "default",
            initial_cluster: format!("default={peer_url}"),
            peer_url,
            peer_listen: peer,
            client_url: "http://127.0.0.1:27000",
            state: "new",
        }
    }

    /// One that joins it.
    pub(crate) fn second(first: &Place, peer: SocketAddr) -> Place {
        let peer_url = format!("http://{peer}");
        Place {
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
/// etcd's 2 MiB did: there is room for the third put of 500 kB (1,500,593 B with what else is there),
/// and when those are in, for none at all (the least takes 1,500,694).
const OUR_QUOTA: i64 = 1_500_640;

/// A server and its data.
pub(crate) struct Served {
    dir: TempDir,
    whose: Whose,
    place: Place,
    flags: Vec<String>,
    running: Running,
    channel: Channel,
}

enum Running {
    Ours { node: Arc<Node>, peers: Peers, server: Server },
    Etcds(Etcd),
}

impl Running {
    async fn start(
        dir: &Path,
        whose: &Whose,
        place: &Place,
        flags: &[String],
    ) -> Result<Running, String> {
        let running = match whose {
            Whose::Ours(design) => {
                ours(dir, *design, place, flags).map_err(|error| error.to_string())?
            }
            Whose::Etcds(program) => Running::Etcds(Etcd::start(program, dir, place, flags)?),
        };
        let ready = tokio::time::timeout(PATIENCE, ready(running.address()));
        ready.await.map_err(|_| "the server is not ready")?;
        Ok(running)
    }

    fn address(&self) -> SocketAddr {
        match self {
            Running::Ours { server, .. } => server.address(),
            Running::Etcds(etcd) => etcd.address,
        }
    }

    /// What was wrong, if anything.
    fn stop(self) -> Result<(), String> {
        let (node, peers, server) = match self {
            Running::Ours { node, peers, server } => (node, peers, server),
            Running::Etcds(etcd) => return etcd.stop(),
        };
        let stopped = server.stop().and_then(|()| peers.stop()).map_err(|error| error.to_string());
        node.stop();
        match &*node.failure().borrow() {
            Some(failure) => Err(failure.to_string()),
            None => stopped,
        }
    }
}

fn ours(
    dir: &Path,
    design: Design,
    place: &Place,
    flags: &[String],
) -> Result<Running, Box<dyn Error>> {
    let mut start = Start::new(place.name, dir, &place.peer_url, design.into());
    start.initial_cluster = place.initial_cluster.parse()?;
    start.state = place.state.parse()?;
    let set = Settings::of(flags)?;
    start.quota_bytes = set.quota_bytes;
    let listener = TcpListener::bind(place.peer_listen)?;
    let Opened { node, ends } = start.open()?;
    node.watching().set_progress_interval(set.progress_interval);
    let settings = peer::Settings {
        name: place.name.to_owned(),
        client_urls: vec![place.client_url.to_owned()],
        peer_urls: vec![place.peer_url.clone()],
        listeners: vec![listener.into()],
        outgoing: Outgoing::default(),
    };
    let peers = Peers::start(&node, ends, settings)?;
    let free = "127.0.0.1:0".parse()?;
    let server = Server::start(&node, free, 2, Limits::default())?;
    Ok(Running::Ours { node, peers, server })
}

/// What a recording may have beside etcd's defaults.
struct Settings {
    progress_interval: Duration,
    quota_bytes: i64,
}

impl Settings {
    fn of(flags: &[String]) -> Result<Settings, Box<dyn Error>> {
        let mut set = Settings { progress_interval: Duration::from_secs(600), quota_bytes: 0 };
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
                // How long a password takes to be checked, and nothing else.
                [name, _] if name == "--bcrypt-cost" => {}
                other => return Err(format!("there is no flag {other:?}").into()),
            }
        }
        Ok(set)
    }
}

impl Served {
    /// On a new data directory.
    pub(crate) async fn start(
        whose: Whose,
        place: Place,
        flags: Vec<String>,
    ) -> Result<Served, String> {
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), &whose, &place, &flags).await?;
        let channel = connect(running.address()).await;
        Ok(Served { dir, whose, place, flags, running, channel })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running.address()
    }

    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn whose(&self) -> &Whose {
        &self.whose
    }

    /// Waits until what a compaction has to remove is gone. etcd does not tell when that is; it needs
    /// less than the recorder's patience.
    pub(crate) async fn compacted(&self, revision: i64) {
        match &self.running {
            Running::Ours { node, .. } => {
                let mut compacted = node.compacted();
                let done = compacted.wait_for(|compacted| *compacted >= revision);
                let done = tokio::time::timeout(PATIENCE, done).await;
                done.expect("a compaction ends").expect("the member runs");
            }
            Running::Etcds(_) => tokio::time::sleep(Duration::from_millis(400)).await,
        }
    }

    /// Stops in an orderly way, and starts on the same data.
    pub(crate) async fn restart(mut self) -> Result<Served, String> {
        drop(self.channel);
        stop(self.running).await?;
        self.running =
            Running::start(self.dir.path(), &self.whose, &self.place, &self.flags).await?;
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
async fn ready(address: SocketAddr) {
    loop {
        if let Ok(answer) = http::ask(address, "GET /version", "").await
            && let Ok(answer) = serde_json::from_str::<Value>(&answer.body)
            && answer["etcdcluster"] != "not_decided"
            && wire::status(connect(address).await).await.get("leader").is_some()
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Beside the client, whose connections end only while it runs.
async fn stop(running: Running) -> Result<(), String> {
    tokio::task::spawn_blocking(|| running.stop()).await.unwrap()
}

async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}
