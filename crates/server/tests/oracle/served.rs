//! The server that a scenario talks to: ours, in this process, on a port that is free.

use std::net::SocketAddr;
use std::sync::Arc;

use clearlane_backend::Design;
use clearlane_member::node::Node;
use clearlane_member::requests::Limits;
use clearlane_server::data;
use clearlane_server::serve::Server;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// The peer address that etcd was recorded with. Ids are made of it, so ours are etcd's. Nobody
/// listens there.
const PEER_URL: &str = "http://127.0.0.1:27001";

/// A server and its data.
pub(crate) struct Served {
    dir: TempDir,
    design: Design,
    running: Running,
    channel: Channel,
}

struct Running {
    node: Arc<Node>,
    server: Server,
}

impl Running {
    fn start(dir: &std::path::Path, design: Design) -> Running {
        let node = Arc::new(data::open_alone(dir, design.into(), "default", PEER_URL).unwrap());
        let free = "127.0.0.1:0".parse().unwrap();
        let server = Server::start(&node, free, 2, Limits::default()).unwrap();
        Running { node, server }
    }

    /// What was wrong, if anything.
    fn stop(self) -> Result<(), String> {
        let stopped = self.server.stop().map_err(|error| error.to_string());
        self.node.stop();
        match &*self.node.failure().borrow() {
            Some(failure) => Err(failure.to_string()),
            None => stopped,
        }
    }
}

impl Served {
    /// On a new data directory.
    pub(crate) async fn start(design: Design, flags: &[String]) -> Result<Served, String> {
        if !flags.is_empty() {
            return Err(format!("there is no flag {flags:?}"));
        }
        let dir = tempfile::tempdir().unwrap();
        let running = Running::start(dir.path(), design);
        let channel = connect(running.server.address()).await;
        Ok(Served { dir, design, running, channel })
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.running.server.address()
    }

    /// Stops in an orderly way, and starts on the same data.
    pub(crate) async fn restart(self) -> Result<Served, String> {
        let Served { dir, design, running, channel } = self;
        drop(channel);
        stop(running).await?;
        let running = Running::start(dir.path(), design);
        let channel = connect(running.server.address()).await;
        Ok(Served { dir, design, running, channel })
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
