//! Checks the invariants of the tree after random edits.

mod marks;

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;

use super::edit::{INNER_MAX, LEAF_MAX};
use super::node::LiveKeys;
use super::*;
use crate::tree_index::SortedRunBuilder;

/// The first and the last key of a subtree.
type KeySpan<'n> = (&'n [u8], &'n [u8]);

/// Asserts that a subtree keeps the invariants. Returns its height, and its lowest and highest key.
fn check(node: &Node, is_root: bool) -> (usize, Option<KeySpan<'_>>) {
    match node {
        Node::Leaf(slots) => {
            assert!(slots.len() <= LEAF_MAX && (is_root || !slots.is_empty()));
            assert!(slots.windows(2).all(|pair| pair[0].key < pair[1].key));
            let ends = slots.first().zip(slots.last());
            (0, ends.map(|(first, last)| (&*first.key, &*last.key)))
        }
        Node::Inner(children) => {
            assert!((2..=INNER_MAX).contains(&children.len()), "{} children", children.len());
            let below: Vec<_> = children.iter().map(|child| check(&child.node, false)).collect();
            assert!(below.windows(2).all(|pair| pair[0].0 == pair[1].0), "one depth for all");
            for (at, child) in children.iter().enumerate() {
                let (low, high) = below[at].1.expect("only a root is empty");
                let live_in_node = child.node.live();
                match child.live {
                    LiveKeys::Deleted { .. } => assert!(live_in_node > 0, "a mark for nothing"),
                    LiveKeys::Count(live) => assert_eq!(live, live_in_node),
                }
                assert!(at == 0 || *child.from <= *low, "a key below its child's first");
                assert!(children.get(at + 1).is_none_or(|next| high < &*next.from));
            }
            let low = below[0].1.map(|(low, _)| low);
            let high = below.last().and_then(|(_, ends)| *ends).map(|(_, high)| high);
            (below[0].0 + 1, low.zip(high))
        }
    }
}

fn height(index: &PersistentIndex) -> usize {
    check(&index.current.root, true).0
}

fn key(number: u32) -> Vec<u8> {
    format!("key/{number:06}").into_bytes()
}

fn compact_all(index: &mut PersistentIndex, at: i64, keys_max: usize) -> Vec<Revision> {
    let mut compaction = index.begin_compaction(at);
    while !index.compact_step(&mut compaction, keys_max) {}
    compaction.into_kept()
}

fn filled(range: std::ops::Range<u32>) -> PersistentIndex {
    let mut index = PersistentIndex::default();
    for number in range {
        index.put(&key(number), Revision::new(1, i64::from(number)), EncodedLen::of(9));
    }
    index
}

#[test]
fn slots_and_children_have_the_sizes_that_memory_is_counted_with() {
    assert_eq!(size_of::<node::Slot>(), 64);
    assert_eq!(size_of::<node::Child>(), 80);
}

#[test]
fn the_key_after_some_is_found_in_every_range() {
    let mut index = filled(0..1000);
    // Keys without a value count as well.
    (0..500).for_each(|number| {
        index.tombstone(&key(2 * number), Revision::new(2, i64::from(number)));
    });
    let snapshot = index.snapshot();
    for (from, to) in [(0, 1000), (0, 1), (17, 17), (20, 10), (33, 900), (999, 2000), (1000, 2000)]
    {
        let (low, high) = (key(from), key(to));
        let inside: Vec<Vec<u8>> = (from..to.min(1000)).map(key).collect();
        for keys in [1, 2, 31, 32, 33, 100, 866, 867, 998, 999, 1000, 5000] {
            let range = KeyRange::new(&low, &high);
            assert_eq!(
                snapshot.key_after(range, keys),
                inside.get(keys).cloned(),
                "{from} {to} {keys}"
            );
        }
    }
    assert_eq!(snapshot.key_after(KeyRange::starting_at(&key(990)), 9), Some(key(999)));
    assert_eq!(snapshot.key_after(KeyRange::ALL, 1000), None);
    assert_eq!(PersistentSnapshot::default().key_after(KeyRange::ALL, 1), None);
}

/// Deletes key by key, and returns the keys that had a value.
fn tombstone_each(index: &mut PersistentIndex, keys: &[Bytes], main: i64) -> Vec<Vec<u8>> {
    let mut deleted: Vec<Vec<u8>> = Vec::new();
    for key in keys {
        let revision = Revision::new(main, deleted.len() as i64);
        if index.tombstone(key, revision).is_some() {
            deleted.push(key.to_vec());
        }
    }
    deleted
}

fn tombstone_all(index: &mut PersistentIndex, keys: KeySelection<'_>, main: i64) -> Vec<Vec<u8>> {
    let mut deleted = Vec::new();
    index.tombstone_all(keys, Revision::new(main, 0), &mut |key| deleted.push(key.to_vec()));
    deleted
}

/// Asserts that both trees show the same keys and histories.
fn assert_same(index: &PersistentIndex, expected: &PersistentIndex) {
    let slots = |index: &PersistentIndex| {
        let mut slots = Vec::new();
        let _ = index.current.root.walk(KeyRange::ALL, &mut |slot| {
            slots.push((slot.key.clone(), slot.whole_history().to_string()));
            ControlFlow::Continue(())
        });
        slots
    };
    assert_eq!(slots(index), slots(expected));
    assert_eq!(index.current.newest, expected.current.newest);
    check(&index.current.root, true);
}

fn node_of(node: &Node) -> *const () {
    match node {
        Node::Leaf(slots) => slots.as_ptr().cast(),
        Node::Inner(children) => children.as_ptr().cast(),
    }
}

fn nodes(node: &Node) -> Vec<*const ()> {
    let below = match node {
        Node::Leaf(_) => Vec::new(),
        Node::Inner(children) => children.iter().flat_map(|child| nodes(&child.node)).collect(),
    };
    [vec![node_of(node)], below].concat()
}

#[test]
fn a_large_deletion_leaves_alone_what_it_does_not_change() {
    let mut index = filled(0..5_000);
    let dead: Vec<Bytes> = (2_000..3_000).map(|number| key(number).into()).collect();
    tombstone_all(&mut index, KeySelection::Sorted(&dead), 2);
    let snapshot = index.snapshot();
    let (low, high) = (key(1_000), key(4_000));
    let range = KeyRange::new(&low, &high);
    assert_eq!(index.live_count(range), Some(2_000));
    assert_eq!(tombstone_all(&mut index, KeySelection::Range(range), 3).len(), 2_000);
    assert_eq!((index.live_count(range), snapshot.count(range, 2)), (Some(0), 2_000));
    let (before, after) = (nodes(&snapshot.root), nodes(&index.current.root));
    let copied = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    // The deletion copies the leaves of 2,000 keys, each with 16 to 32 keys, and the nodes above.
    assert!((2_000 / 32..2_000 / 10).contains(&copied), "{copied} of {} are new", after.len());
    // Without a snapshot, nothing is copied.
    drop(snapshot);
    tombstone_all(&mut index, KeySelection::Range(KeyRange::ALL), 4);
    assert_eq!(nodes(&index.current.root), after);
    assert_eq!(index.live_count(KeyRange::ALL), Some(0));
}

#[test]
fn a_deletion_of_nothing_changes_nothing() {
    let mut index = filled(0..100);
    let (low, high, absent) = (key(40), key(50), [Bytes::from_static(b"absent")]);
    let empty = [
        KeySelection::Range(KeyRange::new(&high, &low)),
        KeySelection::Range(KeyRange::new(&low, &low)),
        KeySelection::Range(KeyRange::starting_at(b"z")),
        KeySelection::Range(KeyRange::new(b"a", b"b")),
        KeySelection::Sorted(&[]),
        KeySelection::Sorted(&absent),
    ];
    for keys in empty {
        assert_eq!(tombstone_all(&mut index, keys, 2), Vec::<Vec<u8>>::new(), "{keys:?}");
        if let KeySelection::Range(range) = keys {
            assert_eq!(index.live_count(range), Some(0));
        }
    }
    assert_same(&index, &filled(0..100));
    let all = tombstone_all(&mut PersistentIndex::default(), KeySelection::Range(KeyRange::ALL), 2);
    assert_eq!(all.len(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_large_deletion_is_what_the_single_ones_are(
        count in 0..1_000_u32,
        again in prop::collection::vec(0..1_000_u32, 0..200),
        deletions in prop::collection::vec((0..1_000_u32, 0..500_u32, 1..40_u32), 1..6),
        holds_snapshots in any::<bool>(),
    ) {
        let fill = || {
            let mut index = filled(0..count);
            // Some histories have one change, some have two, and some have more.
            for (number, sub) in again.iter().zip(0..) {
                index.put(&key(*number), Revision::new(2, sub), EncodedLen::of(9));
            }
            index
        };
        let (mut index, mut single) = (fill(), fill());
        let mut snapshots = Vec::new();
        for ((from, len, step), main) in deletions.iter().zip(3..) {
            if holds_snapshots {
                snapshots.push((index.snapshot(), single.snapshot()));
            }
            let numbers = (*from..from + len).step_by(*step as usize);
            let keys: Vec<Bytes> = numbers.map(|number| key(number).into()).collect();
            let (low, high) = (key(*from), key(from + len));
            let range = KeyRange::new(&low, &high);
            let live = single.snapshot().count(range, main);
            let deleted = if *step == 1 {
                prop_assert_eq!(index.live_count(range), Some(live));
                tombstone_all(&mut index, KeySelection::Range(range), main)
            } else {
                tombstone_all(&mut index, KeySelection::Sorted(&keys), main)
            };
            prop_assert_eq!(deleted, tombstone_each(&mut single, &keys, main));
            assert_same(&index, &single);
        }
        for (current, newest) in snapshots {
            assert_same(&PersistentIndex { current }, &PersistentIndex { current: newest });
        }
    }

    #[test]
    fn edits_keep_the_invariants(
        edits in prop::collection::vec((0..400_u32, 0..4_u8), 1..1500),
        snapshot_every in 1..50_usize,
    ) {
        let mut index = PersistentIndex::default();
        let mut plain = BTreeMap::new();
        let mut snapshots = Vec::new();
        for ((number, kind), main) in edits.iter().zip(1..) {
            let revision = Revision::new(main, 0);
            match kind {
                0 if plain.remove(&key(*number)).is_some() => {
                    index.tombstone(&key(*number), revision);
                    if number % 3 == 0 {
                        compact_all(&mut index, main + 1, 7);
                    }
                }
                _ => {
                    index.put(&key(*number), revision, EncodedLen::of(9));
                    plain.insert(key(*number), main);
                }
            }
            if (main as usize).is_multiple_of(snapshot_every) {
                snapshots.push((index.snapshot(), plain.clone()));
            }
        }
        check(&index.current.root, true);
        snapshots.push((index.snapshot(), plain));
        for (snapshot, plain) in snapshots {
            check(&snapshot.root, true);
            prop_assert_eq!(snapshot.count(KeyRange::ALL, i64::MAX), plain.len() as u64);
            let mut seen = Vec::new();
            snapshot.walk(KeyRange::ALL, i64::MAX, &mut |key, version| {
                seen.push((key.to_vec(), version.modified.main));
                ControlFlow::Continue(())
            });
            prop_assert_eq!(seen, plain.into_iter().collect::<Vec<_>>());
        }
    }

    /// Ranges of keys are added, removed by a compaction and added again, so that inner nodes are
    /// joined.
    #[test]
    fn what_comes_and_goes_in_stretches_is_found(
        steps in prop::collection::vec((0..3_u8, 0..1_500_u32, 1..300_u32), 1..40),
    ) {
        let mut index = filled(0..1_500);
        let mut plain: BTreeMap<u32, i64> = (0..1_500).map(|number| (number, 1)).collect();
        for ((kind, from, len), main) in steps.iter().zip((2..).step_by(2)) {
            let numbers = *from..from + if *kind == 0 { 1 } else { *len };
            if *kind == 2 {
                remove(&mut index, numbers.clone(), main);
                plain.retain(|number, _| !numbers.contains(number));
            } else {
                for number in numbers {
                    let revision = Revision::new(main, i64::from(number));
                    index.put(&key(number), revision, EncodedLen::of(9));
                    plain.insert(number, main);
                }
            }
            check(&index.current.root, true);
        }
        let snapshot = index.snapshot();
        for number in 0..1_800 {
            let found = snapshot.get(&key(number), i64::MAX).map(|found| found.modified.main);
            prop_assert_eq!(found, plain.get(&number).copied(), "key {}", number);
        }
        prop_assert_eq!(snapshot.count(KeyRange::ALL, i64::MAX), plain.len() as u64);
    }

    #[test]
    fn a_built_tree_keeps_them_too(keys in 0..2500_u32, kept in 0..2500_u32, runs in 1..4_u32) {
        let version = |number| {
            let modified = Revision::new(i64::from(number % runs) + 3, i64::from(number));
            Version { created: 3, version: 2, ..Version::first(modified, EncodedLen::of(9)) }
        };
        let run = |run| {
            let mut builder = SortedRunBuilder::default();
            // The keys are not in order, so the builder has to sort them.
            for number in (run..keys).step_by(runs as usize).rev() {
                builder.put(&key(number), version(number));
            }
            builder.finish()
        };
        let mut index = PersistentIndex::default();
        index.restore((0..runs).map(run).collect());
        check(&index.current.root, true);
        let snapshot = index.snapshot();
        prop_assert_eq!(snapshot.count(KeyRange::ALL, 5), u64::from(keys));
        for number in 0..keys {
            prop_assert_eq!(snapshot.get(&key(number), 5), Some(version(number)));
        }
        for number in kept..keys {
            index.tombstone(&key(number), Revision::new(6, i64::from(number)));
        }
        prop_assert_eq!(compact_all(&mut index, 7, 100).len() as u32, keys.min(kept));
        check(&index.current.root, true);
    }
}

#[test]
fn a_tree_that_lost_its_keys_is_low_again() {
    let mut index = filled(0..20_000);
    let full = height(&index);
    for number in (0..20_000).filter(|number| number % 1_000 != 0) {
        index.tombstone(&key(number), Revision::new(2, i64::from(number)));
    }
    let snapshot = index.snapshot();
    assert_eq!(compact_all(&mut index, 3, 1_000).len(), 20);
    assert!(full >= 4 && height(&index) <= 1, "{full} levels became {}", height(&index));
    assert_eq!(snapshot.count(KeyRange::ALL, 1), 20_000, "a snapshot outlasts a compaction");
    assert_eq!(snapshot.count(KeyRange::ALL, 2), 20);
}

fn remove(index: &mut PersistentIndex, numbers: std::ops::Range<u32>, main: i64) {
    for number in numbers {
        index.tombstone(&key(number), Revision::new(main, i64::from(number)));
    }
    compact_all(index, main + 1, 1_000);
}

/// Tests a join of inner nodes. A node never uses the start key of its first child, until a join
/// moves this child into the middle of a node.
#[test]
fn a_key_below_a_first_child_is_found_when_inner_nodes_have_been_joined() {
    let mut index = filled(0..400);
    // The first leaf of an inner node loses its lowest keys and is joined with the next leaf. Then
    // a key below its remaining keys is added.
    remove(&mut index, 64..74, 2);
    index.put(&key(70), Revision::new(4, 0), EncodedLen::of(9));
    remove(&mut index, 128..189, 5);
    check(&index.current.root, true);
    assert!(index.snapshot().get(&key(70), 7).is_some());
    index.put(&key(70), Revision::new(8, 0), EncodedLen::of(9));
    assert_eq!(index.snapshot().get(&key(70), 8).map(|found| found.version), Some(2));
}

#[test]
fn a_node_of_one_tree_is_changed_in_place() {
    let mut index = filled(0..1_000);
    let root = |index: &PersistentIndex| match &index.current.root {
        Node::Inner(children) => children.as_ptr(),
        Node::Leaf(_) => unreachable!("a thousand keys do not fit in a leaf"),
    };
    let before = root(&index);
    index.put(&key(7), Revision::new(2, 0), EncodedLen::of(9));
    assert_eq!(root(&index), before);
    let snapshot = index.snapshot();
    index.put(&key(7), Revision::new(3, 0), EncodedLen::of(9));
    assert_ne!(root(&index), before);
    assert_eq!(snapshot.get(&key(7), 9).map(|found| found.modified.main), Some(2));
}

#[test]
fn deleting_what_is_absent_copies_nothing() {
    let mut index = filled(0..1_000);
    let snapshot = index.snapshot();
    assert_eq!(index.tombstone(b"absent", Revision::new(2, 0)), None);
    let same = match (&snapshot.root, &index.current.root) {
        (Node::Inner(a), Node::Inner(b)) => std::sync::Arc::ptr_eq(a, b),
        _ => false,
    };
    assert!(same);
}
