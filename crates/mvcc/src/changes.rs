//! The changes of a transaction, in order. A deleted key takes little more memory than its bytes.
//!
//! ```text
//!   put a, delete b..k, put z      runs     put a │ buffer {b c e h} │ put z
//!                                  changes  a  b  c  e  h  z
//! ```
//!
//! If half a million deletes were stored as a list of [`Change`]s, the list would take 50 MB. The
//! apply loop would have to build it, and would drop it again if no key is watched. So deleted keys
//! stay in the buffers of their [records](crate::tombstone_records). The keys of a large deleted
//! range stay in the tree as it was before the deletion ([`DeletedRange`]). A [`Change`] is built
//! only when it is needed, and its key is a slice of a buffer.

use std::borrow::Cow;

use clearlane_proto::mvccpb::KeyValue;

use crate::interface::Change;
use crate::tombstone_records::{TombstoneBuffer, TombstoneRecord};
use crate::tree_index::DeletedRange;
use crate::watch::response::{RECORD_OVERHEAD, change_size};

#[derive(Clone, Debug, Default)]
pub struct Changes {
    runs: Vec<Run>,
    len: usize,
}

#[derive(Clone, Debug)]
enum Run {
    Put(Change),
    Deleted { keys: DeletedKeys, main: i64 },
}

#[derive(Clone, Debug)]
enum DeletedKeys {
    Buffer(TombstoneBuffer),
    Range(DeletedRange),
}

/// One change, or a range of deleted keys.
#[derive(Debug)]
pub enum ChangeRun<'c> {
    One(Cow<'c, Change>),
    /// The deletion of many keys. The caller need not visit each key.
    DeletedRange(&'c DeletedRange),
}

/// Two values are equal if they have the same changes, even if the changes are stored differently.
impl PartialEq for Changes {
    fn eq(&self, other: &Changes) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Changes {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = Cow<'_, Change>> {
        self.runs.iter().flat_map(|run| {
            let (put, deleted) = match run {
                Run::Put(change) => (Some(Cow::Borrowed(change)), None),
                Run::Deleted { keys, main } => (None, Some(keys.clone().into_changes(*main))),
            };
            put.into_iter().chain(deleted.into_iter().flatten().map(Cow::Owned))
        })
    }

    pub fn runs(&self) -> impl Iterator<Item = ChangeRun<'_>> {
        self.runs.iter().flat_map(|run| {
            let (mut one, mut buffer) = (None, None);
            match run {
                Run::Put(change) => one = Some(ChangeRun::One(Cow::Borrowed(change))),
                Run::Deleted { keys: DeletedKeys::Range(range), .. } => {
                    one = Some(ChangeRun::DeletedRange(range));
                }
                Run::Deleted { keys, main } => buffer = Some(keys.clone().into_changes(*main)),
            }
            let buffered = buffer.into_iter().flatten();
            one.into_iter().chain(buffered.map(|change| ChangeRun::One(Cow::Owned(change))))
        })
    }

    pub fn into_changes(self) -> impl Iterator<Item = Change> {
        self.runs.into_iter().flat_map(|run| {
            let (put, deleted) = match run {
                Run::Put(change) => (Some(change), None),
                Run::Deleted { keys, main } => (None, Some(keys.into_changes(main))),
            };
            put.into_iter().chain(deleted.into_iter().flatten())
        })
    }

    /// Returns the approximate memory, in bytes, that the changes would take as [`Change`]s. The
    /// keys of a deleted range are not visited, so their lengths are not included. Until the
    /// [`Change`]s of the range are built, the range takes less memory: it keeps at most the nodes
    /// that contained the keys.
    pub(crate) fn memory_bytes(&self) -> usize {
        let of_run = |run: &Run| match run {
            Run::Put(change) => change_size(change),
            Run::Deleted { keys: DeletedKeys::Buffer(buffer), .. } => {
                buffer.bytes_len() + buffer.len() * RECORD_OVERHEAD
            }
            Run::Deleted { keys: DeletedKeys::Range(range), .. } => {
                range.count() as usize * RECORD_OVERHEAD
            }
        };
        self.runs.iter().map(of_run).sum()
    }

    /// Returns the records of the puts. All other changes are deletes.
    pub fn puts(&self) -> impl Iterator<Item = &KeyValue> {
        self.runs.iter().filter_map(|run| match run {
            Run::Put(change) => Some(change.record()),
            Run::Deleted { .. } => None,
        })
    }

    pub(crate) fn push_put(&mut self, record: KeyValue) {
        self.runs.push(Run::Put(Change::Put(record)));
        self.len += 1;
    }

    pub(crate) fn push_deleted(&mut self, buffer: TombstoneBuffer, main: i64) {
        self.len += buffer.len();
        self.runs.push(Run::Deleted { keys: DeletedKeys::Buffer(buffer), main });
    }

    pub(crate) fn push_deleted_range(&mut self, range: DeletedRange) {
        self.len += range.count() as usize;
        let main = range.first_revision().main;
        self.runs.push(Run::Deleted { keys: DeletedKeys::Range(range), main });
    }
}

impl DeletedKeys {
    fn into_changes(self, main: i64) -> impl Iterator<Item = Change> {
        let (buffer, range) = match self {
            DeletedKeys::Buffer(buffer) => (Some(buffer), None),
            DeletedKeys::Range(range) => (None, Some(range)),
        };
        let records = buffer.into_iter().flat_map(TombstoneBuffer::into_records);
        let records = records.chain(range.into_iter().flat_map(|range| range.into_records(0)));
        records.map(move |TombstoneRecord { key, .. }| {
            Change::Delete(KeyValue { key, mod_revision: main, ..KeyValue::default() })
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::tombstone_records::TombstoneRecords;

    #[test]
    fn changes_come_in_their_order() {
        let record = |key: &'static [u8], mod_revision| KeyValue {
            key: Bytes::from_static(key),
            mod_revision,
            ..KeyValue::default()
        };
        let mut changes = Changes::default();
        assert!(changes.is_empty());
        let mut records = TombstoneRecords::default();
        changes.push_put(record(b"a", 7));
        [b"b", b"c"].into_iter().for_each(|key| records.add(key));
        changes.push_deleted(records.take(), 7);
        changes.push_put(record(b"z", 7));
        let expected = [
            Change::Put(record(b"a", 7)),
            Change::Delete(record(b"b", 7)),
            Change::Delete(record(b"c", 7)),
            Change::Put(record(b"z", 7)),
        ];
        assert_eq!((changes.len(), changes.puts().count()), (4, 2));
        assert!(changes.iter().map(Cow::into_owned).eq(expected.iter().cloned()));
        let runs = changes.runs().map(|run| match run {
            ChangeRun::One(change) => change.into_owned(),
            ChangeRun::DeletedRange(_) => unreachable!("no range was deleted"),
        });
        assert!(runs.eq(expected.iter().cloned()));
        assert!(changes.into_changes().eq(expected));
    }
}
