//! Which keys? One, those with a prefix, or those between two.
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

/// A set of keys. A text or bytes are the one key of that name.
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

/// As the end of a range: there is none.
const NO_END: &[u8] = &[0];

impl Keys {
    /// One key.
    pub fn one(key: impl Into<Vec<u8>>) -> Keys {
        Keys { key: key.into().into(), range_end: Bytes::new() }
    }

    /// All that begin like this.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Keys {
        let prefix: Vec<u8> = prefix.into();
        match prefix_end(&prefix) {
            // Not even 255, 255, ... ends what begins with that.
            None if prefix.is_empty() => Keys::all(),
            None => Keys::starting_at(prefix),
            Some(end) => Keys { key: prefix.into(), range_end: end.into() },
        }
    }

    /// From the first on, and before the other.
    pub fn range(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Keys {
        Keys { key: first.into().into(), range_end: end.into().into() }
    }

    /// This one and all behind it.
    pub fn starting_at(first: impl Into<Vec<u8>>) -> Keys {
        Keys { key: first.into().into(), range_end: Bytes::from_static(NO_END) }
    }

    /// All there are.
    pub fn all() -> Keys {
        Keys::starting_at(vec![0])
    }
}

impl From<&str> for Keys {
    fn from(key: &str) -> Keys {
        Keys::one(key)
    }
}

impl From<&String> for Keys {
    fn from(key: &String) -> Keys {
        Keys::one(key.as_str())
    }
}

impl From<String> for Keys {
    fn from(key: String) -> Keys {
        Keys::one(key)
    }
}

impl From<&[u8]> for Keys {
    fn from(key: &[u8]) -> Keys {
        Keys::one(key)
    }
}

impl From<Vec<u8>> for Keys {
    fn from(key: Vec<u8>) -> Keys {
        Keys::one(key)
    }
}

impl From<Bytes> for Keys {
    fn from(key: Bytes) -> Keys {
        Keys { key, range_end: Bytes::new() }
    }
}

/// The first key behind all that begin like this, if there is one.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

/// Lets keys be written where a request is wanted: the request for these, with no options.
macro_rules! from_keys {
    ($target:ident, $($keys:ty),+) => {
        $(impl From<$keys> for $target {
            fn from(keys: $keys) -> $target {
                $target::new(keys)
            }
        })+
    };
    ($target:ident) => {
        $crate::kv::from_keys!(
            $target, &str, &String, String, &[u8], Vec<u8>, bytes::Bytes, $crate::Keys
        );
    };
}
pub(crate) use from_keys;

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
