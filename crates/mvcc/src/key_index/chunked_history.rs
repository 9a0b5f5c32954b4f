//! The history of a key with many changes: chunks of up to 64 changes, the newest chunk first.
//! Snapshots of the index share chunks.
//!
//! ```text
//!   now       {130 .. 140} ──┐
//!                            ├─▶ {66 .. 129} ──▶ {2 .. 65}
//!   snapshot  {130 .. 139} ──┘
//! ```
//!
//! A new change copies at most the front chunk, if a snapshot shares it. Each chunk stores the
//! version and the create revision of its oldest change, so a read need not count along the chain.
//! A read at an old revision takes up to one step per 64 changes: about 780 steps for 50,000
//! changes.
//!
//! Invariants:
//! * A chunk has 1 to 64 changes. All of them are newer than the changes in the next chunk.
//! * Dropping a chain does not recurse, so the stack does not grow with its length: see [`Drop`].

use std::sync::Arc;

use super::inline_history::InlineHistory;
use super::key_change::{self, ChangeContext, KeyChange};

/// Maximum number of changes in a chunk. A copy of a chunk takes at most one kilobyte.
const CHUNK_MAX: usize = 64;

/// A chunk, and the older chunks that follow it.
#[derive(Clone, Debug)]
pub(super) struct ChunkedHistory {
    pub(super) first_context: ChangeContext,
    pub(super) changes: Vec<KeyChange>,
    older: Option<Arc<ChunkedHistory>>,
}

impl ChunkedHistory {
    pub(super) fn new(first_context: ChangeContext, changes: &[KeyChange]) -> ChunkedHistory {
        ChunkedHistory { first_context, changes: changes.to_vec(), older: None }
    }

    /// Adds the newest change. `context` is used if the change starts a new chunk.
    pub(super) fn push(front: &mut Arc<ChunkedHistory>, context: ChangeContext, change: KeyChange) {
        if front.changes.len() == CHUNK_MAX {
            let (changes, older) = (vec![change], Some(Arc::clone(front)));
            *front = Arc::new(ChunkedHistory { first_context: context, changes, older });
        } else if let Some(own) = Arc::get_mut(front) {
            own.changes.push(change);
        } else {
            let mut changes = Vec::with_capacity(front.changes.len() + 1);
            changes.extend_from_slice(&front.changes);
            changes.push(change);
            let (first_context, older) = (front.first_context, front.older.clone());
            *front = Arc::new(ChunkedHistory { first_context, changes, older });
        }
    }

    pub(super) fn newest(&self) -> KeyChange {
        *self.changes.last().expect("a chunk is not empty")
    }

    /// Returns the newest chunk that has changes up to `at`, and the number of these changes in the
    /// chunk. Returns `None` if all changes are later.
    fn find_chunk(&self, at: i64) -> Option<(&ChunkedHistory, usize)> {
        self.chunks()
            .map(|chunk| (chunk, key_change::count_up_to(&chunk.changes, at)))
            .find(|(_, count)| *count > 0)
    }

    /// Returns the history after a compaction at `at`, which must be at or after the first change.
    /// The new history consists of the rest of the newest chunk that has a change up to `at`, and
    /// of copies of all newer chunks, linked to this rest. Returns `None` if nothing is left.
    pub(super) fn compacted(&self, at: i64) -> Option<Arc<ChunkedHistory>> {
        let (chunk, count) = self.find_chunk(at)?;
        let first = if chunk.changes[count - 1].is_kept_at(at) { count - 1 } else { count };
        let rest = chunk.changes.get(first..).filter(|rest| !rest.is_empty());
        let rest = rest
            .map(|rest| ChunkedHistory::new(chunk.first_context.at(&chunk.changes, first), rest));
        let in_front: Vec<&ChunkedHistory> =
            self.chunks().take_while(|front| !std::ptr::eq(*front, chunk)).collect();
        in_front.into_iter().rev().fold(rest.map(Arc::new), |older, front| {
            Some(Arc::new(ChunkedHistory {
                first_context: front.first_context,
                changes: front.changes.clone(),
                older,
            }))
        })
    }

    pub(super) fn to_inline(&self) -> Option<InlineHistory> {
        if self.older.is_some() {
            None
        } else {
            InlineHistory::of(self.first_context, &self.changes)
        }
    }

    /// Returns the chunks, the newest first.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &ChunkedHistory> {
        std::iter::successors(Some(self), |chunk| chunk.older.as_deref())
    }
}

/// The default drop would recurse from each chunk into the next. This loop takes the chain apart
/// instead. It stops at the first chunk that another history shares. The last owner of that chunk
/// frees it and the older chunks.
impl Drop for ChunkedHistory {
    fn drop(&mut self) {
        let mut next = self.older.take();
        while let Some(mut chunk) = next.and_then(Arc::into_inner) {
            next = chunk.older.take();
        }
    }
}
