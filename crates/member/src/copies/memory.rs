//! Stores that live as long as their vault: for a simulated member, which crashes and comes back
//! while the vault stays. What was committed is what survives.

use std::collections::BTreeMap;
use std::sync::Arc;

use clearlane_engine::{Engine, Error, MemoryEngine, Result};
use parking_lot::Mutex;

use super::vault::{Staged, Vault};

/// A vault in memory.
#[derive(Debug, Default)]
pub struct MemoryVault {
    shelf: Mutex<Shelf>,
}

#[derive(Debug, Default)]
struct Shelf {
    current: Option<Arc<dyn Engine>>,
    kept: BTreeMap<u64, Arc<dyn Engine>>,
    staged: u64,
}

impl MemoryVault {
    /// A vault with nothing in it.
    pub fn new() -> MemoryVault {
        MemoryVault::default()
    }
}

impl Vault for MemoryVault {
    fn free_space(&self) -> u64 {
        u64::MAX
    }

    fn open(&self) -> Result<Arc<dyn Engine>> {
        let mut shelf = self.shelf.lock();
        let current = shelf.current.get_or_insert_with(|| Arc::new(MemoryEngine::new()));
        Ok(Arc::clone(current))
    }

    fn stage(&self) -> Result<Staged> {
        let mut shelf = self.shelf.lock();
        shelf.staged += 1;
        Ok(Staged { number: shelf.staged, engine: Arc::new(MemoryEngine::new()) })
    }

    fn keep(&self, staged: Staged, index: u64) -> Result<()> {
        self.shelf.lock().kept.entry(index).or_insert(staged.engine);
        Ok(())
    }

    fn abandon(&self, _staged: Staged) -> Result<()> {
        Ok(())
    }

    fn kept(&self) -> Result<Vec<u64>> {
        Ok(self.shelf.lock().kept.keys().copied().collect())
    }

    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>> {
        let mut shelf = self.shelf.lock();
        let engine = shelf.kept.remove(&index);
        let engine =
            engine.ok_or_else(|| Error::Storage(format!("there is no copy at {index}")))?;
        shelf.kept.retain(|kept, _| *kept > index);
        shelf.current = Some(Arc::clone(&engine));
        Ok(engine)
    }

    fn discard(&self, index: u64) -> Result<()> {
        self.shelf.lock().kept.remove(&index);
        Ok(())
    }

    fn discard_leftovers(&self) -> Result<()> {
        Ok(())
    }
}
