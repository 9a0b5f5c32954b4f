//! Sets of keys: one, those with a prefix, or a range.
//!
//! On the wire there are two fields, `key` and `range_end`, and three conventions:
//!
//! | | `key` | `range_end` |
//! |---|---|---|
//! | one key | the key | empty |
//! | from one up to another, without that | the first | the other |
//! | from one on | the first | one byte 0 |
//!
//! A prefix is a range: from itself up to the first key that comes after all that begin with it,
//! which is the prefix with its last byte one larger. A last byte of 255 cannot be, and falls away.

use bytes::Bytes;

/// A set of keys. A string or bytes convert to that one key.
///
/// ```
/// use clearlane_client::Keys;
///
/// assert_eq!(Keys::prefix("job/"), Keys::range("job/", "job0")); // '0' comes after '/'
/// assert_eq!(Keys::prefix(""), Keys::all());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    pub(crate) key: Bytes,
    pub(crate) range_end: Bytes,
}

/// As `range_end`: no upper bound.
const NO_END: &[u8] = &[0];

impl Keys {
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Keys {
        let prefix: Vec<u8> = prefix.into();
        match prefix_end(&prefix) {
            // A prefix of 255s alone has no end, and is no set of all keys.
            None if prefix.is_empty() => Keys::all(),
            None => Keys::starting_at(prefix),
            Some(end) => Keys { key: prefix.into(), range_end: end.into() },
        }
    }

    /// Without `end`.
    pub fn range(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Keys {
        Keys { key: first.into().into(), range_end: end.into().into() }
    }

    pub fn starting_at(first: impl Into<Vec<u8>>) -> Keys {
        Keys { key: first.into().into(), range_end: Bytes::from_static(NO_END) }
    }

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

/// The least key above all keys with this prefix; `None` if there is none.
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
