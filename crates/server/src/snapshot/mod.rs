//! Raft snapshots: the store of one member goes to another that is too far behind for the log.
//!
//! [`SnapshotSender`] makes a stream of a snapshot of the store. [`SnapshotReceiver`] fills a new
//! store beside the current one, in a [`StoreDir`]. [`StoreDir::promote`] makes it the current one,
//! once the log has the snapshot record on disk. [`open_at_start`] brings the stores in line with
//! the log after a crash.
//!
//! * A store is current, or kept as a copy, only if it is whole and on disk.
//! * The position of a copy is read from the engine snapshot that is sent: not what raft asked for,
//!   which may be older, nor what is applied by now, which may be newer.
//! * A transfer that breaks leaves no copy.
//! * Both sides keep a few megabytes in memory at most, whatever the size of the store.
//!
//! The whole way, all crashes, and what etcd does: `docs/copies.md`.

mod directory;
mod error;
mod files;
mod former;
mod memory;
mod receiver;
mod sender;
mod start;
mod store_dir;

pub use directory::{DiskStoreDir, current_bolt_file};
pub use error::{Error, Result};
pub use files::FileStoreDir;
pub use memory::MemoryStoreDir;
pub use receiver::{ReceivedSnapshot, SnapshotReceiver};
pub use sender::SnapshotSender;
pub use start::open_at_start;
pub use store_dir::{StagedStore, StoreDir};

use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{EngineKind, OpeningNote, Options};
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

/// The stores in `dir`: of the engine `bolt` as etcd has them, of others in numbered directories.
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
        let found = format!("it has the file db of engine bolt, and none of engine {kind}");
        return Err(clearlane_engine::Error::Foreign { path: dir.to_owned(), found });
    }
    Ok(Arc::new(DiskStoreDir::new(files, dir, kind, options)?))
}
