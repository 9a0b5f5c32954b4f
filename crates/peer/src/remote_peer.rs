//! One other member: the queues to it, and what is known of the way there.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::tls::Dialer;
use clearlane_raft::Message;
use clearlane_server::threads::{DurationHistogram, PeerTraffic};
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tonic::transport::{Channel, Endpoint};

use super::CONNECTION_TIMEOUT;

/// A heartbeat has 50 bytes.
const URGENT_BYTES_MAX: u64 = 1 << 20;
const BULK_QUEUE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) urls: Vec<String>,
    pub(super) urgent: StreamQueue,
    pub(super) bulk: StreamQueue,
    /// `Some` while the urgent stream is connected.
    connection: Mutex<Option<ActiveConnection>>,
    pub(super) round_trips: Arc<DurationHistogram>,
    pub(super) received_bytes: AtomicU64,
    disconnects: AtomicU64,
    pub(super) snapshots_sent: AtomicU64,
    pub(super) is_cut: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Debug)]
struct ActiveConnection {
    since: Instant,
    channel: Channel,
}

impl Peer {
    /// Returns the ends of its queues, too: urgent and bulk.
    pub(super) fn new(
        id: u64,
        urls: Vec<String>,
    ) -> (Peer, UnboundedReceiver<Message>, UnboundedReceiver<Message>) {
        let (urgent, urgent_end) = StreamQueue::new(URGENT_BYTES_MAX);
        let (long, long_end) = StreamQueue::new(BULK_QUEUE_BYTES_MAX);
        let link = Peer {
            id,
            urls,
            urgent,
            bulk: long,
            connection: Mutex::default(),
            // As in etcd: from 0.1 ms to 3.3 s.
            round_trips: Arc::new(DurationHistogram::new(Duration::from_micros(100), 16)),
            received_bytes: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            snapshots_sent: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            tasks: Mutex::default(),
        };
        (link, urgent_end, long_end)
    }

    fn queue_for(&self, message: &Message) -> &StreamQueue {
        if message.can_be_large() { &self.bulk } else { &self.urgent }
    }

    /// Returns whether there was enough.
    pub(super) fn reserve(&self, message: &Message) -> bool {
        self.queue_for(message).reserve(message)
    }

    /// Its capacity must be reserved.
    pub(super) fn send(&self, message: Message) {
        // The queue was open, and nothing that closes one has run since: it has one thread.
        let _ = self.queue_for(&message).sender.send(message);
    }

    /// The task is aborted with the link.
    pub(super) fn add_task(&self, task: AbortHandle) {
        self.tasks.lock().push(task);
    }

    pub(super) fn close(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
        self.set_disconnected();
    }

    pub(super) fn set_connected(&self, channel: Channel) {
        *self.connection.lock() = Some(ActiveConnection { since: Instant::now(), channel });
    }

    pub(super) fn set_disconnected(&self) {
        if self.connection.lock().take().is_some() {
            self.disconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn active_since(&self) -> Option<Instant> {
        self.connection.lock().as_ref().map(|up| up.since)
    }

    /// The urgent connection's, for unary calls.
    pub(super) fn channel(&self) -> Option<Channel> {
        self.connection.lock().as_ref().map(|up| up.channel.clone())
    }

    pub(super) fn traffic(&self) -> PeerTraffic {
        let queues = [&self.urgent, &self.bulk];
        let sum = |figure: fn(&StreamQueue) -> &AtomicU64| {
            queues.iter().map(|queue| figure(queue).load(Ordering::Relaxed)).sum()
        };
        PeerTraffic {
            id: self.id,
            is_active: self.active_since().is_some(),
            disconnects: self.disconnects.load(Ordering::Relaxed),
            sent_bytes: sum(|queue| &queue.sent),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            dropped_messages: sum(|queue| &queue.dropped),
            raft_snapshots_sent: self.snapshots_sent.load(Ordering::Relaxed),
            round_trips: Arc::clone(&self.round_trips),
        }
    }
}

#[derive(Debug)]
pub(super) struct StreamQueue {
    sender: UnboundedSender<Message>,
    bytes_max: u64,
    bytes: AtomicU64,
    /// Closed while the peer is not there: what is sent now would be old when it arrives.
    pub(super) is_open: AtomicBool,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl StreamQueue {
    fn new(bytes_max: u64) -> (StreamQueue, UnboundedReceiver<Message>) {
        let (sender, end) = unbounded_channel();
        let queue = StreamQueue {
            sender,
            bytes_max,
            bytes: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        (queue, end)
    }

    /// Only the raft loop reserves, so check and addition need not be atomic.
    fn reserve(&self, message: &Message) -> bool {
        let (bytes, waiting) = (message.bytes(), self.bytes.load(Ordering::Relaxed));
        let fits = waiting == 0 || waiting + bytes <= self.bytes_max;
        if !fits || !self.is_open.load(Ordering::Relaxed) || self.sender.is_closed() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// Releases a message's capacity.
    pub(super) fn on_sent(&self, message: &Message) {
        self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
        self.sent.fetch_add(message.bytes(), Ordering::Relaxed);
    }

    /// Refuses new messages and drops those that wait.
    pub(super) fn close(&self, end: &mut UnboundedReceiver<Message>) {
        self.is_open.store(false, Ordering::Relaxed);
        while let Ok(message) = end.try_recv() {
            self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An error does not contain the address.
pub(super) async fn connect(url: &str, outgoing: &Dialer) -> Result<Channel, String> {
    let tune = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(CONNECTION_TIMEOUT)
            .tcp_nodelay(true)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(CONNECTION_TIMEOUT)
            .keep_alive_timeout(CONNECTION_TIMEOUT)
            .keep_alive_while_idle(true)
    };
    outgoing.connect_with(url, tune).await
}

/// Asks on a thread of its own, to the end: the caller may have a runtime, and must not start
/// another on its thread.
pub(super) fn run_on_thread<F: Future<Output: Send>>(
    ask: impl FnOnce() -> F + Send,
) -> io::Result<F::Output> {
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(ask()))
    };
    let joined = thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|_| Err(io::Error::other("the asking thread has panicked")))
}
