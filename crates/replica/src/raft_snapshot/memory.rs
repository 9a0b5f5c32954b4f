//! Stores in memory for a simulated member. When the member crashes and restarts, the directory
//! stays, so committed data survives.

use std::collections::BTreeMap;
use std::sync::Arc;

use clearlane_engine::{Engine, Error, MemoryEngine, Result};
use parking_lot::Mutex;

use super::store_dir::{StagedStore, StoreDir};

#[derive(Debug, Default)]
pub struct MemoryStoreDir {
    stores: Mutex<MemoryStores>,
}

#[derive(Debug, Default)]
struct MemoryStores {
    current: Option<Arc<dyn Engine>>,
    kept: BTreeMap<u64, Arc<dyn Engine>>,
    staged: u64,
}

impl StoreDir for MemoryStoreDir {
    fn free_space(&self) -> u64 {
        u64::MAX
    }

    fn open(&self) -> Result<Arc<dyn Engine>> {
        let mut stores = self.stores.lock();
        let current = stores.current.get_or_insert_with(|| Arc::new(MemoryEngine::new()));
        Ok(Arc::clone(current))
    }

    fn stage(&self) -> Result<StagedStore> {
        let mut stores = self.stores.lock();
        stores.staged += 1;
        Ok(StagedStore { number: stores.staged, engine: Arc::new(MemoryEngine::new()) })
    }

    fn keep(&self, staged: StagedStore, index: u64) -> Result<()> {
        self.stores.lock().kept.entry(index).or_insert(staged.engine);
        Ok(())
    }

    fn abandon(&self, _staged: StagedStore) -> Result<()> {
        Ok(())
    }

    fn kept_indexes(&self) -> Result<Vec<u64>> {
        Ok(self.stores.lock().kept.keys().copied().collect())
    }

    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>> {
        let mut stores = self.stores.lock();
        let Some(engine) = stores.kept.remove(&index) else {
            return Err(Error::Storage(format!("there is no received store at entry {index}")));
        };
        stores.kept.retain(|kept, _| *kept > index);
        stores.current = Some(Arc::clone(&engine));
        Ok(engine)
    }

    fn discard(&self, index: u64) -> Result<()> {
        self.stores.lock().kept.remove(&index);
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<()> {
        Ok(())
    }
}
