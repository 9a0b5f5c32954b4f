//! One change of a key, and rows of consecutive changes that may start at any point of the key's
//! life.

use super::encoded_len::EncodedLen;
use super::version::Version;
use crate::revision::{RecordKind, Revision};

/// A put or a tombstone, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyChange {
    pub(super) main: i64,
    pub(super) sub: u32,
    pub(super) kind: RecordKind,
    /// The payload length of a put's record. Unknown for a tombstone.
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

    /// Returns true if a compaction at `at` keeps this change. This change must be the newest
    /// change at or before `at`.
    pub(super) fn is_kept_at(&self, at: i64) -> bool {
        self.kind == RecordKind::Put || self.main == at
    }
}

/// The create revision and the version of the first change in a row. They depend on the changes
/// before the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChangeContext {
    pub(super) created: i64,
    pub(super) version: i64,
}

impl ChangeContext {
    /// The context of a tombstone.
    pub(super) const NONE: ChangeContext = ChangeContext { created: 0, version: 0 };

    /// Returns the context of change number `at` in a row whose first change has this context.
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

/// Returns the version that change number `at` has created, in a row that starts with `origin`.
/// `None` for a tombstone.
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

/// Returns how many changes of a row are at or before the main revision `at`.
pub(super) fn count_up_to(changes: &[KeyChange], at: i64) -> usize {
    // Most reads are at the newest revision, so this case is checked first.
    match changes.last() {
        Some(newest) if newest.main <= at => changes.len(),
        _ => changes.partition_point(|change| change.main <= at),
    }
}
