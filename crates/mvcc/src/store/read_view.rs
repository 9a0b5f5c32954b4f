//! Reading: which keys, at which revision, and their records.

use std::ops::ControlFlow;

use bytes::Bytes;
use clearlane_backend::{ReadTx, SnapshotReadTx};
use clearlane_engine::{Bucket, KeyRange};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::{Error, Result};
use crate::revision::Revision;
use crate::store::{Applied, State};
use crate::tree_index::IndexView;

/// What a range may be asked for, besides its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeOptions {
    /// The revision to read at; the current one if it is not above 0.
    pub revision: i64,
    /// At most so many records; all if it is not above 0.
    pub limit: i64,
    /// No records, only how many keys there are.
    pub count_only: bool,
}

/// What a range found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeAnswer {
    /// The records, in key order.
    pub records: Vec<KeyValue>,
    /// How many keys are in the range, whatever the limit.
    pub count: u64,
}

/// One state of the store. It does not change, and nobody waits for it.
#[derive(Clone, Debug)]
pub struct ReadView<A> {
    tx: SnapshotReadTx<State<A>>,
}

impl<A: Applied> ReadView<A> {
    pub(crate) fn new(tx: SnapshotReadTx<State<A>>) -> ReadView<A> {
        ReadView { tx }
    }

    /// What the store said of this state.
    pub fn state(&self) -> &State<A> {
        self.tx.payload()
    }

    /// The current revision, as of this state.
    pub fn revision(&self) -> i64 {
        self.state().revision
    }

    /// The revision up to which the past was dropped; -1 if never.
    pub fn compact_revision(&self) -> i64 {
        self.state().compact_revision
    }

    /// The records of a range of keys.
    pub fn range(&self, range: KeyRange<'_>, options: RangeOptions) -> Result<RangeAnswer> {
        let at = revision_to_read(self.state(), self.revision(), options.revision)?;
        range_of(&self.state().index, &self.tx, range, at, options)
    }

    /// The records of bucket `key` and all others, for hashing.
    pub(crate) fn tx(&self) -> &SnapshotReadTx<State<A>> {
        &self.tx
    }
}

/// The revision that a request means, if it can be read. `current` is the state's own, or one more
/// inside a write transaction that has changed something.
pub(crate) fn revision_to_read<A>(state: &State<A>, current: i64, asked: i64) -> Result<i64> {
    match asked {
        ..=0 => Ok(current),
        asked if asked > current => Err(Error::FutureRevision),
        asked if asked < state.compact_revision => Err(Error::Compacted),
        asked => Ok(asked),
    }
}

/// A range: the index names the records, the transaction has them.
pub(crate) fn range_of(
    index: &impl IndexView,
    tx: &dyn ReadTx,
    range: KeyRange<'_>,
    at: i64,
    options: RangeOptions,
) -> Result<RangeAnswer> {
    if options.count_only {
        return Ok(RangeAnswer { records: Vec::new(), count: index.count(range, at) });
    }
    let limit = if options.limit > 0 { options.limit as u64 } else { u64::MAX };
    let mut records = Vec::new();
    let mut failure = None;
    let count = index.page(range, at, limit, &mut |key, version| {
        match fetch(tx, key, version.modified) {
            Ok(record) => records.push(record),
            Err(error) => failure = Some(error),
        }
        if failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    failure.map_or(Ok(RangeAnswer { records, count }), Err)
}

/// The record that the index named. It is there: a view has every record that its index names.
pub(crate) fn fetch(tx: &dyn ReadTx, key: &[u8], modified: Revision) -> Result<KeyValue> {
    let bytes = tx.get(Bucket::Key, &modified.put_key())?;
    let name = || format!("\"{}\" of revision {modified}", key.escape_ascii());
    let bytes = bytes.ok_or_else(|| Error::Damaged(format!("no record for key {}", name())))?;
    decode(bytes).map_err(|error| Error::Damaged(format!("the record of {}: {error}", name())))
}

/// Reads a record. Key and value share the record's bytes.
pub(crate) fn decode(bytes: Bytes) -> std::result::Result<KeyValue, prost::DecodeError> {
    KeyValue::decode(bytes)
}
