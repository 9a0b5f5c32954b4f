//! Random numbers from a seed, for election time-outs.

/// A generator that returns the same numbers for the same seed on every machine.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    /// Creates a generator from a seed and the member's id. The members of a cluster may have the
    /// same seed. Without the id they would draw the same numbers and campaign at the same tick.
    pub(super) fn from_seed(seed: u64, member: u64) -> Rng {
        let mut member = Rng(member);
        Rng(seed ^ member.next())
    }

    fn next(&mut self) -> u64 {
        // SplitMix64. Every seed is suitable, and the first numbers of neighbouring seeds differ.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number in `from..to`.
    pub(super) fn pick(&mut self, from: usize, to: usize) -> usize {
        from + (self.next() % (to - from) as u64) as usize
    }
}
