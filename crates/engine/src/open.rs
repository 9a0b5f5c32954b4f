//! Opening a store: which engine, in which directory, with how much memory.
//!
//! The directory is claimed first (locked, and checked to be ours or empty), the data is opened
//! second, and only when both went well is anything changed on disk.

use std::path::Path;
use std::sync::Arc;

use crate::directory::Directory;
use crate::durable::DurableEngine;
use crate::error::{EngineKind, Result};
use crate::interface::Engine;
use crate::memory::MemoryEngine;
use crate::redb::RedbStore;
use crate::sled::SledStore;

/// What can be chosen about a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// An upper bound for the engine's cache of what is on disk.
    pub cache_bytes: usize,
    /// `redb` only: save the page allocator's state with every commit, so that opening after a
    /// crash need not walk the whole file. The price and the choice are in
    /// `docs/decisions/engine-redb-quick-repair.md`.
    pub quick_repair: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { cache_bytes: 64 << 20, quick_repair: false }
    }
}

/// Opens the store of engine `kind` in `dir`, and makes one if `dir` is empty or not there (its
/// parent must be). Whatever else it finds is refused and left as it was.
pub fn open(kind: EngineKind, dir: &Path, options: Options) -> Result<Arc<dyn Engine>> {
    let directory = Directory::claim(dir, kind)?;
    Ok(match kind {
        EngineKind::Redb => Arc::new(DurableEngine::<RedbStore>::open(directory, options)?),
        EngineKind::Sled => Arc::new(DurableEngine::<SledStore>::open(directory, options)?),
        EngineKind::Memory => Arc::new(MemoryEngine::open(directory)?),
    })
}
