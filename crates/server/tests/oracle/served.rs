//! The server that a scenario talks to: ours, in this process, on a port that is free.
//!
//! Or etcd, if the replay itself is in question.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_backend::Design;
use clearlane_member::node::Node;
use clearlane_member::requests::Limits;
use clearlane_server::data;
use clearlane_server::serve::Server;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

use crate::etcd::{self, Etcd};

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
    Ours { node: Arc<Node>, server: Server },
    Etcds(Etcd),
}

impl Running {
    async fn start(
        dir: &Path,
        whose: &Whose,
        place: &Place,
        flags: &[String],
    ) -> Result<Running, String> {
        match whose {
            Whose::Ours(design) => ours(dir, *design, place, flags),
            Whose::Etcds(program) => {
                Etcd::start(program, dir, place, flags).await.map(Running::Etcds)
            }
        }
    }

    fn address(&self) -> SocketAddr {
        match self {
            Running::Ours { server, .. } => server.address(),
            Running::Etcds(etcd) => etcd.address,
        }
    }

    /// What was wrong, if anything.
    fn stop(self) -> Result<(), String> {
        let (node, server) = match self {
            Running::Ours { node, server } => (node, server),
            Running::Etcds(etcd) => return etcd.stop().map(drop),
        };
        let stopped = server.stop().map_err(|error| error.to_string());
        node.stop();
        match &*node.failure().borrow() {
            Some(failure) => Err(failure.to_string()),
            None => stopped,
        }
    }
}

fn ours(dir: &Path, design: Design, place: &Place, flags: &[String]) -> Result<Running, String> {
    if !flags.is_empty() {
        return Err(format!("there is no flag {flags:?}"));
    }
    if place.state == "existing" {
        return Err("ours does not join others".to_owned());
    }
    let node = data::open_alone(dir, design.into(), place.name, &place.peer_url);
    let node = Arc::new(node.map_err(|trouble| trouble.to_string())?);
    let free = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(&node, free, 2, Limits::default());
    Ok(Running::Ours { node, server: server.map_err(|error| error.to_string())? })
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

/// Beside the client, whose connections end only while it runs.
async fn stop(running: Running) -> Result<(), String> {
    tokio::task::spawn_blocking(|| running.stop()).await.unwrap()
}

async fn connect(address: SocketAddr) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    endpoint.connect().await.unwrap()
}
