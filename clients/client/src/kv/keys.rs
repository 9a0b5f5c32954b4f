//! Sets of keys: one key, all keys with a prefix, or a range.
//!
//! Requests have two fields, `key` and `range_end`, with three conventions:
//!
//! | | `key` | `range_end` |
//! |---|---|---|
//! | one key | the key | empty |
//! | from a first key up to another, which is excluded | the first | the other |
//! | from a first key without end | the first | one byte 0 |
//!
//! The keys with a prefix are a range. It starts at the prefix and ends at the smallest key that is
//! larger than all keys with the prefix: the prefix with its last byte incremented. A byte of 255
//! cannot be incremented, so such bytes are first removed from the end.

use bytes::Bytes;

/// A set of keys. A string or bytes convert to that one key.
///
/// ```
/// use clearlane_client::Keys;
///
/// assert_eq!(Keys::prefix("job/"), Keys::range("job/", "job0")); // '0' follows '/'
/// assert_eq!(Keys::prefix(""), Keys::all());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

/// The value of `range_end` for a range without an end.
const NO_END: &[u8] = &[0];

impl Keys {
    /// All keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Keys {
        let prefix: Vec<u8> = prefix.into();
        match prefix_end(&prefix) {
            // Only the empty prefix matches all keys. If all bytes of a prefix are 255, the range
            // has no end either, but it starts at the prefix.
            None if prefix.is_empty() => Keys::all(),
            None => Keys::starting_at(prefix),
            Some(end) => Keys { key: prefix.into(), range_end: end.into() },
        }
    }

    /// All keys from `first` up to `end`, which is excluded.
    pub fn range(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Keys {
        Keys { key: first.into().into(), range_end: end.into().into() }
    }

    /// The key `first` and all keys after it.
    pub fn starting_at(first: impl Into<Vec<u8>>) -> Keys {
        Keys { key: first.into().into(), range_end: Bytes::from_static(NO_END) }
    }

    /// All keys of the store.
    pub fn all() -> Keys {
        Keys::starting_at(vec![0])
    }
}

/// One key.
impl<K: AsRef<[u8]>> From<K> for Keys {
    fn from(key: K) -> Keys {
        Keys { key: Bytes::copy_from_slice(key.as_ref()), range_end: Bytes::new() }
    }
}

/// Returns the smallest key that is larger than all keys with this prefix. Returns `None` if the
/// prefix is empty or has only bytes of 255, because there is no such key.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_behind_all_that_begin_with_it() {
        assert_eq!(Keys::prefix("ab"), Keys::range("ab", "ac"));
        assert_eq!(Keys::prefix(vec![1, 0xff]), Keys::range(vec![1, 0xff], vec![2]));
        assert_eq!(Keys::prefix(vec![0xff]), Keys::starting_at(vec![0xff]));
    }
}
