//! A committed state of a redb store.
//!
//! The tables hold redb's read transaction open; each knows the root of its tree, so a read goes
//! straight to the pages.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use bytes::Bytes;
use redb::{ReadOnlyTable, ReadableDatabase, ReadableTable};

use super::{RedbStore, storage_error, table_of};
use crate::bucket::Bucket;
use crate::error::Result;
use crate::interface::{KeyRange, Read, Snapshot, Visitor};

#[derive(Debug)]
pub(super) struct RedbSnapshot {
    tables: [ReadOnlyTable<&'static [u8], &'static [u8]>; Bucket::ALL.len()],
    /// Last: redb answers no read once its database is closed.
    _store: Arc<RedbStore>,
}

impl RedbSnapshot {
    pub(super) fn new(store: &Arc<RedbStore>) -> Result<RedbSnapshot> {
        let txn = store.database.begin_read().map_err(storage_error)?;
        let mut tables = Vec::with_capacity(Bucket::ALL.len());
        for bucket in Bucket::ALL {
            tables.push(txn.open_table(table_of(bucket)).map_err(storage_error)?);
        }
        let tables = tables.try_into().unwrap_or_else(|_| unreachable!("one table per bucket"));
        Ok(RedbSnapshot { tables, _store: Arc::clone(store) })
    }
}

impl Read for RedbSnapshot {
    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        get(&self.tables[bucket.index()], key)
    }

    fn scan(&self, bucket: Bucket, range: KeyRange<'_>, visit: &mut Visitor<'_>) -> Result<()> {
        scan(&self.tables[bucket.index()], range, visit)
    }

    fn last_key(&self, bucket: Bucket) -> Result<Option<Bytes>> {
        last_key(&self.tables[bucket.index()])
    }
}

impl Snapshot for RedbSnapshot {}

pub(super) fn get(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
) -> Result<Option<Bytes>> {
    let found = table.get(key).map_err(storage_error)?;
    Ok(found.map(|value| Bytes::copy_from_slice(value.value())))
}

pub(super) fn scan(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    range: KeyRange<'_>,
    visit: &mut Visitor<'_>,
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    let to = range.to.map_or(Bound::Unbounded, Bound::Excluded);
    let bounds = (Bound::Included(range.from), to);
    for record in table.range::<&[u8]>(bounds).map_err(storage_error)? {
        let (key, value) = record.map_err(storage_error)?;
        if visit(key.value(), value.value()) == ControlFlow::Break(()) {
            break;
        }
    }
    Ok(())
}

pub(super) fn last_key(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
) -> Result<Option<Bytes>> {
    let last = table.last().map_err(storage_error)?;
    Ok(last.map(|(key, _)| Bytes::copy_from_slice(key.value())))
}
