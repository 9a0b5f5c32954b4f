//! What a transaction has changed, in order; deleted keys take little more than their bytes.
//!
//! ```text
//!   put a, delete b..k, put z      runs     put a │ buffer {b c e h} │ put z
//!                                  changes  a  b  c  e  h  z
//! ```
//!
//! A large deletion has a change for each key. As a list of [`Change`]s, half a million of them
//! would be 50 MB that the apply loop writes and, if nothing is watched, throws away. So they stay
//! in the buffers of their [records](crate::tombstone_records), and a [`Change`] is made when it is
//! asked for: its key is a slice of the buffer.

use std::borrow::Cow;

use clearlane_proto::mvccpb::KeyValue;

use crate::interface::Change;
use crate::tombstone_records::{TombstoneBuffer, TombstoneRecord};

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    runs: Vec<Run>,
    len: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Run {
    Put(Change),
    Deleted(DeletedKeys),
}

#[derive(Clone, Debug, PartialEq)]
struct DeletedKeys {
    buffer: TombstoneBuffer,
    main: i64,
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
                Run::Deleted(keys) => (None, Some(keys.clone())),
            };
            let deleted = deleted.into_iter().flat_map(DeletedKeys::into_changes);
            put.into_iter().chain(deleted.map(Cow::Owned))
        })
    }

    pub fn into_changes(self) -> impl Iterator<Item = Change> {
        self.runs.into_iter().flat_map(|run| {
            let (put, deleted) = match run {
                Run::Put(change) => (Some(change), None),
                Run::Deleted(keys) => (None, Some(keys)),
            };
            put.into_iter().chain(deleted.into_iter().flat_map(DeletedKeys::into_changes))
        })
    }

    /// The records of the puts; all other changes are deletes.
    pub fn puts(&self) -> impl Iterator<Item = &KeyValue> {
        self.runs.iter().filter_map(|run| match run {
            Run::Put(change) => Some(change.record()),
            Run::Deleted(_) => None,
        })
    }

    pub(crate) fn push_put(&mut self, record: KeyValue) {
        self.runs.push(Run::Put(Change::Put(record)));
        self.len += 1;
    }

    pub(crate) fn push_deleted(&mut self, buffer: TombstoneBuffer, main: i64) {
        self.len += buffer.len();
        self.runs.push(Run::Deleted(DeletedKeys { buffer, main }));
    }
}

impl DeletedKeys {
    fn into_changes(self) -> impl Iterator<Item = Change> {
        self.buffer.into_records().map(move |TombstoneRecord { key, .. }| {
            Change::Delete(KeyValue { key, mod_revision: self.main, ..KeyValue::default() })
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
        assert!(changes.into_changes().eq(expected));
    }
}
