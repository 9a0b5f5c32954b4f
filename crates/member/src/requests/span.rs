//! From a key and a `range_end` to the keys that are meant.
//!
//! ```text
//!   range_end empty            the one key           [key, key 00)
//!   range_end one zero byte    all from the key on   [key, )
//!   otherwise                  up to the end         [key, range_end)
//! ```
//!
//! A range of one key needs an end that is in no request: the key with a zero byte behind it. Most
//! requests are about one key, and most keys are short, so that end lies on the stack.

use clearlane_engine::KeyRange;

/// Longer keys have their end on the heap.
const SHORT: usize = 64;

/// The `range_end` that stands for "and everything behind".
const OPEN: &[u8] = &[0];

/// The keys that a request means.
#[derive(Debug)]
pub(crate) struct Span<'r> {
    key: &'r [u8],
    end: End<'r>,
}

#[derive(Debug)]
enum End<'r> {
    Open,
    Given(&'r [u8]),
    /// Behind one key: so many bytes of the buffer, the last of which is zero.
    Short([u8; SHORT], usize),
    Long(Vec<u8>),
}

impl<'r> Span<'r> {
    pub(crate) fn new(key: &'r [u8], range_end: &'r [u8]) -> Span<'r> {
        let end = match range_end {
            [] => behind(key),
            OPEN => End::Open,
            end => End::Given(end),
        };
        Span { key, end }
    }

    /// The one key.
    pub(crate) fn of(key: &'r [u8]) -> Span<'r> {
        Span { key, end: behind(key) }
    }

    pub(crate) fn range(&self) -> KeyRange<'_> {
        match &self.end {
            End::Open => KeyRange::starting_at(self.key),
            End::Given(end) => KeyRange::new(self.key, end),
            End::Short(buffer, len) => KeyRange::new(self.key, &buffer[..*len]),
            End::Long(end) => KeyRange::new(self.key, end),
        }
    }
}

fn behind(key: &[u8]) -> End<'static> {
    if key.len() < SHORT {
        let mut buffer = [0; SHORT];
        buffer[..key.len()].copy_from_slice(key);
        End::Short(buffer, key.len() + 1)
    } else {
        End::Long([key, OPEN].concat())
    }
}

/// Whether a `range_end` stands for "and everything behind".
pub(crate) fn is_open(range_end: &[u8]) -> bool {
    range_end == OPEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_and_no_other_is_in_its_range() {
        for len in [1, SHORT - 2, SHORT - 1, SHORT, SHORT + 1] {
            let key = vec![7; len];
            let span = Span::new(&key, b"");
            assert!(span.range().contains(&key), "{len}");
            assert!(!span.range().contains(&[&key[..], &[0]].concat()), "{len}");
            assert!(!span.range().contains(&key[..len - 1]), "{len}");
            assert_eq!(span.range(), Span::of(&key).range());
        }
    }

    #[test]
    fn one_zero_byte_is_no_end_and_two_are() {
        assert_eq!(Span::new(b"a", &[0]).range(), KeyRange::starting_at(b"a"));
        assert_eq!(Span::new(b"a", &[0, 0]).range(), KeyRange::new(b"a", &[0, 0]));
        assert_eq!(Span::new(b"a", b"c").range(), KeyRange::new(b"a", b"c"));
    }
}
