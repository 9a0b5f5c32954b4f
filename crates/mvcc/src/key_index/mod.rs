//! The history of one key: its puts and tombstones, and what a compaction leaves of them.
//!
//! A history is a list of changes, each with its [`Revision`]. Tombstones cut it into
//! *generations*. A compaction at R leaves the newest change that is not after R, and all that
//! follow; if that change is a tombstone, it stays only if its revision is R itself. What `HashKV`
//! counts follows the same rule, but for tombstones: [`KeyIndex::kept_by_hash`].
//!
//! Invariants:
//! * A history has at least one change, and revisions rise. No two tombstones follow each other.
//! * The answer for a revision is changed by no later change, and by no compaction at or below it.
//!
//! One or two changes lie in 24 bytes (`inline_history.rs`), more of them in chunks of 64 that the
//! states of the index share (`chunked_history.rs`). Versions and creations are not kept per
//! change: those of the first change of each chunk are enough to count from. In etcd: `keyIndex`.
//! See `docs/mvcc.md` for a key's life in pictures.

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

    /// The history that begins with this version: a compaction has taken what was before.
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

    /// The key has a value from `revision` on. Returns what its record must say.
    pub fn put(&mut self, revision: Revision, encoded_len: EncodedLen) -> Version {
        let (created, version) = match self.current() {
            Some(current) => (current.created, current.version + 1),
            None => (revision.main, 1),
        };
        self.push(ChangeContext { created, version }, KeyChange::put(revision, encoded_len));
        Version { modified: revision, created, version, encoded_len }
    }

    /// The key has no value from `revision` on. Returns the version that ended; `None` if there
    /// was none, and then nothing has changed.
    pub fn tombstone(&mut self, revision: Revision) -> Option<Version> {
        let ended = self.current()?;
        self.push(ChangeContext::NONE, KeyChange::tombstone(revision));
        Some(ended)
    }

    /// Adds a change after all others; `origin` is its context as the first of a chunk.
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

    /// Adds what happened later. Tombstones of what is absent already are passed over.
    pub(crate) fn append(&mut self, later: &KeyIndex) {
        for change in later.changes() {
            match change.kind {
                RecordKind::Put => drop(self.put(change.revision(), change.encoded_len)),
                RecordKind::Tombstone => drop(self.tombstone(change.revision())),
            }
        }
    }

    /// The version that is valid at the end of the main revision `at`.
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

    /// Whether there is nothing but a tombstone, so that no read finds anything.
    pub(crate) fn is_lone_tombstone(&self) -> bool {
        !self.is_live() && self.newest() == self.oldest()
    }

    /// What a compaction at `at` keeps of what is at or below it: a tombstone only at `at` itself.
    pub fn kept_by_compaction(&self, at: i64) -> Option<Revision> {
        let newest = self.newest_at(at).filter(|newest| newest.is_kept_at(at));
        newest.map(|newest| newest.revision())
    }

    /// What a hash at `at` keeps of what is at or below it: no tombstone.
    pub fn kept_by_hash(&self, at: i64) -> Option<Revision> {
        let newest = self.newest_at(at).filter(|newest| newest.kind == RecordKind::Put);
        newest.map(|newest| newest.revision())
    }

    pub fn is_shortened_by(&self, at: i64) -> bool {
        let dropped = |newest: KeyChange| !newest.is_kept_at(at) || newest != self.oldest();
        self.newest_at(at).is_some_and(dropped)
    }

    /// Drops what no read at `at` or later needs. Returns whether anything is left: if not, the
    /// history itself was left as it was, and its key is to be removed.
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

    /// Calls `visit` for every change at the main revision `from` or later, the newest first.
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

    /// All of them, the oldest first.
    fn changes(&self) -> Vec<KeyChange> {
        let mut changes = Vec::new();
        self.find_in_rows(|_, row| {
            changes.extend(row.iter().rev());
            None::<()>
        });
        changes.reverse();
        changes
    }

    /// Looks into the rows of changes, the newest first, until `look` finds something.
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

/// `{4.0 6.0t} {8.0 9.0}`: the generations, as in `docs/mvcc.md`.
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
