//! Numbered keys of one size, and their values.
//!
//! A key is a prefix and a number with leading zeros. So keys are ordered like their numbers. A
//! range of `n` keys from the key with number `i` ends before the key with number `i + n`. The keys
//! of a real store also share long prefixes, which a comparison has to read first.
//!
//! Values are slices of one block of random bytes, at random offsets. They cannot be compressed,
//! small values are seldom equal, and creating a value copies no bytes.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};
use serde::Serialize;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeySpace {
    pub prefix: String,
    pub count: u64,
    /// The size of each key in bytes.
    #[serde(rename = "size")]
    pub key_size: u64,
    /// The sizes of the values that a fill puts.
    pub value: Sizes,
}

impl KeySpace {
    /// The prefix of workloads that do not set one.
    pub const DEFAULT_PREFIX: &'static str = "/load/";

    /// Returns the minimum size of a key, in bytes, for `count` keys.
    pub fn min_key_size(prefix: &str, count: u64) -> u64 {
        // Each key has as many digits as `count`, because the key with the number `count` is the
        // end of a range up to the last key.
        prefix.len() as u64 + count.to_string().len() as u64
    }

    /// Returns the key with this number. `number` may be `count`: that key is the end of a range up
    /// to the last key.
    pub fn key(&self, number: u64) -> Bytes {
        let digits = (self.key_size as usize).saturating_sub(self.prefix.len());
        format!("{}{number:0digits$}", self.prefix).into()
    }

    /// Returns a random key number that is the start of at least `keys` consecutive keys.
    pub fn random_start(&self, keys: u64, choices: &mut SmallRng) -> u64 {
        choices.random_range(0..=self.count.saturating_sub(keys))
    }
}

/// How often each key is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Distribution {
    /// All keys are equally likely.
    #[default]
    Uniform,
    /// A few keys are chosen most of the time, and they are far apart in the key space. The key of
    /// rank `r` has the weight `1 / r`.
    Zipf,
    /// The keys are chosen one after the other.
    Sequential,
}

impl Distribution {
    pub(crate) const WORDS: [(&'static str, Distribution); 3] = [
        ("uniform", Distribution::Uniform),
        ("zipf", Distribution::Zipf),
        ("sequential", Distribution::Sequential),
    ];
}

/// Chooses the first key of each request. A request uses a fixed number of consecutive keys.
#[derive(Clone, Debug)]
pub struct KeyChooser {
    distribution: Distribution,
    /// Number of keys where a request can start.
    starts: u64,
    /// The factor that maps a rank to a key: the rank times this factor, modulo `starts`. It is
    /// coprime with `starts`, so that different ranks are different keys.
    step: u64,
    next: u64,
}

impl KeyChooser {
    pub fn new(distribution: Distribution, space: &KeySpace, keys: u64) -> KeyChooser {
        let starts = space.count.saturating_sub(keys) + 1;
        // This step is `starts` divided by about the golden ratio, so the keys of neighbouring
        // ranks are far apart.
        let mut step = (starts as f64 * 0.618_034) as u64 | 1;
        while greatest_common_divisor(step, starts) != 1 {
            step += 2;
        }
        KeyChooser { distribution, starts, step, next: 0 }
    }

    pub fn next_start(&mut self, choices: &mut SmallRng) -> u64 {
        match self.distribution {
            Distribution::Uniform => choices.random_range(0..self.starts),
            Distribution::Zipf => {
                let rank = zipf_rank(self.starts, choices) - 1;
                (u128::from(rank) * u128::from(self.step) % u128::from(self.starts)) as u64
            }
            Distribution::Sequential => {
                let start = self.next % self.starts;
                self.next += 1;
                start
            }
        }
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Returns a rank from 1 to `count`. The rank `r` has the weight `1 / r`.
///
/// This is rejection sampling. It draws from a continuous density, and rounds to a rank: each rank
/// gets the density from `rank - 1/2` to `rank + 1/2`. This is slightly more than its weight, so a
/// small share of the draws is rejected.
fn zipf_rank(count: u64, choices: &mut SmallRng) -> u64 {
    let (low, high) = (0.5_f64.ln(), (count as f64 + 0.5).ln());
    loop {
        let at = choices.random_range(low..high).exp();
        let rank = at.round().clamp(1.0, count as f64);
        // The density of this rank is the difference of two logarithms. It is slightly above the
        // weight `1 / rank`.
        let density = ((rank + 0.5) / (rank - 0.5)).ln();
        if choices.random_range(0.0..density) < 1.0 / rank {
            return rank as u64;
        }
    }
}

/// A range of sizes in bytes, including both ends. All sizes are equally likely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    pub min: u64,
    pub max: u64,
}

/// The sizes as text: `1024 bytes`, or `1024 to 32768 bytes`.
impl std::fmt::Display for Sizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.min, self.max) {
            (min, max) if min == max => write!(f, "{min} bytes"),
            (min, max) => write!(f, "{min} to {max} bytes"),
        }
    }
}

impl Sizes {
    pub fn constant(size: u64) -> Sizes {
        Sizes { min: size, max: size }
    }
}

/// Minimum size of the block of random bytes. If the block were small, small values would start at
/// few offsets. A server that sorts by value would then see the same values again and again, which
/// is less work.
const BLOCK_BYTES_MIN: usize = 1 << 20;

#[derive(Clone, Debug)]
pub struct ValueGenerator {
    block: Bytes,
    sizes: Sizes,
}

impl ValueGenerator {
    pub fn new(sizes: Sizes, seed: u64) -> ValueGenerator {
        // The block is at least twice the largest size, so that values of that size also differ.
        let mut block = vec![0; (sizes.max as usize * 2).max(BLOCK_BYTES_MIN)];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut block);
        ValueGenerator { block: block.into(), sizes }
    }

    pub fn random_value(&self, choices: &mut SmallRng) -> Bytes {
        let size = choices.random_range(self.sizes.min..=self.sizes.max) as usize;
        let from = choices.random_range(0..=self.block.len() - size);
        self.block.slice(from..from + size)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn space(prefix: &str, count: u64, key_size: u64) -> KeySpace {
        KeySpace { prefix: prefix.to_owned(), count, key_size, value: Sizes::constant(1) }
    }

    fn numbers(distribution: Distribution, count: u64, draws: usize) -> Vec<u64> {
        let mut chooser = KeyChooser::new(distribution, &space("", count, 8), 1);
        let mut rng = SmallRng::seed_from_u64(3);
        (0..draws).map(|_| chooser.next_start(&mut rng)).collect()
    }

    #[test]
    fn keys_are_chosen_as_often_as_their_distribution_says() {
        assert_eq!(numbers(Distribution::Sequential, 3, 5), [0, 1, 2, 0, 1]);
        assert_eq!(numbers(Distribution::Uniform, 10, 1000).into_iter().max(), Some(9));
        for count in [1, 2, 7, 1000] {
            let draws = 200_000;
            let mut times = vec![0_u32; count as usize];
            for number in numbers(Distribution::Zipf, count, draws) {
                times[number as usize] += 1;
            }
            times.sort_unstable_by(|a, b| b.cmp(a));
            let sum: f64 = (1..=count).map(|rank| 1.0 / rank as f64).sum();
            for rank in [1, 2, 5, 50].into_iter().filter(|rank| *rank <= count) {
                let share = f64::from(times[rank as usize - 1]) / draws as f64;
                let expected = 1.0 / rank as f64 / sum;
                assert!((share / expected - 1.0).abs() < 0.1, "{rank} of {count}: {share}");
            }
        }
    }

    #[test]
    fn keys_have_one_size_and_the_order_of_their_numbers() {
        let space = space("/a/", 1000, 7);
        assert_eq!(space.key(42), "/a/0042");
        assert_eq!(KeySpace::min_key_size("/a/", 1000), 7);
        assert!((0..1000).all(|number| space.key(number) < space.key(number + 1)));
        assert!((0..=1000).all(|number| space.key(number).len() == 7));
    }

    #[test]
    fn ranges_stay_within_the_space() {
        let (space, mut choices) = (space("", 10, 2), SmallRng::seed_from_u64(5));
        let starts: BTreeSet<u64> =
            (0..1000).map(|_| space.random_start(8, &mut choices)).collect();
        assert!(starts.into_iter().eq(0..=2));
        assert_eq!(space.random_start(10, &mut choices), 0);
    }

    #[test]
    fn values_have_all_sizes_and_are_seldom_equal() {
        let mut choices = SmallRng::seed_from_u64(2);
        let mut values = |min, max, count: usize| -> Vec<Bytes> {
            let values = ValueGenerator::new(Sizes { min, max }, 1);
            (0..count).map(|_| values.random_value(&mut choices)).collect()
        };
        let mut seen = [0; 8];
        values(3, 6, 4000).iter().for_each(|value| seen[value.len()] += 1);
        assert_eq!([seen[0], seen[1], seen[2], seen[7]], [0; 4]);
        assert!(seen[3..=6].iter().all(|times| *times > 800), "{seen:?}");
        assert_eq!(values(0, 0, 1), [""]);
        let different: BTreeSet<Bytes> = values(64, 64, 1000).into_iter().collect();
        assert!(different.len() > 990, "{}", different.len());
    }
}
