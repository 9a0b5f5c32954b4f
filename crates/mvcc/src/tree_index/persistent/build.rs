//! A whole tree from keys in order: leaves from left to right, then what lies above them.
//!
//! Nodes are filled to three quarters, as they would be on average had the keys come one by one:
//! full ones would all be split by the first keys that are put between.
//!
//! Nearly all of the work is in the leaves. They are built by many threads, each for a part of the
//! keys; the last leaf of a part has what is left, be it a single key. What lies above is a
//! twentieth of them, and is built by one.

use std::sync::Arc;

use super::edit::{INNER_MAX, LEAF_MAX, child_of};
use super::node::{Child, Node, Slot};
use crate::tree_index::sorted_run::SortedKeys;

const LEAF_FILL: usize = LEAF_MAX * 3 / 4;
const INNER_FILL: usize = INNER_MAX * 3 / 4;

/// The leaves with these keys, which rise.
pub(super) fn leaves(histories: SortedKeys) -> Vec<Child> {
    let slots = histories.into_iter().map(|(key, history)| Slot { key, key_index: history });
    chunks(slots, LEAF_FILL).map(|slots| child_of(Node::Leaf(slots))).collect()
}

/// The tree that has these leaves.
pub(super) fn tree(mut level: Vec<Child>) -> Node {
    while level.len() > 1 {
        // A last node of one child is given to the node before it.
        let lonely = if level.len() % INNER_FILL == 1 { level.pop() } else { None };
        let mut above: Vec<Arc<[Child]>> = chunks(level.into_iter(), INNER_FILL).collect();
        if let (Some(lonely), Some(last)) = (lonely, above.last_mut()) {
            *last = last.iter().cloned().chain([lonely]).collect();
        }
        level = above.into_iter().map(|inner| child_of(Node::Inner(inner))).collect();
    }
    level.pop().map_or_else(Node::default, |root| root.node)
}

/// The items in nodes of `len` each; the last has what is left.
fn chunks<T>(
    mut items: impl ExactSizeIterator<Item = T>,
    len: usize,
) -> impl Iterator<Item = Arc<[T]>> {
    std::iter::from_fn(move || {
        let chunk: Arc<[T]> = items.by_ref().take(len).collect();
        if chunk.is_empty() { None } else { Some(chunk) }
    })
}
