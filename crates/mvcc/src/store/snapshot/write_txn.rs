//! Writing in the default era: records and state become visible with one pointer.

use bytes::Bytes;
use clearlane_backend::RangeVisitor;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_locks::MutexGuard;

use crate::error::Result;
use crate::store::draft::Draft;
use crate::store::interface::{Ended, KeyLeases, RangeAnswer, RangeOptions, WriteTxn};
use crate::store::snapshot::{SnapshotStore, State};
use crate::store::{Applied, mark, not_ours};
use crate::tree_index::TreeIndex;

type BackendTx<'s, A, I> =
    Box<dyn clearlane_backend::WriteTx<State<A, <I as TreeIndex>::View>> + 's>;

/// The open write transaction.
///
/// A state that is published has all nodes of the index from then on, so the first change behind it copies each node on
/// its way. This is why several revisions may [share a transaction](WriteTxn::go_on): only the first of them pays.
pub struct SnapshotWriteTxn<'s, A, I: TreeIndex> {
    /// The lock `store`: one write transaction at a time.
    index: MutexGuard<'s, I>,
    tx: BackendTx<'s, A, I>,
    /// Those of the revisions that have ended; each changes something.
    earlier: Vec<Draft>,
    draft: Draft,
    leases: &'s dyn KeyLeases,
}

impl<'s, A: Applied, I: TreeIndex> SnapshotWriteTxn<'s, A, I> {
    pub(crate) fn new(
        store: &'s SnapshotStore<A, I>,
        index: MutexGuard<'s, I>,
    ) -> Result<SnapshotWriteTxn<'s, A, I>> {
        let tx = store.begin()?;
        let draft = Draft::new(tx.payload().revision, tx.payload().compact_revision);
        let earlier = Vec::new();
        Ok(SnapshotWriteTxn { index, tx, earlier, draft, leases: &*store.leases })
    }

    /// The revision that a read in this transaction sees.
    pub fn revision(&self) -> i64 {
        self.draft.revision()
    }

    /// Stores a value. A lease of 0 is none.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        self.draft.put(&mut *self.index, &mut *self.tx, key, value, lease)
    }

    /// Deletes the keys of a range, and says how many there were.
    pub fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        self.draft.delete_range(&mut *self.index, &mut *self.tx, range)
    }

    /// The records of a range of keys, this transaction's changes included.
    pub fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeAnswer> {
        self.draft.range(&*self.index, &*self.tx, range, options)
    }

    /// Ends the transaction: everything becomes visible at once. `applied` describes the state.
    pub fn end(self, applied: A) -> Result<Ended> {
        let compact_revision = self.draft.compact_revision();
        self.end_as(applied, compact_revision)
    }

    /// Ends the transaction with another compact revision.
    pub(crate) fn end_as(self, applied: A, compact_revision: i64) -> Result<Ended> {
        let SnapshotWriteTxn { index, tx, earlier, draft, leases } = self;
        earlier.iter().for_each(|draft| draft.attach(leases));
        draft.attach(leases);
        let revision = draft.revision();
        let state = State { revision, compact_revision, applied, index: index.view() };
        let ended = tx.end(state)?;
        // Held until the state is published: the next writer must find it.
        drop(index);
        let earlier = earlier.into_iter().map(|draft| (draft.revision(), draft.into_changes()));
        let (earlier, changes) = (earlier.collect(), draft.into_changes());
        let (retired, commit_due) = (ended.retired, ended.commit_due);
        Ok(Ended { revision, changes, earlier, retired, commit_due })
    }

    /// Writes a mark of a compaction.
    pub(crate) fn put_mark(&mut self, name: &[u8], revision: i64) -> Result<()> {
        Ok(self.tx.put(Bucket::Meta, name, mark(revision))?)
    }

    /// What the crate above said of the state that the transaction began with.
    pub(crate) fn applied(&self) -> A {
        self.tx.payload().applied.clone()
    }
}

impl<A: Applied, I: TreeIndex> WriteTxn<A> for SnapshotWriteTxn<'_, A, I> {
    fn revision(&self) -> i64 {
        self.revision()
    }

    fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        self.put(key, value, lease)
    }

    fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        self.delete_range(range)
    }

    fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeAnswer> {
        self.range(range, options)
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
        if self.draft.changes_anything() {
            let next = Draft::new(self.draft.revision(), self.draft.compact_revision());
            self.earlier.push(std::mem::replace(&mut self.draft, next));
        }
        true
    }

    fn end(self: Box<Self>, applied: A) -> Result<Ended> {
        (*self).end(applied)
    }
}

impl<A, I: TreeIndex> std::fmt::Debug for SnapshotWriteTxn<'_, A, I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotWriteTxn").field("draft", &self.draft).finish_non_exhaustive()
    }
}
