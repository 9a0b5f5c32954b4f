//! Bringing the stores in line with the log when a member starts.

use std::sync::Arc;

use clearlane_engine::Engine;

use super::vault::Vault;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Opens the current store. `installed` is the index of the newest snapshot record of the log: if
/// the store is older, the copy at that index takes its place. All other copies are discarded.
///
/// A store that is older than the record, and no such copy: that is an error. The log has nothing
/// before its record, so the store cannot be brought up to it.
pub fn at_start(vault: &dyn Vault, installed: u64) -> Result<Arc<dyn Engine>> {
    vault.discard_leftovers()?;
    let mut engine = vault.open()?;
    let mut has = Progress::read(&*engine.snapshot()?)?.index;
    if has < installed && vault.kept()?.contains(&installed) {
        drop(engine);
        engine = vault.promote(installed)?;
        has = Progress::read(&*engine.snapshot()?)?.index;
    }
    if has < installed {
        let why =
            format!("it is at {has}, the log begins behind {installed}, and no copy is there");
        return Err(Error::damaged("the store", why));
    }
    for index in vault.kept()? {
        vault.discard(index)?;
    }
    Ok(engine)
}
