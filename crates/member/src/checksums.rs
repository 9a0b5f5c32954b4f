//! Sums over one member's store, for those who compare members or suspect a disk.
//!
//! Both walk the whole store. They are for a thread that has time, and look at one state however
//! long they take. What they sum is told in [`clearlane_mvcc::hash`] and
//! [`clearlane_mvcc::whole_hash`].

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::{self as backend, RangeVisitor, ReadTx, Value};
use clearlane_engine::{Bucket, KeyRange, Snapshot};
use clearlane_mvcc::{Error as StoreError, HashKv, Store, WholeHashJob};

use crate::error::Result;
use crate::progress::Progress;
use crate::requests::Refused;
use crate::trouble::Trouble;

/// So many keys or records in one step. In the old eras the steps of a hash hold a lock anyway.
const STEP: usize = 10_000;

/// The sum of all keys at a revision, the current one if it is 0; and the current one of the same
/// state.
pub fn hash_kv(
    store: &dyn Store<Progress>,
    revision: i64,
) -> std::result::Result<(HashKv, i64), Trouble> {
    let refused = |error| match error {
        StoreError::Compacted => Refused::Compacted.into(),
        StoreError::FutureRevision => Refused::FutureRevision.into(),
        error => Trouble::Failed(error.into()),
    };
    let mut job = store.hash(revision).map_err(refused)?;
    let sum = loop {
        if let Some(sum) = job.step(STEP).map_err(refused)? {
            break sum;
        }
    };
    Ok((sum, job.revision()))
}

/// The sum of everything that is on disk, after a commit; and the current revision of before: what it
/// stands for is in the sum.
pub fn hash(store: &dyn Store<Progress>) -> Result<(u32, i64)> {
    let revision = store.read().revision();
    let copy = store.copy()?;
    let mut job = WholeHashJob::new(Committed(Arc::clone(copy.snapshot())));
    loop {
        if let Some(sum) = job.step(STEP)? {
            return Ok((sum, revision));
        }
    }
}

/// What is committed, as a read transaction that holds no lock in any era.
struct Committed(Arc<dyn Snapshot>);

impl ReadTx for Committed {
    fn get(&self, bucket: Bucket, key: &[u8]) -> backend::Result<Option<Bytes>> {
        Ok(self.0.get(bucket, key)?)
    }

    fn range(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
        visit: &mut RangeVisitor<'_>,
    ) -> backend::Result<()> {
        let mut page =
            |key: &[u8], value: &[u8]| -> ControlFlow<()> { visit(key, Value::Page(value)) };
        Ok(self.0.scan(bucket, range, &mut page)?)
    }
}
