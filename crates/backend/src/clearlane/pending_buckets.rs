//! What is pending in the buckets that are overwritten and deleted: all but `key`.
//!
//! Two persistent maps, where a copy is one pointer and a change copies one path. A missing value
//! is a tombstone. The applier adds to the *active* map; a commit turns it into the *frozen* one,
//! writes that, and drops it together with publishing the engine's new snapshot.
//!
//! ```text
//!   lookup order     active ──▶ frozen ──▶ engine
//!
//!   before           {a=3}      {}         a=1 b=1
//!   freeze           {}         {a=3}      a=1 b=1
//!   delete b         {b=✗}      {a=3}      a=1 b=1      the commit is writing a=3
//!   commit is done   {b=✗}      {}         a=3 b=1
//! ```
//! Why two maps: `docs/backend.md`.

use std::ops::Bound;

use bytes::Bytes;
use clearlane_engine::{Bucket, KeyRange};
use imbl::OrdMap;

/// `None` for a deleted key.
pub(crate) type PendingChange = Option<Bytes>;

type MapKey = (Bucket, Bytes);

/// Cloning it copies a pointer.
pub(crate) type ChangeMap = OrdMap<MapKey, PendingChange>;

#[derive(Clone, Debug, Default)]
pub(crate) struct PendingBuckets {
    pub(crate) active: ChangeMap,
    pub(crate) frozen: ChangeMap,
}

impl PendingBuckets {
    /// If there is a pending change, the engine need not be asked.
    pub(crate) fn get(&self, bucket: Bucket, key: &[u8]) -> Option<&PendingChange> {
        if self.active.is_empty() && self.frozen.is_empty() {
            return None;
        }
        let wanted = (bucket, Bytes::copy_from_slice(key));
        self.active.get(&wanted).or_else(|| self.frozen.get(&wanted))
    }

    /// As one sorted list; the active ones win.
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
