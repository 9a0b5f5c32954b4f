//! Reading the records: the histories of their keys, and which keys are attached to a lease.
//!
//! Each record is checked before it comes into the index, which takes for granted that revisions
//! rise and that numbers can be counted on: a damaged disk may have anything.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;

use super::LeasedKey;
use crate::error::{Error, Result};
use crate::key_index::{EncodedLen, Version};
use crate::revision::{RecordKind, Revision, RevisionKey};
use crate::tree_index::{Key, SortedRun, SortedRunBuilder};

/// Above this a number counts nothing that has happened, and counting on from it may overflow.
pub const REVISION_MAX: i64 = 1 << 62;

/// The parts of a record that the index needs: all but the value.
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
    /// In the order of revisions.
    pub(super) runs: Vec<SortedRun>,
    builder: SortedRunBuilder,
    builder_records: usize,
    /// The lease of each key whose newest record so far attaches it to one.
    leases: BTreeMap<Key, i64>,
    /// That of the newest record so far.
    last_revision: Option<Revision>,
    /// Kept from record to record, for its memory.
    header: RecordHeader,
    /// Of the empty key since its last tombstone: create revision, and version.
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
        // The index keeps sub revisions in 32 bits: no transaction has that many changes.
        if revision.main > REVISION_MAX || revision.sub > i64::from(u32::MAX) {
            return Err(damaged_record(revision, "it cannot have been written"));
        }
        if self.last_revision.is_some_and(|previous| revision <= previous) {
            return Err(damaged_record(revision, "it is both a put and a tombstone"));
        }
        Ok(())
    }

    /// `snapshot restore --bump-revision`, etcd's and ours, puts an empty record, of a key that no
    /// client can name. It counts as a version of that key.
    fn count_bump(&mut self, revision: Revision) {
        let (created, version) = self.bump.unwrap_or((revision.main, 0));
        (self.header.create_revision, self.header.version) = (created, version + 1);
        self.bump = Some((created, version + 1));
    }

    fn put(&mut self, modified: Revision, record_len: usize) -> Result<()> {
        let RecordHeader { create_revision: created, version, lease, .. } = self.header;
        if !(1..=modified.main).contains(&created) || !(1..=REVISION_MAX).contains(&version) {
            let detail = format!("version {version}, created at {created}, cannot be");
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

    /// The newest main revision, 0 if there was no record.
    pub(super) fn newest(&self) -> i64 {
        self.last_revision.map_or(0, |revision| revision.main)
    }

    /// In key order.
    pub(super) fn leases(&self) -> Vec<LeasedKey> {
        let leases = self.leases.iter();
        leases.map(|(key, &lease)| LeasedKey { key: Bytes::copy_from_slice(key), lease }).collect()
    }
}

fn damaged_record(revision: Revision, detail: &str) -> Error {
    Error::Damaged(format!("the record of revision {revision}: {detail}"))
}
