//! What can be chosen about a store.

#[derive(Clone, Debug)]
pub struct Options {
    /// An upper bound.
    pub cache_bytes: usize,
    /// `bolt` only: after so many bytes that a commit has written it syncs them, and not all
    /// at its end. `docs/decisions/server-large-values.md`
    pub sync_bytes: Option<usize>,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 64 << 20, sync_bytes: None }
    }
}
