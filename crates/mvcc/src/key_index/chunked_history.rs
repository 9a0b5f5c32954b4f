//! Many changes of a key, in chunks of up to 64 that snapshots of the index share, newest in front.
//!
//! ```text
//!   now       {130 .. 140} ──┐
//!                            ├─▶ {66 .. 129} ──▶ {2 .. 65}
//!   snapshot  {130 .. 139} ──┘
//! ```
//!
//! A put copies the front chunk if a snapshot has it too, and nothing else. Each chunk knows
//! version and creation of its first change, so neither is counted along the chain. A read at an
//! old revision takes a step per 64 changes: at 50,000 changes, 780 steps.
//!
//! Invariants:
//! * A chunk has 1 to 64 changes, all later than those of the chunks behind it.
//! * Dropping a chain takes no stack in proportion to its length: see [`Drop`].

use std::sync::Arc;

use super::inline_history::InlineHistory;
use super::key_change::{self, ChangeContext, KeyChange};

/// Number of changes in a chunk: a copy of a chunk is one kilobyte at most.
const CHUNK_MAX: usize = 64;

/// The front chunk of a chain.
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

    /// Adds a change in front of all others; `context` is its own, if it opens a chunk.
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

    /// The first chunk with changes up to `at`, and how many of its changes are.
    fn find_chunk(&self, at: i64) -> Option<(&ChunkedHistory, usize)> {
        self.chunks()
            .map(|chunk| (chunk, key_change::count_up_to(&chunk.changes, at)))
            .find(|(_, count)| *count > 0)
    }

    /// What a compaction at `at` leaves: a part of the chunk where `at` lies, and the chunks in
    /// front of it, which are linked anew.
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

    /// The chunks, the newest first.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &ChunkedHistory> {
        std::iter::successors(Some(self), |chunk| chunk.older.as_deref())
    }
}

/// Left to itself, a chunk would drop the one behind it, that one the next, each in a call inside
/// the other. So the chain is taken apart from here. It ends at the first chunk that another
/// history still has; the last one to have it goes on.
impl Drop for ChunkedHistory {
    fn drop(&mut self) {
        let mut next = self.older.take();
        while let Some(mut chunk) = next.and_then(Arc::into_inner) {
            next = chunk.older.take();
        }
    }
}
