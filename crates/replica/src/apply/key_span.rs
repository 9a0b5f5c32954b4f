//! The range of keys that a key and a `range_end` stand for.
//!
//! ```text
//!   range_end empty            the one key           [key, key 00)
//!   range_end one zero byte    all keys >= key       [key, )
//!   otherwise                  up to the end         [key, range_end)
//! ```
//!
//! The end of a range of one key is not in the request: it is the key followed by a zero byte. For
//! keys of less than `INLINE_KEY_MAX` bytes, this end is stored without an allocation.

use clearlane_engine::KeyRange;

const INLINE_KEY_MAX: usize = 64;

const OPEN_END: &[u8] = &[0];

#[derive(Debug)]
pub struct KeySpan<'r> {
    key: &'r [u8],
    end: SpanEnd<'r>,
}

#[derive(Debug)]
enum SpanEnd<'r> {
    Open,
    Explicit(&'r [u8]),
    /// The key followed by a zero byte: buffer and length.
    Inline([u8; INLINE_KEY_MAX], usize),
    Heap(Vec<u8>),
}

impl<'r> KeySpan<'r> {
    #[inline]
    pub fn new(key: &'r [u8], range_end: &'r [u8]) -> KeySpan<'r> {
        let end = match range_end {
            [] => end_after(key),
            OPEN_END => SpanEnd::Open,
            end => SpanEnd::Explicit(end),
        };
        KeySpan { key, end }
    }

    #[inline]
    pub fn one_key(key: &'r [u8]) -> KeySpan<'r> {
        KeySpan { key, end: end_after(key) }
    }

    #[inline]
    pub fn range(&self) -> KeyRange<'_> {
        match &self.end {
            SpanEnd::Open => KeyRange::starting_at(self.key),
            SpanEnd::Explicit(end) => KeyRange::new(self.key, end),
            SpanEnd::Inline(buffer, len) => KeyRange::new(self.key, &buffer[..*len]),
            SpanEnd::Heap(end) => KeyRange::new(self.key, end),
        }
    }
}

fn end_after(key: &[u8]) -> SpanEnd<'static> {
    if key.len() < INLINE_KEY_MAX {
        let mut buffer = [0; INLINE_KEY_MAX];
        buffer[..key.len()].copy_from_slice(key);
        SpanEnd::Inline(buffer, key.len() + 1)
    } else {
        SpanEnd::Heap([key, OPEN_END].concat())
    }
}

pub(crate) fn is_open_end(range_end: &[u8]) -> bool {
    range_end == OPEN_END
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_and_no_other_is_in_its_range() {
        for len in [1, INLINE_KEY_MAX - 2, INLINE_KEY_MAX - 1, INLINE_KEY_MAX, INLINE_KEY_MAX + 1] {
            let key = vec![7; len];
            let span = KeySpan::new(&key, b"");
            assert!(span.range().contains(&key), "{len}");
            assert!(!span.range().contains(&[&key[..], &[0]].concat()), "{len}");
            assert!(!span.range().contains(&key[..len - 1]), "{len}");
            assert_eq!(span.range(), KeySpan::one_key(&key).range());
        }
    }

    #[test]
    fn one_zero_byte_is_no_end_and_two_are() {
        assert_eq!(KeySpan::new(b"a", &[0]).range(), KeyRange::starting_at(b"a"));
        assert_eq!(KeySpan::new(b"a", &[0, 0]).range(), KeyRange::new(b"a", &[0, 0]));
        assert_eq!(KeySpan::new(b"a", b"c").range(), KeyRange::new(b"a", b"c"));
    }
}
