//! `bolt ...`: looking into a file of the engine `bolt`, of bbolt or of etcd, in the manner of the
//! tool `bbolt`.
//!
//! | command | what it does |
//! |---|---|
//! | [`bolt pages`](pages) | lists the pages |
//! | [`bolt page`](page) | shows pages with what is on them |
//! | [`bolt keys`](keys) | lists the keys of a bucket |
//! | [`bolt check`](check) | tells everything that is wrong |
//! | [`bolt stats`](stats) | counts pages, records and bytes |
//! | [`bolt compact`](compact) | makes a copy without what is free |
//!
//! The file is not changed. One that is being written is refused.

pub(super) mod pages;
pub(super) mod page;
pub(super) mod keys;
pub(super) mod check;
pub(super) mod stats;
pub(super) mod compact;
mod format;

use std::path::{Path, PathBuf};

use clearlane_engine::bolt_file::{self, BoltFile, BucketEntry};
use clearlane_server::raft_snapshot::current_bolt_file;
use clearlane_wal::files::OsFileSystem;

use super::{Action, BoxError, Tool};
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::Text;

const FILE: Flag = flag("FILE", Text, "")
    .help("File, directory of a store, or data directory of a member that does not run.");

fn open(flags: &FlagReader) -> Result<BoltFile, BoxError> {
    Ok(BoltFile::open(&find(Path::new(flags.text("FILE")))?)?)
}

/// `path` is the file, or a directory in which it is.
pub(super) fn find(path: &Path) -> Result<PathBuf, BoxError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let snap = path.join("member/snap");
    if !snap.is_dir() {
        return Ok(bolt_file::of_store(path)?);
    }
    Ok(current_bolt_file(&OsFileSystem, &snap)?)
}

/// The names of a bucket and of those around it.
fn bucket_name(bucket: &BucketEntry) -> String {
    if bucket.path.is_empty() {
        return "(buckets)".to_owned();
    }
    let names = bucket.path.iter().map(|name| format::text_or_hex(name));
    names.collect::<Vec<_>>().join("/")
}
