//! Turns the records into the histories of their keys, and collects the leases of the keys.
//!
//! Each record is checked before it enters the index. A damaged disk may return any bytes, but the
//! index relies on rising revisions and on numbers that cannot overflow.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::LeasedKey;
use crate::error::{Error, Result};
use crate::key_index::{EncodedLen, Version};
use crate::revision::{RecordKind, Revision, RevisionKey};
use crate::tree_index::{Key, SortedRun, SortedRunBuilder};

/// Maximum accepted revision and version. No store can have reached larger numbers, and adding to
/// them could overflow.
pub const REVISION_MAX: i64 = 1 << 62;

/// The parts of a record that a restore needs: everything except the value, and except the mod
/// revision, which is in the record's key.
#[derive(Clone, PartialEq, Message)]
struct RecordHeader {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(int64, tag = "2")]
    create_revision: i64,
    #[prost(int64, tag = "4")]
    version: i64,
    #[prost(int64, tag = "6")]
    lease: i64,
}

/// Takes the records in the order of their revisions.
#[derive(Debug, Default)]
pub(super) struct RecordReader {
    run_records: usize,
    /// The finished runs, in the order of revisions.
    pub(super) runs: Vec<SortedRun>,
    builder: SortedRunBuilder,
    builder_records: usize,
    /// The lease of each key, as of the key's newest record so far.
    leases: BTreeMap<Key, i64>,
    /// The revision of the newest record so far.
    last_revision: Option<Revision>,
    /// The record that is being added. It is reused to avoid an allocation for each record.
    header: RecordHeader,
    /// The create revision and the version of the newest record that `count_bump` has counted.
    /// `None` before the first such record, and after a tombstone of the empty key.
    bump: Option<(i64, i64)>,
}

impl RecordReader {
    pub(super) fn new(run_records: usize) -> RecordReader {
        RecordReader { run_records, ..RecordReader::default() }
    }

    pub(super) fn add(&mut self, record_key: &[u8], value: &[u8]) -> Result<()> {
        let (revision, mark) = RevisionKey::decode(record_key)?;
        self.check_revision(revision)?;
        self.header.clear();
        let decoded = self.header.merge(value);
        decoded.map_err(|error| damaged_record(revision, &error.to_string()))?;
        if mark == RecordKind::Put && value.is_empty() && revision.sub == 0 {
            self.count_bump(revision);
        }
        match mark {
            RecordKind::Put => self.put(revision, value.len())?,
            RecordKind::Tombstone => self.tombstone(revision),
        }
        self.last_revision = Some(revision);
        self.builder_records += 1;
        if self.builder_records >= self.run_records {
            self.finish_run();
        }
        Ok(())
    }

    fn check_revision(&self, revision: Revision) -> Result<()> {
        // The index stores sub revisions in 32 bits. No transaction has more changes than that.
        if revision.main > REVISION_MAX || revision.sub > i64::from(u32::MAX) {
            return Err(damaged_record(revision, "its revision is out of range"));
        }
        if self.last_revision.is_some_and(|previous| revision <= previous) {
            return Err(damaged_record(revision, "it is both a put and a tombstone"));
        }
        Ok(())
    }

    /// Sets the create revision and the version of an empty record. `snapshot restore
    /// --bump-revision`, in etcd and here, writes such a record under the empty key, which no
    /// client can name. Each such record is one more version of the empty key.
    fn count_bump(&mut self, revision: Revision) {
        let (created, version) = self.bump.unwrap_or((revision.main, 0));
        (self.header.create_revision, self.header.version) = (created, version + 1);
        self.bump = Some((created, version + 1));
    }

    fn put(&mut self, modified: Revision, record_len: usize) -> Result<()> {
        let RecordHeader { create_revision: created, version, lease, .. } = self.header;
        if !(1..=modified.main).contains(&created) || !(1..=REVISION_MAX).contains(&version) {
            let detail = format!("version {version} created at {created} is impossible");
            return Err(damaged_record(modified, &detail));
        }
        let version = Version { modified, created, version, encoded_len: EncodedLen::UNKNOWN };
        self.builder.put(&self.header.key, version.with_record_len(record_len));
        if lease == 0 {
            self.leases.remove(&self.header.key[..]);
        } else {
            self.leases.insert(Key::new(&self.header.key), lease);
        }
        Ok(())
    }

    fn tombstone(&mut self, revision: Revision) {
        self.builder.tombstone(&self.header.key, revision);
        if self.header.key.is_empty() {
            self.bump = None;
        }
        self.leases.remove(&self.header.key[..]);
    }

    pub(super) fn finish_run(&mut self) {
        self.runs.push(std::mem::take(&mut self.builder).finish());
        self.builder_records = 0;
    }

    /// Returns the newest main revision, or 0 if there was no record.
    pub(super) fn newest(&self) -> i64 {
        self.last_revision.map_or(0, |revision| revision.main)
    }

    /// Returns the keys that have a lease, in key order.
    pub(super) fn leases(&self) -> Vec<LeasedKey> {
        let leases = self.leases.iter();
        leases.map(|(key, &lease)| LeasedKey { key: Bytes::copy_from_slice(key), lease }).collect()
    }
}

fn damaged_record(revision: Revision, detail: &str) -> Error {
    Error::Damaged(format!("the record of revision {revision}: {detail}"))
}
