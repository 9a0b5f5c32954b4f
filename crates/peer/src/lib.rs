//! The connections between members, and what goes over them. See `docs/peers.md`.
//!
//! Each purpose has its own connection to each member, so that a heartbeat does not wait behind a
//! snapshot: *urgent* (votes, heartbeats, reads, questions to the leader), *long* (appends,
//! forwarded writes), *snapshots*. A connection carries one direction, and the sending member opens
//! it.
//!
//! * The [raft loop's thread](PeerTransport) sends messages between two turns of raft. Queues are
//!   bounded in bytes: a message beyond that is dropped, and raft is told that the member is
//!   unreachable.
//! * The [`headers`] of a call are checked before it is served.
//!
//! etcd's own peer protocol is left out: a cluster has members of one kind.

mod publish;
pub mod headers;
mod snapshot;
mod service;
mod listener;
pub mod hash_kv;
pub mod join;
pub mod waiting;
mod stream;
mod remote_peer;
mod peer_table;
mod client;
mod transport;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::listener::Listener;
use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::peer_server::PeerServer;
use clearlane_server::Server;
use clearlane_server::apply::Limits;
use clearlane_server::threads::ServerThreads;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use self::client::GrpcPeerClients;
use self::headers::PeerHeaders;
pub use self::listener::CONNECTIONS_MAX;
use self::peer_table::{PeerTable, PeerTableUpdater};
use self::service::PeerService;
use self::transport::StoppedRuntime;
pub use self::transport::{PeerTransport, TransportParts, new_transport};

/// Longer than any entry.
const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// A connection on which nothing comes for so long is closed.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct PeersConfig {
    pub name: String,
    pub client_urls: Vec<String>,
    pub peer_urls: Vec<String>,
    /// Bound already: a process that cannot bind starts no member.
    pub listeners: Vec<Listener>,
    pub dialer: Dialer,
}

#[derive(Debug)]
pub struct Peers {
    table: Arc<PeerTable>,
    stop: watch::Sender<bool>,
    /// Gets the runtime of the connections when the raft loop has ended.
    stopped_runtime: Mutex<Receiver<StoppedRuntime>>,
    published: watch::Receiver<bool>,
}

/// Shared by all tasks.
#[derive(Clone, Debug)]
struct PeerContext {
    threads: Arc<ServerThreads>,
    table: Arc<PeerTable>,
    peer_urls: Arc<[String]>,
    dialer: Dialer,
    /// Pings are times since then.
    started_at: Instant,
    stopped: watch::Receiver<bool>,
}

impl PeerContext {
    fn headers(&self, to: u64) -> PeerHeaders {
        let metadata = self.threads.metadata();
        let (cluster, from) = (metadata.cluster_id, metadata.node_id);
        PeerHeaders { cluster, from, to, peer_urls: self.peer_urls.to_vec() }
    }
}

impl Peers {
    /// Listens, connects to all members, and publishes this one's name.
    pub fn start(
        node: &Arc<ServerThreads>,
        ends: TransportParts,
        settings: PeersConfig,
    ) -> io::Result<Peers> {
        let PeersConfig { name, client_urls, peer_urls, listeners, dialer } = settings;
        let context = PeerContext {
            threads: Arc::clone(node),
            table: Arc::clone(&ends.table),
            peer_urls: peer_urls.into(),
            dialer,
            started_at: Instant::now(),
            stopped: ends.stop.subscribe(),
        };
        node.set_peer_clients(Arc::new(GrpcPeerClients::new(&context)));
        // What is spawned from here on runs on the raft loop.
        let _there = ends.runtime.enter();
        let handle = Server::new(node, Limits::default());
        let (learned, strangers) = mpsc::channel(peer_table::UNKNOWN_MEMBERS_MAX);
        let service = PeerServer::new(PeerService::new(&context, handle.clone(), learned))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        // All of them, before there is a task that knows the node: it would be dropped by raft
        // itself.
        for serving in listener::serve_all(listeners, service)? {
            tokio::spawn(serving);
        }
        tokio::spawn(handle.requests().clone().run());
        tokio::spawn(PeerTableUpdater::new(&context).run(strangers));
        tokio::spawn(snapshot::run_snapshot_sender(context, ends.snapshots));
        let (publish, published) = watch::channel(false);
        let table = Arc::clone(&ends.table);
        tokio::spawn(publish::publish(handle, name, client_urls, table, publish));
        Ok(Peers {
            table: ends.table,
            stop: ends.stop,
            stopped_runtime: Mutex::new(ends.stopped_runtime),
            published,
        })
    }

    /// Becomes true when this member has written its name and its clients' addresses into the log,
    /// and has applied that: from then on it knows all that was committed before it started.
    pub fn published(&self) -> watch::Receiver<bool> {
        self.published.clone()
    }

    /// While it is cut, nothing is sent to this member, and nothing from it is taken, as if the
    /// network between the two were cut: for tests.
    pub fn set_cut(&self, id: u64, is_cut: bool) {
        if let Some(link) = self.table.get(id) {
            link.is_cut.store(is_cut, Ordering::Relaxed);
        }
    }

    pub fn stop(mut self) -> io::Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> io::Result<()> {
        let _ = self.stop.send(true);
        // Nothing comes if it has come before, or if raft does something that takes long: then it
        // ends by itself.
        let Ok(ended) = self.stopped_runtime.get_mut().recv_timeout(CONNECTION_TIMEOUT) else {
            return Ok(());
        };
        // A raft snapshot that is being read or written ends at its next chunk. The caller may have
        // a runtime of its own, and must not wait for another one on that thread.
        let ending = thread::spawn(move || ended.shut_down(CONNECTION_TIMEOUT));
        ending.join().map_err(|_| io::Error::other("a task of the peers has panicked"))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // A caller that needs the result has called `stop`.
        let _ = self.shut_down();
    }
}
