//! Deletes a range by marks on the subtrees that are completely in the range.
//!
//! ```text
//!   d..q        root [a live 3│e live 3│m live 4]           root [a live 2│e live 0│m live 2]
//!                     │        │        │           ──▶           │        │ 7.1t   │
//!               [a b d]   [e g h]   [m n q s]               [a b d†]  [e g h]    [m†n†q s]
//! ```
//!
//! In the diagram, † is a tombstone. `d` gets its tombstone at 7.0, and `m` and `n` get theirs at
//! 7.4 and 7.5. The leaf of `e`, `g` and `h` is not changed: the root gets the mark 7.1 for this
//! leaf. A read computes the tombstones 7.1 to 7.3 from the mark and the number of live keys before
//! each key ([`SlotView`](super::slot_view::SlotView)). A later change that passes the mark on its
//! way down moves the mark down with it (`Child::push_mark_down`), and writes the tombstones of a
//! leaf when it reaches the leaf. So a deletion changes only nodes on two paths down, however many
//! keys the range has. See `docs/decisions/mvcc-range-tombstones.md`.

use std::sync::Arc;

use clearlane_engine::KeyRange;

use super::node::{Child, Node, Slot, children_in, slots_in};
use crate::revision::Revision;

/// Deletes the keys of a range. The first key that has a value gets its tombstone at `first`.
/// Returns how many keys had a value.
pub(super) fn mark_range(node: &mut Node, range: KeyRange<'_>, first: Revision) -> u64 {
    match node {
        Node::Leaf(slots) => tombstone_slots(slots, range, first),
        Node::Inner(children) => mark_children(Arc::make_mut(children), range, first),
    }
}

fn mark_children(children: &mut [Child], range: KeyRange<'_>, first: Revision) -> u64 {
    let within = children_in(children, range);
    let last = within.len() - 1;
    let mut count = 0;
    for (at, child) in children[within].iter_mut().enumerate() {
        // Only the first and the last child may have keys outside the range.
        let from = if at == 0 { range.from } else { &[] };
        let to = range.to.filter(|_| at == last);
        let first = first.after(count);
        count += match (from, to) {
            ([], None) => child.mark_deleted(first),
            _ if child.live.count() == 0 => 0,
            _ => {
                let marked = mark_range(&mut child.node, KeyRange { from, to }, first);
                child.change_live(-(marked as i64));
                marked
            }
        };
    }
    count
}

fn tombstone_slots(slots: &mut Arc<[Slot]>, range: KeyRange<'_>, first: Revision) -> u64 {
    let within = slots_in(slots, range);
    if !slots[within.clone()].iter().any(|slot| slot.key_index.is_live()) {
        return 0;
    }
    let mut count = 0;
    for Slot { key_index, .. } in &mut Arc::make_mut(slots)[within] {
        count += u64::from(key_index.tombstone(first.after(count)).is_some());
    }
    count
}
