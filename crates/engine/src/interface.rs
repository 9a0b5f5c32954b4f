//! The interface that every engine implements: snapshots, reads, one write transaction at a time,
//! and defragmentations.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

#[cfg(not(target_family = "wasm"))]
use crate::bolt::Image;
use crate::bucket::Bucket;
use crate::error::{EngineKind, Result};

/// The keys from `from` (included) up to `to` (excluded). A range whose end is not above its start
/// is empty. Such a range is not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'k> {
    pub from: &'k [u8],
    /// If `None`, the range extends to the end of the bucket.
    pub to: Option<&'k [u8]>,
}

impl<'k> KeyRange<'k> {
    pub const ALL: KeyRange<'static> = KeyRange { from: &[], to: None };

    pub fn new(from: &'k [u8], to: &'k [u8]) -> KeyRange<'k> {
        KeyRange { from, to: Some(to) }
    }

    pub fn starting_at(from: &'k [u8]) -> KeyRange<'k> {
        KeyRange { from, to: None }
    }

    pub fn is_empty(&self) -> bool {
        self.to.is_some_and(|to| to <= self.from)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.from && self.to.is_none_or(|to| key < to)
    }
}

/// The function that a scan calls for every record, in key order. If it returns `Break`, the scan
/// ends. The two slices (key and value) are valid only during the call, so a visitor that wants to
/// keep one must copy it.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Read access to the buckets, from a snapshot or through the open write transaction.
pub trait Read {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `visit` for the records of `range` in key order, until `visit` returns `Break`.
    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()>;

    /// Returns the largest key of a bucket, or `None` if the bucket has no records. Does not scan
    /// the bucket.
    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>>;
}

/// One committed state of the store. It never changes, and it does not make the writer wait.
pub trait Snapshot: Read + Send + Sync + Debug {
    /// Returns the state as a bolt file if the engine is `bolt`, otherwise `None`. [`Image::new`]
    /// makes an image from any snapshot.
    #[cfg(not(target_family = "wasm"))]
    fn image(self: Arc<Self>) -> Result<Option<Image>> {
        Ok(None)
    }
}

/// The only open write transaction. Reads through it see its own changes. If it is dropped without
/// a commit, the store stays as it was.
pub trait WriteTxn: Read + Send + Debug {
    /// Stores a record. A key has 1 to 32,768 bytes, and a value has at most 2 GiB minus 2 bytes.
    /// These are bbolt's limits: `bolt` rejects all other keys and values, but the other engines
    /// accept more.
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes `key`. It is not an error if the bucket does not have the key.
    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()>;

    /// Stores many records of one bucket, in the order of the iterator. An engine may override this
    /// method to look up the bucket only once.
    fn put_all(
        &mut self,
        bucket: Bucket,
        records: &mut dyn Iterator<Item = (&[u8], &[u8])>,
    ) -> Result<()> {
        for (key, value) in records {
            self.put(bucket, key, value)?;
        }
        Ok(())
    }

    /// Makes all changes visible to new snapshots, and durable if the engine [is
    /// durable](EngineKind::is_durable). After an error the engine accepts no more writes.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// A finding from the opening of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpeningNote {
    /// The store was damaged. The text describes the damage and how it was repaired.
    Repaired(String),
    /// The store is not damaged, but differs from a store that only this engine has written. For
    /// example, etcd made the last commit, so there are no checksums.
    Expected(String),
}

impl OpeningNote {
    pub fn text(&self) -> &str {
        let (OpeningNote::Repaired(text) | OpeningNote::Expected(text)) = self;
        text
    }
}

pub trait Engine: Send + Sync + Debug {
    fn kind(&self) -> EngineKind;

    /// Opens the write transaction. Fails with [`Error::WriterBusy`](crate::Error::WriterBusy) if a
    /// write transaction is already open, or with [`Error::Failed`](crate::Error::Failed) if an
    /// earlier failure has stopped all writes.
    fn begin_write(&self) -> Result<Box<dyn WriteTxn>>;

    /// Returns a snapshot of the state as of the last commit.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

    /// Returns the number of bytes that the store occupies on disk, or 0 for an engine without
    /// files.
    fn size_on_disk(&self) -> Result<u64>;

    /// Returns the number of bytes of all live keys and values as of the last commit. The number
    /// falls when records are deleted, whereas the [`size_on_disk`](Engine::size_on_disk) of `bolt`
    /// falls only after a defragmentation.
    fn size_in_use(&self) -> u64;

    /// Returns the approximate number of bytes on disk that a defragmentation would free.
    fn free_bytes(&self) -> Result<u64> {
        Ok(self.size_on_disk()?.saturating_sub(self.size_in_use()))
    }

    /// Returns the findings of the last opening, for the server's log. After a defragmentation, the
    /// list is empty.
    fn opening_notes(&self) -> Vec<OpeningNote> {
        Vec::new()
    }

    /// Starts to rewrite the store without the space of deleted records. Reads continue during the
    /// rewrite, and commits continue except during [`finish`](Defragment::finish). Fails with
    /// [`Error::DefragmentBusy`](crate::Error::DefragmentBusy) if another defragmentation is in
    /// progress, or with [`Error::Failed`](crate::Error::Failed) if an earlier failure has stopped
    /// all writes.
    fn begin_defragment(&self) -> Result<Box<dyn Defragment>>;
}

/// A defragmentation in progress. The caller drives it step by step. If it is dropped before
/// [`finish`](Defragment::finish), the store stays as it was.
pub trait Defragment: Send + Debug {
    /// Copies about `records` more records. Commits may run at the same time. Returns `true` if the
    /// whole store is copied, except for keys that commits have changed during this call. A durable
    /// engine copies nothing and returns `false` while a transaction is open that started before
    /// the defragmentation. After an error every further step fails, and so does
    /// [`finish`](Defragment::finish): drop the defragmentation and start another.
    fn step(&mut self, records: usize) -> Result<bool>;

    /// Copies the rest, syncs it, and replaces the old store with the new one. Older snapshots keep
    /// reading the old store. Fails with [`Error::WriterBusy`](crate::Error::WriterBusy) if a write
    /// transaction is open, and leaves the old store in place. Fails with
    /// [`Error::Storage`](crate::Error::Storage) if a raft snapshot has replaced this store; the
    /// engine then still accepts writes. If the replacement itself fails, the engine accepts no
    /// more writes.
    fn finish(self: Box<Self>) -> Result<()>;
}
