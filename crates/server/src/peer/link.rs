//! One other member: the queues to it, and what is known of the way there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_member::node::{Buckets, Traffic};
use clearlane_raft_log::driver::Message;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;
use crate::serve::CONNECTION_WINDOW;
use crate::tls::Outgoing;

/// So many bytes may wait for a stream: a heartbeat has 50.
const URGENT_BYTES_MAX: u64 = 1 << 20;
const LONG_BYTES_MAX: u64 = 64 << 20;

/// The way to one member.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: u64,
    pub(super) urls: Vec<String>,
    pub(super) urgent: Queue,
    pub(super) long: Queue,
    /// There while the urgent stream is.
    up: Mutex<Option<Up>>,
    round_trip_us: AtomicU64,
    round_trips: Arc<Buckets>,
    received: AtomicU64,
    disconnects: AtomicU64,
    copies_sent: AtomicU64,
    is_cut: AtomicBool,
    tasks: Mutex<Vec<AbortHandle>>,
}

#[derive(Debug)]
struct Up {
    since: Instant,
    channel: Channel,
}

/// What is known of the way to a member.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The member.
    pub id: u64,
    /// Since when messages get there; `None` while they do not.
    pub active_since: Option<Instant>,
    /// How long a ping took last.
    pub round_trip: Duration,
    /// Bytes of messages that were given to a stream, about.
    pub sent_bytes: u64,
    /// Copies of the store that have arrived there.
    pub copies_sent: u64,
    /// Messages that were dropped, because the queue was full or nobody was there.
    pub dropped: u64,
}

impl Link {
    /// A link, and the ends of its queues, urgent and long.
    pub(super) fn new(
        id: u64,
        urls: Vec<String>,
    ) -> (Link, UnboundedReceiver<Message>, UnboundedReceiver<Message>) {
        let (urgent, urgent_end) = Queue::new(URGENT_BYTES_MAX);
        let (long, long_end) = Queue::new(LONG_BYTES_MAX);
        let link = Link {
            id,
            urls,
            urgent,
            long,
            up: Mutex::default(),
            round_trip_us: AtomicU64::new(0),
            // As in etcd: from 0.1 ms to 3.3 s.
            round_trips: Arc::new(Buckets::new(Duration::from_micros(100), 16)),
            received: AtomicU64::new(0),
            disconnects: AtomicU64::new(0),
            copies_sent: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            tasks: Mutex::default(),
        };
        (link, urgent_end, long_end)
    }

    fn queue_for(&self, message: &Message) -> &Queue {
        if message.is_long() { &self.long } else { &self.urgent }
    }

    /// Whether there is room for a message, which is then kept for it.
    pub(super) fn takes(&self, message: &Message) -> bool {
        self.queue_for(message).takes(message)
    }

    /// Sends a message for which there is room.
    pub(super) fn send(&self, message: Message) {
        // The queue was open, and nothing that closes one has run since: it has one thread.
        let _ = self.queue_for(&message).sender.send(message);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::Relaxed)
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// The tasks that end with the link.
    pub(super) fn owns(&self, task: AbortHandle) {
        self.tasks.lock().push(task);
    }

    pub(super) fn close(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
        self.is_down();
    }

    pub(super) fn is_up(&self, channel: Channel) {
        *self.up.lock() = Some(Up { since: Instant::now(), channel });
    }

    pub(super) fn is_down(&self) {
        if self.up.lock().take().is_some() {
            self.disconnects.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// So many bytes have come from the member.
    pub(super) fn received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn took(&self, round_trip: Duration) {
        self.round_trips.record(round_trip);
        self.round_trip_us.store(round_trip.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn copy_arrived(&self) {
        self.copies_sent.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn active_since(&self) -> Option<Instant> {
        self.up.lock().as_ref().map(|up| up.since)
    }

    /// For questions.
    pub(super) fn channel(&self) -> Option<Channel> {
        self.up.lock().as_ref().map(|up| up.channel.clone())
    }

    pub(super) fn traffic(&self) -> Traffic {
        let Figures { id, active_since, sent_bytes, copies_sent, dropped, .. } = self.figures();
        Traffic {
            id,
            is_active: active_since.is_some(),
            disconnects: self.disconnects.load(Ordering::Relaxed),
            sent_bytes,
            received_bytes: self.received.load(Ordering::Relaxed),
            dropped,
            copies_sent,
            round_trips: Arc::clone(&self.round_trips),
        }
    }

    pub(super) fn figures(&self) -> Figures {
        let queues = [&self.urgent, &self.long];
        let sum = |figure: fn(&Queue) -> &AtomicU64| {
            queues.iter().map(|queue| figure(queue).load(Ordering::Relaxed)).sum()
        };
        Figures {
            id: self.id,
            active_since: self.active_since(),
            round_trip: Duration::from_micros(self.round_trip_us.load(Ordering::Relaxed)),
            sent_bytes: sum(|queue| &queue.sent),
            copies_sent: self.copies_sent.load(Ordering::Relaxed),
            dropped: sum(|queue| &queue.dropped),
        }
    }
}

/// Messages that wait for a stream.
#[derive(Debug)]
pub(super) struct Queue {
    sender: UnboundedSender<Message>,
    bytes_max: u64,
    bytes: AtomicU64,
    /// Closed while nobody is there: what is said now would be old when it arrives.
    is_open: AtomicBool,
    sent: AtomicU64,
    dropped: AtomicU64,
}

impl Queue {
    fn new(bytes_max: u64) -> (Queue, UnboundedReceiver<Message>) {
        let (sender, end) = unbounded_channel();
        let queue = Queue {
            sender,
            bytes_max,
            bytes: AtomicU64::new(0),
            is_open: AtomicBool::new(true),
            sent: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        (queue, end)
    }

    /// Only the raft loop asks, so nothing comes between the look and the count.
    fn takes(&self, message: &Message) -> bool {
        let (bytes, waiting) = (message.bytes(), self.bytes.load(Ordering::Relaxed));
        let fits = waiting == 0 || waiting + bytes <= self.bytes_max;
        if !fits || !self.is_open.load(Ordering::Relaxed) || self.sender.is_closed() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        true
    }

    /// A message has left the queue.
    pub(super) fn took(&self, message: &Message) {
        self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
        self.sent.fetch_add(message.bytes(), Ordering::Relaxed);
    }

    pub(super) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// Takes nothing more, and drops what waits.
    pub(super) fn close(&self, end: &mut UnboundedReceiver<Message>) {
        self.is_open.store(false, Ordering::Relaxed);
        while let Ok(message) = end.try_recv() {
            self.bytes.fetch_sub(message.bytes(), Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Reaches an address. What goes wrong is told without it.
pub(super) async fn connect(url: &str, outgoing: &Outgoing) -> Result<Channel, String> {
    let tune = |endpoint: Endpoint| {
        endpoint
            .connect_timeout(PATIENCE)
            .tcp_nodelay(true)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .http2_keep_alive_interval(PATIENCE)
            .keep_alive_timeout(PATIENCE)
            .keep_alive_while_idle(true)
    };
    outgoing.connect_as(url, tune).await
}
