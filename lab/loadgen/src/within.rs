//! A parser for whole numbers on the command line.

use std::ops::RangeInclusive;

use clap::builder::RangedU64ValueParser;

/// Returns a parser for a whole number within these bounds.
pub(crate) fn within(bounds: RangeInclusive<u64>) -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(bounds)
}
