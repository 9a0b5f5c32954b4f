//! One member of a test cluster.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use clearlane::data::MemberConfig;
use clearlane_backend::Era;
use clearlane_net::listener::BindAddress;
use clearlane_net::listener::Listener;
use clearlane_peer::{Peers, PeersConfig};
use clearlane_replica::apply::Limits;
use clearlane_rpc::serve::{RpcConfig, RpcServer};
use clearlane_server::threads::ServerThreads;
use clearlane_wal as wal;

use crate::{Error, Result};

/// The heartbeat interval and the election timeout. They are half of the defaults, so that
/// elections are shorter.
const HEARTBEAT: Duration = Duration::from_millis(50);
const ELECTION: Duration = Duration::from_millis(500);
/// The size of a segment of the log. Segments are allocated in advance, and small segments are
/// allocated faster.
const SEGMENT_BYTES: u64 = 1 << 20;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Time limit of each wait. It is much longer than any wait takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A member, running or stopped.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) start: MemberConfig,
    /// The client address. The port is 0 until the first start, and fixed after it.
    client: SocketAddr,
    peer: SocketAddr,
    /// The listener for peers. It is bound when the member is created, so that other members know
    /// the port. `None` after the first start.
    listener: Option<TcpListener>,
    running: Option<RunningMember>,
}

#[derive(Debug)]
struct RunningMember {
    server_threads: Arc<ServerThreads>,
    server: RpcServer,
    peers: Peers,
}

impl Member {
    /// Creates a stopped member with a port for its peers.
    pub(crate) fn new(name: &str, directory: &Path) -> io::Result<Member> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let peer = listener.local_addr()?;
        let peer_url = format!("http://{peer}");
        let mut start = MemberConfig::new(name, &directory.join(name), &peer_url, Era::Clearlane);
        (start.heartbeat, start.election_timeout) = (HEARTBEAT, ELECTION);
        // No syncs are needed, because the directory is deleted with the server.
        start.engine.syncs = false;
        start.wal = wal::Options { segment_bytes: SEGMENT_BYTES, ..wal::Options::default() };
        let client = SocketAddr::from(([127, 0, 0, 1], 0));
        Ok(Member { start, client, peer, listener: Some(listener), running: None })
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    /// Returns the member's entry for the list of first members: `name=http://127.0.0.1:port`.
    pub(crate) fn initial_cluster_entry(&self) -> String {
        format!("{}=http://{}", self.start.name, self.peer)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Returns the member's id, or `None` while it is stopped.
    pub(crate) fn id(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.server_threads.metadata().node_id)
    }

    /// Returns the leader's id, if this member is running and has a leader.
    pub(crate) fn leader(&self) -> Option<u64> {
        let leader = self.running.as_ref()?.server_threads.status().leader();
        (leader != 0).then_some(leader)
    }

    pub(crate) fn start_threads(&mut self) -> Result<()> {
        let clients = Listener::bind(&BindAddress::Tcp(self.client))?;
        let peers = match self.listener.take() {
            Some(listener) => listener,
            None => TcpListener::bind(self.peer)?,
        };
        let opened = self.start.open()?;
        // A stop does not wait for open requests.
        let common = RpcConfig { drain_timeout: Duration::ZERO, ..RpcConfig::default() };
        let node = opened.threads;
        let server =
            RpcServer::start_on_listeners(&node, vec![clients], 1, Limits::default(), common)?;
        self.client = server.address();
        let settings = PeersConfig {
            name: self.start.name.clone(),
            client_urls: vec![self.endpoint()],
            peer_urls: self.start.peer_urls.clone(),
            listeners: vec![peers.into()],
            dialer: Default::default(),
        };
        let peers = Peers::start(&node, opened.transport, settings)?;
        self.running = Some(RunningMember { server_threads: node, server, peers });
        Ok(())
    }

    /// Stops the member. Returns when its ports and directory are free.
    pub(crate) async fn stop(&mut self) -> Result<()> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let gone = tokio::task::spawn_blocking(|| running.stop()).await;
        let node = gone.map_err(io::Error::other)??;
        eventually(|| (node.strong_count() == 0).then_some(())).await
    }
}

impl RunningMember {
    fn stop(self) -> io::Result<Weak<ServerThreads>> {
        self.server_threads.stop();
        self.server.stop()?;
        self.peers.stop()?;
        Ok(Arc::downgrade(&self.server_threads))
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // Nothing is written after this call, so the directory may be removed. The connections
            // may need the current thread in order to end. So another thread stops the rest of the
            // member.
            running.server_threads.stop();
            std::thread::spawn(|| running.stop());
        }
    }
}

/// Polls until there is a result. Fails with [`Error::NoLeader`] after [`TIMEOUT`].
pub(crate) async fn eventually<T>(mut ask: impl FnMut() -> Option<T>) -> Result<T> {
    let found = tokio::time::timeout(TIMEOUT, async {
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    });
    found.await.map_err(|_| Error::NoLeader)
}
