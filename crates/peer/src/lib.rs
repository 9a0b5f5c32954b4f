//! The connections between the members of a Clearlane cluster, and the calls over these
//! connections. See `docs/peers.md`.
//!
//! Each member opens up to three connections to each other member, so that a heartbeat does not
//! wait for a snapshot:
//!
//! | connection | carries |
//! |---|---|
//! | *urgent* | votes, heartbeats, responses, linearizable reads, requests to other members |
//! | *bulk* | appends, forwarded writes |
//! | *snapshot* | raft snapshots; it exists only while one is being sent |
//!
//! A connection carries messages in one direction, and the sending member opens it. If this member
//! cannot connect to another member, it sends its messages over a stream that the other member has
//! opened.
//!
//! * The [raft loop's thread](PeerTransport) sends messages between two turns of raft. The queues
//!   of these messages are limited in bytes. A message that does not fit is dropped, and raft is
//!   notified that the member is unreachable. An empty queue takes any message.
//! * The [`headers`] of a call are checked before the call is served. The call `members` has no
//!   headers, because a member that has no data yet makes it.
//!
//! etcd's own peer protocol is not supported: all members of a cluster must run Clearlane.

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

use bytes::Bytes;
use clearlane_net::listener::Listener;
use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::peer_server::PeerServer;
use clearlane_raft::Message;
use clearlane_replica::apply::Limits;
use clearlane_server::Server;
use clearlane_server::threads::ServerThreads;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};
use tonic::Status;

use self::client::GrpcPeerClients;
use self::headers::PeerHeaders;
pub use self::listener::CONNECTIONS_MAX;
use self::peer_table::{PeerTable, PeerTableUpdater};
use self::service::PeerService;
use self::transport::StoppedRuntime;
pub use self::transport::{PeerTransport, TransportParts, new_transport};

/// Maximum size of a message in bytes. A log entry can be longer only if `--max-request-bytes` is
/// set to more than this.
const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// Time limit of a connection attempt, of a greeting, of opening a stream, and of a shutdown.
/// Within this time, an incoming connection must deliver the preface of HTTP/2, and each frame
/// except data frames. If the port accepts connections both with TLS and without, the first byte
/// must also arrive within this time. The urgent stream is closed if no echo arrives for this time.
/// The bulk stream is closed if no echo arrives for six times this time.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct PeersConfig {
    pub name: String,
    pub client_urls: Vec<String>,
    pub peer_urls: Vec<String>,
    /// The listeners. They are already bound, because a process that cannot bind its ports must
    /// not start a member.
    pub listeners: Vec<Listener>,
    pub dialer: Dialer,
}

#[derive(Debug)]
pub struct Peers {
    table: Arc<PeerTable>,
    stop: watch::Sender<bool>,
    /// Receives the runtime of the connections when the raft loop has noticed `stop` or has ended.
    stopped_runtime: Mutex<Receiver<StoppedRuntime>>,
    published: watch::Receiver<bool>,
}

/// The context that all tasks of the connections share.
#[derive(Clone, Debug)]
struct PeerContext {
    threads: Arc<ServerThreads>,
    table: Arc<PeerTable>,
    peer_urls: Arc<[String]>,
    dialer: Dialer,
    /// The origin of the times in pings: a ping contains the microseconds since `started_at`.
    started_at: Instant,
    stopped: watch::Receiver<bool>,
}

impl PeerContext {
    fn headers(&self, to: u64) -> PeerHeaders {
        let metadata = self.threads.metadata();
        let (cluster, from) = (metadata.cluster_id, metadata.node_id);
        PeerHeaders { cluster, from, to, peer_urls: self.peer_urls.to_vec() }
    }

    /// Decodes messages that the other end of a stream, the member `from`, has sent, and passes
    /// them to raft. Fails if a message is malformed or has another sender.
    fn receive_messages(&self, from: u64, encoded: &[Bytes]) -> Result<(), Status> {
        let mut messages = Vec::with_capacity(encoded.len());
        for bytes in encoded {
            let message = Message::decode(bytes);
            let message = message.map_err(|error| Status::invalid_argument(error.to_string()))?;
            if message.from() != from {
                let words = format!(
                    "a message of member {:x} in a stream of member {from:x}",
                    message.from()
                );
                return Err(Status::invalid_argument(words));
            }
            messages.push(message);
        }
        if !messages.is_empty() {
            if let Some(link) = self.table.get(from) {
                let bytes = encoded.iter().map(|bytes| bytes.len() as u64).sum();
                link.received_bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            self.threads.receive(messages);
        }
        Ok(())
    }
}

impl Peers {
    /// Starts the tasks that listen, connect to all other members, and publish this member's name
    /// and client URLs. Fails if a listener cannot be started.
    pub fn start(
        node: &Arc<ServerThreads>,
        ends: TransportParts,
        settings: PeersConfig,
    ) -> io::Result<Peers> {
        let PeersConfig { name, client_urls, peer_urls, listeners, dialer } = settings;
        let rules = dialer.rules();
        let context = PeerContext {
            threads: Arc::clone(node),
            table: Arc::clone(&ends.table),
            peer_urls: peer_urls.into(),
            dialer,
            started_at: Instant::now(),
            stopped: ends.stop.subscribe(),
        };
        node.set_peer_clients(Arc::new(GrpcPeerClients::new(&context)));
        // The tasks that are spawned below run on the raft loop's thread.
        let _there = ends.runtime.enter();
        let handle = Server::new(node, Limits::default());
        let (learned, strangers) = mpsc::channel(peer_table::UNKNOWN_MEMBERS_MAX);
        let service = PeerServer::new(PeerService::new(&context, handle.clone(), learned))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        // All listeners are started before any task holds the node. If a listener failed later, the
        // raft thread itself might drop the last reference to the node, and then wait for its own
        // end.
        for serving in listener::serve_all(listeners, service, rules)? {
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

    /// Returns a flag that becomes true when this member has applied an entry with its name and its
    /// client URLs. By then, the member has also applied everything that was committed before it
    /// started.
    pub fn published(&self) -> watch::Receiver<bool> {
        self.published.clone()
    }

    /// For tests: cuts the network between this member and the member `id`, or repairs it. While
    /// the network is cut, this member sends nothing to the other member, and rejects the messages
    /// and calls of the other member. Two things still work: the call `members`, and a raft
    /// snapshot whose transfer started before the cut. Does nothing if `id` is not in the table of
    /// peers.
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
        // No runtime arrives if an earlier call of `shut_down` has received it, or if raft is busy
        // for longer than the time limit. In the second case the runtime is dropped later, without
        // waiting for its tasks.
        let Ok(ended) = self.stopped_runtime.get_mut().recv_timeout(CONNECTION_TIMEOUT) else {
            return Ok(());
        };
        // The transfer of a raft snapshot ends at its next chunk. A separate thread waits, because
        // the caller's thread may run a runtime. A thread that runs a runtime must not wait for the
        // shutdown of another runtime.
        let ending = thread::spawn(move || ended.shut_down(CONNECTION_TIMEOUT));
        ending.join().map_err(|_| io::Error::other("a task of the peers has panicked"))
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // The result is ignored here: a caller that needs the result calls `stop`.
        let _ = self.shut_down();
    }
}
