//! Which ranges contain this key? A tree of intervals with members.
//!
//! A store may have thousands of watchers on ranges, and each event must find those few that want
//! it without looking at the others. The tree is ordered by where a range begins. In addition each
//! node knows the furthest end of all ranges below it, so that a search for a key turns back where
//! everything has ended before the key:
//!
//! ```text
//!   looking for "m"            [g, k)  furthest z
//!                             ╱                  ╲
//!            [a, h)  furthest z                  [q, t)  furthest t
//!           ╱          ╲                          begins behind m: nothing to the right of it
//!   [a, c) furthest c   [b, z) furthest z
//!   ended before m      contains m
//! ```
//!
//! It is a *treap*: each node gets a number, by which the tree is a heap (greater ones above) while
//! it is a search tree by range. Numbers that look random keep such a tree flat without any
//! bookkeeping; ours come from a counter that is stirred well, so that a tree with the same past
//! has the same shape everywhere.
//!
//! # Invariants
//!
//! * A range is in the tree once, with at least one member.
//! * A node's number is not smaller than its children's, its furthest end is the greatest of its
//!   own and theirs.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use bytes::Bytes;

/// Where a range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// Before this key.
    Before(Bytes),
    /// Nowhere. (Greater than any key, as the order of the variants has it.)
    Never,
}

impl End {
    fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => key < &end[..],
            End::Never => true,
        }
    }
}

/// A range of keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval {
    pub(super) from: Bytes,
    pub(super) end: End,
}

/// Members of ranges.
#[derive(Debug)]
pub(super) struct IntervalTree<T> {
    root: Link<T>,
    /// How many nodes were ever made.
    made: u64,
}

type Link<T> = Option<Box<Node<T>>>;

#[derive(Debug)]
struct Node<T> {
    interval: Interval,
    members: BTreeSet<T>,
    /// The place in the heap.
    number: u64,
    /// The furthest end of this node's interval and of all below.
    furthest: End,
    left: Link<T>,
    right: Link<T>,
}

impl<T> Default for IntervalTree<T> {
    fn default() -> IntervalTree<T> {
        IntervalTree { root: None, made: 0 }
    }
}

impl<T: Ord> IntervalTree<T> {
    /// Adds a member to a range.
    pub(super) fn insert(&mut self, interval: &Interval, member: T) {
        if let Some(node) = find(&mut self.root, interval) {
            node.members.insert(member);
            return;
        }
        self.made += 1;
        let node = Node {
            interval: interval.clone(),
            members: BTreeSet::from([member]),
            number: stirred(self.made),
            furthest: interval.end.clone(),
            left: None,
            right: None,
        };
        insert(&mut self.root, Box::new(node));
    }

    /// Takes a member out of a range.
    pub(super) fn remove(&mut self, interval: &Interval, member: &T) {
        let Some(node) = find(&mut self.root, interval) else { return };
        node.members.remove(member);
        if node.members.is_empty() {
            remove(&mut self.root, interval);
        }
    }

    /// Calls `visit` for every member of every range that contains the key.
    pub(super) fn containing(&self, key: &[u8], visit: &mut dyn FnMut(&T)) {
        containing(&self.root, key, visit);
    }
}

impl<T> Node<T> {
    fn update_furthest(&mut self) {
        let below = [&self.left, &self.right].into_iter().flatten().map(|node| &node.furthest);
        self.furthest = below.chain([&self.interval.end]).max().expect("its own is there").clone();
    }
}

fn find<'n, T>(mut link: &'n mut Link<T>, interval: &Interval) -> Option<&'n mut Node<T>> {
    while let Some(node) = link {
        match interval.cmp(&node.interval) {
            Ordering::Equal => return Some(node),
            Ordering::Less => link = &mut node.left,
            Ordering::Greater => link = &mut node.right,
        }
    }
    None
}

/// Goes down as long as the nodes have greater numbers; what lies below is divided between the
/// new node's children.
fn insert<T>(link: &mut Link<T>, mut new: Box<Node<T>>) {
    match link {
        Some(node) if node.number > new.number => {
            let to_the_left = new.interval < node.interval;
            insert(if to_the_left { &mut node.left } else { &mut node.right }, new);
            node.update_furthest();
        }
        _ => {
            (new.left, new.right) = split(link.take(), &new.interval);
            new.update_furthest();
            *link = Some(new);
        }
    }
}

/// The nodes before and behind an interval that none of them has.
fn split<T>(link: Link<T>, at: &Interval) -> (Link<T>, Link<T>) {
    let Some(mut node) = link else { return (None, None) };
    if node.interval < *at {
        let (before, behind) = split(node.right.take(), at);
        node.right = before;
        node.update_furthest();
        (Some(node), behind)
    } else {
        let (before, behind) = split(node.left.take(), at);
        node.left = behind;
        node.update_furthest();
        (before, Some(node))
    }
}

fn remove<T>(link: &mut Link<T>, interval: &Interval) {
    let Some(node) = link else { return };
    match interval.cmp(&node.interval) {
        Ordering::Equal => {
            *link = joined(node.left.take(), node.right.take());
            return;
        }
        Ordering::Less => remove(&mut node.left, interval),
        Ordering::Greater => remove(&mut node.right, interval),
    }
    node.update_furthest();
}

/// Both trees as one; everything in `left` comes before everything in `right`.
fn joined<T>(left: Link<T>, right: Link<T>) -> Link<T> {
    match (left, right) {
        (None, one) | (one, None) => one,
        (Some(mut left), Some(mut right)) => {
            if left.number > right.number {
                left.right = joined(left.right.take(), Some(right));
                left.update_furthest();
                Some(left)
            } else {
                right.left = joined(Some(left), right.left.take());
                right.update_furthest();
                Some(right)
            }
        }
    }
}

fn containing<T>(link: &Link<T>, key: &[u8], visit: &mut dyn FnMut(&T)) {
    let Some(node) = link else { return };
    if !node.furthest.is_behind(key) {
        return;
    }
    containing(&node.left, key, visit);
    if &node.interval.from[..] <= key {
        if node.interval.end.is_behind(key) {
            node.members.iter().for_each(&mut *visit);
        }
        containing(&node.right, key, visit);
    }
}

/// Spreads a counter over all 64 bits, in an order that looks random. (The finalizer of
/// `SplitMix64`.)
fn stirred(counter: u64) -> u64 {
    let mut bits = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(from: u8, end: Option<u8>) -> Interval {
        let end = end.map_or(End::Never, |end| End::Before(Bytes::copy_from_slice(&[end])));
        Interval { from: Bytes::copy_from_slice(&[from]), end }
    }

    /// Checks the invariants below a node, and returns its height.
    fn check<T: Ord>(link: &Link<T>, number_above: u64) -> usize {
        let Some(node) = link else { return 0 };
        assert!(node.number <= number_above && !node.members.is_empty());
        let (left, right) = (&node.left, &node.right);
        assert!(left.as_ref().is_none_or(|left| left.interval < node.interval));
        assert!(right.as_ref().is_none_or(|right| right.interval > node.interval));
        let below = [left, right].into_iter().flatten().map(|node| &node.furthest).max();
        let own = &node.interval.end;
        assert_eq!(&node.furthest, below.map_or(own, |below| below.max(own)));
        1 + check(left, node.number).max(check(right, node.number))
    }

    fn operation() -> impl Strategy<Value = (bool, u8, Option<u8>, u8)> {
        (prop::bool::weighted(0.6), 0..12_u8, prop::option::of(0..14_u8), 0..3_u8)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn it_finds_what_a_list_finds(operations in prop::collection::vec(operation(), 0..80)) {
            let (mut tree, mut list) = (IntervalTree::default(), BTreeSet::new());
            for (adds, from, end, member) in operations {
                let interval = interval(from, end);
                if adds {
                    tree.insert(&interval, member);
                    list.insert((interval, member));
                } else {
                    tree.remove(&interval, &member);
                    list.remove(&(interval, member));
                }
                check(&tree.root, u64::MAX);
                for key in 0..14_u8 {
                    let mut found = Vec::new();
                    tree.containing(&[key], &mut |member| found.push(*member));
                    let inside = |interval: &Interval| {
                        interval.from[..] <= [key][..] && interval.end.is_behind(&[key])
                    };
                    let mut expected: Vec<u8> = list
                        .iter()
                        .filter(|(interval, _)| inside(interval))
                        .map(|(_, member)| *member)
                        .collect();
                    found.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn ranges_that_come_in_order_make_a_flat_tree() {
        let mut tree = IntervalTree::default();
        for from in 0..10_000_u32 {
            let from = Bytes::copy_from_slice(&from.to_be_bytes());
            tree.insert(&Interval { from, end: End::Never }, 0);
        }
        let height = check(&tree.root, u64::MAX);
        assert!(height < 50, "a tree of 10,000 is {height} high");
    }
}
