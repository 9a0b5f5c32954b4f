//! Opening a store: which engine, in which directory, with how much memory.
//!
//! The directory is claimed first (locked, and checked to be ours or empty), the data is opened
//! second, and only when both went well is anything changed on disk.

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

/// Opens the store of engine `kind` in `dir`, and makes one if `dir` is empty or not there (its
/// parent must be). Whatever else it finds is refused and left as it was.
pub fn open(kind: EngineKind, dir: &Path, options: Options) -> Result<Arc<dyn Engine>> {
    let directory = Directory::claim(dir, kind)?;
    Ok(match kind {
        EngineKind::Bolt => Arc::new(DurableEngine::<BoltStore>::open(directory, options)?),
        EngineKind::Sled => Arc::new(DurableEngine::<SledStore>::open(directory, options)?),
        EngineKind::Memory => Arc::new(MemoryEngine::open(directory)?),
    })
}
