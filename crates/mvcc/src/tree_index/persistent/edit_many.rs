//! Adds tombstones to several keys in one pass: the keys of a lease, or a range with few keys. A
//! large range is deleted by a mark, see `mark.rs`.
//!
//! ```text
//!   d..q        root [a live 3│e live 2│m live 4]           root [a live 2│e live 0│m live 2]
//!                     │        │        │           ──▶           │        │        │
//!               [a b d]   [e g h]   [m n q s]               [a b d†]  [e†g h†]  [m†n†q s]
//!                                                              g had no value before
//! ```
//!
//! In the diagram, † is a tombstone. A separate descent from the root for each key would cost more
//! than all other work. In one pass, each node is copied at most once, if a snapshot shares it, and
//! its parent's count of live keys is set once. Children without a live key are skipped. No node is
//! split or joined.

use std::sync::Arc;

use arrayvec::ArrayVec;
use bytes::Bytes;
use clearlane_engine::KeyRange;

use super::edit::LEAF_MAX;
use super::node::{Child, Node, Slot, child_with, children_in, find, slots_in};
use crate::key_index::KeyIndex;
use crate::tree_index::{Key, KeySelection};

/// Adds a tombstone to the history of a key that has a value.
pub(super) type Tombstone<'t> = dyn FnMut(&Key, &mut KeyIndex) + 't;

/// Calls `tombstone` for the selected keys that have a value, in key order. Returns their number.
pub(super) fn tombstone_all(
    node: &mut Node,
    keys: KeySelection<'_>,
    tombstone: &mut Tombstone<'_>,
) -> u64 {
    match node {
        Node::Leaf(slots) => tombstone_slots(slots, keys, tombstone),
        Node::Inner(children) => {
            let children = Arc::make_mut(children);
            match keys {
                KeySelection::Range(range) => tombstone_range(children, range, tombstone),
                KeySelection::Sorted(keys) => tombstone_sorted(children, keys, tombstone),
            }
        }
    }
}

fn tombstone_range(
    children: &mut [Child],
    range: KeyRange<'_>,
    tombstone: &mut Tombstone<'_>,
) -> u64 {
    let within = children_in(children, range);
    let last = within.len() - 1;
    let mut count = 0;
    for (at, child) in children[within].iter_mut().enumerate() {
        // Only the first and the last child may have keys outside the range.
        let from = if at == 0 { range.from } else { &[] };
        let to = range.to.filter(|_| at == last);
        count += tombstone_child(child, KeySelection::Range(KeyRange { from, to }), tombstone);
    }
    count
}

fn tombstone_sorted(
    children: &mut [Child],
    mut keys: &[Bytes],
    tombstone: &mut Tombstone<'_>,
) -> u64 {
    let mut count = 0;
    while let Some(first) = keys.first() {
        let at = child_with(children, first);
        let below = match children.get(at + 1) {
            Some(next) => keys.partition_point(|key| **key < *next.from),
            None => keys.len(),
        };
        let (below, rest) = keys.split_at(below);
        count += tombstone_child(&mut children[at], KeySelection::Sorted(below), tombstone);
        keys = rest;
    }
    count
}

fn tombstone_child(
    child: &mut Child,
    keys: KeySelection<'_>,
    tombstone: &mut Tombstone<'_>,
) -> u64 {
    if child.live.count() == 0 {
        return 0;
    }
    let count = tombstone_all(&mut child.node, keys, tombstone);
    child.change_live(-(count as i64));
    count
}

fn tombstone_slots(
    slots: &mut Arc<[Slot]>,
    keys: KeySelection<'_>,
    tombstone: &mut Tombstone<'_>,
) -> u64 {
    let is_live = |at: &usize| slots[*at].key_index.is_live();
    let live: ArrayVec<usize, LEAF_MAX> = match keys {
        KeySelection::Range(range) => slots_in(slots, range).filter(is_live).collect(),
        KeySelection::Sorted(keys) => {
            keys.iter().filter_map(|key| find(slots, key).ok()).filter(is_live).collect()
        }
    };
    if live.is_empty() {
        return 0;
    }
    let slots = Arc::make_mut(slots);
    for at in &live {
        let Slot { key, key_index } = &mut slots[*at];
        tombstone(key, key_index);
    }
    live.len() as u64
}
