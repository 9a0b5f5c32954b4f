//! The watchable store of the old eras: all watchers are under one lock, which every write that
//! changes a key takes.
//!
//! etcd works this way to this day. This store is kept so that the difference can be measured. The
//! lock `watchable` is held by
//!
//! * a write transaction at its end (in 3.1 from start to end), while it notifies the synced
//!   watchers, writes back and possibly commits;
//! * a sync round, every 100 ms or sooner, if there are unsynced watchers. It takes up to 512
//!   watchers and reads *every record from the oldest revision that any of these watchers has
//!   missed*, with `revMu` and `readTx` held as well (in 3.1 `store` and `batchTx`);
//! * a retry of the victims, every 10 ms;
//! * each call of a stream, such as adding or canceling a watcher.
//!
//! Lock order in eras 3.2 to 3.5: `store` (shared), `batchTx`, `watchable`, `revMu`, `readTx`. A
//! sync round starts with `watchable`. In 3.1: `watchable`, `store`, `batchTx`, for writes and sync
//! rounds.
//!
//! Previous records are fetched when a response is taken. As in etcd, this is one read per event
//! and watcher: [`add_previous_records`](WatchableStore::add_previous_records). See
//! `docs/watch.md`.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use clearlane_backend::{Era, ReadTx};
use clearlane_contention::Registry;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::changes::Changes;
use crate::error::{Error, Result};
use crate::etcd::store::EtcdStore;
use crate::etcd::watchers::EtcdWatchers;
use crate::interface::{Change, ConsistentIndex, RangeOptions, Store};
use crate::kv_hasher::try_range;
use crate::revision::{RecordKind, Revision, RevisionKey};
use crate::watch::channel::{ChannelCapacity, ChannelsToWake, WakeSet, WatchChannel, wake_all};
use crate::watch::detached_stream::DetachedStream;
use crate::watch::interface::{WatchConfig, WatchMetrics, WatchableKv, WatchableStore, WorkSignal};
use crate::watch::response::{Event, Response, ResponseKind, WatchId, WatchRequest};

/// Maximum number of responses in etcd's channel in eras up to 3.2. The next constant is the limit
/// in later eras.
const CHANNEL_RESPONSES_MAX_UNTIL_3_2: usize = 1024;
const CHANNEL_RESPONSES_MAX: usize = 128;

impl<A: ConsistentIndex> WatchableKv<A> for EtcdStore<A> {
    fn open_watchable_store(
        self: Arc<Self>,
        _config: WatchConfig,
        locks: &Registry,
        _wake: WorkSignal,
    ) -> Arc<dyn WatchableStore> {
        Arc::new(EtcdWatchableStore { store: self, locks: locks.clone() })
    }
}

#[derive(Debug)]
pub(crate) struct EtcdWatchableStore<A> {
    store: Arc<EtcdStore<A>>,
    locks: Registry,
}

impl<A: ConsistentIndex> EtcdWatchableStore<A> {
    fn with_watchers<R>(&self, work: impl FnOnce(&mut EtcdWatchers, i64) -> R) -> R {
        let mut watchable = self.store.watchers.lock();
        let now = self.store.locks.revisions(|revisions| revisions.current);
        work(&mut watchable, now)
    }

    /// Runs a sync round: reads everything since the oldest missed revision, whether or not a
    /// watcher wants it. Holds `revMu` and `readTx`, or in era 3.1 `store` and `batchTx`.
    fn sync_round(&self, watchable: &mut EtcdWatchers, to_wake: &mut ChannelsToWake) -> Result<()> {
        self.store.locks.revisions(|revisions| {
            let Some(round) = watchable.begin_sync(revisions.compacted, to_wake) else {
                return Ok(());
            };
            let read_tx = self.store.backend.begin_locked_read();
            let events = records(&*read_tx, round.from, revisions.current)?;
            watchable.finish_sync(round, &events, revisions.current, to_wake);
            Ok(())
        })
    }

    fn previous_record(&self, event: &Event) -> Result<Option<KeyValue>> {
        let record = event.change.record();
        let before = record.mod_revision - 1;
        if event.kind() == RecordKind::Put && record.create_revision > before {
            return Ok(None);
        }
        let end = [&record.key, &b"\0"[..]].concat();
        let options = RangeOptions { revision: before, ..RangeOptions::default() };
        let found = self.store.begin_read().range(KeyRange::new(&record.key, &end), options);
        match found {
            // The previous record was compacted in the meantime; the event is sent without it.
            Err(Error::Compacted) => Ok(None),
            found => Ok(found?.records.pop()),
        }
    }
}

fn records(tx: &dyn ReadTx, from: i64, up_to: i64) -> Result<Vec<Event>> {
    let (first, end) = (Revision::new(from, 0).put_key(), Revision::new(up_to + 1, 0).put_key());
    let mut events = Vec::new();
    try_range(tx, Bucket::Key, KeyRange::new(&first, &end), |key, value| {
        let (revision, kind) = RevisionKey::decode(key)?;
        let damaged = |error| Error::Damaged(format!("the record of revision {revision}: {error}"));
        let record = KeyValue::decode(&*value).map_err(damaged)?;
        events.push(Event::new(Change::of(kind, record, revision.main)));
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(events)
}

impl<A: ConsistentIndex> WatchableStore for EtcdWatchableStore<A> {
    fn open_stream(&self, wake_set: Arc<WakeSet>) -> Arc<WatchChannel> {
        let responses = match self.store.era() {
            Era::V3_0 | Era::V3_1 | Era::V3_2 => CHANNEL_RESPONSES_MAX_UNTIL_3_2,
            _ => CHANNEL_RESPONSES_MAX,
        };
        let bound = ChannelCapacity::Responses(responses);
        let mut watchable = self.store.watchers.lock();
        watchable.open(|stream| WatchChannel::new(stream, bound, &self.locks, wake_set))
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
        self.store.watchers.lock().close(stream.stream);
    }

    /// Does nothing: a write transaction notifies the synced watchers at its end.
    fn publish_all(&self, _transactions: Vec<(i64, Changes)>) {}

    /// Retries the victims. etcd does this every 10 ms.
    fn deliver(&self) -> Result<bool> {
        let to_wake = self.with_watchers(|watchable, now| watchable.retry_victims(now));
        wake_all(&to_wake);
        Ok(!to_wake.is_empty())
    }

    /// Runs a sync round. etcd does this every 100 ms.
    fn sync_watchers(&self) -> Result<bool> {
        let mut watchable = self.store.watchers.lock();
        let mut to_wake = ChannelsToWake::new();
        let done = self.sync_round(&mut watchable, &mut to_wake);
        let is_more = watchable.has_unsynced();
        drop(watchable);
        wake_all(&to_wake);
        done.map(|()| is_more)
    }

    fn detach_streams(&self) -> Vec<DetachedStream> {
        self.store.watchers.lock().detach_streams()
    }

    fn attach_streams(&self, streams: Vec<DetachedStream>) {
        self.with_watchers(|watchable, now| {
            streams.into_iter().for_each(|stream| watchable.attach_stream(stream, now));
        });
    }

    fn metrics(&self) -> WatchMetrics {
        self.store.watchers.lock().metrics()
    }
}
