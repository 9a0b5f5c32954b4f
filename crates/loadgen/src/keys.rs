//! Which keys are there, and what is in them?
//!
//! Keys are numbered and all have the same size: a prefix, and the number with zeros before it. So
//! their order is that of the numbers, and a range of `n` keys is one from some key to the key that
//! is `n` behind it. Keys of a real store share long prefixes, too, and a comparison has to get
//! past them.
//!
//! Values are cut out of one block of random bytes, each somewhere else: they cannot be compressed,
//! and making one costs a pointer.

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{Rng, RngExt, SeedableRng};

/// Numbered keys of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpace {
    /// With what each key begins.
    pub prefix: String,
    /// How many there are.
    pub count: u64,
    /// How long each is, in bytes.
    pub key_size: u64,
    /// How long the values are with which it is filled.
    pub value: Sizes,
}

impl KeySpace {
    /// The prefix of a workload that asks for none.
    pub const DEFAULT_PREFIX: &'static str = "/load/";

    /// The shortest that keys can be, when there are so many.
    pub fn min_key_size(prefix: &str, count: u64) -> u64 {
        // As many digits as `count` itself has: it is the end of a range up to the last key.
        prefix.len() as u64 + count.to_string().len() as u64
    }

    /// The key of that number, from 0 to `count`, which is the end of the last one.
    pub fn key(&self, number: u64) -> Bytes {
        let digits = (self.key_size as usize).saturating_sub(self.prefix.len());
        format!("{}{number:0digits$}", self.prefix).into()
    }

    /// The number of some key behind which there are `keys` keys, itself included.
    pub fn random_start(&self, keys: u64, choices: &mut SmallRng) -> u64 {
        choices.random_range(0..=self.count.saturating_sub(keys))
    }
}

/// From so many bytes to so many, each size as likely as each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The smallest, in bytes.
    pub min: u64,
    /// The largest, in bytes.
    pub max: u64,
}

impl Sizes {
    /// Always the same.
    pub fn constant(size: u64) -> Sizes {
        Sizes { min: size, max: size }
    }
}

/// Makes values.
#[derive(Clone, Debug)]
pub struct ValueGenerator {
    block: Bytes,
    sizes: Sizes,
}

impl ValueGenerator {
    /// Of these sizes.
    pub fn new(sizes: Sizes, seed: u64) -> ValueGenerator {
        // Twice as long as the largest, so that two of those differ, too.
        let mut block = vec![0; sizes.max as usize * 2];
        SmallRng::seed_from_u64(seed).fill_bytes(&mut block);
        ValueGenerator { block: block.into(), sizes }
    }

    /// Some value.
    pub fn random_value(&self, choices: &mut SmallRng) -> Bytes {
        let size = choices.random_range(self.sizes.min..=self.sizes.max) as usize;
        let from = choices.random_range(0..=self.block.len() - size);
        self.block.slice(from..from + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_one_size_and_the_order_of_their_numbers() {
        let value = Sizes::constant(1);
        let space = KeySpace { prefix: "/a/".to_owned(), count: 1000, key_size: 7, value };
        assert_eq!(space.key(42), "/a/0042");
        assert_eq!(KeySpace::min_key_size("/a/", 1000), 7);
        assert!((0..1000).all(|number| space.key(number) < space.key(number + 1)));
        assert!((0..=1000).all(|number| space.key(number).len() == 7));
    }

    #[test]
    fn ranges_stay_within_the_space() {
        let value = Sizes::constant(1);
        let space = KeySpace { prefix: String::new(), count: 10, key_size: 2, value };
        let mut choices = SmallRng::seed_from_u64(5);
        let mut from = (0..1000).map(|_| space.random_start(8, &mut choices)).collect::<Vec<_>>();
        from.sort_unstable();
        from.dedup();
        assert_eq!(from, [0, 1, 2]);
        assert_eq!(space.random_start(10, &mut choices), 0);
    }

    #[test]
    fn all_sizes_come_and_no_other() {
        let values = ValueGenerator::new(Sizes { min: 3, max: 6 }, 1);
        let mut choices = SmallRng::seed_from_u64(2);
        let mut seen = [0; 8];
        (0..4000).for_each(|_| seen[values.random_value(&mut choices).len()] += 1);
        assert_eq!([seen[0], seen[1], seen[2], seen[7]], [0; 4]);
        assert!(seen[3..=6].iter().all(|times| *times > 800), "{seen:?}");
        assert_eq!(ValueGenerator::new(Sizes::constant(0), 1).random_value(&mut choices), "");
    }
}
