//! The history of one key: its puts and tombstones, and the part that a compaction keeps.
//!
//! A history is a list of changes, each with its [`Revision`]. Tombstones divide it into
//! *generations*. A compaction at R keeps the newest change at or before R, and all later changes.
//! If that newest change is a tombstone, it is kept only if its revision is R itself. `HashKV`
//! selects records by the same rule, except that it keeps no tombstone: [`KeyIndex::kept_by_hash`].
//!
//! Invariants:
//! * A history has at least one change, and its revisions are in ascending order. A tombstone never
//!   directly follows another tombstone.
//! * The result of a read at a revision is not changed by a later change of the key, nor by a
//!   compaction at or below this revision.
//!
//! One or two changes usually take 24 bytes (`inline_history.rs`). Other histories are stored in
//! chunks of up to 64 changes that several states of the index share (`chunked_history.rs`). Only
//! the oldest change of each chunk is stored with its version and create revision. For a later
//! change, both are computed from the changes before it. In etcd: `keyIndex`. `docs/mvcc.md` shows
//! the life of a key in pictures.

mod key_change;
mod chunked_history;
mod encoded_len;
mod inline_history;
mod version;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use self::chunked_history::ChunkedHistory;
pub use self::encoded_len::EncodedLen;
use self::inline_history::InlineHistory;
use self::key_change::{ChangeContext, KeyChange};
pub use self::version::Version;
use crate::revision::{RecordKind, Revision};

#[derive(Clone)]
pub struct KeyIndex(Representation);

#[derive(Clone)]
enum Representation {
    Inline(InlineHistory),
    Chunked(Arc<ChunkedHistory>),
}

impl KeyIndex {
    pub fn new(revision: Revision, encoded_len: EncodedLen) -> KeyIndex {
        let origin = ChangeContext { created: revision.main, version: 1 };
        KeyIndex::of(origin, &[KeyChange::put(revision, encoded_len)])
    }

    /// Creates a history that starts with this version. A compaction may have removed the earlier
    /// changes.
    pub fn from_version(first: Version) -> KeyIndex {
        let origin = ChangeContext { created: first.created, version: first.version };
        KeyIndex::of(origin, &[KeyChange::put(first.modified, first.encoded_len)])
    }

    pub(crate) fn from_tombstone(revision: Revision) -> KeyIndex {
        KeyIndex::of(ChangeContext::NONE, &[KeyChange::tombstone(revision)])
    }

    fn of(origin: ChangeContext, changes: &[KeyChange]) -> KeyIndex {
        KeyIndex(match InlineHistory::of(origin, changes) {
            Some(short) => Representation::Inline(short),
            None => Representation::Chunked(Arc::new(ChunkedHistory::new(origin, changes))),
        })
    }

    /// Adds a put at `revision`. Returns the version that the put's record must have.
    pub fn put(&mut self, revision: Revision, encoded_len: EncodedLen) -> Version {
        let (created, version) = match self.current() {
            Some(current) => (current.created, current.version + 1),
            None => (revision.main, 1),
        };
        self.push(ChangeContext { created, version }, KeyChange::put(revision, encoded_len));
        Version { modified: revision, created, version, encoded_len }
    }

    /// Adds a tombstone at `revision`. Returns the version that ended. If the key has no value,
    /// returns `None` and changes nothing.
    pub fn tombstone(&mut self, revision: Revision) -> Option<Version> {
        let ended = self.current()?;
        self.push(ChangeContext::NONE, KeyChange::tombstone(revision));
        Some(ended)
    }

    /// Adds a change after all others. `origin` is its context if it becomes the first change of a
    /// chunk.
    fn push(&mut self, origin: ChangeContext, change: KeyChange) {
        let (newest, revision) = (self.newest().revision(), change.revision());
        assert!(newest < revision, "a change at {revision} comes after one at {newest}");
        match &mut self.0 {
            Representation::Inline(short) => {
                let (first, mut changes) = short.unpack();
                changes.push(change);
                *self = KeyIndex::of(first, &changes);
            }
            Representation::Chunked(long) => ChunkedHistory::push(long, origin, change),
        }
    }

    /// Adds the changes of a later history. Tombstones of a key without a value are skipped.
    pub(crate) fn append(&mut self, later: &KeyIndex) {
        for change in later.changes() {
            match change.kind {
                RecordKind::Put => drop(self.put(change.revision(), change.encoded_len)),
                RecordKind::Tombstone => drop(self.tombstone(change.revision())),
            }
        }
    }

    /// Returns the version that is valid after all changes of the main revision `at`, or `None` if
    /// the key has no value then.
    #[inline]
    pub fn at(&self, at: i64) -> Option<Version> {
        match &self.0 {
            Representation::Inline(short) => short.at(at),
            Representation::Chunked(_) => {
                let version = |origin, row: &[KeyChange]| {
                    let count = key_change::count_up_to(row, at);
                    (count > 0).then(|| key_change::version_at(origin, row, count - 1))
                };
                self.find_in_rows(version).flatten()
            }
        }
    }

    #[inline]
    pub fn current(&self) -> Option<Version> {
        self.at(i64::MAX)
    }

    #[inline]
    pub fn is_live(&self) -> bool {
        self.newest().kind == RecordKind::Put
    }

    /// Returns true if the history has only a tombstone, so that no read finds a value.
    pub(crate) fn is_lone_tombstone(&self) -> bool {
        !self.is_live() && self.newest() == self.oldest()
    }

    /// Returns the revision of the change at or below `at` that a compaction at `at` keeps, or
    /// `None` if it keeps none. A tombstone is kept only if its main revision is `at` itself.
    pub fn kept_by_compaction(&self, at: i64) -> Option<Revision> {
        let newest = self.newest_at(at).filter(|newest| newest.is_kept_at(at));
        newest.map(|newest| newest.revision())
    }

    /// Returns the revision of the change at or below `at` that a hash at `at` keeps, or `None` if
    /// it keeps none. A hash never keeps a tombstone.
    pub fn kept_by_hash(&self, at: i64) -> Option<Revision> {
        let newest = self.newest_at(at).filter(|newest| newest.kind == RecordKind::Put);
        newest.map(|newest| newest.revision())
    }

    pub fn is_shortened_by(&self, at: i64) -> bool {
        let dropped = |newest: KeyChange| !newest.is_kept_at(at) || newest != self.oldest();
        self.newest_at(at).is_some_and(dropped)
    }

    /// Drops all changes that reads at `at` or later do not need. If nothing is left, returns false
    /// without changing the history: the caller must remove the key.
    pub fn compact(&mut self, at: i64) -> bool {
        if !self.is_shortened_by(at) {
            return true;
        }
        let rest = match &self.0 {
            Representation::Inline(short) => short.compacted(at).map(Representation::Inline),
            Representation::Chunked(long) => {
                long.compacted(at).map(|long| match long.to_inline() {
                    Some(short) => Representation::Inline(short),
                    None => Representation::Chunked(long),
                })
            }
        };
        let is_left = rest.is_some();
        if let Some(rest) = rest {
            self.0 = rest;
        }
        is_left
    }

    fn newest(&self) -> KeyChange {
        match &self.0 {
            Representation::Inline(short) => short.newest(),
            Representation::Chunked(long) => long.newest(),
        }
    }

    fn oldest(&self) -> KeyChange {
        let mut oldest = self.newest();
        self.find_in_rows(|_, row| {
            oldest = row[0];
            None::<()>
        });
        oldest
    }

    fn newest_at(&self, at: i64) -> Option<KeyChange> {
        self.find_in_rows(|_, row| row[..key_change::count_up_to(row, at)].last().copied())
    }

    /// Calls `visit` for every change at the main revision `from` or later, the newest first, until
    /// `visit` breaks.
    pub(crate) fn changes_since(
        &self,
        from: i64,
        visit: &mut dyn FnMut(Revision, RecordKind) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let end = self.find_in_rows(|_, row| {
            row.iter().rev().find_map(|change| {
                if change.main < from {
                    return Some(ControlFlow::Continue(()));
                }
                let flow = visit(change.revision(), change.kind);
                flow.is_break().then_some(flow)
            })
        });
        end.unwrap_or(ControlFlow::Continue(()))
    }

    /// Returns all changes, the oldest first.
    fn changes(&self) -> Vec<KeyChange> {
        let mut changes = Vec::new();
        self.find_in_rows(|_, row| {
            changes.extend(row.iter().rev());
            None::<()>
        });
        changes.reverse();
        changes
    }

    /// Calls `look` for each row of changes, the newest first, until `look` returns a value.
    fn find_in_rows<T>(
        &self,
        mut look: impl FnMut(ChangeContext, &[KeyChange]) -> Option<T>,
    ) -> Option<T> {
        match &self.0 {
            Representation::Inline(short) => {
                let (origin, changes) = short.unpack();
                look(origin, &changes)
            }
            Representation::Chunked(long) => {
                long.chunks().find_map(|chunk| look(chunk.first_context, &chunk.changes))
            }
        }
    }
}

/// Shows the generations as in `docs/mvcc.md`: `{4.0 6.0t} {8.0 9.0}`.
impl fmt::Display for KeyIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for change in self.changes() {
            let open = match text.chars().last() {
                None => "{",
                Some('}') => " {",
                Some(_) => " ",
            };
            let end = if change.kind == RecordKind::Tombstone { "t}" } else { "" };
            text += &format!("{open}{}{end}", change.revision());
        }
        f.write_str(&text)?;
        f.write_str(if self.is_live() { "}" } else { "" })
    }
}

impl fmt::Debug for KeyIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_takes_three_words() {
        assert_eq!(size_of::<KeyIndex>(), 24);
    }

    #[test]
    #[should_panic(expected = "a change at 3.0 comes after one at 3.0")]
    fn revisions_must_rise() {
        KeyIndex::new(Revision::new(3, 0), EncodedLen::UNKNOWN)
            .put(Revision::new(3, 0), EncodedLen::UNKNOWN);
    }

    #[test]
    fn a_put_after_a_delete_in_one_transaction_is_kept() {
        let mut history = KeyIndex::new(Revision::new(2, 0), EncodedLen::of(5));
        history.tombstone(Revision::new(3, 0));
        let put = history.put(Revision::new(3, 1), EncodedLen::of(6));
        assert_eq!(history.kept_by_compaction(3), Some(put.modified));
        assert!(history.compact(3));
        assert_eq!(history.at(3), Some(put));
    }

    #[test]
    fn a_long_history_is_dropped_on_a_small_stack() {
        let fill = || {
            let mut history = KeyIndex::new(Revision::new(1, 0), EncodedLen::UNKNOWN);
            (2..1_000_000).for_each(|main| {
                history.put(Revision::new(main, 0), EncodedLen::UNKNOWN);
            });
            let (newest, oldest) = (history.current().unwrap(), history.at(1).unwrap());
            assert_eq!((newest.version, oldest.version), (999_999, 1));
        };
        std::thread::Builder::new().stack_size(64 << 10).spawn(fill).unwrap().join().unwrap();
    }
}
