//! Opens a store in a directory.
//!
//! The steps have a fixed order. First the directory is claimed: it is locked, and must be empty,
//! belong to this engine, or have only files that an interrupted creation has left. Then the data
//! is checked and opened. Existing data is changed only after all checks have succeeded.

use std::path::Path;
use std::sync::Arc;

use crate::bolt::BoltStore;
use crate::directory::Directory;
use crate::durable::DurableEngine;
use crate::error::{EngineKind, Result};
use crate::interface::Engine;
use crate::memory::MemoryEngine;
use crate::options::Options;
use crate::sled::SledStore;

/// Opens the store of engine `kind` in `dir`. Creates a store if `dir` does not exist, is empty, or
/// has only files that an interrupted creation has left; the parent of `dir` must exist. If `dir`
/// contains something other than a store of this engine, the call fails and leaves the directory
/// unchanged.
pub fn open(kind: EngineKind, dir: &Path, options: Options) -> Result<Arc<dyn Engine>> {
    let directory = Directory::claim(dir, kind)?;
    Ok(match kind {
        EngineKind::Bolt => Arc::new(DurableEngine::<BoltStore>::open(directory, options)?),
        EngineKind::Sled => Arc::new(DurableEngine::<SledStore>::open(directory, options)?),
        EngineKind::Memory => Arc::new(MemoryEngine::open(directory)?),
    })
}
