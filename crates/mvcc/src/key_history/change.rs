//! One change of a key, and a row of them that begins somewhere in the key's life.

use crate::key_history::{Payload, Version};
use crate::revision::{Mark, Revision};

/// A put or a tombstone, in 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) main: i64,
    pub(super) sub: u32,
    pub(super) mark: Mark,
    /// Of a put.
    pub(super) payload: Payload,
}

impl Change {
    pub(super) fn put(revision: Revision, payload: Payload) -> Change {
        Change { payload, ..Change::new(revision, Mark::Put) }
    }

    pub(super) fn tombstone(revision: Revision) -> Change {
        Change::new(revision, Mark::Tombstone)
    }

    fn new(revision: Revision, mark: Mark) -> Change {
        let sub = u32::try_from(revision.sub);
        let sub = sub.expect("no transaction makes four thousand million changes");
        Change { main: revision.main, sub, mark, payload: Payload::UNKNOWN }
    }

    pub(super) fn revision(&self) -> Revision {
        Revision { main: self.main, sub: i64::from(self.sub) }
    }

    /// Whether a compaction leaves this change, if it is the newest that is not after `at`.
    pub(super) fn stays_at(&self, at: i64) -> bool {
        self.mark == Mark::Put || self.main == at
    }
}

/// What the first change of a row says, as far as the changes before it decide that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) created: i64,
    pub(super) version: i64,
}

impl Origin {
    /// That of a tombstone.
    pub(super) const NONE: Origin = Origin { created: 0, version: 0 };

    /// That of the change number `at` in a row that begins with this one.
    pub(super) fn of(self, changes: &[Change], at: usize) -> Origin {
        if changes[at].mark == Mark::Tombstone {
            return Origin::NONE;
        }
        match changes[..at].iter().rposition(|change| change.mark == Mark::Tombstone) {
            Some(end) => Origin { created: changes[end + 1].main, version: (at - end) as i64 },
            None => Origin { created: self.created, version: self.version + at as i64 },
        }
    }
}

/// The version that the change number `at` made, in a row that begins with `origin`.
pub(super) fn version(origin: Origin, changes: &[Change], at: usize) -> Option<Version> {
    let change = &changes[at];
    let Origin { created, version } = origin.of(changes, at);
    (change.mark == Mark::Put).then(|| Version {
        modified: change.revision(),
        created,
        version,
        payload: change.payload,
    })
}

/// How many changes of a row are at or before the main revision `at`.
pub(super) fn count_up_to(changes: &[Change], at: i64) -> usize {
    // Most reads are at the newest revision.
    match changes.last() {
        Some(newest) if newest.main <= at => changes.len(),
        _ => changes.partition_point(|change| change.main <= at),
    }
}

/// Calls `visit` for every change of a row, with what it says as a first one.
pub(super) fn for_each(origin: Origin, changes: &[Change], visit: &mut dyn FnMut(Change, Origin)) {
    for (at, change) in changes.iter().enumerate() {
        visit(*change, origin.of(changes, at));
    }
}
