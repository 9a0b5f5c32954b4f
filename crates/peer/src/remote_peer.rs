//! One other member: the queues of messages to it, and the state of the connection to it.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clearlane_net::CONNECTION_WINDOW_BYTES;
use clearlane_net::tls::Dialer;
use clearlane_proto::peerpb::Echo;
use clearlane_raft::Message;
use clearlane_server::threads::{DurationHistogram, PeerTraffic};
use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Sender, UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::CONNECTION_TIMEOUT;

/// Maximum number of bytes in the urgent queue. A heartbeat counts as 64 bytes. An empty queue,
/// urgent or bulk, takes even a message that is longer than the queue's limit.
const URGENT_BYTES_MAX: u64 = 1 << 20;
const BULK_QUEUE_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) id: u64,
    pub(super) urls: Vec<String>,
    pub(super) urgent: StreamQueue,
    pub(super) bulk: StreamQueue,
    /// The connection of the urgent stream. `None` while that stream is not connected.
    connection: Mutex<Option<ActiveConnection>>,
    pub(super) round_trips: Arc<DurationHistogram>,
    pub(super) received_bytes: AtomicU64,
    disconnects: AtomicU64,
    pub(super) snapshots_sent: AtomicU64,
    pub(super) is_cut: AtomicBool,
    way_back: watch::Sender<Option<WayBack>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

/// The sending end of a stream that the peer has opened. It carries messages to the peer while no
/// connection to the peer can be made.
pub(super) type WayBack = Sender<Result<Echo, Status>>;

#[derive(Debug)]
struct ActiveConnection {
    since: Instant,
    channel: Channel,
}

impl Peer {
    /// Creates a peer. Also returns the receiving ends of its queues: urgent and bulk.
    pub(super) fn new(
        id: u64,
        urls: Vec<String>,
    ) -> (Peer, UnboundedReceiver<Message>, UnboundedReceiver<Message>) {
        let (urgent, urgent_end) = StreamQueue::new(URGENT_BYTES_MAX);
        let (bulk, bulk_end) = StreamQueue::new(BULK_QUEUE_BYTES_MAX);
        let link = Peer {
            id,
            urls,
            urgent,
            bulk,
            connection: Mutex::default(),
            // The same buckets as etcd's: from 0.1 ms to 3.3 s.
            round_trips: Arc::new(DurationHistogram::new(Duration::from_micros(100), 16)),
            received_bytes: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            snapshots_sent: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            way_back: watch::Sender::new(None),
            tasks: Mutex::default(),
        };
        (link, urgent_end, bulk_end)
    }

    /// Uses a stream, which the peer has opened, as the way back. If `is_new` is true, the stream
    /// replaces an older one, because the connection of the older stream may be broken. Otherwise
    /// the stream is used only if there is no open way back.
    pub(super) fn set_way_back(&self, stream: &WayBack, is_new: bool) {
        self.way_back.send_if_modified(|way_back| {
            let is_needed = is_new || way_back.as_ref().is_none_or(WayBack::is_closed);
            if is_needed {
                *way_back = Some(stream.clone());
            }
            is_needed
        });
    }

    /// Removes the way back if it is `stream`, which has ended. A newer stream of the peer stays.
    pub(super) fn remove_way_back(&self, stream: &WayBack) {
        self.way_back.send_if_modified(|way_back| {
            let is_this = way_back.as_ref().is_some_and(|other| other.same_channel(stream));
            if is_this {
                *way_back = None;
            }
            is_this
        });
    }

    pub(super) fn has_way_back(&self) -> bool {
        self.way_back.borrow().as_ref().is_some_and(|way_back| !way_back.is_closed())
    }

    /// Waits until there is an open stream that the peer has opened, and returns its sending end.
    pub(super) async fn way_back(&self) -> WayBack {
        let mut way_back = self.way_back.subscribe();
        let is_open = |way: &Option<WayBack>| way.as_ref().is_some_and(|way| !way.is_closed());
        let found = way_back.wait_for(is_open).await.ok().and_then(|way_back| way_back.clone());
        match found {
            Some(way_back) => way_back,
            // Never reached: `wait_for` fails only after the sender was dropped, and `self` holds
            // the sender.
            None => pending().await,
        }
    }

    /// Waits until the peer opens another stream than those that it has opened before this call.
    pub(super) fn new_way_back(&self) -> impl Future<Output = ()> + use<> {
        let mut way_back = self.way_back.subscribe();
        async move {
            while way_back.changed().await.is_ok() {
                if way_back.borrow().is_some() {
                    return;
                }
            }
            pending().await
        }
    }

    fn queue_for(&self, message: &Message) -> &StreamQueue {
        if message.can_be_large() { &self.bulk } else { &self.urgent }
    }

    /// Reserves capacity for a message in its queue. Returns false, and counts a dropped message,
    /// if the queue is full or closed.
    pub(super) fn reserve(&self, message: &Message) -> bool {
        self.queue_for(message).reserve(message)
    }

    /// Queues a message whose capacity was reserved.
    pub(super) fn send(&self, message: Message) {
        // The queue was open when the capacity was reserved. No task that closes a queue has run
        // since, because raft and these tasks share one thread.
        let _ = self.queue_for(&message).sender.send(message);
    }

    /// Adds a task of this peer. [`close`](Self::close) aborts the task.
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

    /// Returns the channel of the urgent connection, for unary calls. `None` if that connection is
    /// not open.
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
    /// If false, the queue rejects messages. The flag becomes false when the stream breaks, when
    /// the way back ends, and when an attempt to connect fails without a way back. It becomes true
    /// when the next attempt starts, when the stream is connected, and when the member opens a way
    /// back. Messages that were queued in between would be outdated on arrival.
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

    /// Reserves capacity. Returns false if the queue is closed, or if it is not empty and the
    /// message does not fit. Only the raft loop calls this, so the check and the addition need not
    /// form one atomic operation.
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

    /// Releases the capacity of a sent message.
    pub(super) fn on_sent(&self, message: &Message) {
        self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
        self.sent.fetch_add(message.bytes(), Ordering::Relaxed);
    }

    /// Rejects new messages and drops the waiting messages.
    pub(super) fn close(&self, end: &mut UnboundedReceiver<Message>) {
        self.is_open.store(false, Ordering::Relaxed);
        while let Ok(message) = end.try_recv() {
            self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Connects to a member. An error does not contain the address.
pub(super) async fn connect(url: &str, outgoing: &Dialer) -> Result<Channel, String> {
    let read_timeout = outgoing.rules().read_timeout;
    let tune = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(CONNECTION_TIMEOUT)
            .tcp_nodelay(true)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .http2_keep_alive_interval(read_timeout)
            .keep_alive_timeout(read_timeout)
            .keep_alive_while_idle(true)
    };
    outgoing.connect_with(url, tune).await
}

/// Runs a future to completion on a separate thread. The caller's thread may already run a runtime,
/// and cannot run a second one.
pub(super) fn run_on_thread<F: Future<Output: Send>>(
    ask: impl FnOnce() -> F + Send,
) -> io::Result<F::Output> {
    let work = || {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(runtime.block_on(ask()))
    };
    let joined = thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|_| Err(io::Error::other("the thread of the request has panicked")))
}
