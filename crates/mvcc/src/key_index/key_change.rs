//! One change of a key, and a row of them that begins somewhere in the key's life.

use super::encoded_len::EncodedLen;
use super::version::Version;
use crate::revision::{RecordKind, Revision};

/// A put or a tombstone, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyChange {
    pub(super) main: i64,
    pub(super) sub: u32,
    pub(super) kind: RecordKind,
    /// Of a put.
    pub(super) encoded_len: EncodedLen,
}

impl KeyChange {
    pub(super) fn put(revision: Revision, encoded_len: EncodedLen) -> KeyChange {
        let sub = u32::try_from(revision.sub);
        let sub = sub.expect("no transaction makes four thousand million changes");
        KeyChange { main: revision.main, sub, kind: RecordKind::Put, encoded_len }
    }

    pub(super) fn tombstone(revision: Revision) -> KeyChange {
        let kind = RecordKind::Tombstone;
        KeyChange { kind, ..KeyChange::put(revision, EncodedLen::UNKNOWN) }
    }

    pub(super) fn revision(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }

    /// Whether a compaction leaves this change, if it is the newest that is not after `at`.
    pub(super) fn is_kept_at(&self, at: i64) -> bool {
        self.kind == RecordKind::Put || self.main == at
    }
}

/// Creation and version of the first change of a row, which the changes before it have decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangeContext {
    pub(super) created: i64,
    pub(super) version: i64,
}

impl ChangeContext {
    /// That of a tombstone.
    pub(super) const NONE: ChangeContext = ChangeContext { created: 0, version: 0 };

    /// Of change number `at` in a row whose first change has this context.
    pub(super) fn at(self, changes: &[KeyChange], at: usize) -> ChangeContext {
        if changes[at].kind == RecordKind::Tombstone {
            return ChangeContext::NONE;
        }
        match changes[..at].iter().rposition(|change| change.kind == RecordKind::Tombstone) {
            Some(end) => {
                ChangeContext { created: changes[end + 1].main, version: (at - end) as i64 }
            }
            None => ChangeContext { created: self.created, version: self.version + at as i64 },
        }
    }
}

/// The version that the change number `at` made, in a row that begins with `origin`.
pub(super) fn version_at(
    origin: ChangeContext,
    changes: &[KeyChange],
    at: usize,
) -> Option<Version> {
    let change = &changes[at];
    let ChangeContext { created, version } = origin.at(changes, at);
    (change.kind == RecordKind::Put).then(|| Version {
        modified: change.revision(),
        created,
        version,
        encoded_len: change.encoded_len,
    })
}

/// How many changes of a row are at or before the main revision `at`.
pub(super) fn count_up_to(changes: &[KeyChange], at: i64) -> usize {
    // Most reads are at the newest revision.
    match changes.last() {
        Some(newest) if newest.main <= at => changes.len(),
        _ => changes.partition_point(|change| change.main <= at),
    }
}
