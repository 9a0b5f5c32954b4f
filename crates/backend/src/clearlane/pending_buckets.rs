//! The pending changes to all buckets except `key`. Records in these buckets may be overwritten and
//! deleted.
//!
//! The changes are in two persistent maps. Copying such a map copies one pointer. Changing it
//! copies only the nodes on the path to the changed entry. A change without a value is a tombstone.
//! The writer adds to the *active* map. A commit turns it into the *frozen* map and writes it to
//! the engine. When the engine's new snapshot is published, the frozen map is dropped.
//!
//! ```text
//!   lookup order     active ──▶ frozen ──▶ engine
//!
//!   before           {a=3}      {}         a=1 b=1
//!   freeze           {}         {a=3}      a=1 b=1
//!   delete b         {b=✗}      {a=3}      a=1 b=1      the commit is writing a=3
//!   commit is done   {b=✗}      {}         a=3 b=1
//! ```
//!
//! `docs/backend.md` explains why there are two maps.

use std::ops::Bound;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};
use imbl::OrdMap;

/// The new value of a key, or `None` if it was deleted.
pub(crate) type PendingChange = Option<Bytes>;

type MapKey = (Bucket, Bytes);

/// A persistent map. Cloning it copies only a pointer.
pub(crate) type ChangeMap = OrdMap<MapKey, PendingChange>;

#[derive(Clone, Debug, Default)]
pub(crate) struct PendingBuckets {
    pub(crate) active: ChangeMap,
    pub(crate) frozen: ChangeMap,
}

impl PendingBuckets {
    /// Returns the pending change to a key, or `None` if there is no pending change, so that the
    /// caller must read the engine.
    pub(crate) fn get(&self, bucket: Bucket, key: &[u8]) -> Option<&PendingChange> {
        if self.active.is_empty() && self.frozen.is_empty() {
            return None;
        }
        let wanted = (bucket, Bytes::copy_from_slice(key));
        self.active.get(&wanted).or_else(|| self.frozen.get(&wanted))
    }

    /// Returns the pending changes in a range as one sorted list. If both maps contain a change to
    /// a key, only the change in the active map is returned.
    pub(crate) fn changes_in(
        &self,
        bucket: Bucket,
        range: KeyRange<'_>,
    ) -> Vec<(Bytes, PendingChange)> {
        if range.is_empty() || (self.active.is_empty() && self.frozen.is_empty()) {
            return Vec::new();
        }
        let mut merged = std::collections::BTreeMap::new();
        for layer in [&self.frozen, &self.active] {
            let found = layer.range(bounds(bucket, range));
            merged.extend(
                found
                    .take_while(|((found, _), _)| *found == bucket)
                    .map(|((_, key), change)| (key.clone(), change.clone())),
            );
        }
        merged.into_iter().collect()
    }
}

fn bounds(bucket: Bucket, range: KeyRange<'_>) -> (Bound<MapKey>, Bound<MapKey>) {
    let from = Bound::Included((bucket, Bytes::copy_from_slice(range.from)));
    let to = match range.to {
        Some(to) => Bound::Excluded((bucket, Bytes::copy_from_slice(to))),
        None => Bound::Unbounded,
    };
    (from, to)
}
