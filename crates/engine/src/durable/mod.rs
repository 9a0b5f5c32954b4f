//! What `bolt` and `sled` have in common: from a [`DurableStore`] to an engine.
//!
//! A [`DurableStore`] is one generation of the data: it is read, written and closed. Around it are
//! the [writer lock](crate::writer_lock), the [place](crate::place) and a defragmentation
//! that copies one generation into the next, from a fresh snapshot per step. A snapshot held for
//! minutes would keep all pages of its state. `docs/engine.md` draws the copy.
//!
//! * The switch is one rename. Before it, the old generation is the store and untouched.
//! * A replay copies the current value of a changed key, or its absence: order and repetition do
//!   not matter. The copy is one state only after [`finish`](Defragment::finish), which keeps
//!   writers out.
//! * A replaced generation lives until its last snapshot is dropped; then its data is removed.
//! * A copy of which one step failed does not become the store: keys to carry over are lost.
//! * Memory is bounded by one step's keys and the keys that commits changed since the step before.

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

    /// Makes an empty store where nothing is. It is on disk when this returns.
    fn create(data_path: DataPath, options: &Options) -> Result<Self>;

    /// Opens the store. Changes nothing on disk if it fails.
    fn open(data_path: DataPath, options: &Options) -> Result<Self>;

    fn data_path(&self) -> &DataPath;

    fn snapshot(self: &Arc<Self>) -> Result<Arc<dyn Snapshot>>;

    /// Opens the write transaction; `guard` says that it is the only one.
    fn begin_write(self: &Arc<Self>, guard: WriterGuard) -> Result<Box<dyn WriteTxn>>;

    fn size_on_disk(&self) -> Result<u64>;

    /// Bytes of live keys and values as of the last commit.
    fn size_in_use(&self) -> u64;

    /// See [`Engine::opening_notes`].
    fn opening_notes(&self) -> &[OpeningNote] {
        &[]
    }
}

/// The place of one generation. A store holds it as its *last* field, so that it is dropped when
/// the files are closed.
#[derive(Debug)]
pub(crate) struct DataPath {
    generation: Generation,
    /// Whether the data goes when the store does: so for a copy that is not finished, and for a
    /// generation that was replaced.
    removes_on_drop: AtomicBool,
    /// The lock on a directory is held for as long as anything in it is in use.
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
        // Before the switch: should it fail half way, both generations have to stay.
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
            // If this fails, the next start removes the leftover.
            let _ = remove_data(&self.path());
        }
    }
}

#[derive(Debug)]
pub(crate) struct DurableEngine<S> {
    /// The current generation. Held only while a pointer is copied.
    current: Mutex<Arc<S>>,
    writer_lock: Arc<WriterLock>,
    place: Arc<dyn Place>,
    options: Options,
}

impl<S: DurableStore> DurableEngine<S> {
    /// Makes a store if there is none.
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
        // The guard first: a switch of generations holds it, so this is the right store.
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
    /// Where the next chunk begins; `None` when every key was visited.
    cursor: Option<(Bucket, Vec<u8>)>,
    /// Set while a step is under way, so that it stays when the step fails or panics.
    has_failed: bool,
    guard: DefragmentGuard,
    engine: Arc<DurableEngine<S>>,
}

/// How many changed keys the last replays carry over in one transaction.
const REPLAY_KEYS_MAX: usize = 10_000;

/// A chunk ends when it holds this much, however few records that is.
const CHUNK_BYTES_MAX: usize = 4 << 20;

impl<S: DurableStore> DurableDefragment<S> {
    /// Returns the number of keys carried over.
    fn replay(&self, records: usize) -> Result<usize> {
        // Keys first, snapshot second: see the invariants of the writer lock.
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
            let why = "an earlier step of this defragmentation failed; begin another";
            return Err(Error::Storage(why.to_owned()));
        }
        Ok(())
    }

    /// Returns whether there is little left to do.
    fn advance(&mut self, records: usize) -> Result<bool> {
        let records = records.max(1);
        let replayed = self.replay(records)?;
        match self.cursor.clone() {
            // At least one record, so that a copy gets on however busy the writer is.
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
        // From here on the outcome is on disk or not known: a failure stops all writing.
        let switched = self.target.data_path().make_current();
        if matches!(switched, Ok(false)) {
            writers.release(Ok(()))?;
            let why = "the store was replaced by one that another member has sent";
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
