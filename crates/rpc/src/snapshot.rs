//! The response stream of the call Snapshot. For each stream, a separate thread reads a copy of the
//! store.
//!
//! ```text
//!   permit ─▶ thread `snapshot` ─▶ [CHUNKS_AHEAD chunks of 32 KiB] ─▶ SnapshotStream ─▶ the client
//! ```
//!
//! The thread keeps its permit and a snapshot of the store until it ends. If the engine is not
//! `bolt`, the thread keeps a temporary copy instead of the snapshot. The thread ends when
//!
//! * the last chunk is in the channel;
//! * the store cannot be read or copied, in which case the stream ends with an error;
//! * the stream is dropped, because the client has left or the call's deadline has passed;
//! * the client takes no chunk for [`CLIENT_IDLE_MAX`]. The stream then ends with an error.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clearlane_engine::{Image, Snapshot};
use clearlane_net::log_limiter::LogLimiter;
use clearlane_net::sched::SchedClass;
use clearlane_proto::etcdserverpb::SnapshotResponse;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use clearlane_server::snapshot::snapshot_file::SnapshotWriter;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::Stream;
use tonic::Status;

use crate::client_info::ClientInfo;
use crate::maintenance::STORAGE_VERSION;
use crate::status;

/// Maximum number of snapshots that one network thread sends at a time.
const SNAPSHOTS_MAX: usize = 4;
/// Capacity of the channel in chunks. While the thread waits for capacity, it holds one more chunk.
const CHUNKS_AHEAD: usize = 4;
/// Longest wait for a client that takes no chunk, such as a suspended process. After this time the
/// snapshot ends, because other snapshots may wait for its permit. The time starts again with each
/// chunk that the client takes.
const CLIENT_IDLE_MAX: Duration = Duration::from_secs(60);

/// The permits for snapshots of one network thread.
pub(crate) struct SnapshotPermits {
    permits: Arc<Semaphore>,
    log: LogLimiter,
}

impl Default for SnapshotPermits {
    fn default() -> SnapshotPermits {
        let permits = Arc::new(Semaphore::new(SNAPSHOTS_MAX));
        SnapshotPermits { permits, log: LogLimiter::default() }
    }
}

impl SnapshotPermits {
    /// Returns a permit. If [`SNAPSHOTS_MAX`] snapshots are being sent, logs this and waits until
    /// one of them ends.
    pub(crate) async fn acquire(&self, client: &ClientInfo) -> OwnedSemaphorePermit {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return permit;
        }
        if let Some(left_out) = self.log.admit() {
            tracing::warn!(
                %client,
                max = SNAPSHOTS_MAX,
                "lines-left-out" = left_out,
                "a snapshot waits until a client has taken one of the snapshots that are being sent"
            );
        }
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        permit.expect("this semaphore is never closed")
    }
}

/// The reason why a snapshot ended before its last chunk.
#[derive(Debug)]
enum SnapshotError {
    /// The receiver of the chunks was dropped.
    ClientGone,
    /// The client took no chunk for this time.
    ClientIdle(Duration),
    Failed(RequestError),
}

impl From<RequestError> for SnapshotError {
    fn from(error: RequestError) -> SnapshotError {
        SnapshotError::Failed(error)
    }
}

impl From<clearlane_replica::Error> for SnapshotError {
    fn from(error: clearlane_replica::Error) -> SnapshotError {
        SnapshotError::Failed(error.into())
    }
}

/// The thread's end of the channel.
struct ChunkSender {
    chunks: mpsc::Sender<SnapshotResponse>,
    idle_max: Duration,
}

impl ChunkSender {
    /// Sends a chunk, and waits while the channel is full. [`SnapshotStream`] wakes this thread
    /// when the client takes a chunk or leaves. Fails if the client has left or has taken no chunk
    /// for `idle_max`.
    fn send(&self, mut chunk: SnapshotResponse) -> Result<(), SnapshotError> {
        let begin = Instant::now();
        loop {
            chunk = match self.chunks.try_send(chunk) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Closed(_)) => return Err(SnapshotError::ClientGone),
                Err(TrySendError::Full(chunk)) => chunk,
            };
            let left = self.idle_max.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(SnapshotError::ClientIdle(self.idle_max));
            }
            thread::park_timeout(left);
        }
    }
}

/// The stream of chunks. Dropping it ends the thread that reads the chunks.
#[derive(Debug)]
pub(crate) struct SnapshotStream {
    chunks: mpsc::Receiver<SnapshotResponse>,
    /// The result of the thread. `None` once the result has been delivered.
    result: Option<oneshot::Receiver<Result<(), Status>>>,
    thread: Thread,
}

impl Stream for SnapshotStream {
    type Item = Result<SnapshotResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(chunk) = ready!(self.chunks.poll_recv(context)) {
            self.thread.unpark();
            return Poll::Ready(Some(Ok(chunk)));
        }
        let Some(result) = &mut self.result else { return Poll::Ready(None) };
        let result = ready!(Pin::new(result).poll(context));
        self.result = None;
        Poll::Ready(match result {
            Ok(Ok(())) => None,
            Ok(Err(status)) => Some(Err(status)),
            Err(_) => Some(Err(Status::internal("the snapshot's thread has panicked"))),
        })
    }
}

impl Drop for SnapshotStream {
    fn drop(&mut self) {
        self.chunks.close();
        self.thread.unpark();
    }
}

/// Starts the thread that sends the server's store to `client`, and returns the stream. The permit
/// is released when the thread ends.
pub(crate) fn start(
    server: &Server,
    client: ClientInfo,
    permit: OwnedSemaphorePermit,
) -> Result<SnapshotStream, Status> {
    let server = server.clone();
    start_thread(client, permit, CLIENT_IDLE_MAX, move |sender| send_snapshot(&server, sender))
}

/// Starts the thread that runs `work`. Must be called on a runtime, whose shutdown waits for the
/// thread.
fn start_thread(
    client: ClientInfo,
    permit: OwnedSemaphorePermit,
    idle_max: Duration,
    work: impl FnOnce(&ChunkSender) -> Result<(), SnapshotError> + Send + 'static,
) -> Result<SnapshotStream, Status> {
    let (to_client, chunks) = mpsc::channel(CHUNKS_AHEAD);
    let (report, result) = oneshot::channel();
    // The thread is not one of the runtime's reusable threads, because it changes to the scheduling
    // class `Batch`, and may be unable to return to another class.
    let thread = thread::Builder::new().name("snapshot".to_owned()).spawn(move || {
        let _permit = permit;
        let result = work(&ChunkSender { chunks: to_client, idle_max });
        let _ = report.send(result.or_else(|error| match error {
            SnapshotError::ClientGone => Ok(()),
            SnapshotError::ClientIdle(idle) => Err(idle_status(&client, idle)),
            SnapshotError::Failed(error) => Err(status::from_error(error)),
        }));
    });
    let join = thread.map_err(|error| Status::resource_exhausted(error.to_string()))?;
    let thread = join.thread().clone();
    tokio::task::spawn_blocking(move || join.join());
    Ok(SnapshotStream { chunks, result: Some(result), thread })
}

/// Returns the error for an idle client, and logs that the snapshot ended.
fn idle_status(client: &ClientInfo, idle: Duration) -> Status {
    tracing::warn!(
        %client,
        ?idle,
        "a snapshot ended before its last chunk: its client has stopped taking chunks"
    );
    Status::aborted(format!("the snapshot ended: its client took nothing for {idle:?}"))
}

fn send_snapshot(server: &Server, to_client: &ChunkSender) -> Result<(), SnapshotError> {
    let exporter = server.threads().store().snapshot().map_err(clearlane_replica::Error::from)?;
    // The call above commits the store, and holds a lock during the commit. So this thread gets its
    // low scheduling class only after the call.
    SchedClass::Batch.apply_to_thread();
    let image = image_of(server, Arc::clone(exporter.snapshot()))?;
    // Only the image is needed, so release the rest of the snapshot.
    drop(exporter);
    let mut writer = SnapshotWriter::new(image);
    while let Some(blob) = writer.next_chunk()? {
        to_client.send(SnapshotResponse {
            remaining_bytes: writer.bytes_left(),
            blob,
            version: STORAGE_VERSION.to_owned(),
            ..SnapshotResponse::default()
        })?;
    }
    Ok(())
}

/// Returns the image of a snapshot. If the store's engine is not `bolt`, the snapshot is first
/// written to a temporary bolt file.
fn image_of(server: &Server, snapshot: Arc<dyn Snapshot>) -> Result<Image, RequestError> {
    let image = Arc::clone(&snapshot).image().map_err(clearlane_replica::Error::from)?;
    if let Some(image) = image {
        return Ok(image);
    }
    let threads = server.threads();
    threads.require_disk_space(threads.sizes().in_use())?;
    let dir = threads.store_dir().temporary_dir().unwrap_or_else(std::env::temp_dir);
    let image = Image::of_records(&*snapshot, &dir);
    Ok(image.map_err(clearlane_replica::Error::from)?)
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use futures_util::{FutureExt as _, StreamExt as _};
    use parking_lot::Mutex;
    use tokio::runtime::{Builder, Runtime};
    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;
    use crate::client_info::RemoteAddress;

    const HOUR: Duration = Duration::from_secs(3600);

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn client() -> ClientInfo {
        ClientInfo::without_tls(RemoteAddress::Unix)
    }

    /// Starts a snapshot of `count` empty chunks.
    async fn start(permits: &SnapshotPermits, count: usize, idle_max: Duration) -> SnapshotStream {
        let permit = permits.acquire(&client()).await;
        let send = move |sender: &ChunkSender| {
            (0..count).try_for_each(|_| sender.send(SnapshotResponse::default()))
        };
        start_thread(client(), permit, idle_max, send).unwrap()
    }

    async fn all_permits(permits: &SnapshotPermits) {
        let all = Arc::clone(&permits.permits).acquire_many_owned(SNAPSHOTS_MAX as u32);
        drop(all.await.unwrap());
    }

    #[test]
    fn a_client_that_takes_nothing_loses_its_permit_and_receives_an_error() {
        runtime().block_on(async {
            let permits = SnapshotPermits::default();
            let idle = Duration::from_millis(30);
            let mut stream = start(&permits, CHUNKS_AHEAD + 1, idle).await;
            all_permits(&permits).await;
            for number in 0..CHUNKS_AHEAD {
                assert!(stream.next().await.unwrap().is_ok(), "chunk {number}");
            }
            let error = stream.next().await.unwrap().unwrap_err();
            assert_eq!(error.message(), "the snapshot ended: its client took nothing for 30ms");
            assert!(stream.next().await.is_none());
        });
    }

    #[test]
    fn each_chunk_that_is_taken_restarts_the_time() {
        runtime().block_on(async {
            let permits = SnapshotPermits::default();
            let (idle, pause) = (Duration::from_secs(2), Duration::from_millis(700));
            let mut stream = start(&permits, CHUNKS_AHEAD + 4, idle).await;
            for _ in 0..4 {
                tokio::time::sleep(pause).await;
                assert!(stream.next().await.unwrap().is_ok());
            }
            let rest: Vec<_> = stream.collect().await;
            assert_eq!(rest.len(), CHUNKS_AHEAD);
            assert!(rest.iter().all(Result::is_ok), "{rest:?}");
        });
    }

    /// Checks that a dropped stream wakes its thread. A thread that is not woken would wait for an
    /// hour.
    #[test]
    fn the_thread_ends_with_its_stream() {
        runtime().block_on(async {
            let permits = SnapshotPermits::default();
            let stream = start(&permits, CHUNKS_AHEAD + 1, HOUR).await;
            // Wait until the channel is full. After that, the thread waits for the client.
            while stream.chunks.len() < CHUNKS_AHEAD {
                tokio::task::yield_now().await;
            }
            assert_eq!(permits.permits.available_permits(), SNAPSHOTS_MAX - 1);
            drop(stream);
            all_permits(&permits).await;
        });
    }

    #[test]
    fn what_the_thread_returns_ends_the_stream() {
        runtime().block_on(async {
            let permits = SnapshotPermits::default();
            let start = async |work: fn(&ChunkSender) -> Result<(), SnapshotError>| {
                let permit = permits.acquire(&client()).await;
                start_thread(client(), permit, HOUR, work).unwrap().collect::<Vec<_>>().await
            };
            assert!(start(|_| Ok(())).await.is_empty());
            let failed = start(|_| Err(RequestError::Stopped.into())).await;
            assert!(matches!(&failed[..], [Err(_)]), "{failed:?}");
            let panicked = start(|_| panic!("planted")).await;
            assert!(matches!(&panicked[..], [Err(_)]), "{panicked:?}");
            all_permits(&permits).await;
        });
    }

    /// Counts the log lines about a snapshot that waits. Only these lines have the field `max`.
    #[derive(Clone, Default)]
    struct WaitLines(Arc<Mutex<usize>>);

    impl Visit for WaitLines {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "max" && value == SNAPSHOTS_MAX as u64 {
                *self.0.lock() += 1;
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
    }

    impl Subscriber for WaitLines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    #[test]
    fn a_snapshot_that_waits_is_logged_once() {
        let lines = WaitLines::default();
        let _log = tracing::subscriber::set_default(lines.clone());
        let (permits, client) = (SnapshotPermits::default(), client());
        let acquire = || permits.acquire(&client).now_or_never();
        let mut taken: Vec<_> = (0..SNAPSHOTS_MAX).map(|_| acquire().unwrap()).collect();
        assert_eq!(*lines.0.lock(), 0);
        let mut waits = Box::pin(permits.acquire(&client));
        let mut poll = || waits.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(poll().is_pending() && poll().is_pending());
        assert_eq!(*lines.0.lock(), 1);
        taken.pop();
        assert!(poll().is_ready());
        assert_eq!(*lines.0.lock(), 1);
    }
}
