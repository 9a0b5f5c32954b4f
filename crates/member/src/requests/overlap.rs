//! Does a transaction put a key twice, or put what it deletes?
//!
//! All changes of a transaction have one revision, and at one revision a key has one record. So
//! etcd refuses what would give it two, before it is proposed. Which combinations, is its own rule
//! and a part of the API:
//!
//! ```text
//!   put k, put k               refused        in both lists of one transaction: fine
//!   delete k, put k            refused        in whichever order
//!   delete k, delete k         fine
//!   txn{put k}, delete k       refused        an outer delete, an inner put, and the reverse
//!   txn{delete k}, txn{put k}  refused
//!   txn{put k}, txn{delete k}  fine           only what came before is compared
//!   delete k.. (open), put k   fine           an open end is taken for the key 00
//! ```
//!
//! # The idea
//!
//! For each list: which keys are put, which are deleted. The deletes of a level count from its
//! beginning, nested transactions follow in their order, and the level's own puts come last. Deletes
//! that overlap are joined, so that a key is looked up in the logarithm of their number, however
//! many a client sends.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use clearlane_proto::etcdserverpb::RequestOp;
use clearlane_proto::etcdserverpb::request_op::Request;

use super::refused::Refused;

/// What a list of operations touches.
#[derive(Debug, Default)]
pub(crate) struct Touched<'r> {
    puts: BTreeSet<&'r [u8]>,
    deleted: Deleted<'r>,
}

impl<'r> Touched<'r> {
    /// Looks through a list, and refuses it if it touches a key twice.
    pub(crate) fn by(ops: &'r [RequestOp]) -> Result<Touched<'r>, Refused> {
        let mut touched = Touched::default();
        let requests = || ops.iter().filter_map(|op| op.request.as_ref());
        for request in requests() {
            if let Request::RequestDeleteRange(delete) = request {
                touched.deleted.add(&delete.key, &delete.range_end);
            }
        }
        for request in requests() {
            if let Request::RequestTxn(txn) = request {
                // One of the two lists runs, so they are not compared with each other.
                let lists = [Touched::by(&txn.success)?, Touched::by(&txn.failure)?];
                for list in &lists {
                    list.puts.iter().try_for_each(|key| touched.may_put(key))?;
                }
                lists.into_iter().for_each(|list| touched.absorb(list));
            }
        }
        for request in requests() {
            if let Request::RequestPut(put) = request {
                touched.may_put(&put.key)?;
                touched.puts.insert(&put.key);
            }
        }
        Ok(touched)
    }

    fn may_put(&self, key: &[u8]) -> Result<(), Refused> {
        match self.puts.contains(key) || self.deleted.contains(key) {
            true => Err(Refused::DuplicateKey),
            false => Ok(()),
        }
    }

    /// The smaller part is added to the larger one.
    fn absorb(&mut self, mut other: Touched<'r>) {
        if other.puts.len() > self.puts.len() {
            std::mem::swap(&mut self.puts, &mut other.puts);
        }
        self.puts.extend(other.puts);
        self.deleted.absorb(other.deleted);
    }
}

/// Keys and stretches of keys that are deleted.
#[derive(Debug, Default)]
struct Deleted<'r> {
    keys: BTreeSet<&'r [u8]>,
    /// From where to where; none overlaps another.
    stretches: BTreeMap<&'r [u8], &'r [u8]>,
}

impl<'r> Deleted<'r> {
    fn add(&mut self, key: &'r [u8], range_end: &'r [u8]) {
        match range_end {
            [] => drop(self.keys.insert(key)),
            // An open end is the key 00 here, and no key lies before that.
            end => self.add_stretch(key, end),
        }
    }

    fn add_stretch(&mut self, from: &'r [u8], to: &'r [u8]) {
        if to <= from {
            return;
        }
        let (mut from, mut to) = (from, to);
        // Joins with each that begins before its end, and ends behind its beginning.
        while let Some((&other, &end)) = self.stretches.range(..=to).next_back() {
            if end < from {
                break;
            }
            self.stretches.remove(other);
            (from, to) = (from.min(other), to.max(end));
        }
        self.stretches.insert(from, to);
    }

    fn contains(&self, key: &[u8]) -> bool {
        let up_to_key = (Bound::Unbounded, Bound::Included(key));
        let before = self.stretches.range::<[u8], _>(up_to_key).next_back();
        self.keys.contains(key) || before.is_some_and(|(_, end)| key < *end)
    }

    fn absorb(&mut self, mut other: Deleted<'r>) {
        if other.keys.len() + other.stretches.len() > self.keys.len() + self.stretches.len() {
            std::mem::swap(self, &mut other);
        }
        self.keys.extend(other.keys);
        other.stretches.into_iter().for_each(|(from, to)| self.add_stretch(from, to));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Joined stretches have the keys that any of them has, and none has its neighbour's.
        #[test]
        fn joined_stretches_have_the_same_keys(
            pairs in prop::collection::vec((0..20_u8, 0..20_u8), 0..12),
            split in 0..12_usize,
        ) {
            let bytes: Vec<([u8; 1], [u8; 1])> =
                pairs.iter().map(|(from, to)| ([*from], [*to])).collect();
            let (mut left, mut right) = (Deleted::default(), Deleted::default());
            for (number, (from, to)) in bytes.iter().enumerate() {
                let side = if number < split { &mut left } else { &mut right };
                side.add_stretch(from, to);
            }
            left.absorb(right);
            for key in 0..20_u8 {
                let expected = pairs.iter().any(|(from, to)| (*from..*to).contains(&key));
                prop_assert_eq!(left.contains(&[key]), expected, "{}", key);
            }
            let ends: Vec<_> = left.stretches.iter().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
