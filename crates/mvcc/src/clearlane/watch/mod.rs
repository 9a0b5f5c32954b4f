//! The watchable store of the default era: a writer only appends to a queue.
//!
//! ```text
//!   writer ──publish──▶ queue ──deliver──▶ interval tree ──▶ channels ──▶ clients
//!                         │ full                │ channel full   │ half empty again
//!                         ▼                     ▼                ▼
//!           all synced watchers          the watcher         sync_watchers reads the store
//!           become unsynced              becomes unsynced    for the unsynced watchers
//! ```
//!
//! A read for an unsynced watcher uses a snapshot and holds no lock of the watchable store. The
//! delivery of a transaction reads previous records with `watchDelivery` held.
//!
//! Lock order: `watchDelivery`, `watchers`, then `watchQueue` or `watchStream`.
//!
//! Invariant: a watcher that becomes synced misses no event between its last read and its first
//! delivery. So, when a watcher is created, the queue is marked as watched before the store's
//! revision is read. In etcd: `watchableStore`, see [`etcd::watch`](crate::etcd::watch). See also
//! `docs/watch.md`.

mod counted_events;
mod delivery_queue;
mod unsynced_reader;
mod watchers;

use std::sync::Arc;

use clearlane_contention::{Mutex, Registry};

use self::delivery_queue::{DeliveryQueue, QueueItem, QueuedTxn};
use self::unsynced_reader::{SyncBudget, previous_record};
use self::watchers::{DeliveryResult, Watchers};
use crate::changes::Changes;
use crate::clearlane::store::SnapshotStore;
use crate::error::Result;
use crate::interface::{ConsistentIndex, ReadTxn as _};
use crate::watch::channel::{ChannelCapacity, WakeSet, WatchChannel, wake_all};
use crate::watch::detached_stream::DetachedStream;
use crate::watch::interface::{
    WatchConfig, WatchMetrics, WatchWork, WatchableKv, WatchableStore, WorkSignal,
};
use crate::watch::response::{Event, WatchId, WatchRequest};

const TXNS_PER_DELIVERY: usize = 16;

pub struct SnapshotWatchableStore<A> {
    store: Arc<SnapshotStore<A>>,
    config: WatchConfig,
    locks: Registry,
    delivery: Mutex<()>,
    watchers: Mutex<Watchers>,
    queue: Mutex<DeliveryQueue>,
    signal: WorkSignal,
}

impl<A: ConsistentIndex> SnapshotWatchableStore<A> {
    /// Creates a watchable store without watchers. `signal` is called when there are transactions
    /// to deliver, and when there is an unsynced watcher that must read the store. It must not call
    /// back into the watchable store.
    pub fn new(
        store: Arc<SnapshotStore<A>>,
        config: WatchConfig,
        locks: &Registry,
        signal: WorkSignal,
    ) -> SnapshotWatchableStore<A> {
        let watchers = Watchers::new(store.begin_read().revision());
        let queue = DeliveryQueue::new(config.queue_bytes_max);
        SnapshotWatchableStore {
            store,
            config,
            locks: locks.clone(),
            delivery: Mutex::new(locks, "watchDelivery", ()),
            watchers: Mutex::new(locks, "watchers", watchers),
            queue: Mutex::new(locks, "watchQueue", queue),
            signal,
        }
    }

    fn with_previous_records(&self, events: &[Event], wanted: &[bool]) -> Result<Arc<[Event]>> {
        let read_txn = self.store.begin_read();
        let with_previous = events.iter().zip(wanted).map(|(event, wanted)| {
            let change = event.change.clone();
            let prev_kv = wanted.then(|| previous_record(&read_txn, &change)).transpose()?;
            Ok(Event { change, prev_kv: prev_kv.flatten() })
        });
        with_previous.collect()
    }

    /// Delivers up to 16 items of the queue. Returns true if the queue may have more items.
    fn deliver_queued(&self, delivery: &mut DeliveryResult) -> Result<bool> {
        let _in_order = self.delivery.lock();
        for _ in 0..TXNS_PER_DELIVERY {
            let next = self.queue.lock().pop();
            match next {
                Some(QueueItem::Txn(txn)) => self.notify(txn, delivery)?,
                Some(QueueItem::Overflowed(up_to)) => self.unsync_up_to(up_to, delivery),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn notify(&self, txn: QueuedTxn, delivery: &mut DeliveryResult) -> Result<()> {
        let (revision, events) = (txn.revision, txn.into_events());
        let wanted = self.watchers.lock().needs_prev_kv(&events);
        let previous = if wanted.contains(&true) {
            // No event is lost if this read fails: the watchers become unsynced and read the store
            // later.
            let previous = self.with_previous_records(&events, &wanted);
            previous.inspect_err(|_| self.unsync_up_to(revision, delivery))?
        } else {
            Arc::clone(&events)
        };
        self.watchers.lock().notify(revision, &events, &previous, delivery);
        Ok(())
    }

    /// Skips the delivery of all transactions up to `up_to`. All synced watchers read the store
    /// instead, except watchers that start after `up_to`.
    fn unsync_up_to(&self, up_to: i64, delivery: &mut DeliveryResult) {
        self.watchers.lock().unsync_up_to(up_to);
        delivery.has_overflowed = true;
    }

    fn clear_queue_if_unwatched(&self, watchers: &Watchers) {
        if watchers.is_empty() {
            self.queue.lock().clear_unwatched();
        }
    }
}

impl<A: ConsistentIndex> WatchableKv<A> for SnapshotStore<A> {
    fn open_watchable_store(
        self: Arc<Self>,
        config: WatchConfig,
        locks: &Registry,
        signal: WorkSignal,
    ) -> Arc<dyn WatchableStore> {
        Arc::new(SnapshotWatchableStore::new(self, config, locks, signal))
    }
}

impl<A: ConsistentIndex> WatchableStore for SnapshotWatchableStore<A> {
    fn open_stream(&self, wake_set: Arc<WakeSet>) -> Arc<WatchChannel> {
        let capacity = ChannelCapacity::Bytes(self.config.stream_bytes_max);
        let mut watchers = self.watchers.lock();
        watchers.open(|stream| WatchChannel::new(stream, capacity, &self.locks, wake_set))
    }

    fn watch(&self, stream: &WatchChannel, request: WatchRequest) {
        let mut watchers = self.watchers.lock();
        let was_watched = std::mem::replace(&mut self.queue.lock().has_watchers, true);
        // Each transaction that is published after `has_watchers` was set enters the queue. All
        // earlier changes are in the store at `now`.
        let now = self.store.begin_read().revision();
        if !was_watched {
            watchers.advance_to(now);
        }
        let is_unsynced = watchers.watch(stream.stream, request, now);
        self.clear_queue_if_unwatched(&watchers);
        drop(watchers);
        stream.wake();
        if is_unsynced {
            (self.signal)(WatchWork::SyncWatchers);
        }
    }

    fn cancel(&self, stream: &WatchChannel, id: WatchId) {
        let mut watchers = self.watchers.lock();
        watchers.cancel(stream.stream, id, self.store.begin_read().revision());
        self.clear_queue_if_unwatched(&watchers);
        drop(watchers);
        stream.wake();
    }

    fn request_progress(&self, stream: &WatchChannel) {
        let now = self.store.begin_read().revision();
        let to_wake = self.watchers.lock().request_progress(stream.stream, now);
        wake_all(&to_wake);
    }

    fn notify_progress(&self, stream: &WatchChannel) {
        self.watchers.lock().notify_progress(stream.stream);
        stream.wake();
    }

    fn resume_stream(&self, stream: &WatchChannel) {
        self.queue.lock().resumed_streams.push(stream.stream);
        (self.signal)(WatchWork::SyncWatchers);
    }

    fn close_stream(&self, stream: &WatchChannel) {
        let mut watchers = self.watchers.lock();
        watchers.close(stream.stream);
        self.clear_queue_if_unwatched(&watchers);
    }

    fn publish_all(&self, transactions: Vec<(i64, Changes)>) {
        let mut queue = self.queue.lock();
        if !queue.has_watchers {
            // Unwatched changes are dropped after the lock is released, because dropping many
            // changes takes a long time.
            return drop(queue);
        }
        let mut may_sleep = false;
        for (revision, changes) in transactions {
            may_sleep |= queue.publish(revision, changes);
        }
        drop(queue);
        if may_sleep {
            (self.signal)(WatchWork::Delivery);
        }
    }

    fn deliver(&self) -> Result<bool> {
        let mut delivery = DeliveryResult::default();
        let more = self.deliver_queued(&mut delivery);
        wake_all(&delivery.to_wake);
        if delivery.has_overflowed {
            // If the sync thread is not this thread, it may be asleep.
            (self.signal)(WatchWork::SyncWatchers);
        }
        more
    }

    fn sync_watchers(&self) -> Result<bool> {
        let task = {
            let mut watchers = self.watchers.lock();
            let resumed = std::mem::take(&mut self.queue.lock().resumed_streams);
            resumed.into_iter().for_each(|stream| watchers.schedule_stream(stream));
            watchers.next_sync_task()
        };
        let Some(mut task) = task else { return Ok(false) };
        let read_txn = self.store.begin_read();
        let WatchConfig { sync_step_records: records, sync_step_bytes: bytes, .. } = self.config;
        let step = match task.reader.step(&read_txn, &task.request, SyncBudget { records, bytes }) {
            Ok(step) => step,
            Err(error) => {
                self.watchers.lock().requeue_sync_task(task);
                return Err(error);
            }
        };
        let to_wake = self.watchers.lock().finish_sync_task(task, step, read_txn.revision());
        if let Some(channel) = to_wake {
            channel.wake();
        }
        Ok(true)
    }

    fn detach_streams(&self) -> Vec<DetachedStream> {
        let mut watchers = self.watchers.lock();
        let streams = watchers.detach_streams();
        self.clear_queue_if_unwatched(&watchers);
        streams
    }

    fn attach_streams(&self, streams: Vec<DetachedStream>) {
        let mut watchers = self.watchers.lock();
        self.queue.lock().has_watchers = true;
        let now = self.store.begin_read().revision();
        watchers.advance_to(now);
        streams.into_iter().for_each(|stream| watchers.attach_stream(stream, now));
        self.clear_queue_if_unwatched(&watchers);
        drop(watchers);
        (self.signal)(WatchWork::SyncWatchers);
    }

    fn metrics(&self) -> WatchMetrics {
        let queued = self.queue.lock().len();
        self.watchers.lock().metrics(queued)
    }
}

impl<A> std::fmt::Debug for SnapshotWatchableStore<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotWatchableStore")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
