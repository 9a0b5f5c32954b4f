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
//! Each purpose has its own connection, so that nothing stands in anybody's way:
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
//! A connection carries one direction: who has something to say opens it. So both sides are the same
//! program, and neither needs to know who called first.
//!
//! # Nothing waits, everything is bounded
//!
//! The raft thread puts a message into a queue and goes on. What waits there is bounded by bytes; what
//! does not fit is dropped, and raft is told that the member is [out of reach](Node::unreachable): it
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
//! Each call says which cluster and which member it is from, and whom it is for ([`badge`]). Another
//! cluster is refused, and so is a member that was removed: it is told so, and stops for good. One
//! that nobody has heard of is let in if it names the cluster, for this member may be behind and not
//! have applied yet that the other was added; and it is answered where it says that it listens.
//!
//! Before all that, an `https` address wants TLS: see [`tls`](crate::tls).
//!
//! # What is left out
//!
//! etcd's own peer protocol. A cluster has members of one kind.

mod announce;
pub mod badge;
mod copies;
mod door;
mod entrance;
pub mod hashes;
pub mod join;
mod lane;
mod link;
mod links;
mod others;
mod post;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use clearlane_member::Handle;
use clearlane_member::node::Node;
use clearlane_member::requests::Limits;
use clearlane_proto::peerpb::peer_server::PeerServer;
use clearlane_turns::Turn;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as Tonic;

use self::badge::Badge;
use self::door::Door;
use self::entrance::Connection;
pub use self::link::Figures;
use self::links::{Links, Table};
use self::others::Calls;
pub(crate) use self::others::leader;
pub use self::post::{Ends, Post, network};
use crate::serve::blocking_begins;
use crate::tls::{Incoming, Outgoing};

/// A message is at most so long: more than any entry.
const MESSAGE_BYTES_MAX: usize = 512 << 20;
/// So long without a word, and a connection is given up.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a member says of itself, and where it listens.
#[derive(Debug)]
pub struct Settings {
    /// What it is called.
    pub name: String,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Where it listens for them. Bound already: who fails to do that need not start a member.
    pub listeners: Vec<(TcpListener, Option<Arc<Incoming>>)>,
    /// How it calls them.
    pub outgoing: Outgoing,
}

/// The connections to other members, and theirs to this one.
#[derive(Debug)]
pub struct Peers {
    table: Arc<Table>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

/// What all tasks of the thread know.
#[derive(Clone, Debug)]
struct Context {
    node: Arc<Node>,
    table: Arc<Table>,
    peer_urls: Arc<[String]>,
    outgoing: Outgoing,
    /// Pings count from here.
    begin: Instant,
}

impl Context {
    /// What this member shows another.
    fn badge(&self, to: u64) -> Badge {
        let metadata = self.node.metadata();
        let (cluster, from) = (metadata.cluster_id, metadata.node_id);
        Badge { cluster, from, to, peer_urls: self.peer_urls.to_vec() }
    }
}

impl Peers {
    /// Listens, connects to all members, and says what this one is called.
    pub fn start(node: &Arc<Node>, ends: Ends, settings: Settings) -> io::Result<Peers> {
        let Settings { name, client_urls, peer_urls, listeners, outgoing } = settings;
        let table = Arc::clone(&ends.table);
        let context = Context {
            node: Arc::clone(node),
            table: Arc::clone(&table),
            peer_urls: peer_urls.into(),
            outgoing,
            begin: Instant::now(),
        };
        node.meet(Arc::new(Calls::new(&context)));
        let (stop, stopped) = watch::channel(false);
        let work = move || {
            Turn::Soon.take();
            let mut builder = Builder::new_current_thread();
            let runtime = builder.on_thread_start(blocking_begins).enable_all().build()?;
            let served =
                runtime.block_on(run(context, ends, listeners, (name, client_urls), stopped));
            // A copy that is being read or written ends at its next chunk.
            runtime.shutdown_timeout(PATIENCE);
            served
        };
        let thread = Some(thread::Builder::new().name("peers".to_owned()).spawn(work)?);
        Ok(Peers { table, stop, thread })
    }

    /// What is known of each connection.
    pub fn figures(&self) -> Vec<Figures> {
        self.table.figures()
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
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        let _ = self.stop.send(true);
        match self.thread.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(io::Error::other("the thread of the peers has panicked")),
            Some(Ok(ended)) => ended,
            None => Ok(()),
        }
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // Whoever wants to know has called `stop`.
        let _ = self.end();
    }
}

/// The thread.
async fn run(
    context: Context,
    ends: Ends,
    listeners: Vec<(TcpListener, Option<Arc<Incoming>>)>,
    (name, client_urls): (String, Vec<String>),
    mut stopped: watch::Receiver<bool>,
) -> io::Result<()> {
    let handle = Handle::new(&context.node, Limits::default());
    tokio::spawn(handle.desk().clone().run());
    let (learned, strangers) = mpsc::channel(links::STRANGERS_MAX);
    let door = Door::new(&context, handle.clone(), learned);
    for (listener, tls) in listeners {
        tokio::spawn(serve(entrance::connections(listener, tls)?, door.clone()));
    }
    tokio::spawn(Links::new(&context).keep(strangers));
    tokio::spawn(copies::send_all(context.clone(), ends.copies));
    tokio::spawn(announce::announce(handle, name, client_urls));
    let mut failure = context.node.failure();
    tokio::select! {
        _ = stopped.wait_for(|stopped| *stopped) => {}
        // Nobody takes what comes from now on.
        _ = failure.wait_for(Option::is_some) => {}
    }
    Ok(())
}

/// Answers on one address.
async fn serve(connections: ReceiverStream<io::Result<Connection>>, door: Door) {
    let service = PeerServer::new(door).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let server = Tonic::builder()
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .http2_keepalive_interval(Some(PATIENCE))
        .http2_keepalive_timeout(Some(PATIENCE))
        .add_service(service);
    if let Err(error) = server.serve_with_incoming(connections).await {
        tracing::error!(%error, "stopped to listen for peers");
    }
}
