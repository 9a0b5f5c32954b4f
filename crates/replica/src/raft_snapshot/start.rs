//! Makes the stores match the log when a member starts.

use std::sync::Arc;

use clearlane_engine::Engine;

use super::store_dir::StoreDir;
use crate::applied_position::AppliedPosition;
use crate::error::{Error, Result};

/// Opens the current store. `installed` is the index of the newest snapshot record of the log. If
/// the current store is older, the received store at that index replaces it. All other received
/// stores are discarded.
///
/// Fails if the current store is older and there is no received store at that index, because the
/// log has no entries between the current store and the snapshot record.
pub fn open_at_start(store_dir: &dyn StoreDir, installed: u64) -> Result<Arc<dyn Engine>> {
    store_dir.remove_leftovers()?;
    let mut engine = store_dir.open()?;
    let mut has = AppliedPosition::read(&*engine.snapshot()?)?.index;
    if has < installed && store_dir.kept_indexes()?.contains(&installed) {
        drop(engine);
        engine = store_dir.promote(installed)?;
        has = AppliedPosition::read(&*engine.snapshot()?)?.index;
    }
    if has < installed {
        let why = format!(
            "it is at {has}, the log starts after {installed}, and there is no received store"
        );
        return Err(Error::damaged("the store", why));
    }
    for index in store_dir.kept_indexes()? {
        store_dir.discard(index)?;
    }
    Ok(engine)
}
