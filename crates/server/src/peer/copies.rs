//! Copies of the store on their way: read and written on threads that may wait for a disk, with a few
//! chunks between them and the stream.
//!
//! ```text
//!   engine ─▶ Sender ─▶ 4 chunks ─▶ stream ════▶ stream ─▶ 4 chunks ─▶ Receiver ─▶ vault
//!             a thread that waits                          a thread that waits
//! ```
//!
//! Whoever is slowest holds up all the others, up to the reading engine. Nobody has more than some
//! megabytes in memory. If one breaks, the rest ends by itself: a copy that is not whole is none.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_member::Progress;
use clearlane_member::copies::{Received, Receiver, Sender, Vault};
use clearlane_mvcc::Store;
use clearlane_proto::peerpb::CopyChunk;
use clearlane_proto::peerpb::peer_client::PeerClient;
use clearlane_raft_log::driver::Message;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Status, Streaming};

use super::badge::Badge;
use super::link::{Link, connect};
use super::post::CopyOrder;
use super::{Context, PATIENCE};

/// So many chunks wait between a thread and its stream.
const CHUNKS_MAX: usize = 4;

/// Sends what raft wants to have sent.
pub(super) async fn send_all(context: Context, mut orders: UnboundedReceiver<CopyOrder>) {
    while let Some((message, store)) = orders.recv().await {
        let context = context.clone();
        tokio::spawn(async move {
            let to = message.to();
            let sent = send(&context, message, store).await;
            match &sent {
                Ok(index) => tracing::info!(member = format!("{to:x}"), index, "sent a copy"),
                Err(status) => {
                    let why = status.message();
                    tracing::warn!(member = format!("{to:x}"), why, "a copy did not arrive");
                }
            }
            context.node.copy_sent(to, sent.is_ok());
        });
    }
}

async fn send(
    context: &Context,
    message: Message,
    store: Arc<dyn Store<Progress>>,
) -> Result<u64, Status> {
    // It begins with a commit.
    let node = Arc::clone(&context.node);
    let room = spawn_blocking(move || node.require_room(0)).await;
    let room = room.map_err(|_| Status::internal("the thread that looks has panicked"))?;
    room.map_err(|refused| Status::resource_exhausted(refused.to_string()))?;
    let to = message.to();
    let link = context.table.get(to).filter(|link| !link.is_cut());
    let link = link.ok_or_else(|| Status::unavailable("nobody is there"))?;
    let mut client = reach(context, &link).await?;
    let (chunks, outgoing) = mpsc::channel(CHUNKS_MAX);
    let reader = spawn_blocking(move || read(&*store, message, &chunks));
    let stream = ReceiverStream::new(outgoing).map(|bytes| CopyChunk { bytes });
    let mut request = Request::new(stream);
    context.badge(to).write(request.metadata_mut());
    client.copy(request).await?;
    link.copy_arrived();
    reader.await.map_err(|_| Status::internal("the reading thread has panicked"))?
}

/// Its own connection: what stands in line behind a copy is more of the copy.
async fn reach(
    context: &Context,
    link: &Link,
) -> Result<PeerClient<tonic::transport::Channel>, Status> {
    let mut failed = Status::unavailable("the member has no address");
    for url in &link.urls {
        match timeout(PATIENCE, connect(url, &context.outgoing)).await {
            Ok(Ok(channel)) => return Ok(PeerClient::new(channel)),
            Ok(Err(error)) => failed = Status::unavailable(format!("{url}: {error}")),
            Err(_) => failed = Status::deadline_exceeded(format!("{url}: no answer")),
        }
    }
    Err(failed)
}

/// Returns of which index the copy is.
fn read(
    store: &dyn Store<Progress>,
    message: Message,
    chunks: &mpsc::Sender<Bytes>,
) -> Result<u64, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::internal(error.to_string());
    let exporter = store.copy().map_err(|error| failed(&error))?;
    let mut sender = Sender::new(exporter, message).map_err(|error| failed(&error))?;
    while let Some(chunk) = sender.next_chunk().map_err(|error| failed(&error))? {
        let gone = |_| Status::unavailable("the stream has ended");
        chunks.blocking_send(chunk).map_err(gone)?;
    }
    Ok(sender.position().index)
}

/// Takes a copy, and hands it to raft once it is whole and on disk.
pub(super) async fn receive(
    context: &Context,
    badge: &Badge,
    mut stream: Streaming<CopyChunk>,
) -> Result<(), Status> {
    let vault = Arc::clone(context.node.vault());
    let (chunks, incoming) = mpsc::channel::<Bytes>(CHUNKS_MAX);
    let writer = spawn_blocking(move || write(vault, incoming));
    while let Some(chunk) = stream.message().await? {
        if chunks.send(chunk.bytes).await.is_err() {
            // It says why when it is asked how it ended.
            break;
        }
    }
    drop(chunks);
    let panicked = |_| Status::internal("the writing thread has panicked");
    let received = writer.await.map_err(panicked)??;
    let (to, from) = (received.message.to(), received.message.from());
    if (to, from) != (badge.to, badge.from) {
        let (vault, index) = (Arc::clone(context.node.vault()), received.index);
        let _ = spawn_blocking(move || vault.discard(index)).await;
        return Err(Status::invalid_argument(format!("a copy of {from:x} for {to:x}")));
    }
    tracing::info!(member = format!("{from:x}"), index = received.index, "received a copy");
    context.node.copy_received(received);
    Ok(())
}

fn write(vault: Arc<dyn Vault>, mut chunks: mpsc::Receiver<Bytes>) -> Result<Received, Status> {
    let failed = |error: clearlane_member::copies::Error| Status::data_loss(error.to_string());
    let mut receiver = Receiver::new(vault);
    while let Some(chunk) = chunks.blocking_recv() {
        receiver.chunk(&chunk).map_err(failed)?;
    }
    receiver.finish().map_err(failed)
}
