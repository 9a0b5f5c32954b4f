//! The write transaction of a redb store.

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use redb::{CursorError, Table};

use super::{METADATA_TABLE, RedbStore, SIZE_IN_USE, snapshot, storage_error, table_of};
use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::interface::{KeyRange, Read, Visitor, WriteTxn};
use crate::writer_lock::WriterGuard;

type RecordTable<'txn> = Table<'txn, &'static [u8], &'static [u8]>;

pub(super) struct RedbWriteTxn {
    /// Before the guard, so that redb's transaction is over when the next one may begin: redb
    /// would make it wait.
    txn: redb::WriteTransaction,
    size_in_use: u64,
    store: Arc<RedbStore>,
    guard: WriterGuard,
}

impl RedbWriteTxn {
    pub(super) fn begin(store: &Arc<RedbStore>, guard: WriterGuard) -> Result<RedbWriteTxn> {
        let mut txn = store.database.begin_write().map_err(storage_error)?;
        txn.set_quick_repair(store.quick_repair);
        let size_in_use = store.size_in_use.load(Ordering::Acquire);
        Ok(RedbWriteTxn { txn, size_in_use, store: Arc::clone(store), guard })
    }

    fn table(&self, bucket: Bucket) -> Result<RecordTable<'_>> {
        self.txn.open_table(table_of(bucket)).map_err(storage_error)
    }
}

impl Read for RedbWriteTxn {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        snapshot::get(&self.table(bucket)?, key)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        // Not opened for nothing: a visitor of this table may look at an empty range.
        if range.is_empty() {
            return Ok(());
        }
        snapshot::scan(&self.table(bucket)?, range, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        snapshot::last_key(&self.table(bucket)?)
    }
}

impl WriteTxn for RedbWriteTxn {
    fn put(&mut self, bucket: Bucket, key: &[u8], value: &[u8]) -> Result<()> {
        let mut table = self.txn.open_table(table_of(bucket)).map_err(storage_error)?;
        let replaced = table.insert(key, value).map_err(storage_error)?;
        self.size_in_use += (key.len() + value.len()) as u64;
        self.size_in_use -= replaced.map_or(0, |old| (key.len() + old.value().len()) as u64);
        self.guard.record_change(bucket, key);
        Ok(())
    }

    fn delete(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        let mut table = self.txn.open_table(table_of(bucket)).map_err(storage_error)?;
        let removed = table.remove(key).map_err(storage_error)?;
        self.size_in_use -= removed.map_or(0, |old| (key.len() + old.value().len()) as u64);
        self.guard.record_change(bucket, key);
        Ok(())
    }

    fn put_all(
        &mut self,
        bucket: Bucket,
        records: &mut dyn Iterator<Item = (&[u8], &[u8])>,
    ) -> Result<()> {
        let mut table = self.txn.open_table(table_of(bucket)).map_err(storage_error)?;
        let mut grown = 0;
        let guard = &mut self.guard;
        let mut records = records.inspect(|(key, value)| {
            grown += (key.len() + value.len()) as u64;
            guard.record_change(bucket, key);
        });
        let unordered = append(&mut table, &mut records)?;
        let mut replaced_bytes = 0;
        for (key, value) in unordered.into_iter().chain(records) {
            let replaced = table.insert(key, value).map_err(storage_error)?;
            replaced_bytes += replaced.map_or(0, |old| (key.len() + old.value().len()) as u64);
        }
        self.size_in_use = self.size_in_use + grown - replaced_bytes;
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<()> {
        let RedbWriteTxn { txn, size_in_use, store, guard } = *self;
        let write = || -> std::result::Result<(), redb::Error> {
            txn.open_table(METADATA_TABLE)?.insert(SIZE_IN_USE, size_in_use)?;
            Ok(txn.commit()?)
        };
        let outcome = write().map_err(storage_error);
        if outcome.is_ok() {
            store.size_in_use.store(size_in_use, Ordering::Release);
        }
        guard.release(outcome)
    }
}

/// Appends records for as long as each key lies behind all others of the table, as revisions do.
/// redb takes such a run through a cursor at the table's end: it need not search the place of each
/// record, and fills its pages to the brim. Returns the first record that has its place elsewhere.
fn append<'k, 'v>(
    table: &mut RecordTable<'_>,
    records: &mut dyn Iterator<Item = (&'k [u8], &'v [u8])>,
) -> Result<Option<(&'k [u8], &'v [u8])>> {
    let mut end = table.upper_bound_mut(Bound::<&[u8]>::Unbounded).map_err(storage_error)?;
    let mut unordered = None;
    for (key, value) in records {
        match end.insert_before(key, value) {
            Ok(()) => {}
            Err(CursorError::UnorderedKey) => {
                unordered = Some((key, value));
                break;
            }
            Err(error) => return Err(Error::Storage(error.to_string())),
        }
    }
    end.close().map_err(storage_error)?;
    Ok(unordered)
}

impl fmt::Debug for RedbWriteTxn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedbWriteTxn")
            .field("size_in_use", &self.size_in_use)
            .finish_non_exhaustive()
    }
}
