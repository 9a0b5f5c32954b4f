//! What do members say to each other, and how does it get there?
//!
//! # The problem
//!
//! Raft wants a heartbeat to be there within a fraction of an election time-out, whatever else is
//! under way. What else is under way are appends of a megabyte each, and now and then a copy of the
//! whole store. On one connection the small waits behind the large: a follower that is being sent ten
//! gigabytes hears no heartbeat, and wants to lead.
//!
//! # The idea
//!
//! Each purpose has its own connection, so that none delays another:
//!
//! ```text
//!   member 1                                               member 2
//!   ┌───────────────┐   urgent: votes, heartbeats, reads   ┌──────────┐
//!   │ raft ─▶ Post ─┼── and questions  ───────────────────▶│ Door ──▶ │ raft
//!   │          │    │   long: appends, forwarded writes    │          │
//!   │          ├────┼─────────────────────────────────────▶│          │
//!   │          │    │   copies, while there is one         │          │
//!   │          └────┼─────────────────────────────────────▶│          │
//!   └───────────────┘                                      └──────────┘
//!          ▲  └ a Link per member                            │
//!          └────────── and the same three the other way ─────┘
//! ```
//!
//! A connection carries one direction: the member that has something to send opens it. So both sides are the same
//! program, and neither needs to know which side called first.
//!
//! # Nothing waits, everything is bounded
//!
//! Raft puts a message into a queue and goes on; the [same thread](PeerTransport) sends it when raft is done. What
//! waits there is bounded by bytes; what does not fit is dropped, and raft is told that the member is [out of reach](clearlane_server::threads::ServerThreads::report_unreachable): it
//! sends again, one message at a time, until an answer comes. A stream takes from its queue what the
//! receiver's window allows, and a copy is read from the engine only as fast as it leaves.
//!
//! # Is anybody there?
//!
//! Each stream sends a ping now and then, and the other side echoes it: that gives the round-trip time,
//! and if no echo comes for five seconds the connection is given up and made again, after a pause that
//! doubles up to a second.
//!
//! # Who may talk
//!
//! Each call says which cluster and which member it is from, and which one it is for ([`headers`]). Another
//! cluster is refused, and so is a member that was removed: it is notified, and stops for good. One
//! that this member does not know is let in if it names the cluster, for this member may be behind and not
//! have applied yet that the other was added; and it is answered where it says that it listens.
//!
//! Before all that, an `https` or `unixs` address wants TLS: see [`tls`](clearlane_net::tls).
//!
//! # What is left out
//!
//! etcd's own peer protocol. A cluster has members of one kind.

mod publish;
pub mod headers;
mod snapshot;
mod service;
mod listener;
pub mod hash_kv;
pub mod join;
mod stream;
mod remote_peer;
mod peer_table;
mod client;
mod transport;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::listener::Listener;
use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::peer_server::PeerServer;
use clearlane_server::Server;
use clearlane_server::requests::Limits;
use clearlane_server::threads::ServerThreads;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as Tonic;

use self::client::GrpcPeerClients;
use self::headers::PeerHeaders;
use self::listener::PeerConnection;
use self::peer_table::{PeerTable, PeerTableUpdater};
pub use self::remote_peer::PeerMetrics;
use self::service::PeerService;
use self::transport::StoppedRuntime;
pub use self::transport::{PeerTransport, TransportParts, new_transport};

/// A message is at most so long: more than any entry.
const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// So long without a word, and a connection is given up.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

/// What a member says of itself, and where it listens.
#[derive(Debug)]
pub struct PeersConfig {
    /// What it is called.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Where it listens for them. Bound already: a process that fails to do that need not start a member.
    pub listeners: Vec<Listener>,
    /// How it calls them.
    pub dialer: Dialer,
}

/// The connections to other members, and theirs to this one.
#[derive(Debug)]
pub struct Peers {
    table: Arc<PeerTable>,
    stop: watch::Sender<bool>,
    /// What they ran on, once the raft loop has let go of it.
    stopped_runtime: Mutex<Receiver<StoppedRuntime>>,
    published: watch::Receiver<bool>,
}

/// What all tasks know.
#[derive(Clone, Debug)]
struct PeerContext {
    threads: Arc<ServerThreads>,
    table: Arc<PeerTable>,
    peer_urls: Arc<[String]>,
    dialer: Dialer,
    /// Pings count from here.
    started_at: Instant,
    /// Says so when all of this is to end.
    stopped: watch::Receiver<bool>,
}

impl PeerContext {
    /// What this member shows another.
    fn headers(&self, to: u64) -> PeerHeaders {
        let metadata = self.threads.metadata();
        let (cluster, from) = (metadata.cluster_id, metadata.node_id);
        PeerHeaders { cluster, from, to, peer_urls: self.peer_urls.to_vec() }
    }
}

impl Peers {
    /// Listens, connects to all members, and says what this one is called.
    pub fn start(
        node: &Arc<ServerThreads>,
        ends: TransportParts,
        settings: PeersConfig,
    ) -> io::Result<Peers> {
        let PeersConfig { name, client_urls, peer_urls, listeners, dialer: outgoing } = settings;
        let table = Arc::clone(&ends.table);
        let context = PeerContext {
            threads: Arc::clone(node),
            table: Arc::clone(&table),
            peer_urls: peer_urls.into(),
            dialer: outgoing,
            started_at: Instant::now(),
            stopped: ends.stop.subscribe(),
        };
        node.set_peer_clients(Arc::new(GrpcPeerClients::new(&context)));
        // What is spawned from here on runs on the raft loop.
        let _there = ends.runtime.enter();
        let handle = Server::new(node, Limits::default());
        let (learned, strangers) = mpsc::channel(peer_table::UNKNOWN_MEMBERS_MAX);
        let door = PeerService::new(&context, handle.clone(), learned);
        let listening = listeners.into_iter().map(listener::accept_connections);
        // All of them, before there is a task that knows the node: it would be dropped by raft itself.
        for connections in listening.collect::<io::Result<Vec<_>>>()? {
            tokio::spawn(serve_peers(connections, door.clone()));
        }
        tokio::spawn(handle.requests().clone().run());
        tokio::spawn(PeerTableUpdater::new(&context).run(strangers));
        tokio::spawn(snapshot::run_snapshot_sender(context, ends.snapshots));
        let (publish, published) = watch::channel(false);
        tokio::spawn(publish::publish(handle, name, client_urls, publish));
        Ok(Peers {
            table,
            stop: ends.stop,
            stopped_runtime: Mutex::new(ends.stopped_runtime),
            published,
        })
    }

    /// Becomes true when this member has written its name and its clients' addresses into the log, and has applied
    /// that: from then on it knows all that was committed before it started.
    pub fn published(&self) -> watch::Receiver<bool> {
        self.published.clone()
    }

    /// What is known of each connection.
    pub fn metrics(&self) -> Vec<PeerMetrics> {
        self.table.metrics()
    }

    /// From now on nothing goes to this member, and nothing of it is taken, as if the cable between
    /// the two were cut: to try out what happens then.
    pub fn cut(&self, id: u64) {
        self.table.cut(id, true);
    }

    /// The cable is whole again.
    pub fn mend(&self, id: u64) {
        self.table.cut(id, false);
    }

    /// Ends all connections.
    pub fn stop(mut self) -> io::Result<()> {
        self.shut_down()
    }

    fn shut_down(&mut self) -> io::Result<()> {
        let _ = self.stop.send(true);
        // Nothing comes if it has come before, or if raft does something that takes long: then it ends by itself.
        let Ok(ended) = self.stopped_runtime.get_mut().recv_timeout(CONNECTION_TIMEOUT) else {
            return Ok(());
        };
        // A raft snapshot that is being read or written ends at its next chunk. The caller may have a runtime of its
        // own, and must not wait for another one on that thread.
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

/// Answers on one address.
async fn serve_peers(connections: ReceiverStream<io::Result<PeerConnection>>, door: PeerService) {
    let service = PeerServer::new(door).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let server = Tonic::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(CONNECTION_TIMEOUT))
        .http2_keepalive_timeout(Some(CONNECTION_TIMEOUT))
        .add_service(service);
    if let Err(error) = server.serve_with_incoming(connections).await {
        tracing::error!(%error, "stopped to listen for peers");
    }
}
