//! The interface every engine implements: read, write one transaction, take a snapshot.

use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;

use crate::bolt::Image;
use crate::bucket::Bucket;
use crate::error::{EngineKind, Result};

/// The keys from `from` (included) up to `to` (excluded); to the end of the bucket if `to` is
/// absent. A range whose end is not above its start is empty, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyRange<'k> {
    pub from: &'k [u8],
    /// `None` reaches to the end of the bucket.
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

/// What a scan calls for every record, in key order. `Break` ends the scan. The slices live only
/// for the call: a caller that wants to keep a value copies it, once.
pub type Visitor<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// Reading, from a snapshot or through an open write transaction.
pub trait Read {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>>;

    /// Calls `visit` for the records of `range` in key order, until it breaks.
    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()>;

    /// The greatest key of a bucket, found without walking it.
    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>>;
}

/// One committed state of the store. It does not change, and does not make the writer wait.
pub trait Snapshot: Read + Send + Sync + Debug {
    /// The state as a bolt file, if the engine has it in one. [`Image::new`] makes one of any.
    fn image(self: Arc<Self>) -> Result<Option<Image>> {
        Ok(None)
    }
}

/// The one open write transaction. Reading through it shows its own changes. Dropping it without
/// a commit leaves the store as it was.
pub trait WriteTxn: Read + Send + Debug {
    /// A key has 1 to 32,768 bytes, a value less than 2 GiB: these are bbolt's bounds, and `bolt`
    /// refuses others. The other engines take more.
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()>;

    /// Removes `key`; a key that is not there is no error.
    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()>;

    /// Stores many records of one bucket. Engines that pay for finding a bucket pay once.
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

    /// Makes the changes visible to new snapshots, all at once, and durable.
    fn commit(self: Box<Self>) -> Result<()>;
}

/// A finding of an opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpeningNote {
    /// Damage, and how it was repaired.
    Repaired(String),
    /// An expected difference, such as a file that bbolt wrote last.
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

    /// Opens the write transaction; [`Error::WriterBusy`](crate::Error::WriterBusy) if one is
    /// open.
    fn begin_write(&self) -> Result<Box<dyn WriteTxn>>;

    /// The state of the last commit.
    fn snapshot(&self) -> Result<Arc<dyn Snapshot>>;

    /// Bytes that the store takes on disk, 0 for an engine without files.
    fn size_on_disk(&self) -> Result<u64>;

    /// Bytes of all live keys and values as of the last commit: falls when records are deleted,
    /// whereas [`size_on_disk`](Engine::size_on_disk) falls only by a defragmentation.
    fn size_in_use(&self) -> u64;

    /// Notes of the last opening, for the log of the server.
    fn opening_notes(&self) -> Vec<OpeningNote> {
        Vec::new()
    }

    /// Starts to rewrite the store without the space of deleted records. Reads and commits go on
    /// meanwhile. [`Error::DefragmentBusy`](crate::Error::DefragmentBusy) if one is under way.
    fn begin_defragment(&self) -> Result<Box<dyn Defragment>>;
}

/// A defragmentation under way, done in steps by the caller. Dropping it gives it up and leaves
/// the store as it was.
pub trait Defragment: Send + Debug {
    /// Carries over about `records` more records, and says whether only what is committed from
    /// now on is left. Runs beside commits. After an error the rest is refused: drop it and begin
    /// another.
    fn step(&mut self, records: usize) -> Result<bool>;

    /// Carries over the rest, syncs, and puts the new store in place of the old one. Snapshots
    /// taken before keep reading the old one.
    /// [`Error::WriterBusy`](crate::Error::WriterBusy) if a write transaction is open.
    fn finish(self: Box<Self>) -> Result<()>;
}
