//! Rejects a transaction that puts a key twice, or puts a key that it deletes. At one revision a
//! key should have one record, so etcd rejects such a transaction before it is proposed, with two
//! exceptions. The rejected combinations are a part of the API:
//!
//! ```text
//!   put k, put k               rejected       allowed if one is in `success`, one in `failure`
//!   delete k, put k            rejected       in either order
//!   delete k, delete k         allowed
//!   txn{put k}, delete k       rejected       also txn{delete k}, put k; in either order
//!   txn{delete k}, txn{put k}  rejected
//!   txn{put k}, txn{delete k}  allowed        a put is not compared with deletes of later txns
//!   delete k.. (open), put k   allowed        the open end is treated as the end key 00
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use clearlane_proto::etcdserverpb::RequestOp;
use clearlane_proto::etcdserverpb::request_op::Request;

use super::rejection::RequestRejection;

/// The keys that a list of operations touches.
///
/// The list's own deletes are collected first, then its nested transactions in order, and its own
/// puts last. Overlapping deletes are joined, so that the lookup of a key takes logarithmic time.
#[derive(Debug, Default)]
pub(crate) struct TouchedKeys<'r> {
    puts: BTreeSet<&'r [u8]>,
    deletes: DeletedKeys<'r>,
}

impl<'r> TouchedKeys<'r> {
    /// Collects the keys. Fails if the list touches a key twice in a way that etcd rejects.
    pub(crate) fn collect(ops: &'r [RequestOp]) -> Result<TouchedKeys<'r>, RequestRejection> {
        let mut touched = TouchedKeys::default();
        let requests = || ops.iter().filter_map(|op| op.request.as_ref());
        for request in requests() {
            if let Request::RequestDeleteRange(delete) = request {
                touched.deletes.add(&delete.key, &delete.range_end);
            }
        }
        for request in requests() {
            if let Request::RequestTxn(txn) = request {
                let lists =
                    [TouchedKeys::collect(&txn.success)?, TouchedKeys::collect(&txn.failure)?];
                for list in &lists {
                    list.puts.iter().try_for_each(|key| touched.check_put(key))?;
                }
                lists.into_iter().for_each(|list| touched.merge(list));
            }
        }
        for request in requests() {
            if let Request::RequestPut(put) = request {
                touched.check_put(&put.key)?;
                touched.puts.insert(&put.key);
            }
        }
        Ok(touched)
    }

    fn check_put(&self, key: &[u8]) -> Result<(), RequestRejection> {
        if self.puts.contains(key) || self.deletes.contains(key) {
            Err(RequestRejection::DuplicateKey)
        } else {
            Ok(())
        }
    }

    /// Adds the keys of `other`. To save time, the smaller set is moved into the larger one.
    fn merge(&mut self, mut other: TouchedKeys<'r>) {
        if other.puts.len() > self.puts.len() {
            std::mem::swap(&mut self.puts, &mut other.puts);
        }
        self.puts.extend(other.puts);
        self.deletes.merge(other.deletes);
    }
}

#[derive(Debug, Default)]
struct DeletedKeys<'r> {
    keys: BTreeSet<&'r [u8]>,
    /// Start and end of each deleted range. No two ranges overlap or touch.
    ranges: BTreeMap<&'r [u8], &'r [u8]>,
}

impl<'r> DeletedKeys<'r> {
    fn add(&mut self, key: &'r [u8], range_end: &'r [u8]) {
        match range_end {
            [] => drop(self.keys.insert(key)),
            // An open end (one zero byte) is treated as the end key 00, as in etcd. Only the empty
            // key, which is not valid, is smaller. So `add_range` ignores such a range.
            end => self.add_range(key, end),
        }
    }

    fn add_range(&mut self, from: &'r [u8], to: &'r [u8]) {
        if to <= from {
            return;
        }
        let (mut from, mut to) = (from, to);
        // Joins the new range with each stored range that overlaps or touches it.
        while let Some((&other, &end)) = self.ranges.range(..=to).next_back() {
            if end < from {
                break;
            }
            self.ranges.remove(other);
            (from, to) = (from.min(other), to.max(end));
        }
        self.ranges.insert(from, to);
    }

    fn contains(&self, key: &[u8]) -> bool {
        let up_to_key = (Bound::Unbounded, Bound::Included(key));
        let before = self.ranges.range::<[u8], _>(up_to_key).next_back();
        self.keys.contains(key) || before.is_some_and(|(_, end)| key < *end)
    }

    fn merge(&mut self, mut other: DeletedKeys<'r>) {
        if other.keys.len() + other.ranges.len() > self.keys.len() + self.ranges.len() {
            std::mem::swap(self, &mut other);
        }
        self.keys.extend(other.keys);
        other.ranges.into_iter().for_each(|(from, to)| self.add_range(from, to));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn joined_stretches_have_the_same_keys(
            pairs in prop::collection::vec((0..20_u8, 0..20_u8), 0..12),
            split in 0..12_usize,
        ) {
            let bytes: Vec<([u8; 1], [u8; 1])> =
                pairs.iter().map(|(from, to)| ([*from], [*to])).collect();
            let (mut left, mut right) = (DeletedKeys::default(), DeletedKeys::default());
            for (number, (from, to)) in bytes.iter().enumerate() {
                let side = if number < split { &mut left } else { &mut right };
                side.add_range(from, to);
            }
            left.merge(right);
            for key in 0..20_u8 {
                let expected = pairs.iter().any(|(from, to)| (*from..*to).contains(&key));
                prop_assert_eq!(left.contains(&[key]), expected, "{}", key);
            }
            let ends: Vec<_> = left.ranges.iter().collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0));
        }
    }
}
