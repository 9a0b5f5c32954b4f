//! The raft loop's side of the connections: its outgoing messages, and the work of the connections
//! while raft waits. See `docs/peers.md`.
//!
//! The runtime of the connections runs on the raft loop's thread while raft has nothing to do.
//! While raft is busy, the runtime runs for one check of the sockets between two turns of raft.
//! `docs/decisions/server-raft-and-network.md` explains why.
//!
//! ```text
//!   raft ──── turn ────┐                              ┌──── turn ────┐
//!   connections        └ write │ sleep │ read, decode ┘              └ write │ ...
//! ```

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use clearlane_mvcc::Store;
use clearlane_net::sched::{EVENT_INTERVAL, reset_sched_class};
use clearlane_raft::Message;
use clearlane_replica::AppliedPosition;
use clearlane_server::threads::{Network, RaftLoopWaiter};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::sleep;

use super::peer_table::PeerTable;
use super::remote_peer::Peer;

/// A raft message, and the store whose raft snapshot is sent with the message.
pub(super) type SnapshotToSend = (Message, Arc<dyn Store<AppliedPosition>>);

#[derive(Debug)]
pub struct PeerTransport {
    table: Arc<PeerTable>,
    snapshots: UnboundedSender<SnapshotToSend>,
    /// The messages of the current turn of raft.
    outgoing: Vec<(Arc<Peer>, Message)>,
    stopped: watch::Receiver<bool>,
    /// The runtime, or `None` after the transport has ended.
    running: Option<TransportRuntime>,
}

#[derive(Debug)]
struct TransportRuntime {
    runtime: Runtime,
    /// Sends the runtime to the thread that shuts it down, because the shutdown may take a while.
    stopped_runtime: mpsc::Sender<StoppedRuntime>,
}

/// A runtime that no thread drives any longer. Dropping it does not wait for any task.
#[derive(Debug)]
pub(super) struct StoppedRuntime(Option<Runtime>);

impl StoppedRuntime {
    /// Shuts the runtime down. Waits for its blocking threads, but no longer than `patience`.
    pub(super) fn shut_down(mut self, patience: Duration) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(patience);
        }
    }
}

impl Drop for StoppedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// The parts that [`Peers::start`](super::Peers::start) needs.
#[derive(Debug)]
pub struct TransportParts {
    pub(super) table: Arc<PeerTable>,
    /// Raft snapshots to send. The channel is unbounded, because raft has at most one in progress
    /// for each member.
    pub(super) snapshots: UnboundedReceiver<SnapshotToSend>,
    pub(super) runtime: Handle,
    pub(super) stop: watch::Sender<bool>,
    pub(super) stopped_runtime: mpsc::Receiver<StoppedRuntime>,
}

pub fn new_transport() -> io::Result<(PeerTransport, TransportParts)> {
    let mut builder = Builder::new_current_thread();
    let runtime = builder
        .on_thread_start(reset_sched_class)
        .enable_all()
        .event_interval(EVENT_INTERVAL)
        .build()?;
    let table = Arc::new(PeerTable::default());
    let (snapshots, snapshots_to_send) = unbounded_channel();
    let (stop, stopped) = watch::channel(false);
    let (stopped_runtime, runtime_receiver) = mpsc::channel();
    let parts = TransportParts {
        table: Arc::clone(&table),
        snapshots: snapshots_to_send,
        runtime: runtime.handle().clone(),
        stop,
        stopped_runtime: runtime_receiver,
    };
    let running = Some(TransportRuntime { runtime, stopped_runtime });
    Ok((PeerTransport { table, snapshots, outgoing: Vec::new(), stopped, running }, parts))
}

impl PeerTransport {
    fn hand_back_runtime(&mut self) {
        if let Some(TransportRuntime { runtime, stopped_runtime }) = self.running.take() {
            // If the receiver no longer exists, the runtime is dropped here, without waiting for
            // its tasks. Then either `Peers` was not started, or it has stopped waiting for the
            // runtime.
            let _ = stopped_runtime.send(StoppedRuntime(Some(runtime)));
        }
    }
}

impl Network for PeerTransport {
    fn send(&mut self, message: Message) -> Result<(), Box<Message>> {
        match self.table.get(message.to()) {
            Some(link) if self.running.is_some() && link.reserve(&message) => {
                self.outgoing.push((link, message));
                Ok(())
            }
            _ => Err(Box::new(message)),
        }
    }

    fn send_raft_snapshot(&mut self, message: Message, store: Arc<dyn Store<AppliedPosition>>) {
        // If there is no receiver, the member is about to end.
        let _ = self.snapshots.send((message, store));
    }

    fn wait(&mut self, arrivals: RaftLoopWaiter<'_>, timeout: Duration) {
        let Some(TransportRuntime { runtime, .. }) = &self.running else {
            return arrivals.wait(timeout);
        };
        let (outgoing, stopped) = (&mut self.outgoing, &mut self.stopped);
        let is_stopped = runtime.block_on(async {
            // Queue the messages here, where waking a task needs no system call.
            for (link, message) in outgoing.drain(..) {
                link.send(message);
            }
            if timeout.is_zero() || arrivals.is_ready() {
                // Let the tasks of the connections run, and check their sockets, even if raft is
                // always busy.
                yield_now().await;
                // `has_changed` fails if the sender of `stopped` was dropped. That also ends the
                // transport.
                return stopped.has_changed().is_err() || *stopped.borrow();
            }
            tokio::select! {
                biased;
                () = arrivals.ready() => false,
                _ = stopped.wait_for(|stopped| *stopped) => true,
                () = sleep(timeout) => false,
            }
        });
        if is_stopped {
            self.hand_back_runtime();
        }
    }
}

impl Drop for PeerTransport {
    fn drop(&mut self) {
        self.hand_back_runtime();
    }
}
