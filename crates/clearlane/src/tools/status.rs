//! `snapshot status`: what is in a file.
//!
//! The file is restored into a directory beside it: what can be described can be restored.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options, Snapshot, open};
use clearlane_mvcc::RevisionKey;
use clearlane_server::snapshot_file;

use super::{Action, BoxError, Tool};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::Text;
use crate::data::etcd;

pub(super) const TOOL: Tool = Tool {
    name: &["snapshot", "status"],
    about: "Check a saved snapshot, and print its hash, revision and size",
    positional: &[flag("FILE", Text, "").help("Saved snapshot.")],
    words: None,
    flags: &[],
    action: Action::Text(status),
};

fn status(flags: &FlagReader) -> Result<String, BoxError> {
    let path = Path::new(flags.text("FILE"));
    let mut file = open_file(path)?;
    let dir = std::env::temp_dir().join(format!("clearlane-status-{}", std::process::id()));
    let described = describe(&mut file, &dir);
    // Whatever came of it, this is not needed any more.
    let _ = std::fs::remove_dir_all(&dir);
    Ok(format!("{}, {} bytes\n", described?, file.metadata()?.len()))
}

/// An error names the file.
pub(super) fn open_file(path: &Path) -> Result<File, BoxError> {
    let mut file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    etcd::reject_etcd_snapshot(path, &mut file)?;
    Ok(file)
}

fn describe(file: &mut File, dir: &Path) -> Result<String, BoxError> {
    let engine: Arc<dyn Engine> = open(EngineKind::Bolt, dir, Options::default())?;
    snapshot_file::restore(file, Arc::clone(&engine), true)?;
    let snapshot = engine.snapshot()?;
    let (records, hash) = sum(&*snapshot)?;
    Ok(format!("hash {hash:08x}, revision {}, {records} records", revision(&*snapshot)?))
}

pub(super) fn revision(snapshot: &dyn Snapshot) -> Result<i64, BoxError> {
    let Some(last) = snapshot.last_key(Bucket::Key)? else { return Ok(1) };
    let (revision, _) =
        RevisionKey::decode(&last).map_err(|_| "the last record has no revision")?;
    Ok(revision.main)
}

fn sum(snapshot: &dyn Snapshot) -> Result<(u64, u32), BoxError> {
    let (mut records, mut hash) = (0, 0);
    for bucket in Bucket::ALL {
        hash = crc32c::crc32c_append(hash, bucket.name().as_bytes());
        snapshot.scan(bucket, KeyRange::ALL, &mut |key, value| {
            records += 1;
            hash = crc32c::crc32c_append(crc32c::crc32c_append(hash, key), value);
            ControlFlow::Continue(())
        })?;
    }
    Ok((records, hash))
}
