//! A set of keys as sorted ranges that do not touch: the keys a user may read, or may write.
//!
//! etcd keeps an interval tree for each such set and checks whether the union of its intervals
//! covers a range. Here the ranges are merged once, so a check is a binary search.

use bytes::Bytes;

/// The `range_end` of a range that has no end.
pub(crate) const OPEN_END: &[u8] = &[0];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyRanges(Vec<(Bytes, End)>);

/// The exclusive end of a range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    Before(Bytes),
    Open,
}

/// Conversion from a `range_end`, which has the same meaning in requests and in permissions.
impl End {
    fn of(key: &Bytes, range_end: &Bytes) -> End {
        match &range_end[..] {
            [] => End::Before([&key[..], &[0]].concat().into()),
            OPEN_END => End::Open,
            _ => End::Before(range_end.clone()),
        }
    }

    fn is_behind(&self, key: &[u8]) -> bool {
        match self {
            End::Before(end) => end[..] > *key,
            End::Open => true,
        }
    }
}

impl KeyRanges {
    pub(crate) fn new<'p>(ranges: impl Iterator<Item = (&'p Bytes, &'p Bytes)>) -> KeyRanges {
        let mut ranges: Vec<(Bytes, End)> =
            ranges.map(|(key, end)| (key.clone(), End::of(key, end))).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(Bytes, End)> = Vec::new();
        for (start, end) in ranges {
            match merged.last_mut() {
                Some((_, last)) if *last == End::Open || touches(last, &start) => {
                    if end > *last {
                        *last = end;
                    }
                }
                _ => merged.push((start, end)),
            }
        }
        merged.shrink_to_fit();
        KeyRanges(merged)
    }

    /// Returns the end of the range that contains the key, or `None` if the key is not in the set.
    pub(crate) fn end_of(&self, key: &[u8]) -> Option<&End> {
        let behind = self.0.partition_point(|(start, _)| start[..] <= *key);
        let (_, end) = self.0.get(behind.checked_sub(1)?)?;
        end.is_behind(key).then_some(end)
    }

    /// Returns true if the set contains the whole range. If `range_end` is [`OPEN_END`], the range
    /// has no end. If another `range_end` is not above `key`, only `key` must be in the set.
    pub(crate) fn contain(&self, key: &[u8], range_end: &[u8]) -> bool {
        match (range_end, self.end_of(key)) {
            (_, None) => false,
            (_, Some(End::Open)) => true,
            (OPEN_END, Some(End::Before(_))) => false,
            (range_end, Some(End::Before(end))) => range_end <= &end[..],
        }
    }
}

/// Returns true if a range that starts at `start` overlaps or continues a range that ends at `end`.
fn touches(end: &End, start: &Bytes) -> bool {
    end.is_behind(start) || matches!(end, End::Before(end) if end == start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(of: &[(&'static str, &'static str)]) -> KeyRanges {
        let of: Vec<_> =
            of.iter().map(|(key, end)| (Bytes::from(*key), Bytes::from(*end))).collect();
        KeyRanges::new(of.iter().map(|(key, end)| (key, end)))
    }

    #[test]
    fn ranges_that_touch_count_as_one() {
        let set = ranges(&[("c", "e"), ("a", "c"), ("b", "d"), ("x", ""), ("x\0", "y")]);
        assert_eq!(set.0.len(), 2, "{set:?}");
        for (key, end) in [("a", "e"), ("b", "d"), ("a", ""), ("d", "e"), ("x", "y"), ("x", "")] {
            assert!(set.contain(key.as_bytes(), end.as_bytes()), "{key} to {end}");
        }
        for (key, end) in [("a", "e\0"), ("e", ""), ("", "b"), ("y", ""), ("a", "\0"), ("w", "y")] {
            assert!(!set.contain(key.as_bytes(), end.as_bytes()), "{key} to {end}");
        }
    }

    #[test]
    fn an_open_end_covers_the_rest() {
        let set = ranges(&[("m", "\0"), ("p", "q"), ("a", "b")]);
        for (key, end) in [("m", "\0"), ("m", ""), ("z", "\0"), ("p", "zz"), ("a", "b")] {
            assert!(set.contain(key.as_bytes(), end.as_bytes()), "{key} to {end}");
        }
        for (key, end) in [("l", "\0"), ("a", "\0"), ("a", "n"), ("b", "")] {
            assert!(!set.contain(key.as_bytes(), end.as_bytes()), "{key} to {end}");
        }
    }
}
