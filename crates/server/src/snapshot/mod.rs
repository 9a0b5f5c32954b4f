//! The directory of a member's stores on a disk: the current store, and stores received from other
//! members.
//!
//! [`FileStoreDir`] manages the files of the engine `bolt`, under etcd's names. [`DiskStoreDir`]
//! manages the directories of the other engines. [`clearlane_replica::raft_snapshot`] receives
//! stores.

mod numbered_stores;
mod bolt_stores;
pub mod snapshot_file;

pub use bolt_stores::FileStoreDir;
pub use numbered_stores::DiskStoreDir;

use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{EngineKind, OpeningNote, Options};
use clearlane_replica::raft_snapshot::StoreDir;
use clearlane_wal::files::FileSystem;

/// Logs repairs as warnings, and expected differences as information.
fn log_opening_notes(path: &Path, notes: &[OpeningNote]) {
    let path = path.display();
    for note in notes {
        match note {
            OpeningNote::Repaired(note) => {
                tracing::warn!(%path, note, "the store was repaired when it was opened");
            }
            OpeningNote::Expected(note) => tracing::info!(%path, note, "opened the store"),
        }
    }
}

/// Opens the store directory `dir`. Its stores are files as in etcd for the engine `bolt`, and
/// numbered directories for the other engines.
pub fn open_store_dir(
    files: Arc<dyn FileSystem>,
    dir: &Path,
    kind: EngineKind,
    options: Options,
) -> clearlane_engine::Result<Arc<dyn StoreDir>> {
    if kind == EngineKind::Bolt {
        return Ok(Arc::new(FileStoreDir::new(files, dir, options)?));
    }
    if dir.join("db").exists() {
        let found = format!("it has the file db of engine bolt, but no file of engine {kind}");
        return Err(clearlane_engine::Error::Foreign { path: dir.to_owned(), found });
    }
    Ok(Arc::new(DiskStoreDir::new(files, dir, kind, options)?))
}
