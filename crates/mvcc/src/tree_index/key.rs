//! A key as the tree keeps it: in place if it is short.
//!
//! A search compares a key at every step: a pointer would cost a cache miss each, and a counted one
//! a write to shared memory for each key of a copied node. So up to 38 bytes lie in the slot.
//!
//! A leaf that was not used lately is not in the processor's cache. A binary search in it waits for
//! five cache lines, one after the other, because each comparison decides which is the next. So a
//! [`search`] first compares the first eight bytes of *all* keys, as numbers, and counts: no
//! comparison depends on another, and the lines come in together. Only among keys that begin alike
//! it goes on with a binary search.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// So that a key takes 40 bytes with its length and its kind.
const INLINE_MAX: usize = 38;
const PREFIX_LEN: usize = 8;

/// A key of the tree. Dereferences to its bytes, and is ordered as they are.
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

    /// Its first eight bytes as a number. If two keys differ in it, that is their order.
    #[inline]
    fn prefix(&self) -> u64 {
        match self {
            Key::Inline { bytes, .. } => number(bytes),
            Key::Shared { prefix: first, .. } => *first,
        }
    }
}

/// The first eight bytes of a key as a number; a shorter one is taken as if followed by zeros.
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
    u64::from_be_bytes(*bytes.first_chunk().expect("there are more than eight bytes"))
}

/// Where `key` is among these items, whose keys rise, or where it would be.
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
