//! The sizes of the store, readable at any time. What they mean: [`quota`](crate::quota).

use std::sync::atomic::{AtomicU64, Ordering};

use clearlane_backend::Sizes;

/// As of the last commit.
#[derive(Debug, Default)]
pub struct StoreSizes {
    in_use: AtomicU64,
    peak_in_use: AtomicU64,
}

impl StoreSizes {
    /// Bytes of all keys and values, history included, at their maximum since the store was last
    /// rewritten: what counts for the quota.
    pub fn size(&self) -> u64 {
        self.peak_in_use.load(Ordering::Relaxed)
    }

    /// Bytes of all keys and values, history included.
    pub fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed)
    }

    pub(super) fn update(&self, sizes: Sizes) {
        self.in_use.store(sizes.in_use, Ordering::Relaxed);
        self.peak_in_use.fetch_max(sizes.in_use, Ordering::Relaxed);
    }

    /// For a store that was rewritten or replaced.
    pub(super) fn reset(&self, sizes: Sizes) {
        self.update(sizes);
        self.peak_in_use.store(sizes.in_use, Ordering::Relaxed);
    }
}
