//! The events of a run, one line for each.
//!
//! All lines are combined in one hash. Two runs of a seed must have the same hash. Otherwise some
//! code depends on the time, on a random number that is not drawn from the seed, or on the order of
//! a hash map. To find where two runs differ, print and compare their lines.

use std::fmt::Arguments;
use std::hash::Hasher;
use std::io::Write;

use crate::event_queue::Micros;

/// FNV-1a with 64 bits. It is the same on every platform.
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
    is_printed: bool,
    hash: Fnv,
    line: Vec<u8>,
}

impl Trace {
    pub fn new(is_printed: bool) -> Trace {
        Trace { is_printed, hash: Fnv::default(), line: Vec::new() }
    }

    pub fn record(&mut self, now: Micros, what: Arguments<'_>) {
        self.line.clear();
        writeln!(self.line, "{:>3}.{:06} {what}", now / 1_000_000, now % 1_000_000)
            .expect("memory takes what is written");
        self.hash.write(&self.line);
        if self.is_printed {
            // Errors are ignored, because the reader may have closed the output.
            let _ = std::io::stdout().write_all(&self.line);
        }
    }

    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }
}
