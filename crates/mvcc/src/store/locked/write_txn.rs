//! The write transaction of the old eras: `store`, then `batchTx`, and at the end `revMu`.

use bytes::Bytes;
use clearlane_backend::{RangeVisitor, WriteTx};
use clearlane_engine::{Bucket, KeyRange};
use clearlane_locks::MutexGuard;

use super::protocol::{Protocol, Revisions};
use super::{LockedStore, Reached};
use crate::error::Result;
use crate::store::draft::Draft;
use crate::store::interface::{Ended, RangeAnswer, RangeOptions, WriteTxn};
use crate::store::shared_index::IndexWriter;
use crate::store::{Applied, not_ours};
use crate::tree_index::TreeIndex;
use crate::watch::locked::watchable::{self, Watchable};

/// The open write transaction.
pub(crate) struct LockedWriteTxn<'s, A, I, P>
where
    I: TreeIndex,
    P: Protocol<I::View>,
{
    store: &'s LockedStore<A, I, P>,
    // Dropped in this order, the reverse of that in which they were taken.
    index: IndexWriter<'s, I>,
    tx: Box<dyn WriteTx<Reached<A>> + 's>,
    held: P::Held<'s>,
    /// The lock over all watchers, if this generation has it from the beginning on.
    watchable: Option<MutexGuard<'s, Watchable>>,
    draft: Draft,
}

impl<'s, A: Applied, I: TreeIndex, P: Protocol<I::View>> LockedWriteTxn<'s, A, I, P> {
    pub(crate) fn new(store: &'s LockedStore<A, I, P>) -> Result<Self> {
        let watchable = P::WATCHABLE_FIRST.then(|| store.watchable.lock());
        let held = store.protocol.write();
        let tx = store.backend.write()?;
        let index = store.index.write();
        // The one who has `batchTx` may look at the revisions: nobody else can change them.
        let draft = Draft::new(tx.payload().revision, tx.payload().compact_revision);
        Ok(LockedWriteTxn { store, index, tx, held, watchable, draft })
    }
}

impl<A: Applied, I: TreeIndex, P: Protocol<I::View>> WriteTxn<A> for LockedWriteTxn<'_, A, I, P> {
    fn revision(&self) -> i64 {
        self.draft.revision()
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        self.draft.put(&mut *self.index, &mut *self.tx, key, value, lease)
    }

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        self.draft.delete_range(&mut *self.index, &mut *self.tx, range)
    }

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeAnswer> {
        self.draft.range(&*self.index, &*self.tx, range, options)
    }

    fn set(&mut self, bucket: Bucket, key: &[u8], value: Bytes) -> Result<()> {
        not_ours(bucket, key);
        Ok(self.tx.put(bucket, key, value)?)
    }

    fn unset(&mut self, bucket: Bucket, key: &[u8]) -> Result<()> {
        not_ours(bucket, key);
        Ok(self.tx.delete(bucket, key)?)
    }

    fn get(&self, bucket: Bucket, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.tx.get(bucket, key)?)
    }

    fn scan(&self, bucket: Bucket, visit: &mut RangeVisitor<'_>) -> Result<()> {
        Ok(self.tx.range(bucket, KeyRange::ALL, visit)?)
    }

    fn go_on(&mut self) -> bool {
        false
    }

    fn end(self: Box<Self>, applied: A) -> Result<Ended> {
        let LockedWriteTxn { store, index, tx, held, watchable, draft } = *self;
        draft.attach(&*store.leases);
        let (revision, compact_revision) = (draft.revision(), draft.compact_revision());
        let reached = Reached { revision, compact_revision, applied };
        let ended = if draft.changes_anything() {
            let (current, compacted) = (revision, compact_revision);
            let next = Revisions { current, compacted, index: index.view() };
            // As in etcd, watchers are told before the end, and nobody comes between.
            let mut watchable = watchable.unwrap_or_else(|| store.watchable.lock());
            let to_wake = watchable.notify(revision, draft.changes());
            let ended = store.protocol.publish(held, next, || Ok(tx.end(reached)?))?;
            // Nobody is woken with a lock held.
            drop((watchable, index));
            watchable::wake(&to_wake);
            ended
        } else {
            // Nobody waits for a transaction that has changed nothing: `revMu` is left alone.
            tx.end(reached)?
        };
        let changes = draft.into_changes();
        let (retired, commit_due) = (ended.retired, ended.commit_due);
        Ok(Ended { revision, changes, earlier: Vec::new(), retired, commit_due })
    }
}
