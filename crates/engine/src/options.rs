//! What can be chosen about a store.

#[derive(Clone, Debug)]
pub struct Options {
    /// An upper bound.
    pub cache_bytes: usize,
    /// `redb` only: save the page allocator's state with every commit, so that opening after a
    /// crash need not walk the whole file. The price and the choice are in
    /// `docs/decisions/engine-redb-quick-repair.md`.
    pub quick_repair: bool,
    /// `redb` and `bolt`: after so many bytes that a commit has written it syncs them, and not all
    /// at its end. `docs/decisions/server-large-values.md`
    pub sync_bytes: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 64 << 20, quick_repair: false, sync_bytes: None }
    }
}
