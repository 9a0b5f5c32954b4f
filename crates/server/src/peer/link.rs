//! One other member: the queues to it, and what is known of the way there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clearlane_raft_log::driver::Message;
use parking_lot::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;

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
            copies_sent: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            tasks: Mutex::default(),
        };
        (link, urgent_end, long_end)
    }

    /// Leaves a message. Says whether it is on its way.
    pub(super) fn send(&self, message: Message) -> bool {
        let queue = if message.is_long() { &self.long } else { &self.urgent };
        queue.put(message)
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
        *self.up.lock() = None;
    }

    pub(super) fn took(&self, round_trip: Duration) {
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

    /// Only the raft thread puts, so nothing comes between the look and the count.
    fn put(&self, message: Message) -> bool {
        let (bytes, waiting) = (message.bytes(), self.bytes.load(Ordering::Relaxed));
        let fits = waiting == 0 || waiting + bytes <= self.bytes_max;
        if !fits || !self.is_open.load(Ordering::Relaxed) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.sender.send(message).is_ok()
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

/// How to reach an address.
pub(super) fn endpoint(url: &str) -> Result<Endpoint, String> {
    if !url.starts_with("http://") {
        return Err(format!("{url}: only http:// is spoken between members yet"));
    }
    let endpoint =
        Endpoint::from_shared(url.to_owned()).map_err(|error| format!("{url}: {error}"))?;
    Ok(endpoint
        .connect_timeout(PATIENCE)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PATIENCE)
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true))
}
