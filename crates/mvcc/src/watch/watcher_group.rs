//! A group of watchers, which are found by the keys that they watch. In etcd: `watcherGroup`.
//!
//! Most watchers watch a single key or a prefix. A map finds the watchers of single keys, and a
//! tree of intervals finds the watchers of ranges.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use clearlane_engine::KeyRange;

use super::interval_tree::{End, Interval, IntervalTree};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchedKeys {
    Single(Bytes),
    /// The keys from the first key up to, but not including, the second.
    Range(Bytes, Bytes),
    /// This key and all keys after it.
    From(Bytes),
}

impl WatchedKeys {
    pub fn is_empty(&self) -> bool {
        matches!(self, WatchedKeys::Range(from, end) if end <= from)
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            WatchedKeys::Single(watched) => watched == key,
            WatchedKeys::Range(from, end) => &from[..] <= key && key < &end[..],
            WatchedKeys::From(from) => &from[..] <= key,
        }
    }

    /// Returns the watched keys as a range. `single` is a buffer for the end of a single key's
    /// range.
    pub fn as_range<'k>(&'k self, single: &'k mut Vec<u8>) -> KeyRange<'k> {
        match self {
            WatchedKeys::Single(key) => {
                single.clear();
                single.extend_from_slice(key);
                single.push(0);
                KeyRange::new(key, single)
            }
            WatchedKeys::Range(from, end) => KeyRange::new(from, end),
            WatchedKeys::From(from) => KeyRange::starting_at(from),
        }
    }

    fn first(&self) -> &Bytes {
        match self {
            WatchedKeys::Single(key) | WatchedKeys::Range(key, _) | WatchedKeys::From(key) => key,
        }
    }

    /// Returns the watched keys as an interval, or `None` for a single key.
    fn interval(&self) -> Option<Interval> {
        let end = match self {
            WatchedKeys::Single(_) => return None,
            WatchedKeys::Range(_, end) => End::Before(end.clone()),
            WatchedKeys::From(_) => End::Unbounded,
        };
        Some(Interval { from: self.first().clone(), end })
    }
}

/// A set of watchers. `T` identifies a watcher.
#[derive(Debug)]
pub struct WatcherGroup<T> {
    single: BTreeMap<Bytes, BTreeSet<T>>,
    ranges: IntervalTree<T>,
}

impl<T> Default for WatcherGroup<T> {
    fn default() -> WatcherGroup<T> {
        WatcherGroup { single: BTreeMap::new(), ranges: IntervalTree::default() }
    }
}

impl<T: Ord> WatcherGroup<T> {
    pub fn insert(&mut self, keys: &WatchedKeys, watcher: T) {
        match keys.interval() {
            Some(interval) => self.ranges.insert(&interval, watcher),
            None => drop(self.single.entry(keys.first().clone()).or_default().insert(watcher)),
        }
    }

    pub fn remove(&mut self, keys: &WatchedKeys, watcher: &T) {
        if let Some(interval) = keys.interval() {
            self.ranges.remove(&interval, watcher);
        } else if let Some(watchers) = self.single.get_mut(keys.first()) {
            watchers.remove(watcher);
            if watchers.is_empty() {
                self.single.remove(keys.first());
            }
        }
    }

    pub fn contains(&self, key: &[u8]) -> bool {
        self.single.contains_key(key) || self.ranges.covers(key)
    }

    pub fn for_each_watching(&self, key: &[u8], visit: &mut dyn FnMut(&T)) {
        if let Some(watchers) = self.single.get(key) {
            watchers.iter().for_each(&mut *visit);
        }
        self.ranges.containing(key, visit);
    }
}
