//! The hub of the default era: writers hand over, nobody holds them up.
//!
//! ```text
//!   writer ──publish──▶ queue ──deliver──▶ interval tree ──▶ outboxes ──▶ clients
//!              (1)        │ full                │ full           │ room again
//!                         ▼                     ▼                ▼
//!                      everybody behind      that one behind ──catch_up──▶ reads a view (2)
//! ```
//!
//! 1. All that a writer does is append its changes to the queue. It does so after its clients are
//!    answered, and waits for no watcher, however many there are.
//! 2. Catching up reads a view of the store, with no lock held.
//!
//! # Who holds what
//!
//! | lock | guards | held for |
//! |---|---|---|
//! | `watchDelivery` | the order in which transactions are handed on | one transaction |
//! | `watchers` | who watches what, and how each stands | one transaction's events |
//! | `watchQueue` | what was published | an append or a removal |
//! | `watchStream` | one outbox | the events of one transaction for it |
//!
//! Order: `watchDelivery`, `watchers`, then `watchQueue` or `watchStream`.
//!
//! # When is a watcher in step?
//!
//! Making a watcher looks at the store's revision *now* with `watchers` held. It is in step if it
//! starts behind that, and what it is handed begins at `now + 1`; else it is behind and catches up.
//! Nothing falls between: what was published up to `now` is in the store, and what comes later goes
//! through the queue, for the queue is told that it is watched before the store is looked at.
//!
//! The end of catching up is the same thought: the view that was read to its end is at revision V.
//! If nothing above V was handed on yet, the watcher is in step from `V + 1`; else it reads again.

mod counted;
mod queue;
mod watchers;

use std::sync::Arc;

use clearlane_locks::{Mutex, Registry};

use self::queue::{Batch, Next, Queue};
use self::watchers::{HandedOn, Watchers};
use super::catch_up::{self, Budget};
use super::response::{Event, WatchId, WatchRequest};
use super::stream::{Bound, Outbox, wake_all};
use super::{Due, MovingStream, Takers, Waker, WatchConfig, WatchFigures, WatchHub};
use crate::error::Result;
use crate::store::{Applied, Change, SnapshotStore};
use crate::tree_index::TreeIndex;
use crate::tree_index::persistent::PersistentIndex;

/// So many transactions are handed on by one call.
const DELIVERED_MAX: usize = 16;

/// The watchers of a store of the default era.
pub struct SnapshotHub<A, I: TreeIndex = PersistentIndex> {
    store: Arc<SnapshotStore<A, I>>,
    config: WatchConfig,
    locks: Registry,
    delivery: Mutex<()>,
    watchers: Mutex<Watchers>,
    queue: Mutex<Queue>,
    wake: Waker,
}

impl<A: Applied, I: TreeIndex> SnapshotHub<A, I> {
    /// A hub without watchers. `wake` is called when there is something to deliver or to catch up
    /// with; it must not call back into the hub.
    pub fn new(
        store: Arc<SnapshotStore<A, I>>,
        config: WatchConfig,
        locks: &Registry,
        wake: Waker,
    ) -> SnapshotHub<A, I> {
        let watchers = Watchers::new(store.read().revision());
        let queue = Queue::new(config.queue_bytes_max);
        SnapshotHub {
            store,
            config,
            locks: locks.clone(),
            delivery: Mutex::new(locks, "watchDelivery", ()),
            watchers: Mutex::new(locks, "watchers", watchers),
            queue: Mutex::new(locks, "watchQueue", queue),
            wake,
        }
    }

    /// The same events with the records before them, where they are wanted.
    fn with_previous(&self, events: &[Event], wanted: &[bool]) -> Result<Arc<[Event]>> {
        let view = self.store.read();
        let with_previous = events.iter().zip(wanted).map(|(event, wanted)| {
            let previous = if *wanted { catch_up::previous(&view, &event.change)? } else { None };
            Ok(Event { change: event.change.clone(), previous })
        });
        with_previous.collect()
    }

    /// Hands on what is queued, up to a bound. Says whether there is more.
    fn hand_on_queued(&self, handed_on: &mut HandedOn) -> Result<bool> {
        let _in_order = self.delivery.lock();
        for _ in 0..DELIVERED_MAX {
            let next = self.queue.lock().next();
            match next {
                Some(Next::Batch(batch)) => self.hand_on(&batch, handed_on)?,
                Some(Next::Lost(up_to)) => self.lose(up_to, handed_on),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn hand_on(&self, batch: &Batch, handed_on: &mut HandedOn) -> Result<()> {
        let wanted = self.watchers.lock().want_previous(&batch.events);
        let previous = if wanted.contains(&true) {
            // What cannot be read now is not lost: it is read again by catching up.
            let previous = self.with_previous(&batch.events, &wanted);
            previous.inspect_err(|_| self.lose(batch.revision, handed_on))?
        } else {
            Arc::clone(&batch.events)
        };
        self.watchers.lock().hand_on(batch.revision, &batch.events, &previous, handed_on);
        Ok(())
    }

    /// Sends everybody to the store for what was published up to a revision.
    fn lose(&self, up_to: i64, handed_on: &mut HandedOn) {
        self.watchers.lock().lose(up_to);
        handed_on.lost = true;
    }

    /// The queue forgets everything if there is nobody left.
    fn note_absence(&self, watchers: &Watchers) {
        if watchers.is_empty() {
            self.queue.lock().unwatched();
        }
    }
}

impl<A: Applied, I: TreeIndex> WatchHub for SnapshotHub<A, I> {
    fn open(&self, takers: Arc<dyn Takers>, name: u64) -> Arc<Outbox> {
        let bound = Bound::Bytes(self.config.stream_bytes_max);
        self.watchers.lock().open(|stream| Outbox::new(stream, bound, &self.locks, takers, name))
    }

    fn watch(&self, stream: &Outbox, request: WatchRequest) {
        let mut watchers = self.watchers.lock();
        let was_watched = std::mem::replace(&mut self.queue.lock().watched, true);
        // From here on nothing that is published is passed over; what was before is in the store.
        let now = self.store.read().revision();
        if !was_watched {
            watchers.skip_to(now);
        }
        let behind = watchers.watch(stream.stream, request, now);
        self.note_absence(&watchers);
        drop(watchers);
        stream.wake();
        if behind {
            (self.wake)(Due::CatchUp);
        }
    }

    fn cancel(&self, stream: &Outbox, id: WatchId) {
        let mut watchers = self.watchers.lock();
        watchers.cancel(stream.stream, id, self.store.read().revision());
        self.note_absence(&watchers);
        drop(watchers);
        stream.wake();
    }

    fn request_progress(&self, stream: &Outbox) {
        let now = self.store.read().revision();
        let to_wake = self.watchers.lock().ask_progress(stream.stream, now);
        wake_all(&to_wake);
    }

    fn interval_passed(&self, stream: &Outbox) {
        self.watchers.lock().interval_passed(stream.stream);
        stream.wake();
    }

    fn drained(&self, stream: &Outbox) {
        self.queue.lock().drained(stream.stream);
        (self.wake)(Due::CatchUp);
    }

    fn close(&self, stream: &Outbox) {
        let mut watchers = self.watchers.lock();
        watchers.close(stream.stream);
        self.note_absence(&watchers);
    }

    fn publish_all(&self, transactions: Vec<(i64, Vec<Change>)>) {
        let mut queue = self.queue.lock();
        let mut may_sleep = false;
        for (revision, changes) in transactions {
            may_sleep |= queue.publish(revision, changes);
        }
        drop(queue);
        if may_sleep {
            (self.wake)(Due::Delivery);
        }
    }

    fn deliver(&self) -> Result<bool> {
        let mut handed_on = HandedOn::default();
        let more = self.hand_on_queued(&mut handed_on);
        wake_all(&handed_on.to_wake);
        if handed_on.lost {
            // Whoever catches up may be another thread than this one, and asleep.
            (self.wake)(Due::CatchUp);
        }
        more
    }

    fn catch_up(&self) -> Result<bool> {
        let turn = {
            let mut watchers = self.watchers.lock();
            let drained = self.queue.lock().take_drained();
            drained.into_iter().for_each(|stream| watchers.make_ready(stream));
            watchers.next_turn()
        };
        let Some(mut turn) = turn else { return Ok(false) };
        let view = self.store.read();
        let WatchConfig { step_records: records, step_bytes: bytes, .. } = self.config;
        let step = match turn.catch_up.step(&view, &turn.request, Budget { records, bytes }) {
            Ok(step) => step,
            Err(error) => {
                self.watchers.lock().put_back(turn);
                return Err(error);
            }
        };
        let to_wake = self.watchers.lock().end_turn(turn, step, view.revision());
        if let Some(outbox) = to_wake {
            outbox.wake();
        }
        Ok(true)
    }

    fn leave(&self) -> Vec<MovingStream> {
        let mut watchers = self.watchers.lock();
        let streams = watchers.leave();
        self.note_absence(&watchers);
        streams
    }

    fn adopt(&self, streams: Vec<MovingStream>) {
        let mut watchers = self.watchers.lock();
        self.queue.lock().watched = true;
        let now = self.store.read().revision();
        watchers.skip_to(now);
        streams.into_iter().for_each(|stream| watchers.adopt(stream, now));
        self.note_absence(&watchers);
        drop(watchers);
        (self.wake)(Due::CatchUp);
    }

    fn figures(&self) -> WatchFigures {
        let queued = self.queue.lock().len();
        WatchFigures { queued, ..self.watchers.lock().figures() }
    }
}

impl<A, I: TreeIndex> std::fmt::Debug for SnapshotHub<A, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotHub").field("config", &self.config).finish_non_exhaustive()
    }
}
