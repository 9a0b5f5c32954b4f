//! A tree of intervals with members. It finds the intervals that contain a key.
//!
//! The tree is sorted by the start of each interval. Each node has the furthest end of all
//! intervals in its subtree. A search skips a subtree if all its intervals end before the key:
//!
//! ```text
//!   looking for "m"       [g, k)  furthest z
//!                        ╱                  ╲
//!        [a, h)  furthest z                  [q, t)  starts after m, and so do all to its right
//!       ╱          ╲
//!  [a, c) ended     [b, z) contains m
//! ```
//!
//! Invariants: each interval is in the tree once and has at least one member. The heights of a
//! node's children differ by at most one. The furthest end of a node is the greatest of its own end
//! and its children's furthest ends.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::ControlFlow;

use bytes::Bytes;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    Before(Bytes),
    /// The interval has no end. This variant is declared last, so it sorts after every `Before`.
    Unbounded,
}

impl End {
    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => key < &end[..],
            End::Unbounded => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Interval {
    pub(super) from: Bytes,
    pub(super) end: End,
}

/// Intervals with their members, in a tree that is balanced by height (an AVL tree). Clients choose
/// the intervals and their order. In a randomly balanced tree whose random numbers are known, a
/// client could choose intervals that turn the tree into a list. A search would then run out of
/// stack.
#[derive(Debug)]
pub(super) struct IntervalTree<T> {
    root: Link<T>,
}

type Link<T> = Option<Box<Node<T>>>;

#[derive(Debug)]
struct Node<T> {
    interval: Interval,
    members: BTreeSet<T>,
    /// The number of levels in this subtree.
    height: u8,
    /// The furthest end of all intervals in this subtree.
    furthest: End,
    /// The subtrees of intervals that sort before and after this one.
    children: [Link<T>; 2],
}

const LEFT: usize = 0;
const RIGHT: usize = 1;

impl<T> Default for IntervalTree<T> {
    fn default() -> IntervalTree<T> {
        IntervalTree { root: None }
    }
}

impl<T: Ord> IntervalTree<T> {
    pub(super) fn insert(&mut self, interval: &Interval, member: T) {
        if let Some(node) = find(&mut self.root, interval) {
            node.members.insert(member);
            return;
        }
        let node = Node {
            interval: interval.clone(),
            members: BTreeSet::from([member]),
            height: 1,
            furthest: interval.end.clone(),
            children: [None, None],
        };
        insert(&mut self.root, Box::new(node));
    }

    pub(super) fn remove(&mut self, interval: &Interval, member: &T) {
        let Some(node) = find(&mut self.root, interval) else { return };
        node.members.remove(member);
        if node.members.is_empty() {
            remove(&mut self.root, interval);
        }
    }

    pub(super) fn containing(&self, key: &[u8], visit: &mut dyn FnMut(&T)) {
        let _ = search(&self.root, key, &mut |members| {
            members.iter().for_each(&mut *visit);
            ControlFlow::Continue(())
        });
    }

    pub(super) fn covers(&self, key: &[u8]) -> bool {
        search(&self.root, key, &mut |_| ControlFlow::Break(())).is_break()
    }
}

impl<T> Node<T> {
    /// Recomputes the height and the furthest end from the children.
    fn update(&mut self) {
        self.height = 1 + self.children.iter().map(height).max().unwrap_or(0);
        let below = self.children.iter().flatten().map(|node| &node.furthest);
        self.furthest = below.chain([&self.interval.end]).max().expect("its own is there").clone();
    }
}

fn height<T>(link: &Link<T>) -> u8 {
    link.as_ref().map_or(0, |node| node.height)
}

fn find<'n, T>(mut link: &'n mut Link<T>, interval: &Interval) -> Option<&'n mut Node<T>> {
    while let Some(node) = link {
        match interval.cmp(&node.interval) {
            Ordering::Equal => return Some(node),
            Ordering::Less => link = &mut node.children[LEFT],
            Ordering::Greater => link = &mut node.children[RIGHT],
        }
    }
    None
}

/// Adds a node. The tree must not have a node with the same interval.
fn insert<T>(link: &mut Link<T>, new: Box<Node<T>>) {
    match link {
        None => *link = Some(new),
        Some(node) => {
            let side = if new.interval < node.interval { LEFT } else { RIGHT };
            insert(&mut node.children[side], new);
            balance(link);
        }
    }
}

fn remove<T>(link: &mut Link<T>, interval: &Interval) {
    let Some(node) = link else { return };
    match interval.cmp(&node.interval) {
        Ordering::Less => remove(&mut node.children[LEFT], interval),
        Ordering::Greater => remove(&mut node.children[RIGHT], interval),
        Ordering::Equal => {
            let [left, mut right] = std::mem::take(&mut node.children);
            // The node of the next interval in the right subtree replaces this node, if there is
            // one.
            *link = match take_first(&mut right) {
                None => left,
                Some(mut next) => {
                    next.children = [left, right];
                    Some(next)
                }
            };
        }
    }
    balance(link);
}

/// Removes and returns the node of the first interval, or returns `None` if the tree is empty.
fn take_first<T>(link: &mut Link<T>) -> Link<T> {
    let node = link.as_mut()?;
    if node.children[LEFT].is_some() {
        let first = take_first(&mut node.children[LEFT]);
        balance(link);
        return first;
    }
    let mut first = link.take()?;
    *link = first.children[RIGHT].take();
    Some(first)
}

/// Balances a node whose children are balanced and differ in height by at most two.
fn balance<T>(link: &mut Link<T>) {
    let Some(node) = link else { return };
    let [left, right] = [LEFT, RIGHT].map(|side| height(&node.children[side]));
    if left.abs_diff(right) <= 1 {
        node.update();
        return;
    }
    let (high, low) = if left > right { (LEFT, RIGHT) } else { (RIGHT, LEFT) };
    if let Some(child) = &node.children[high]
        && height(&child.children[low]) > height(&child.children[high])
    {
        rotate(&mut node.children[high], low);
    }
    rotate(link, high);
}

/// Moves the child on this side into its parent's position. The parent becomes a child of the moved
/// node.
fn rotate<T>(link: &mut Link<T>, side: usize) {
    let Some(mut parent) = link.take() else { return };
    *link = match parent.children[side].take() {
        None => Some(parent),
        Some(mut child) => {
            parent.children[side] = child.children[1 - side].take();
            parent.update();
            child.children[1 - side] = Some(parent);
            child.update();
            Some(child)
        }
    };
}

/// Calls `visit` with the members of each interval that contains the key, until `visit` breaks.
fn search<T>(
    link: &Link<T>,
    key: &[u8],
    visit: &mut dyn FnMut(&BTreeSet<T>) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let Some(node) = link else { return ControlFlow::Continue(()) };
    if !node.furthest.is_after(key) {
        return ControlFlow::Continue(());
    }
    search(&node.children[LEFT], key, visit)?;
    if &node.interval.from[..] > key {
        return ControlFlow::Continue(());
    }
    if node.interval.end.is_after(key) {
        visit(&node.members)?;
    }
    search(&node.children[RIGHT], key, visit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn interval(from: u8, end: Option<u8>) -> Interval {
        let end = end.map_or(End::Unbounded, |end| End::Before(Bytes::copy_from_slice(&[end])));
        Interval { from: Bytes::copy_from_slice(&[from]), end }
    }

    fn check<T: Ord>(link: &Link<T>) -> u8 {
        let Some(node) = link else { return 0 };
        assert!(!node.members.is_empty());
        let [left, right] = &node.children;
        assert!(left.as_ref().is_none_or(|left| left.interval < node.interval));
        assert!(right.as_ref().is_none_or(|right| right.interval > node.interval));
        let below = node.children.iter().flatten().map(|node| &node.furthest).max();
        let own = &node.interval.end;
        assert_eq!(&node.furthest, below.map_or(own, |below| below.max(own)));
        let (left, right) = (check(left), check(right));
        assert!(left.abs_diff(right) <= 1, "{left} and {right} levels");
        assert_eq!(node.height, 1 + left.max(right));
        node.height
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
                check(&tree.root);
                for key in 0..14_u8 {
                    let mut found = Vec::new();
                    tree.containing(&[key], &mut |member| found.push(*member));
                    let inside = |interval: &Interval| {
                        interval.from[..] <= [key][..] && interval.end.is_after(&[key])
                    };
                    let mut expected: Vec<u8> = list
                        .iter()
                        .filter(|(interval, _)| inside(interval))
                        .map(|(_, member)| *member)
                        .collect();
                    prop_assert_eq!(tree.covers(&[key]), !found.is_empty());
                    found.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn the_tree_is_flat_in_whatever_order_ranges_come_and_go() {
        let interval = |from: u32| Interval {
            from: Bytes::copy_from_slice(&from.to_be_bytes()),
            end: End::Unbounded,
        };
        let rising: Vec<u32> = (0..10_000).collect();
        let falling: Vec<u32> = rising.iter().rev().copied().collect();
        // The first, the last, the second, the second to last, and so on.
        let inwards = || rising.iter().zip(&falling).flat_map(|(low, high)| [*low, *high]);
        for order in [rising.clone(), falling.clone(), inwards().take(10_000).collect()] {
            let mut tree = IntervalTree::default();
            order.iter().for_each(|from| tree.insert(&interval(*from), 0));
            let height = check(&tree.root);
            assert!(height < 20, "a tree of 10,000 is {height} high");
            order.iter().take(9_900).for_each(|from| tree.remove(&interval(*from), &0));
            let height = check(&tree.root);
            assert!(height < 10, "a tree of 100 is {height} high");
        }
    }
}
