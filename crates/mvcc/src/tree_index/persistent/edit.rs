//! Changes one key, and the nodes on the path from the root to the key's leaf.
//!
//! ```text
//!   snapshot ──▶ root ─────┬──────────┐          put to a key of leaf 3:
//!                          ▼          ▼          root and the second inner node are copied,
//!                       inner 1    inner 2       leaf 3 is copied, all others are shared
//!                       ▲  │ │      │ │ ▲
//!   now ──────▶ root' ──┘  1 2      3 4 │
//!                  └────▶ inner 2' ─ 3' ┘
//! ```
//!
//! A node that a snapshot shares is copied before it is changed ([`Arc::make_mut`]). The copy
//! increments the reference counts of its children, which are usually not in the cache; so inner
//! nodes are small. A node that would exceed its maximum number of items is split into two halves.
//! A node that falls below a quarter of the maximum is joined with a neighbour, see [`is_small`].
//! If the path or a join meets the mark of a deletion (`mark.rs`), the mark is pushed down one
//! level.

use std::sync::Arc;

use super::node::{Child, LiveKeys, Node, Slot, child_with, find};
use crate::key_index::KeyIndex;
use crate::revision::Revision;
use crate::tree_index::key::Key;

/// Maximum number of keys in a leaf. A copy of a leaf takes at most two kilobytes.
pub(super) const LEAF_MAX: usize = 32;
/// Maximum number of children of an inner node. A copy increments the reference count of each
/// child.
pub(super) const INNER_MAX: usize = 8;

pub(super) enum Edit {
    /// The key stays; its history may have been changed in place.
    Keep,
    Insert(KeyIndex),
    Remove,
}

#[derive(Default)]
pub(super) struct Effect {
    /// The change in the number of live keys.
    live: i64,
    /// The second half of a node that was split. `None` if the node was not split.
    split: Option<Child>,
}

/// Decides what happens to a key. It gets the key's history, if there is one.
pub(super) type Editor<'e> = dyn FnMut(Option<&mut KeyIndex>) -> Edit + 'e;

pub(super) fn edit(root: &mut Node, key: &[u8], editor: &mut Editor<'_>) {
    let effect = edit_node(root, key, editor);
    if let Some(right) = effect.split {
        let left = std::mem::take(root);
        let live = LiveKeys::Count(left.live());
        let left = Child { from: Key::new(b""), live, node: left };
        *root = Node::Inner(Arc::new([left, right]));
    }
    while let Node::Inner(children) = root
        && let [only] = &**children
    {
        let mut only = only.clone();
        only.push_mark_down();
        *root = only.node;
    }
}

fn edit_node(node: &mut Node, key: &[u8], editor: &mut Editor<'_>) -> Effect {
    match node {
        Node::Leaf(slots) => edit_leaf(slots, key, editor),
        Node::Inner(children) => edit_inner(children, key, editor),
    }
}

fn edit_inner(children: &mut Arc<[Child]>, key: &[u8], editor: &mut Editor<'_>) -> Effect {
    let at = child_with(children, key);
    let child = &mut Arc::make_mut(children)[at];
    child.push_mark_down();
    let len = child.node.len();
    let effect = edit_node(&mut child.node, key, editor);
    child.change_live(effect.live);
    let Effect { live, split } = effect;
    if let Some(right) = split {
        child.change_live(-(right.live.count() as i64));
        let split = insert(children, at + 1, right, INNER_MAX).map(|children| {
            let children = Node::Inner(children);
            child_of(children)
        });
        return Effect { live, split };
    }
    if child.node.len() < len && is_small(&child.node) {
        join_with_neighbour(children, at);
    }
    Effect { live, split: None }
}

fn edit_leaf(slots: &mut Arc<[Slot]>, key: &[u8], editor: &mut Editor<'_>) -> Effect {
    match find(slots, key) {
        Ok(at) => {
            let history = &mut Arc::make_mut(slots)[at].key_index;
            let was = i64::from(history.is_live());
            match editor(Some(history)) {
                Edit::Keep => Effect { live: i64::from(history.is_live()) - was, split: None },
                Edit::Insert(_) => unreachable!("the editor was given the history there is"),
                Edit::Remove => {
                    *slots = without(slots, at);
                    Effect { live: -was, split: None }
                }
            }
        }
        Err(at) => match editor(None) {
            Edit::Insert(history) => {
                let live = i64::from(history.is_live());
                let slot = Slot { key: Key::new(key), key_index: history };
                let split = insert(slots, at, slot, LEAF_MAX);
                Effect { live, split: split.map(|slots| child_of(Node::Leaf(slots))) }
            }
            Edit::Keep | Edit::Remove => Effect::default(),
        },
    }
}

pub(super) fn child_of(node: Node) -> Child {
    let from = match &node {
        Node::Leaf(slots) => slots[0].key.clone(),
        Node::Inner(children) => children[0].from.clone(),
    };
    Child { from, live: LiveKeys::Count(node.live()), node }
}

impl Child {
    /// Moves the mark of a deletion one level down: tombstones to the keys of a leaf, marks to the
    /// children of an inner node.
    pub(super) fn push_mark_down(&mut self) {
        let Some(mut revision) = self.live.mark() else { return };
        self.live = LiveKeys::Count(0);
        match &mut self.node {
            Node::Leaf(slots) => {
                for Slot { key_index, .. } in Arc::make_mut(slots) {
                    if key_index.tombstone(revision).is_some() {
                        revision = revision.after(1);
                    }
                }
            }
            Node::Inner(children) => {
                for child in Arc::make_mut(children) {
                    revision = revision.after(child.mark_deleted(revision));
                }
            }
        }
    }

    /// Deletes all keys of this subtree by a mark. The first key that has a value gets its
    /// tombstone at `first`. Returns how many keys had a value.
    pub(super) fn mark_deleted(&mut self, first: Revision) -> u64 {
        let live = self.live.count();
        if live > 0 {
            self.live = LiveKeys::deleted(first);
        }
        live
    }
}

/// Adds an item to a node. If the node was full, splits it and returns the second half of its
/// items.
fn insert<T: Clone>(items: &mut Arc<[T]>, at: usize, item: T, max: usize) -> Option<Arc<[T]>> {
    if items.len() < max {
        *items = with(&items[..at], item, &items[at..]);
        return None;
    }
    let middle = items.len().div_ceil(2);
    let (left, right) = items.split_at(middle);
    let (left, right) = if at <= middle {
        (with(&left[..at], item, &left[at..]), right.into())
    } else {
        (left.into(), with(&right[..at - middle], item, &right[at - middle..]))
    };
    *items = left;
    Some(right)
}

fn with<T: Clone>(before: &[T], item: T, after: &[T]) -> Arc<[T]> {
    let mut all = Vec::with_capacity(before.len() + 1 + after.len());
    all.extend_from_slice(before);
    all.push(item);
    all.extend_from_slice(after);
    all.into()
}

fn without<T: Clone>(items: &[T], at: usize) -> Arc<[T]> {
    items[..at].iter().chain(&items[at + 1..]).cloned().collect()
}

/// Returns true if a node should be joined with a neighbour.
///
/// Only compactions remove keys, and a compaction may remove most keys. Without joins the tree
/// would keep its height and its nodes, and counting would cost more than the remaining keys need.
/// The limit is a quarter and not a half, so that a node that was just split is not joined by the
/// next removal. If the items of both nodes are too many for one node, the two nodes share them
/// evenly.
fn is_small(node: &Node) -> bool {
    match node {
        Node::Leaf(slots) => slots.len() < LEAF_MAX / 4,
        Node::Inner(children) => children.len() < INNER_MAX / 4,
    }
}

/// Joins child number `at` with the child before it. The first child is joined with the second.
fn join_with_neighbour(children: &mut Arc<[Child]>, at: usize) {
    let left = at.saturating_sub(1);
    if children.len() < 2 {
        // The node has no neighbour: it is the only child of its parent, which is itself small or
        // is the root.
        return;
    }
    let pair = &mut Arc::make_mut(children)[left..left + 2];
    pair.iter_mut().for_each(Child::push_mark_down);
    let [first, second] = pair else { unreachable!("there are two children at least") };
    let from = first.from.clone();
    let joined = match (&first.node, &second.node) {
        (Node::Leaf(a), Node::Leaf(b)) => {
            rebalance(a, b, LEAF_MAX).map(|half| half.map(|slots| child_of(Node::Leaf(slots))))
        }
        (Node::Inner(a), Node::Inner(b)) => {
            // A node never uses the start key of its first child. But the first child of `b` moves
            // into the middle of a node, so it gets the start key of its parent, `second`.
            let mut b = b.to_vec();
            b[0].from = second.from.clone();
            rebalance(a, &b, INNER_MAX).map(|half| half.map(|inner| child_of(Node::Inner(inner))))
        }
        _ => unreachable!("all leaves are at the same depth"),
    };
    let (before, after) = (&children[..left], &children[left + 2..]);
    let mut joined = joined.into_iter().flatten();
    let first = joined.next().map(|first| Child { from, ..first });
    let joined = first.into_iter().chain(joined);
    *children = before.iter().cloned().chain(joined).chain(after.iter().cloned()).collect();
}

/// Returns all items in one node if they fit, or else in two nodes of equal size.
fn rebalance<T: Clone>(a: &[T], b: &[T], max: usize) -> [Option<Arc<[T]>>; 2] {
    let all = [a, b].concat();
    if all.is_empty() {
        [None, None]
    } else if all.len() <= max {
        [Some(all.into()), None]
    } else {
        let (a, b) = all.split_at(all.len() / 2);
        [Some(a.into()), Some(b.into())]
    }
}
