//! The names of segments.
//!
//! ```text
//!   0000000000000002-00000000000186a1.wal
//!   └── sequence number 2, the third segment
//!                    └── 100,001, one more than the last entry before the segment
//! ```
//!
//! So the segments with the entries after an index are found without opening any file. They are the
//! last segment whose name has an index at or below the given index, and all later segments.

use std::fmt;

/// A segment's name. Names sort by sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentName {
    pub(super) sequence: u64,
    /// One more than the index of the last entry or received snapshot before the segment; 0 in the
    /// first segment. The segment may also contain entries with smaller indexes, which replace
    /// uncommitted entries.
    pub(super) index: u64,
}

impl SegmentName {
    /// Parses a file name. Returns `None` if it is not the name of a segment.
    pub(super) fn parse(name: &str) -> Option<SegmentName> {
        let (sequence, index) = name.strip_suffix(".wal")?.split_once('-')?;
        let name_of = |sequence, index| SegmentName { sequence, index };
        let parsed = name_of(hex(sequence)?, hex(index)?);
        (parsed.to_string() == name).then_some(parsed)
    }
}

fn hex(digits: &str) -> Option<u64> {
    u64::from_str_radix(digits, 16).ok()
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:016x}.wal", self.sequence, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::SegmentName;

    #[test]
    fn names_are_read_back_and_others_are_not_taken_for_one() {
        let name = SegmentName { sequence: 2, index: 100_001 };
        assert_eq!(name.to_string(), "0000000000000002-00000000000186a1.wal");
        assert_eq!(SegmentName::parse(&name.to_string()), Some(name));
        for other in [
            "0.tmp",
            "2-3.wal",
            "0000000000000002-00000000000186A1.wal",
            "0000000000000002-00000000000186a1.wal.broken",
            "+000000000000002-00000000000186a1.wal",
        ] {
            assert_eq!(SegmentName::parse(other), None, "{other}");
        }
    }
}
