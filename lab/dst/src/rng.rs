//! The only source of random numbers. They all follow from one seed.
//!
//! The generator is SplitMix64. It is implemented here, so that a seed gives the same run after an
//! upgrade of any dependency. Parts of the simulation have their own generators ([`Rng::split`]).
//! So a part that draws more or fewer numbers does not change the numbers of the others.

/// A generator that yields the same numbers for the same seed, on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Returns a generator whose numbers are independent of the next numbers of this generator.
    #[must_use]
    pub fn split(&mut self) -> Rng {
        Rng(self.next_u64())
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number in a range that includes both ends.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        assert!(from <= to, "{from} to {to} is no range");
        from + self.next_u64() % (to - from + 1)
    }

    /// Returns a number in a range, like [`between`](Rng::between). It draws the length of the
    /// number in bits first, and each length is equally likely. Between 1 and 1,000, half of the
    /// numbers are below 32.
    pub fn log_uniform(&mut self, from: u64, to: u64) -> u64 {
        let bits = |number: u64| u64::from(u64::BITS - number.leading_zeros());
        let size = self.between(bits(from), bits(to));
        let low = if size == 0 { 0 } else { 1 << (size - 1) };
        let high = low.max(1) * 2 - 1;
        self.between(low.clamp(from, to), high.clamp(from, to))
    }

    /// Returns true with a probability of `times` in a thousand.
    pub fn permille(&mut self, times: u64) -> bool {
        self.next_u64() % 1000 < times
    }

    /// Returns a random item, or `None` if `several` is empty.
    pub fn choose<'a, T>(&mut self, several: &'a [T]) -> Option<&'a T> {
        let last = several.len().checked_sub(1)?;
        several.get(self.between(0, last as u64) as usize)
    }

    /// Returns each item with a probability of one half, in the given order.
    pub fn choose_some<T: Copy>(&mut self, several: &[T]) -> Vec<T> {
        several.iter().copied().filter(|_| self.permille(500)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_range_comes_and_no_other() {
        let mut rng = Rng::new(7);
        let mut seen = [0; 12];
        for _ in 0..2000 {
            seen[rng.between(3, 8) as usize] += 1;
            let any = rng.log_uniform(3, 11) as usize;
            assert!((3..=11).contains(&any), "{any}");
        }
        assert!(seen[3..=8].iter().all(|times| *times > 200), "{seen:?}");
        assert_eq!(seen.iter().sum::<i32>(), 2000);
        assert_eq!(rng.log_uniform(0, 0), 0);
        assert_eq!(rng.choose::<u8>(&[]), None);
    }
}
