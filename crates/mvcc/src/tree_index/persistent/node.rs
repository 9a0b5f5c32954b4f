//! The nodes of the tree, and searches in them.
//!
//! ```text
//!   inner  [from "a" live 3] [from "m" live 2]           children, each with a lower bound
//!                 │                  │                   of its keys, and its number of live keys
//!   leaf   [a][c][d][k]        [m][p]                    keys, each with its history
//! ```
//!
//! A node is one allocation with the exact size of its items and no capacity for growth. So a new
//! key needs a new leaf, whether or not a snapshot shares the old leaf
//! (`docs/decisions/mvcc-tree-index.md` explains why). A change that keeps the number of keys is
//! done in place if no other tree shares the node: a put to an existing key, a delete, or a
//! compaction that leaves a part of the key's history.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use clearlane_engine::KeyRange;

use super::slot_view::SlotView;
use crate::key_index::KeyIndex;
use crate::revision::Revision;
use crate::tree_index::key::{Key, search};

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) key: Key,
    pub(super) key_index: KeyIndex,
}

#[derive(Clone, Debug)]
pub(super) struct Child {
    /// A lower bound for the keys of this subtree. It is greater than every key of the previous
    /// child. In the first child of a node the bound has no meaning, because that child also gets
    /// all smaller keys.
    pub(super) from: Key,
    pub(super) live: LiveKeys,
    pub(super) node: Node,
}

/// How many keys of a child's subtree have a value at the newest revision, or the mark of their
/// deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LiveKeys {
    /// The number of live keys in the child's subtree, ignoring any mark above the child.
    Count(u64),
    /// The mark of a deletion: the subtree has no live keys. Each key that is still live in the
    /// node has a tombstone that is not written yet. The first tombstone is at this revision, and
    /// each following one at the next sub revision.
    Deleted { main: i64, first_sub: u32 },
}

impl LiveKeys {
    pub(super) fn deleted(first: Revision) -> LiveKeys {
        let first_sub = u32::try_from(first.sub);
        let first_sub = first_sub.expect("no transaction makes four thousand million changes");
        LiveKeys::Deleted { main: first.main, first_sub }
    }

    #[inline]
    pub(super) fn count(self) -> u64 {
        match self {
            LiveKeys::Count(count) => count,
            LiveKeys::Deleted { .. } => 0,
        }
    }

    /// Returns the revision of the mark's first tombstone, or `None` if there is no mark.
    #[inline]
    pub(super) fn mark(self) -> Option<Revision> {
        match self {
            LiveKeys::Count(_) => None,
            LiveKeys::Deleted { main, first_sub } => Some(Revision::new(main, first_sub.into())),
        }
    }
}

impl Child {
    /// Changes the number of live keys. The child must not have a mark.
    pub(super) fn change_live(&mut self, by: i64) {
        assert!(self.live.mark().is_none(), "the live count of a marked child must not change");
        let count = self.live.count().checked_add_signed(by);
        self.live = LiveKeys::Count(count.expect("the live count is not negative"));
    }
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    Leaf(Arc<[Slot]>),
    Inner(Arc<[Child]>),
}

impl Default for Node {
    fn default() -> Node {
        Node::Leaf(Arc::new([]))
    }
}

impl Node {
    /// Returns the number of keys of a leaf, or of children of an inner node.
    pub(super) fn len(&self) -> usize {
        match self {
            Node::Leaf(slots) => slots.len(),
            Node::Inner(children) => children.len(),
        }
    }

    /// Returns the number of live keys in this node, ignoring any mark above the node.
    pub(super) fn live(&self) -> u64 {
        match self {
            Node::Leaf(slots) => live_in(slots),
            Node::Inner(children) => live_under(children),
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<SlotView<'_>> {
        let (mut node, mut mark) = (self, None);
        loop {
            match node {
                Node::Inner(children) => {
                    let at = child_with(children, key);
                    mark = mark_below(children, at, mark);
                    node = &children[at].node;
                }
                Node::Leaf(slots) => {
                    let at = find(slots, key).ok()?;
                    let mut tombstone = mark.map(|first| first.after(live_in(&slots[..at])));
                    return Some(SlotView::new(&slots[at], &mut tombstone));
                }
            }
        }
    }

    /// Returns how many keys below `key` have a value at the newest revision. It takes one step per
    /// level.
    pub(super) fn live_below(&self, key: &[u8]) -> u64 {
        let mut node = self;
        let mut live = 0;
        loop {
            match node {
                Node::Inner(children) => {
                    let at = child_with(children, key);
                    live += live_under(&children[..at]);
                    if children[at].live.count() == 0 {
                        // No key of this child is live. If it has a mark, the counts in its subtree
                        // are older than the mark, so the search must not descend.
                        return live;
                    }
                    node = &children[at].node;
                }
                Node::Leaf(slots) => {
                    return live + live_in(&slots[..lower_bound(slots, key)]);
                }
            }
        }
    }

    /// Calls `visit` for the slots of `range`, in key order, until `visit` breaks.
    pub(super) fn walk(
        &self,
        range: KeyRange<'_>,
        visit: &mut impl FnMut(SlotView<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        self.walk_marked(range, None, visit)
    }

    /// Walks over a node. `mark` is the revision of the first tombstone if the whole node was
    /// deleted.
    fn walk_marked(
        &self,
        range: KeyRange<'_>,
        mark: Option<Revision>,
        visit: &mut impl FnMut(SlotView<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Node::Leaf(slots) => {
                let within = slots_in(slots, range);
                let before = &slots[..within.start];
                let mut tombstone = mark.map(|first| first.after(live_in(before)));
                let mut within = slots[within].iter();
                within.try_for_each(|slot| visit(SlotView::new(slot, &mut tombstone)))
            }
            Node::Inner(children) => children_in(children, range).try_for_each(|at| {
                let mark = mark_below(children, at, mark);
                children[at].node.walk_marked(range, mark, visit)
            }),
        }
    }

    /// Like [`walk`](Node::walk), but only for keys that may have a value at the newest revision:
    /// subtrees without a live key are skipped.
    pub(super) fn walk_live(
        &self,
        range: KeyRange<'_>,
        visit: &mut dyn FnMut(&Slot) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Node::Leaf(slots) => slots[slots_in(slots, range)].iter().try_for_each(visit),
            Node::Inner(children) => {
                let mut within = children[children_in(children, range)].iter();
                within.try_for_each(|child| match child.live.count() {
                    0 => ControlFlow::Continue(()),
                    _ => child.node.walk_live(range, visit),
                })
            }
        }
    }

    /// Skips the first `skip` keys that have a value at the newest revision, and calls `visit` for
    /// the following ones until `visit` breaks. Reduces `skip` by the number of skipped keys.
    pub(super) fn walk_live_after(
        &self,
        skip: &mut u64,
        visit: &mut dyn FnMut(&Key) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Node::Leaf(slots) => {
                for slot in slots.iter().filter(|slot| slot.key_index.is_live()) {
                    if *skip == 0 {
                        visit(&slot.key)?;
                    } else {
                        *skip -= 1;
                    }
                }
            }
            Node::Inner(children) => {
                for child in children.iter() {
                    if *skip < child.live.count() {
                        child.node.walk_live_after(skip, visit)?;
                    } else {
                        *skip -= child.live.count();
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Returns a tree of the nodes that may have live keys in the range. Its first and last leaf
    /// may also have keys outside the range. The tree can only be used to find live keys. In it, an
    /// inner node may have a single child, and an empty leaf may replace a node without a live key.
    pub(super) fn part(&self, range: KeyRange<'_>) -> Node {
        let Node::Inner(children) = self else { return self.clone() };
        let within = &children[children_in(children, range)];
        let part_of = |(at, child): (usize, &Child)| {
            // Only the first and the last child may have keys outside the range.
            let from = if at == 0 { range.from } else { &[] };
            let to = range.to.filter(|_| at + 1 == within.len());
            let node = match (from, to) {
                _ if child.live.count() == 0 => Node::default(),
                ([], None) => return child.clone(),
                _ => child.node.part(KeyRange { from, to }),
            };
            Child { from: child.from.clone(), live: LiveKeys::Count(node.live()), node }
        };
        Node::Inner(within.iter().enumerate().map(part_of).collect())
    }

    /// Returns the key that follows the first `keys` keys of `range`, or `None` if there is no such
    /// key. Leaves that are completely in the range are skipped by their length, without a search.
    /// Reduces `keys` by the number of skipped keys.
    pub(super) fn key_after(&self, range: KeyRange<'_>, keys: &mut usize) -> Option<&Key> {
        match self {
            Node::Leaf(slots) => {
                let within = match (range.from, range.to) {
                    ([], None) => slots,
                    _ => &slots[slots_in(slots, range)],
                };
                let next = within.get(*keys).map(|slot| &slot.key);
                *keys = keys.saturating_sub(within.len());
                next
            }
            Node::Inner(children) => {
                let within = &children[children_in(children, range)];
                within.iter().enumerate().find_map(|(at, child)| {
                    // Only the first and the last child may have keys outside the range.
                    let from = if at == 0 { range.from } else { &[] };
                    let to = range.to.filter(|_| at + 1 == within.len());
                    child.node.key_after(KeyRange { from, to }, keys)
                })
            }
        }
    }
}

/// Returns the position of the child to which `key` belongs, whether or not the tree has this key.
pub(super) fn child_with(children: &[Child], key: &[u8]) -> usize {
    match search(&children[1..], key, |child| &child.from) {
        Ok(before) => before + 1,
        Err(before) => before,
    }
}

pub(super) fn find(slots: &[Slot], key: &[u8]) -> Result<usize, usize> {
    search(slots, key, |slot| &slot.key)
}

/// Returns the positions of the slots whose keys are in a range.
#[inline]
pub(super) fn slots_in(slots: &[Slot], range: KeyRange<'_>) -> Range<usize> {
    let end = range.to.map_or(slots.len(), |to| lower_bound(slots, to));
    let start = lower_bound(&slots[..end], range.from);
    start..end
}

/// Returns the positions of the children that may have keys of a range, at least one.
#[inline]
pub(super) fn children_in(children: &[Child], range: KeyRange<'_>) -> Range<usize> {
    let start = child_with(children, range.from);
    let last = match (range.to, children.get(start + 1)) {
        (None, _) => children.len() - 1,
        (Some(to), Some(next)) if *next.from < *to => child_with(children, to),
        // The usual case: a range with one or a few keys.
        (Some(_), _) => start,
    };
    start..last + 1
}

fn lower_bound(slots: &[Slot], key: &[u8]) -> usize {
    find(slots, key).unwrap_or_else(|at| at)
}

fn live_in(slots: &[Slot]) -> u64 {
    slots.iter().filter(|slot| slot.key_index.is_live()).count() as u64
}

/// Returns the mark that applies to all of child number `at`: its own mark, or its part of the mark
/// for all these children. A mark for all children does not apply to a child without a live key.
#[inline]
fn mark_below(children: &[Child], at: usize, mark: Option<Revision>) -> Option<Revision> {
    let child = &children[at];
    match mark {
        Some(first) if child.live.count() > 0 => Some(first.after(live_under(&children[..at]))),
        _ => child.live.mark(),
    }
}

fn live_under(children: &[Child]) -> u64 {
    children.iter().map(|child| child.live.count()).sum()
}
