//! A key in the tree. A short key is stored in place.
//!
//! A search compares a key at every step. If the slot had a pointer to the key, each comparison
//! would be a cache miss. If that pointer were reference-counted, copying a node would also write
//! to shared memory for each key. So keys of up to 38 bytes are stored in the slot.
//!
//! A leaf that was not used recently is not in the processor's cache. A binary search in it waits
//! for five cache lines one after the other, because each comparison decides which line is next. So
//! [`search`] first compares the first eight bytes of *all* keys, as numbers, and counts the keys
//! that are smaller or equal. These comparisons do not depend on each other, so the cache lines are
//! loaded in parallel. A binary search follows only among keys with the same first eight bytes.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// Maximum length of an inline key. With its length and kind, the key then takes 40 bytes.
const INLINE_MAX: usize = 38;
const PREFIX_LEN: usize = 8;

/// A key of the tree. It dereferences to its bytes, and sorts in the order of its bytes.
#[derive(Clone)]
pub(crate) enum Key {
    Inline { len: u8, bytes: [u8; INLINE_MAX] },
    Shared { prefix: u64, bytes: Arc<[u8]> },
}

impl Key {
    pub(crate) fn new(key: &[u8]) -> Key {
        let mut bytes = [0; INLINE_MAX];
        match bytes.get_mut(..key.len()) {
            Some(part) => {
                part.copy_from_slice(key);
                Key::Inline { len: key.len() as u8, bytes }
            }
            None => Key::Shared { prefix: prefix_of(key), bytes: key.into() },
        }
    }

    /// Returns the first eight bytes as a number. If the numbers of two keys differ, they show
    /// which key is smaller.
    #[inline]
    fn prefix(&self) -> u64 {
        match self {
            Key::Inline { bytes, .. } => number(bytes),
            Key::Shared { prefix: first, .. } => *first,
        }
    }
}

/// Returns the first eight bytes of a key as a number. A shorter key is padded with zeros.
#[inline]
fn prefix_of(key: &[u8]) -> u64 {
    if key.len() >= PREFIX_LEN {
        return number(key);
    }
    let mut bytes = [0; PREFIX_LEN];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

#[inline]
fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(*bytes.first_chunk().expect("there are at least eight bytes"))
}

/// Returns the position of `key` in these items, or as an error the position where it would be
/// inserted. The items must be sorted by key.
#[inline]
pub(crate) fn search<T>(items: &[T], key: &[u8], key_of: fn(&T) -> &Key) -> Result<usize, usize> {
    let first = prefix_of(key);
    let (mut lower, mut alike) = (0, 0);
    for item in items {
        let other = key_of(item).prefix();
        lower += usize::from(other < first);
        alike += usize::from(other == first);
    }
    let found = items[lower..lower + alike].binary_search_by(|item| (**key_of(item)).cmp(key));
    found.map(|at| at + lower).map_err(|at| at + lower)
}

impl Deref for Key {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Key::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Key::Shared { bytes, .. } => bytes,
        }
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        **self == **other
    }
}

impl Eq for Key {}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    #[inline]
    fn cmp(&self, other: &Key) -> Ordering {
        self.prefix().cmp(&other.prefix()).then_with(|| (**self).cmp(&**other))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_forty_bytes() {
        assert_eq!(size_of::<Key>(), 40);
        assert!(matches!(Key::new(&[0; INLINE_MAX]), Key::Inline { .. }));
        assert!(matches!(Key::new(&[0; INLINE_MAX + 1]), Key::Shared { .. }));
    }
}
