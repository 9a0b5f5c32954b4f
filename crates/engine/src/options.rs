//! The settings of a store.

#[derive(Clone, Debug)]
pub struct Options {
    /// Maximum number of bytes in the engine's cache. `memory` has no cache.
    pub cache_bytes: usize,
    /// For `bolt` only: a commit syncs its pages each time it has written this many bytes, so that
    /// less is left to sync at its end. If `None`, the commit syncs all its pages together. See
    /// `docs/decisions/server-large-values.md`.
    pub sync_bytes: Option<usize>,
    /// For `bolt` only: if true, a commit is on disk when it returns. If false, the file is not
    /// synced: a crash of the process loses nothing, but a crash of the system may lose commits or
    /// damage the file.
    pub syncs: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 64 << 20, sync_bytes: None, syncs: true }
    }
}
