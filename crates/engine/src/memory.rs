//! The `memory` engine: a storage engine without a disk.
//!
//! Each bucket is a persistent ordered map: a change copies only the nodes on its path, and the old
//! version stays valid. A state consists of ten root pointers, and a snapshot refers to one state.
//! The writer works on its own ten pointers, and its commit replaces the published state with them.
//!
//! ```text
//!   published ──▶ root A ─┬─▶ node 1 ◀─┐
//!                         └─▶ node 2   │         a put into node 2:
//!   writer    ──▶ root B ─┬────────────┘         node 1 is shared, node 2' is new
//!                         └─▶ node 2'
//! ```
//!
//! The engine keeps all guarantees of the crate except durability. Its directory contains only the
//! marker, and a reopened store is empty. A defragmentation has nothing to copy. But as in the
//! other engines, only one can be open, and it cannot finish while a write transaction is open.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::Mutex;

use crate::bucket::Bucket;
#[cfg(not(target_family = "wasm"))]
use crate::directory::Directory;
use crate::error::{EngineKind, Result};
use crate::interface::{Defragment, Engine, KeyRange, Read, Snapshot, Visitor, WriteTxn};
use crate::writer_lock::{DefragmentGuard, WriterGuard, WriterLock};

#[derive(Debug, Default)]
pub struct MemoryEngine {
    writer_lock: Arc<WriterLock>,
    /// The state of the last commit. The lock is held only while pointers are copied or replaced.
    published: Arc<Mutex<Arc<MemoryState>>>,
    /// The directory, which holds the lock. `None` for an engine that belongs to no directory.
    #[cfg(not(target_family = "wasm"))]
    _directory: Option<Arc<Directory>>,
}

impl MemoryEngine {
    /// Creates an engine that belongs to no directory.
    pub fn new() -> MemoryEngine {
        MemoryEngine::default()
    }

    #[cfg(not(target_family = "wasm"))]
    pub(crate) fn open(directory: Arc<Directory>) -> Result<MemoryEngine> {
        directory.ensure_store()?;
        Ok(MemoryEngine { _directory: Some(directory), ..MemoryEngine::default() })
    }
}

#[derive(Clone, Default)]
struct MemoryState {
    buckets: [OrdMap<Bytes, Bytes>; Bucket::ALL.len()],
    size_in_use: u64,
}

impl fmt::Debug for MemoryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryState")
            .field("size_in_use", &self.size_in_use)
            .finish_non_exhaustive()
    }
}

impl MemoryState {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) {
        let owned = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        let replaced = self.buckets[bucket.index()].insert(owned.0, owned.1);
        self.size_in_use += (key.len() + value.len()) as u64;
        self.subtract_size(key, replaced);
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) {
        let removed = self.buckets[bucket.index()].remove(key);
        self.subtract_size(key, removed);
    }

    fn subtract_size(&mut self, key: &[u8], old: Option<Bytes>) {
        self.size_in_use -= old.map_or(0, |old| (key.len() + old.len()) as u64);
    }
}

impl Read for MemoryState {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.buckets[bucket.index()].get(key).cloned())
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let to = range.to.map_or(Bound::Unbounded, Bound::Excluded);
        let bounds = (Bound::Included(range.from), to);
        for (key, value) in self.buckets[bucket.index()].range::<_, [u8]>(bounds) {
            if visit(key, value).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        Ok(self.buckets[bucket.index()].get_max().map(|(key, _)| key.clone()))
    }
}

impl Snapshot for MemoryState {}

#[derive(Debug)]
struct MemoryWriteTxn {
    state: MemoryState,
    published: Arc<Mutex<Arc<MemoryState>>>,
    guard: WriterGuard,
}

impl Read for MemoryWriteTxn {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        self.state.get(bucket, key)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        self.state.scan(bucket, range, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        self.state.last_key(bucket)
    }
}

impl WriteTxn for MemoryWriteTxn {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        self.state.put(bucket, key, value);
        Ok(())
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        self.state.delete(bucket, key);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let MemoryWriteTxn { state, published, guard } = *self;
        let old = std::mem::replace(&mut *published.lock(), Arc::new(state));
        // The old state is dropped after the lock is released, because dropping the last reference
        // to it frees all nodes that no other state shares.
        drop(old);
        guard.release(Ok(()))
    }
}

impl Engine for MemoryEngine {
    fn kind(&self) -> EngineKind {
        EngineKind::Memory
    }

    fn begin_write(&self) -> Result<Box<dyn WriteTxn>> {
        let guard = self.writer_lock.acquire()?;
        let state = MemoryState::clone(&self.published.lock());
        Ok(Box::new(MemoryWriteTxn { state, published: Arc::clone(&self.published), guard }))
    }

    fn snapshot(&self) -> Result<Arc<dyn Snapshot>> {
        let state: Arc<MemoryState> = Arc::clone(&self.published.lock());
        Ok(state)
    }

    fn size_on_disk(&self) -> Result<u64> {
        Ok(0)
    }

    fn size_in_use(&self) -> u64 {
        self.published.lock().size_in_use
    }

    fn begin_defragment(&self) -> Result<Box<dyn Defragment>> {
        Ok(Box::new(self.writer_lock.begin_defragment()?))
    }
}

/// Nothing has to be rewritten, because the allocator reuses the memory of freed nodes.
impl Defragment for DefragmentGuard {
    fn step(&mut self, records: usize) -> Result<bool> {
        self.take_changed_keys(records);
        Ok(true)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.stop_writers().map(drop)
    }
}
