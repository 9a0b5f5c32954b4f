//! The watchable store of the old eras: all watchers under one lock, which every write takes.
//!
//! This is etcd's way to this day, kept so that the difference can be measured. `watchable` is held
//! by a write transaction at its end (in 3.1 from beginning to end), while it notifies the synced
//! watchers, writes back and perhaps commits; by a round of synchronising, every 100 ms, while it
//! reads *every record from the oldest revision that one of up to 512 watchers has missed, to now*,
//! with `revMu` and `readTx` held too; and by a retry of the victims, every 10 ms.
//!
//! Lock order in eras 3.2 to 3.5: `store` (shared), `batchTx`, `watchable`, `revMu`, `readTx`; a
//! round begins with `watchable`. In 3.1: `watchable`, `store`, `batchTx`, for writes and rounds
//! alike.
//!
//! Records before a change are fetched when a response is taken, one read per event and watcher, as
//! in etcd: [`add_previous_records`](WatchableStore::add_previous_records). See `docs/watch.md`.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Era, ReadTx};
use clearlane_contention::{Mutex, Registry};
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::{Error, Result};
use crate::etcd::lock_protocol::Protocol;
use crate::etcd::store::EtcdStore;
use crate::etcd::watchers::{ChannelsToWake, EtcdWatchers, wake_channels};
use crate::watch::channel::StreamConsumer;
use crate::watch::channel::{ChannelCapacity, WatchChannel};
use crate::watch::detached_stream::DetachedStream;
use crate::watch::interface::{WatchConfig, WatchableKv, WorkSignal};
use crate::watch::interface::{WatchMetrics, WatchableStore};
use crate::watch::response::{Event, Response, ResponseKind, WatchId, WatchRequest};

use crate::interface::{Change, ConsistentIndex, RangeOptions, Store};
use crate::revision::{RecordKind, Revision, RevisionKey};

/// The capacity of etcd's channel, until 3.2 and later.
const CHANNEL_RESPONSES_MAX_UNTIL_3_2: usize = 1024;
const CHANNEL_RESPONSES_MAX: usize = 128;

pub(crate) trait WatchSource: Send + Sync + Debug + 'static {
    fn era(&self) -> Era;

    fn watchers(&self) -> &Mutex<EtcdWatchers>;

    /// Calls `work` with the current and the compact revision, and keeps them from changing
    /// meanwhile: with `revMu` held, or in era 3.1 with `store`.
    fn with_revisions(&self, work: &mut dyn FnMut(i64, i64));

    /// The records, with the plain read transaction.
    fn begin_locked_read(&self) -> Box<dyn ReadTx + '_>;

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>>;
}

impl<A: ConsistentIndex, P: Protocol> WatchSource for EtcdStore<A, P> {
    fn era(&self) -> Era {
        self.backend.era()
    }

    fn watchers(&self) -> &Mutex<EtcdWatchers> {
        &self.watchers
    }

    fn with_revisions(&self, work: &mut dyn FnMut(i64, i64)) {
        self.protocol.revisions(|revisions| work(revisions.current, revisions.compacted));
    }

    fn begin_locked_read(&self) -> Box<dyn ReadTx + '_> {
        self.backend.begin_locked_read()
    }

    fn record_at(&self, key: &[u8], revision: i64) -> Result<Option<KeyValue>> {
        let end = [key, b"\0"].concat();
        let options = RangeOptions { revision, ..RangeOptions::default() };
        Ok(self.begin_read().range(KeyRange::new(key, &end), options)?.records.pop())
    }
}

impl<A: ConsistentIndex, P: Protocol> WatchableKv<A> for EtcdStore<A, P> {
    fn open_watchable_store(
        self: Arc<Self>,
        _config: WatchConfig,
        locks: &Registry,
        _wake: WorkSignal,
    ) -> Arc<dyn WatchableStore> {
        Arc::new(EtcdWatchableStore::new(self, locks))
    }
}

#[derive(Debug)]
pub(crate) struct EtcdWatchableStore<S> {
    store: Arc<S>,
    locks: Registry,
}

impl<S: WatchSource> EtcdWatchableStore<S> {
    pub(crate) fn new(store: Arc<S>, locks: &Registry) -> EtcdWatchableStore<S> {
        EtcdWatchableStore { store, locks: locks.clone() }
    }

    fn with_watchers<R>(&self, work: impl FnOnce(&mut EtcdWatchers, i64) -> R) -> R {
        let mut watchable = self.store.watchers().lock();
        let mut now = 0;
        self.store.with_revisions(&mut |current, _| now = current);
        work(&mut watchable, now)
    }

    /// A round: everything since the oldest revision that was missed, whichever watcher wants it.
    fn sync_round(&self, watchable: &mut EtcdWatchers, to_wake: &mut ChannelsToWake) -> Result<()> {
        let mut outcome = Ok(());
        self.store.with_revisions(&mut |current, compacted| {
            let Some(round) = watchable.begin_sync(compacted, to_wake) else { return };
            match records(&*self.store.begin_locked_read(), round.from, current) {
                Ok(events) => watchable.finish_sync(round, &events, current, to_wake),
                Err(error) => outcome = Err(error),
            }
        });
        outcome
    }

    fn previous_record(&self, event: &Event) -> Result<Option<KeyValue>> {
        let (Change::Put(record) | Change::Delete(record)) = &event.change;
        let before = record.mod_revision - 1;
        let created = event.kind() == RecordKind::Put && record.create_revision > before;
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
        RevisionKey::decode(key).map_err(|error| Error::Damaged(error.to_string()))?;
    let record = KeyValue::decode(value)
        .map_err(|error| Error::Damaged(format!("the record of revision {revision}: {error}")))?;
    let change = match mark {
        RecordKind::Put => Change::Put(record),
        RecordKind::Tombstone => Change::Delete(KeyValue { mod_revision: revision.main, ..record }),
    };
    Ok(Event { change, prev_kv: None })
}

impl<S: WatchSource> WatchableStore for EtcdWatchableStore<S> {
    fn open_stream(&self, consumer: Arc<dyn StreamConsumer>, name: u64) -> Arc<WatchChannel> {
        let until_3_2 = self.store.era() <= Era::V3_2;
        let responses =
            if until_3_2 { CHANNEL_RESPONSES_MAX_UNTIL_3_2 } else { CHANNEL_RESPONSES_MAX };
        let bound = ChannelCapacity::Responses(responses);
        let mut watchable = self.store.watchers().lock();
        watchable.open(|stream| WatchChannel::new(stream, bound, &self.locks, consumer, name))
    }

    fn watch(&self, stream: &WatchChannel, request: WatchRequest) {
        self.with_watchers(|watchable, now| watchable.watch(stream.stream, request, now));
        stream.wake();
    }

    fn cancel(&self, stream: &WatchChannel, id: WatchId) {
        self.with_watchers(|watchable, now| watchable.cancel(stream.stream, id, now));
        stream.wake();
    }

    fn request_progress(&self, stream: &WatchChannel) {
        self.with_watchers(|watchable, now| watchable.request_progress(stream.stream, now));
        stream.wake();
    }

    fn notify_progress(&self, stream: &WatchChannel) {
        self.with_watchers(|watchable, now| watchable.notify_progress(stream.stream, now));
        stream.wake();
    }

    /// Victims are retried by the clock.
    fn resume_stream(&self, _stream: &WatchChannel) {}

    fn add_previous_records(
        &self,
        stream: &WatchChannel,
        responses: &mut [Response],
    ) -> Result<()> {
        for response in responses {
            let ResponseKind::Events { events, .. } = &mut response.kind else { continue };
            if stream.needs_previous(response.id) {
                let complete = |event: &Event| {
                    let (change, previous) = (event.change.clone(), self.previous_record(event)?);
                    Ok(Event { change, prev_kv: previous })
                };
                *events = events.iter().map(complete).collect::<Result<_>>()?;
            }
        }
        Ok(())
    }

    fn close_stream(&self, stream: &WatchChannel) {
        self.store.watchers().lock().close(stream.stream);
    }

    /// The write transaction has notified all watchers when it ended.
    fn publish_all(&self, _transactions: Vec<(i64, Vec<Change>)>) {}

    /// Retries the victims, as etcd does every 10 ms.
    fn deliver(&self) -> Result<bool> {
        let to_wake = self.with_watchers(|watchable, now| {
            if watchable.has_victims() {
                watchable.retry_victims(now)
            } else {
                ChannelsToWake::new()
            }
        });
        wake_channels(&to_wake);
        Ok(!to_wake.is_empty())
    }

    /// A round of synchronising, as etcd does every 100 ms.
    fn sync_watchers(&self) -> Result<bool> {
        let mut watchable = self.store.watchers().lock();
        let mut to_wake = ChannelsToWake::new();
        let done = self.sync_round(&mut watchable, &mut to_wake);
        let is_more = watchable.has_unsynced();
        drop(watchable);
        wake_channels(&to_wake);
        done.map(|()| is_more)
    }

    fn detach_streams(&self) -> Vec<DetachedStream> {
        self.store.watchers().lock().detach_streams()
    }

    fn attach_streams(&self, streams: Vec<DetachedStream>) {
        self.with_watchers(|watchable, now| {
            streams.into_iter().for_each(|stream| watchable.attach_stream(stream, now));
        });
    }

    fn metrics(&self) -> WatchMetrics {
        self.store.watchers().lock().metrics()
    }
}
