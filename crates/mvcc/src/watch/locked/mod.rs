//! The hub of the old eras: everything under one lock, which every write takes.
//!
//! This is etcd's way to this day, kept so that the difference can be shown. The lock `watchable`
//! guards all watchers, and three parties hold it for long:
//!
//! * **A write transaction**, at its end (in design 3.1 from beginning to end): it tells the synced
//!   watchers, and keeps the lock while the backend's transaction ends, write-back and perhaps a
//!   commit included. A thousand watchers of a key are told before the next put gets on.
//! * **A round of synchronising**, every 100 ms: it reads *every record from the oldest revision
//!   that one of up to 512 watchers has missed, to now*, and then tells each up to 1,000 revisions
//!   of it. It holds `revMu` and `readTx` besides. What was read and not told is read again in the
//!   next round:
//!
//! ```text
//!   a watcher starts 200,000 revisions back
//!   round 1   reads 200,000 records, tells 1,000     ████████████████████ watchable held
//!   round 2   reads 199,000 records, tells 1,000     ███████████████████
//!   ...                                                                   put: waits, each time
//!   round 200 reads   1,000 records, tells 1,000     █
//! ```
//!
//! * **Retrying victims**, every 10 ms, for as long as it takes to look at all of them.
//!
//! # Lock order
//!
//! In designs 3.2 to 3.5: `store` (shared), `batchTx`, `watchable`, `revMu`, `readTx`; a round
//! begins with `watchable`. In design 3.1: `watchable`, `store`, `batchTx`, for writes and rounds
//! alike; so there a write transaction has `watchable` for its whole length.
//!
//! # Previous records
//!
//! etcd fetches them when a response is sent, one read per event and watcher. So does this hub: see
//! [`complete`](WatchHub::complete).

pub(crate) mod watchable;

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Design, ReadTx};
use clearlane_engine::{Bucket, KeyRange};
use clearlane_locks::{Mutex, Registry};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use self::watchable::{ToWake, Watchable, wake};
use super::response::{Event, Response, Says, WatchId, WatchRequest};
use super::stream::{Bound, Outbox};
use super::{MovingStream, Takers, WatchFigures, WatchHub};
use crate::error::{Error, Result};
use crate::revision::{Mark, RecordKey, Revision};
use crate::store::Change;

/// So many responses a stream keeps: etcd's channel, until 3.2 and later.
const RESPONSES_MAX_UNTIL_3_2: usize = 1024;
const RESPONSES_MAX: usize = 128;

/// What the hub needs of a store of an old era.
pub(crate) trait WatchedStore: Send + Sync + Debug + 'static {
    fn design(&self) -> Design;

    /// The watchers, whom the store tells at the end of each write transaction.
    fn watchable(&self) -> &Mutex<Watchable>;

    /// Calls `work` with the current and the compact revision, and keeps them from changing
    /// meanwhile: with `revMu` held, or in design 3.1 with `store`.
    fn with_revisions(&self, work: &mut dyn FnMut(i64, i64));

    /// The records, with the plain read transaction.
    fn read_locked(&self) -> Box<dyn ReadTx + '_>;

    /// The record of a key at a revision, read like any other.
    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>>;
}

/// The watchers of a store of an old era.
#[derive(Debug)]
pub(crate) struct LockedHub<S> {
    store: Arc<S>,
    locks: Registry,
}

impl<S: WatchedStore> LockedHub<S> {
    pub(crate) fn new(store: Arc<S>, locks: &Registry) -> LockedHub<S> {
        LockedHub { store, locks: locks.clone() }
    }

    /// Does something with the watchers, at the store's current revision.
    fn with<R>(&self, work: impl FnOnce(&mut Watchable, i64) -> R) -> R {
        let mut watchable = self.store.watchable().lock();
        let mut now = 0;
        self.store.with_revisions(&mut |current, _| now = current);
        work(&mut watchable, now)
    }

    /// A round: everything since the oldest revision that was missed, whoever wants it.
    fn round(&self, watchable: &mut Watchable, to_wake: &mut ToWake) -> Result<()> {
        let mut outcome = Ok(());
        self.store.with_revisions(&mut |current, compacted| {
            let Some(round) = watchable.begin_round(compacted, to_wake) else { return };
            match records(&*self.store.read_locked(), round.from, current) {
                Ok(events) => watchable.end_round(round, &events, current, to_wake),
                Err(error) => outcome = Err(error),
            }
        });
        outcome
    }

    fn previous(&self, event: &Event) -> Result<Option<KeyValue>> {
        let (Change::Put(record) | Change::Delete(record)) = &event.change;
        let before = record.mod_revision - 1;
        let created = event.mark() == Mark::Put && record.create_revision > before;
        if created {
            return Ok(None);
        }
        match self.store.record_at(&record.key, before) {
            // It was compacted meanwhile; the event goes without it.
            Err(Error::Compacted) => Ok(None),
            found => found,
        }
    }
}

/// All records of these main revisions, as events.
fn records(tx: &dyn ReadTx, from: i64, up_to: i64) -> Result<Vec<Event>> {
    let (first, end) = (Revision::new(from, 0).put_key(), Revision::new(up_to + 1, 0).put_key());
    let (mut events, mut outcome) = (Vec::new(), Ok(()));
    tx.range(Bucket::Key, KeyRange::new(&first, &end), &mut |key, value| {
        match event(key, &value) {
            Ok(event) => events.push(event),
            Err(error) => outcome = Err(error),
        }
        if outcome.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    outcome.map(|()| events)
}

fn event(key: &[u8], value: &[u8]) -> Result<Event> {
    let (revision, mark) =
        RecordKey::decode(key).map_err(|error| Error::Damaged(error.to_string()))?;
    let record = KeyValue::decode(value)
        .map_err(|error| Error::Damaged(format!("the record of revision {revision}: {error}")))?;
    let change = match mark {
        Mark::Put => Change::Put(record),
        Mark::Tombstone => Change::Delete(KeyValue { mod_revision: revision.main, ..record }),
    };
    Ok(Event { change, previous: None })
}

impl<S: WatchedStore> WatchHub for LockedHub<S> {
    fn open(&self, takers: Arc<dyn Takers>, name: u64) -> Arc<Outbox> {
        let until_3_2 = self.store.design() <= Design::ReadTx;
        let responses = if until_3_2 { RESPONSES_MAX_UNTIL_3_2 } else { RESPONSES_MAX };
        let bound = Bound::Responses(responses);
        let mut watchable = self.store.watchable().lock();
        watchable.open(|stream| Outbox::new(stream, bound, &self.locks, takers, name))
    }

    fn watch(&self, stream: &Outbox, request: WatchRequest) {
        self.with(|watchable, now| watchable.watch(stream.stream, request, now));
        stream.wake();
    }

    fn cancel(&self, stream: &Outbox, id: WatchId) {
        self.with(|watchable, now| watchable.cancel(stream.stream, id, now));
        stream.wake();
    }

    fn request_progress(&self, stream: &Outbox) {
        self.with(|watchable, now| watchable.request_progress(stream.stream, now));
        stream.wake();
    }

    fn interval_passed(&self, stream: &Outbox) {
        self.with(|watchable, now| watchable.interval_passed(stream.stream, now));
        stream.wake();
    }

    /// Victims are retried by the clock.
    fn drained(&self, _stream: &Outbox) {}

    fn complete(&self, stream: &Outbox, responses: &mut [Response]) -> Result<()> {
        for response in responses {
            let Says::Events { events, .. } = &mut response.says else { continue };
            if stream.completes(response.id) {
                let complete = |event: &Event| {
                    let (change, previous) = (event.change.clone(), self.previous(event)?);
                    Ok(Event { change, previous })
                };
                *events = events.iter().map(complete).collect::<Result<_>>()?;
            }
        }
        Ok(())
    }

    fn close(&self, stream: &Outbox) {
        self.store.watchable().lock().close(stream.stream);
    }

    /// The write transaction has told everybody when it ended.
    fn publish_all(&self, _transactions: Vec<(i64, Vec<Change>)>) {}

    /// Retries the victims, as etcd does every 10 ms.
    fn deliver(&self) -> Result<bool> {
        let to_wake = self.with(|watchable, now| {
            if watchable.has_victims() { watchable.retry_victims(now) } else { ToWake::new() }
        });
        wake(&to_wake);
        Ok(!to_wake.is_empty())
    }

    /// A round of synchronising, as etcd does every 100 ms.
    fn catch_up(&self) -> Result<bool> {
        let mut watchable = self.store.watchable().lock();
        let mut to_wake = ToWake::new();
        let done = self.round(&mut watchable, &mut to_wake);
        let is_more = watchable.has_unsynced();
        drop(watchable);
        wake(&to_wake);
        done.map(|()| is_more)
    }

    fn leave(&self) -> Vec<MovingStream> {
        self.store.watchable().lock().leave()
    }

    fn adopt(&self, streams: Vec<MovingStream>) {
        self.with(|watchable, now| {
            streams.into_iter().for_each(|stream| watchable.adopt(stream, now));
        });
    }

    fn figures(&self) -> WatchFigures {
        self.store.watchable().lock().figures()
    }
}
