//! Builds a whole tree from sorted keys: the leaves from left to right, then the levels above.
//!
//! Nodes are filled to three quarters, which is halfway between a node that was just split and a
//! full node. If the nodes were full, the first new key in each node would split it.

use std::sync::Arc;

use super::edit::{INNER_MAX, LEAF_MAX, child_of};
use super::node::{Child, Node, Slot};
use crate::key_index::KeyIndex;
use crate::tree_index::Key;

const LEAF_FILL: usize = LEAF_MAX * 3 / 4;
const INNER_FILL: usize = INNER_MAX * 3 / 4;

/// Builds the tree of these keys, which must be sorted. The last leaf has the remaining keys,
/// possibly only one.
pub(super) fn tree(histories: impl Iterator<Item = (Key, KeyIndex)>) -> Node {
    let slots = histories.map(|(key, history)| Slot { key, key_index: history });
    let leaves = chunks(slots, LEAF_FILL).map(|slots| child_of(Node::Leaf(slots)));
    let mut level: Vec<Child> = leaves.collect();
    while level.len() > 1 {
        // If the last node would have a single child, this child goes to the node before it.
        let single = if level.len() % INNER_FILL == 1 { level.pop() } else { None };
        let mut above: Vec<Arc<[Child]>> = chunks(level.into_iter(), INNER_FILL).collect();
        if let (Some(single), Some(last)) = (single, above.last_mut()) {
            *last = last.iter().cloned().chain([single]).collect();
        }
        level = above.into_iter().map(|inner| child_of(Node::Inner(inner))).collect();
    }
    level.pop().map_or_else(Node::default, |root| root.node)
}

fn chunks<T>(mut items: impl Iterator<Item = T>, len: usize) -> impl Iterator<Item = Arc<[T]>> {
    std::iter::from_fn(move || {
        let chunk: Arc<[T]> = items.by_ref().take(len).collect();
        if chunk.is_empty() { None } else { Some(chunk) }
    })
}
