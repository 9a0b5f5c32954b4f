//! The events of a run, a line for each.
//!
//! The lines run into one hash, which two runs of a seed must share: a difference means that some
//! code uses the time, a random number or the order of a hash map. To see where two runs part, keep
//! the lines.

use std::fmt::Arguments;
use std::hash::Hasher;
use std::io::Write;

use crate::event_queue::Micros;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceOutput {
    /// Hashed and dropped.
    #[default]
    Hash,
    Lines,
    /// Written to the standard output.
    Print,
}

/// FNV-1a of 64 bits: the same on every platform.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[derive(Debug)]
pub struct Trace {
    output: TraceOutput,
    hash: Fnv,
    line: Vec<u8>,
    /// Empty unless the output is [`TraceOutput::Lines`].
    pub lines: Vec<String>,
}

impl Trace {
    pub fn new(output: TraceOutput) -> Trace {
        Trace { output, hash: Fnv::default(), line: Vec::new(), lines: Vec::new() }
    }

    pub fn record(&mut self, now: Micros, what: Arguments<'_>) {
        self.line.clear();
        writeln!(self.line, "{:>3}.{:06} {what}", now / 1_000_000, now % 1_000_000)
            .expect("memory takes what is written");
        self.hash.write(&self.line);
        match self.output {
            TraceOutput::Hash => {}
            TraceOutput::Lines => self.lines.push(String::from_utf8_lossy(&self.line).into_owned()),
            // Errors are ignored: the reader may have closed the output.
            TraceOutput::Print => drop(std::io::stdout().write_all(&self.line)),
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_lines() {
        let mut kept = Trace::new(TraceOutput::Lines);
        let mut hashed = Trace::new(TraceOutput::Hash);
        for trace in [&mut kept, &mut hashed] {
            trace.record(1_000_002, format_args!("{} has {}", 1, 2));
            trace.record(2_000_000, format_args!("end"));
        }
        assert_eq!(kept.lines, ["  1.000002 1 has 2\n", "  2.000000 end\n"]);
        assert_eq!(kept.hash(), hashed.hash());
        hashed.record(2_000_000, format_args!(""));
        assert_ne!(kept.hash(), hashed.hash());
    }
}
