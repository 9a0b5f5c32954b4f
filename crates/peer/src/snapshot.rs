//! Sends and receives raft snapshots. Separate threads, which may wait for a disk, read and write
//! them. See `docs/copies.md`.
//!
//! ```text
//!   engine ─▶ SnapshotSender ─▶ connection ═══▶ stream ─▶ 4 chunks ─▶ SnapshotReceiver ─▶ StoreDir
//!   └───────── one thread ─────────────┘   raft's thread       └────────── one thread ────────┘
//! ```
//!
//! The slowest stage delays all others, so no stage has more than a few megabytes in memory. If a
//! stage fails, the others end, and the incomplete snapshot is discarded. The sender's raft is
//! informed whether the whole snapshot arrived. What happens to a complete store is described in
//! the replica's `raft_snapshot/receiver.rs`.
//!
//! The receiving thread has the scheduling class [`SchedClass::Batch`]. The sending thread first
//! commits the store, and then switches to that class. The sending thread also serves its
//! connection. If the leader's raft loop served it instead, the kernel would schedule the raft loop
//! like a thread with long computations.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::thread;

use bytes::Bytes;
use clearlane_mvcc::Store;
use clearlane_net::sched::SchedClass;
use clearlane_proto::peerpb::CopyChunk;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_raft::Message;
use clearlane_replica::AppliedPosition;
use clearlane_replica::raft_snapshot::{
    ReceivedSnapshot, SnapshotReceiver, SnapshotSender, StoreDir,
};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::{Request, Status, Streaming};

use super::headers::PeerHeaders;
use super::remote_peer::{Peer, connect};
use super::transport::SnapshotToSend;
use super::{CONNECTION_TIMEOUT, PeerContext};

const CHUNKS_AHEAD: usize = 4;

pub(super) async fn run_snapshot_sender(
    context: PeerContext,
    mut orders: UnboundedReceiver<SnapshotToSend>,
) {
    while let Some((message, store)) = orders.recv().await {
        let context = context.clone();
        tokio::spawn(async move {
            let to = message.to();
            let sent = send(context.clone(), message, store).await;
            match &sent {
                Ok(index) => {
                    tracing::info!(member = format!("{to:x}"), index, "sent a raft snapshot")
                }
                Err(status) => {
                    let why = status.message();
                    tracing::warn!(
                        member = format!("{to:x}"),
                        why,
                        "a raft snapshot did not arrive"
                    );
                }
            }
            context.threads.report_raft_snapshot(to, sent.is_ok());
        });
    }
}

/// Sends a raft snapshot from a separate thread. Returns the log index of the snapshot.
async fn send(
    context: PeerContext,
    message: Message,
    store: Arc<dyn Store<AppliedPosition>>,
) -> Result<u64, Status> {
    run_on_thread(move || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        // The caller cannot stop this thread, because the caller's runtime may no longer run when
        // the member stops. So the thread watches `stopped` itself.
        let mut stopped = context.stopped.clone();
        let sent = runtime.block_on(async {
            tokio::select! {
                sent = send_on_this_thread(&context, message, store) => sent,
                _ = stopped.wait_for(|stopped| *stopped) => Err(shutting_down()),
            }
        });
        // This does not wait for a host name that the runtime may still be resolving.
        runtime.shutdown_background();
        sent
    })
    .await?
}

/// Sends a raft snapshot, and returns its log index. Reading the store blocks this thread.
async fn send_on_this_thread(
    context: &PeerContext,
    message: Message,
    store: Arc<dyn Store<AppliedPosition>>,
) -> Result<u64, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
    // The export of a store starts with a commit, which may need disk space.
    let room = context.threads.require_disk_space(0);
    room.map_err(|refused| Status::resource_exhausted(refused.to_string()))?;
    let to = message.to();
    let link = context.table.get(to).filter(|link| !link.is_cut.load(Relaxed));
    let link = link.ok_or_else(|| Status::unavailable("the member is not connected"))?;
    // `snapshot` commits, which blocks this thread. So it is called before the connection exists:
    // this thread also answers the pings of the connection. After the commit no other thread waits
    // for this thread, so it can switch to class `Batch`.
    let exporter = store.snapshot().map_err(|error| failed(&error))?;
    SchedClass::Batch.apply_to_thread();
    let mut client = connect_to_peer(context, &link).await?;
    let mut sender = SnapshotSender::new(exporter, message).map_err(|error| failed(&error))?;
    let index = sender.position.index;
    let broken = Arc::new(OnceLock::new());
    let breaks = Arc::clone(&broken);
    let next = move || match sender.next_chunk() {
        Ok(chunk) => chunk.map(|bytes| CopyChunk { bytes }),
        Err(error) => {
            breaks.get_or_init(|| error.to_string());
            None
        }
    };
    let mut request = Request::new(tokio_stream::iter(std::iter::from_fn(next)));
    context.headers(to).write(request.metadata_mut());
    let answer = client.copy(request).await;
    if let Some(why) = broken.get() {
        return Err(failed(why));
    }
    answer?;
    link.snapshots_sent.fetch_add(1, Relaxed);
    Ok(index)
}

/// Does the work on a separate thread that does not belong to the runtime, because a thread of
/// class `Batch` may be unable to return to another class.
async fn run_on_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    let begins = || {
        SchedClass::Normal.apply_to_thread();
        work()
    };
    let started = thread::Builder::new().name("copy".to_owned()).spawn(begins);
    let thread = started.map_err(|error| Status::resource_exhausted(error.to_string()))?;
    // A blocking thread of the runtime waits for the work, so a shutdown of the runtime also waits
    // for it.
    match spawn_blocking(|| thread.join()).await {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(_)) => Err(Status::internal("the thread of the raft snapshot has panicked")),
        Err(_) => Err(shutting_down()),
    }
}

fn shutting_down() -> Status {
    Status::unavailable("this member is stopping")
}

/// Opens a separate connection for the raft snapshot, so that no other messages wait for its
/// chunks. Tries the member's addresses one after the other.
async fn connect_to_peer(
    context: &PeerContext,
    link: &Peer,
) -> Result<PeerClient<tonic::transport::Channel>, Status> {
    let mut failed = Status::unavailable("the member has no address");
    for url in &link.urls {
        match timeout(CONNECTION_TIMEOUT, connect(url, &context.dialer)).await {
            Ok(Ok(channel)) => return Ok(PeerClient::new(channel)),
            Ok(Err(error)) => failed = Status::unavailable(format!("{url}: {error}")),
            Err(_) => failed = Status::deadline_exceeded(format!("{url}: no response")),
        }
    }
    Err(failed)
}

/// Receives a raft snapshot, and passes it to raft when it is complete and on disk. Fails, and
/// discards the snapshot, if its sender and receiver are not the members in the headers of the call
/// (`badge`).
pub(super) async fn receive(
    context: &PeerContext,
    badge: &PeerHeaders,
    mut stream: Streaming<CopyChunk>,
) -> Result<(), Status> {
    let store_dir = Arc::clone(context.threads.store_dir());
    let (chunks, incoming) = mpsc::channel::<Bytes>(CHUNKS_AHEAD);
    let stopped = context.stopped.clone();
    let writer = tokio::spawn(run_on_thread(move || write_chunks(store_dir, incoming, stopped)));
    while let Some(chunk) = stream.message().await? {
        if chunks.send(chunk.bytes).await.is_err() {
            // The writer has failed. It returns its error below.
            break;
        }
    }
    drop(chunks);
    let received = writer.await.map_err(|_| shutting_down())???;
    let (to, from) = (received.message.to(), received.message.from());
    if (to, from) != (badge.to, badge.from) {
        let (store_dir, index) = (Arc::clone(context.threads.store_dir()), received.index);
        let _ = spawn_blocking(move || store_dir.discard(index)).await;
        return Err(Status::invalid_argument(format!(
            "a raft snapshot of member {from:x} for member {to:x}"
        )));
    }
    tracing::info!(
        member = format!("{from:x}"),
        index = received.index,
        "received a raft snapshot"
    );
    context.threads.receive_raft_snapshot(received);
    Ok(())
}

fn write_chunks(
    store_dir: Arc<dyn StoreDir>,
    mut chunks: mpsc::Receiver<Bytes>,
    mut stopped: watch::Receiver<bool>,
) -> Result<ReceivedSnapshot, Status> {
    SchedClass::Batch.apply_to_thread();
    let failed =
        |error: clearlane_replica::raft_snapshot::Error| Status::data_loss(error.to_string());
    // This runtime is only for waiting. The other runtime, which supplies the chunks, may stop
    // running while the member shuts down.
    let runtime = Builder::new_current_thread().build()?;
    let mut next = || {
        runtime.block_on(async {
            tokio::select! {
                chunk = chunks.recv() => Ok(chunk),
                _ = stopped.wait_for(|stopped| *stopped) => Err(shutting_down()),
            }
        })
    };
    let mut receiver = SnapshotReceiver::new(store_dir);
    while let Some(chunk) = next()? {
        receiver.feed(&chunk).map_err(failed)?;
    }
    receiver.finish().map_err(failed)
}
