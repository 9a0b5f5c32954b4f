//! Writing: one main revision for a whole transaction, a sub revision for each change.
//!
//! ```text
//!   at revision 6:  put a=1    ──▶ record 7.0   a, created 7, version 1
//!                   put b=2    ──▶ record 7.1   b, created 3, version 5
//!                   delete c   ──▶ record 7.2t  c
//!   end             the store is at revision 7: all three, or for an older view none
//! ```
//!
//! The transaction reads its own changes: inside it the current revision is the one it is writing.

use bytes::Bytes;
use clearlane_backend::Retired;
use clearlane_engine::{Bucket, KeyRange};
use clearlane_locks::MutexGuard;
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::Result;
use crate::revision::Revision;
use crate::store::read_view::{RangeAnswer, RangeOptions, range_of, revision_to_read};
use crate::store::{Applied, State, Writer};
use crate::tree_index::{IndexView, TreeIndex};

type BackendTx<'s, A> = Box<dyn clearlane_backend::WriteTx<State<A>> + 's>;

/// One change of a write transaction, as watchers are told of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The key has this record now.
    Put(KeyValue),
    /// The key is gone. The record has its key and the revision of the delete.
    Delete(KeyValue),
}

/// What the end of a write transaction leaves to its caller.
#[derive(Debug)]
pub struct Ended<A> {
    /// The store's revision now.
    pub revision: i64,
    /// What was changed, in order; empty if nothing was.
    pub changes: Vec<Change>,
    /// Views to drop where it does not matter how long that takes.
    pub retired: Retired<State<A>>,
    /// So much is pending that whoever runs the commits should run one now.
    pub commit_due: bool,
}

/// The open write transaction.
pub struct WriteTxn<'s, A> {
    /// The lock `store`: one write transaction at a time.
    writer: MutexGuard<'s, Writer>,
    tx: BackendTx<'s, A>,
    /// The state that it began with.
    base: State<A>,
    changes: Vec<Change>,
}

impl<'s, A: Applied> WriteTxn<'s, A> {
    pub(crate) fn new(
        writer: MutexGuard<'s, Writer>,
        tx: BackendTx<'s, A>,
        base: State<A>,
    ) -> WriteTxn<'s, A> {
        WriteTxn { writer, tx, base, changes: Vec::new() }
    }

    /// The revision that a read in this transaction sees.
    pub fn revision(&self) -> i64 {
        self.base.revision + i64::from(!self.changes.is_empty())
    }

    /// Stores a value. A lease of 0 is none.
    pub fn put(&mut self, key: &[u8], value: &[u8], lease: i64) -> Result<()> {
        let revision = self.next_revision();
        let version = self.writer.index.put(key, revision);
        let record = KeyValue {
            key: Bytes::copy_from_slice(key),
            create_revision: version.created,
            mod_revision: revision.main,
            version: version.version,
            value: Bytes::copy_from_slice(value),
            lease,
        };
        self.tx.put(Bucket::Key, &revision.put_key(), record.encode_to_vec().into())?;
        self.changes.push(Change::Put(record));
        Ok(())
    }

    /// Deletes the keys of a range, and says how many there were.
    pub fn delete_range(&mut self, range: KeyRange<'_>) -> Result<u64> {
        let mut keys = Vec::new();
        self.writer.index.view().walk(range, self.revision(), &mut |key, _| {
            keys.push(Bytes::copy_from_slice(key));
            std::ops::ControlFlow::Continue(())
        });
        let deleted = keys.len() as u64;
        keys.into_iter().try_for_each(|key| self.delete(key))?;
        Ok(deleted)
    }

    fn delete(&mut self, key: Bytes) -> Result<()> {
        let revision = self.next_revision();
        let ended = self.writer.index.tombstone(&key, revision);
        assert!(ended.is_some(), "the walk found a value under the key");
        // A tombstone's record is its key alone; its revision is in the record's key.
        let record = KeyValue { key, ..KeyValue::default() };
        self.tx.put(Bucket::Key, &revision.tombstone_key(), record.encode_to_vec().into())?;
        self.changes.push(Change::Delete(KeyValue { mod_revision: revision.main, ..record }));
        Ok(())
    }

    /// The records of a range of keys, this transaction's changes included.
    pub fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeAnswer> {
        let at = revision_to_read(&self.base, self.revision(), options.revision)?;
        range_of(&self.writer.index.view(), &*self.tx, range, at, options)
    }

    /// Ends the transaction: everything becomes visible at once. `applied` describes the state.
    pub fn end(self, applied: A) -> Result<Ended<A>> {
        let revision = self.revision();
        let index = self.writer.index.view();
        let state =
            State { revision, applied, index, compact_revision: self.base.compact_revision };
        self.end_as(state)
    }

    /// Ends the transaction with a state of the caller's making.
    pub(crate) fn end_as(self, state: State<A>) -> Result<Ended<A>> {
        let WriteTxn { tx, changes, writer, .. } = self;
        let revision = state.revision;
        let ended = tx.end(state)?;
        // Held until the state is published: the next writer must find it.
        drop(writer);
        Ok(Ended { revision, changes, retired: ended.retired, commit_due: ended.commit_due })
    }

    /// What a compaction changes together with the records' marks.
    pub(crate) fn parts(&mut self) -> (&mut Writer, &mut BackendTx<'s, A>, &mut State<A>) {
        (&mut self.writer, &mut self.tx, &mut self.base)
    }

    fn next_revision(&self) -> Revision {
        Revision::new(self.base.revision + 1, self.changes.len() as i64)
    }
}

impl<A> std::fmt::Debug for WriteTxn<'_, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteTxn").field("changes", &self.changes.len()).finish_non_exhaustive()
    }
}
