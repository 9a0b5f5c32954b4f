//! The code that `bolt` and `sled` share: it turns a [`DurableStore`] into an engine.
//!
//! A [`DurableStore`] is one generation of the data, which can be read, written and closed. This
//! module adds the [writer lock](crate::writer_lock), the [place](crate::place) of the generations,
//! and the defragmentation, which copies one generation into the next. Each step of the copy reads
//! from a new snapshot, because a snapshot that is open for minutes would keep all pages of its
//! state. `docs/engine.md` contains a diagram of the copy.
//!
//! * The switch to the next generation is one rename. Until the rename, the old generation is the
//!   store, and the copy does not change it.
//! * While the copy is made, the writer lock collects the keys that commits change. A *replay*
//!   copies the current values of some of these keys. If a key no longer exists, the replay deletes
//!   it in the copy. So neither the order of replays nor their repetition matters. The copy is a
//!   mixture of several states until [`finish`](Defragment::finish) has blocked writers and copied
//!   the rest.
//! * A replaced generation lives until its last snapshot is dropped. Then its data is removed.
//! * If one step fails, the copy can never become the store, because the changed keys that this
//!   step had taken are lost.
//! * The memory in use is bounded by the records of one step and all changed keys that are not
//!   copied yet.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::bucket::Bucket;
use crate::directory::remove_data;
use crate::error::{EngineKind, Error, Result};
use crate::interface::{Defragment, Engine, KeyRange, OpeningNote, Snapshot, WriteTxn};
use crate::options::Options;
use crate::place::{Generation, Place, SharedPath};
use crate::writer_lock::{DefragmentGuard, WriterGuard, WriterLock};

pub(crate) trait DurableStore: Sized + Send + Sync + Debug + 'static {
    const KIND: EngineKind;

    /// Creates an empty store where no data exists. The store is on disk when the call returns.
    fn create(data_path: DataPath, options: &Options) -> Result<Self>;

    /// Opens the store. If the call fails, nothing on disk has changed.
    fn open(data_path: DataPath, options: &Options) -> Result<Self>;

    fn data_path(&self) -> &DataPath;

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>>;

    /// Opens the write transaction. `guard` proves that no other write transaction is open.
    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>>;

    fn size_on_disk(&self) -> Result<u64>;

    /// Returns the number of bytes of live keys and values as of the last commit.
    fn size_in_use(&self) -> u64;

    /// See [`Engine::free_bytes`].
    fn free_bytes(&self) -> Result<u64> {
        Ok(self.size_on_disk()?.saturating_sub(self.size_in_use()))
    }

    /// See [`Engine::opening_notes`].
    fn opening_notes(&self) -> &[OpeningNote] {
        &[]
    }
}

/// The path of one generation. A store must declare it as its *last* field: fields are dropped in
/// order, so the files are closed before the data is removed.
#[derive(Debug)]
pub(crate) struct DataPath {
    generation: Generation,
    /// If true, the data is removed when the store is dropped. This is the case for a new store or
    /// a copy that is not current yet, and for a replaced generation that [keeps its
    /// name](Place::keeps_replaced).
    removes_on_drop: AtomicBool,
    /// If the place is a directory, this reference keeps the directory locked while any of its data
    /// is in use.
    place: Arc<dyn Place>,
}

impl DataPath {
    fn new(generation: Generation, place: &Arc<dyn Place>, removes_on_drop: bool) -> DataPath {
        let removes_on_drop = AtomicBool::new(removes_on_drop);
        DataPath { generation, removes_on_drop, place: Arc::clone(place) }
    }

    fn of_next_generation(place: &Arc<dyn Place>) -> Result<DataPath> {
        Ok(DataPath::new(place.prepare_next()?, place, true))
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.generation.path.get()
    }

    pub(crate) fn shared_path(&self) -> &SharedPath {
        &self.generation.path
    }

    fn make_current(&self) -> Result<bool> {
        // The flag is cleared before the switch: if the switch fails halfway, both generations must
        // be kept.
        self.set_removed_on_drop(false);
        let is_current = self.place.make_current(&self.generation)?;
        self.set_removed_on_drop(!is_current);
        Ok(is_current)
    }

    fn set_replaced(&self) {
        self.set_removed_on_drop(self.place.keeps_replaced());
    }

    fn set_removed_on_drop(&self, removes: bool) {
        self.removes_on_drop.store(removes, Ordering::Release);
    }
}

impl Drop for DataPath {
    fn drop(&mut self) {
        if self.removes_on_drop.load(Ordering::Acquire) {
            // If the removal fails, the next start of the server removes the data.
            let _ = remove_data(&self.path());
        }
    }
}

#[derive(Debug)]
pub(crate) struct DurableEngine<S> {
    /// The current generation. The lock is held only while a pointer is copied or replaced.
    current: Mutex<Arc<S>>,
    writer_lock: Arc<WriterLock>,
    place: Arc<dyn Place>,
    options: Options,
}

impl<S: DurableStore> DurableEngine<S> {
    /// Opens the store, or creates one if there is none.
    pub(crate) fn open(place: Arc<dyn Place>, options: Options) -> Result<Arc<Self>> {
        let store = match place.current() {
            Some(generation) => S::open(DataPath::new(generation, &place, false), &options)?,
            None => {
                let store = S::create(DataPath::of_next_generation(&place)?, &options)?;
                store.data_path().make_current()?;
                store
            }
        };
        place.remove_leftovers()?;
        let (current, writer_lock) = (Mutex::new(Arc::new(store)), Arc::default());
        Ok(Arc::new(DurableEngine { current, writer_lock, place, options }))
    }

    fn start_defragment(self: &Arc<Self>) -> Result<DurableDefragment<S>> {
        let guard = self.writer_lock.begin_defragment()?;
        let data_path = DataPath::of_next_generation(&self.place)?;
        Ok(DurableDefragment {
            target: Arc::new(S::create(data_path, &self.options)?),
            target_lock: Arc::default(),
            cursor: Some((Bucket::ALL[0], Vec::new())),
            has_failed: false,
            guard,
            engine: Arc::clone(self),
        })
    }

    fn current(&self) -> Arc<S> {
        Arc::clone(&self.current.lock())
    }
}

impl<S: DurableStore> Engine for Arc<DurableEngine<S>> {
    fn kind(&self) -> EngineKind {
        S::KIND
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn>> {
        // A switch of generations must hold the same guard. So the current generation does not
        // change while this transaction holds the guard.
        let guard = self.writer_lock.acquire()?;
        self.current().begin_write(guard)
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        self.current().snapshot()
    }

    fn size_on_disk(&self) -> Result<u64> {
        self.current().size_on_disk()
    }

    fn size_in_use(&self) -> u64 {
        self.current().size_in_use()
    }

    fn free_bytes(&self) -> Result<u64> {
        self.current().free_bytes()
    }

    fn opening_notes(&self) -> Vec<OpeningNote> {
        self.current().opening_notes().to_vec()
    }

    fn begin_defragment(&self) -> Result<Box<dyn Defragment>> {
        Ok(Box::new(self.start_defragment()?))
    }
}

#[derive(Debug)]
struct DurableDefragment<S: DurableStore> {
    target: Arc<S>,
    target_lock: Arc<WriterLock>,
    /// The position where the next chunk starts, or `None` after all keys were visited.
    cursor: Option<(Bucket, Vec<u8>)>,
    /// True while a step runs. It stays true if the step fails or panics, and then all later steps
    /// and [`finish`](Defragment::finish) fail.
    has_failed: bool,
    guard: DefragmentGuard,
    engine: Arc<DurableEngine<S>>,
}

/// Maximum number of changed keys that `finish` replays in one transaction.
const REPLAY_KEYS_MAX: usize = 10_000;

/// A chunk ends when it has at least this many bytes, even if it has few records.
const CHUNK_BYTES_MAX: usize = 4 << 20;

impl<S: DurableStore> DurableDefragment<S> {
    /// Copies up to `records` changed keys. Returns the number of copied keys.
    fn replay(&self, records: usize) -> Result<usize> {
        // The keys are taken before the snapshot, so the snapshot has the commits that changed
        // them. See the invariants of the [writer lock](crate::writer_lock).
        let changed = self.guard.take_changed_keys(records);
        if changed.is_empty() {
            return Ok(0);
        }
        let snapshot = self.engine.current().snapshot()?;
        let mut txn = self.target.begin_write(self.target_lock.acquire()?)?;
        for (bucket, key) in &changed {
            match snapshot.get(*bucket, key)? {
                Some(value) => txn.put(*bucket, key, &value)?,
                None => txn.delete(*bucket, key)?,
            }
        }
        txn.commit()?;
        Ok(changed.len())
    }

    fn copy_chunk(&mut self, (bucket, from): (Bucket, Vec<u8>), records: usize) -> Result<()> {
        let snapshot = self.engine.current().snapshot()?;
        let mut chunk: Vec<(Bytes, Bytes)> = Vec::new();
        let mut bytes = 0;
        let mut next_key = None;
        snapshot.scan(bucket, KeyRange::starting_at(&from), &mut |key, value| {
            if chunk.len() >= records || bytes >= CHUNK_BYTES_MAX {
                next_key = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            bytes += key.len() + value.len();
            chunk.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
            ControlFlow::Continue(())
        })?;
        if !chunk.is_empty() {
            let mut txn = self.target.begin_write(self.target_lock.acquire()?)?;
            let records = &mut chunk.iter().map(|(key, value)| (&key[..], &value[..]));
            txn.put_all(bucket, records)?;
            txn.commit()?;
        }
        self.cursor = match next_key {
            Some(key) => Some((bucket, key)),
            None => Bucket::ALL.get(bucket.index() + 1).map(|bucket| (*bucket, Vec::new())),
        };
        Ok(())
    }

    fn require_not_failed(&self) -> Result<()> {
        if self.has_failed {
            let why = "an earlier step of this defragmentation failed; start another";
            return Err(Error::Storage(why.to_owned()));
        }
        Ok(())
    }

    /// Copies about `records` records: first changed keys, then the next chunk. Returns true if all
    /// keys were visited and no changed key is left.
    fn advance(&mut self, records: usize) -> Result<bool> {
        let records = records.max(1);
        let replayed = self.replay(records)?;
        match self.cursor.clone() {
            // Each step copies at least one record of the chunk, so the copy advances even if
            // replays use up `records`.
            Some(cursor) => {
                self.copy_chunk(cursor, records.saturating_sub(replayed).max(1))?;
                Ok(false)
            }
            None => Ok(replayed < records),
        }
    }
}

impl<S: DurableStore> Defragment for DurableDefragment<S> {
    fn step(&mut self, records: usize) -> Result<bool> {
        self.require_not_failed()?;
        if !self.guard.is_recording_all_commits() {
            return Ok(false);
        }
        self.has_failed = true;
        let nearly_done = self.advance(records)?;
        self.has_failed = false;
        Ok(nearly_done)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.require_not_failed()?;
        let writers = self.guard.stop_writers()?;
        while let Some(cursor) = self.cursor.clone() {
            self.copy_chunk(cursor, usize::MAX)?;
        }
        while self.replay(REPLAY_KEYS_MAX)? > 0 {}
        // After `Ok(true)` the switch is on disk. After an error it is unknown which generation is
        // the store, so all further writes must fail.
        let switched = self.target.data_path().make_current();
        if matches!(switched, Ok(false)) {
            writers.release(Ok(()))?;
            let why = "the store was replaced by a raft snapshot from another member";
            return Err(Error::Storage(why.to_owned()));
        }
        if switched.is_ok() {
            let old = std::mem::replace(&mut *self.engine.current.lock(), Arc::clone(&self.target));
            old.data_path().set_replaced();
        }
        writers.release(switched.map(drop))
    }
}

#[cfg(test)]
mod tests;
