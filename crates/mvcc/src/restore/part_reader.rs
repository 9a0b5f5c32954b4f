//! Reading one part of the records: the histories of its keys, and which are attached to a lease.
//!
//! Each record is checked before it comes into the index. The index takes for granted that
//! revisions rise and that numbers can be counted on, because the writers see to that; a file that
//! another program has written, or a damaged disk, may have anything.

use prost::Message;

use crate::error::{Error, Result};
use crate::key_index::{EncodedLen, Version};
use crate::revision::{RecordKind, Revision, RevisionKey};
use crate::tree_index::{Key, SortedRun, SortedRunBuilder};

/// Numbers above this one count nothing that has happened, and counting on from them would end.
pub(super) const REVISION_MAX: i64 = 1 << 62;

/// What was read of a part.
#[derive(Debug)]
pub(super) struct PartContents {
    pub(super) run: SortedRun,
    /// The newest main revision, 0 if there was no record.
    pub(super) newest: i64,
    /// The attachments of the part's last version of each key, in the order of keys.
    pub(super) attachments: Vec<LeaseAttachment>,
}

/// A put that has attached its key to a lease. Whether the key still is, the index knows.
#[derive(Debug)]
pub(super) struct LeaseAttachment {
    pub(super) key: Key,
    pub(super) revision: Revision,
    pub(super) lease: i64,
}

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

/// A part that is being read.
#[derive(Debug, Default)]
pub(super) struct PartReader {
    builder: SortedRunBuilder,
    attachments: Vec<LeaseAttachment>,
    last_revision: Option<Revision>,
    records: usize,
    /// Kept from record to record, for its memory.
    header: RecordHeader,
}

impl PartReader {
    /// How many records there were.
    pub(super) fn records(&self) -> usize {
        self.records
    }

    /// Whether this is the key of a record of the same revision as the one before.
    pub(super) fn is_same_revision(&self, record_key: &[u8]) -> bool {
        self.last_revision.is_some_and(|revision| record_key.starts_with(&revision.put_key()))
    }

    /// The next record.
    pub(super) fn add(&mut self, record_key: &[u8], value: &[u8]) -> Result<()> {
        let decoded = RevisionKey::decode(record_key);
        let (revision, mark) = decoded.map_err(|error| Error::Damaged(error.to_string()))?;
        self.check_revision(revision)?;
        self.header.clear();
        let decoded = self.header.merge(value);
        decoded.map_err(|error| damaged_record(revision, &error.to_string()))?;
        match mark {
            RecordKind::Put => self.put(revision, value.len())?,
            RecordKind::Tombstone => self.builder.tombstone(&self.header.key, revision),
        }
        self.last_revision = Some(revision);
        self.records += 1;
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

    fn put(&mut self, modified: Revision, record_len: usize) -> Result<()> {
        let RecordHeader { create_revision: created, version, lease, .. } = self.header;
        if !(1..=modified.main).contains(&created) || !(1..=REVISION_MAX).contains(&version) {
            let detail = format!("version {version}, created at {created}, cannot be");
            return Err(damaged_record(modified, &detail));
        }
        let version = Version { modified, created, version, encoded_len: EncodedLen::UNKNOWN };
        self.builder.put(&self.header.key, version.with_record_len(record_len));
        if lease != 0 {
            let key = Key::new(&self.header.key);
            self.attachments.push(LeaseAttachment { key, revision: modified, lease });
        }
        Ok(())
    }

    /// What was read.
    pub(super) fn finish(self) -> PartContents {
        let newest = self.last_revision.map_or(0, |revision| revision.main);
        let attachments = last_of_each_key(self.attachments);
        PartContents { run: self.builder.finish(), newest, attachments }
    }
}

fn damaged_record(revision: Revision, detail: &str) -> Error {
    Error::Damaged(format!("the record of revision {revision}: {detail}"))
}

/// Without this, a key that is put again and again would leave as many attachments.
fn last_of_each_key(mut attachments: Vec<LeaseAttachment>) -> Vec<LeaseAttachment> {
    // A stable sort: those of a key stay in the order of their revisions.
    attachments.sort_by(|a, b| a.key.cmp(&b.key));
    attachments.dedup_by(|later, earlier| {
        let same = later.key == earlier.key;
        if same {
            std::mem::swap(later, earlier);
        }
        same
    });
    attachments
}
