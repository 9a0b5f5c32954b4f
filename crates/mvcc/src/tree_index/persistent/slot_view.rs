//! A key as a read sees it: its history, and the tombstone from a mark above it.
//!
//! ```text
//!   child  [from "c" deleted 7.4]                  its keys were deleted at revision 7
//!               │
//!   leaf   [c {3.0}] [d {3.1 5.0t}] [e {4.0}]      c has 7.4t, d had no value, e has 7.5t
//! ```

use std::ops::ControlFlow;

use super::node::Slot;
use crate::key_index::{KeyIndex, Version};
use crate::revision::{RecordKind, Revision};
use crate::tree_index::{ChangeVisitor, Key};

#[derive(Clone, Copy, Debug)]
pub(super) struct SlotView<'n> {
    pub(super) key: &'n Key,
    history: &'n KeyIndex,
    /// The tombstone from a mark, which is newer than the whole history. `None` if no mark applies
    /// to the key.
    tombstone: Option<Revision>,
}

impl<'n> SlotView<'n> {
    /// Creates the view of a slot. Below a mark, `next_tombstone` is the tombstone of the next live
    /// key. If this key is live, it gets this tombstone, and `next_tombstone` is advanced.
    #[inline]
    pub(super) fn new(slot: &'n Slot, next_tombstone: &mut Option<Revision>) -> SlotView<'n> {
        let Slot { key, key_index: history } = slot;
        let tombstone = next_tombstone.filter(|_| history.is_live());
        if let Some(tombstone) = tombstone {
            *next_tombstone = Some(tombstone.after(1));
        }
        SlotView { key, history, tombstone }
    }

    fn tombstone_at(&self, at: i64) -> Option<Revision> {
        self.tombstone.filter(|tombstone| tombstone.main <= at)
    }

    #[inline]
    pub(super) fn at(&self, at: i64) -> Option<Version> {
        match self.tombstone {
            Some(tombstone) if tombstone.main <= at => None,
            _ => self.history.at(at),
        }
    }

    pub(super) fn current(&self) -> Option<Version> {
        self.at(i64::MAX)
    }

    pub(super) fn kept_by_compaction(&self, at: i64) -> Option<Revision> {
        match self.tombstone_at(at) {
            Some(tombstone) => (tombstone.main == at).then_some(tombstone),
            None => self.history.kept_by_compaction(at),
        }
    }

    pub(super) fn kept_by_hash(&self, at: i64) -> Option<Revision> {
        match self.tombstone_at(at) {
            Some(_) => None,
            None => self.history.kept_by_hash(at),
        }
    }

    pub(super) fn is_shortened_by(&self, at: i64) -> bool {
        // The versions that the tombstone has ended are dropped.
        self.tombstone_at(at).is_some() || self.history.is_shortened_by(at)
    }

    pub(super) fn changes_since(
        &self,
        since: i64,
        visit: &mut ChangeVisitor<'_>,
    ) -> ControlFlow<()> {
        if let Some(tombstone) = self.tombstone.filter(|tombstone| tombstone.main >= since) {
            visit(tombstone, RecordKind::Tombstone)?;
        }
        self.history.changes_since(since, visit)
    }

    /// Returns the history including the tombstone.
    #[cfg(test)]
    pub(super) fn whole_history(&self) -> KeyIndex {
        let mut history = self.history.clone();
        if let Some(tombstone) = self.tombstone {
            history.tombstone(tombstone);
        }
        history
    }
}
