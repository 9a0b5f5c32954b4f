//! `bolt ...`: inspects a file of the engine `bolt`, of bbolt or of etcd, like the tool `bbolt`.
//!
//! | command | what it does |
//! |---|---|
//! | [`bolt pages`](pages) | lists the pages |
//! | [`bolt keys`](keys) | lists the keys of a bucket |
//! | [`bolt check`](check) | reports all problems |
//!
//! The commands never change the file. They fail if another program has the file open for writing.
//! For all other tasks there is the tool `bbolt` itself: see `docs/engine.md`.

pub(super) mod pages;
pub(super) mod keys;
pub(super) mod check;
mod format;

use std::path::Path;

use clearlane_engine::bolt_file::{BoltFile, BucketEntry};

use super::{Action, BoxError, Tool};
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::Text;
use crate::data::store_version;

const FILE: Flag =
    flag("FILE", Text, "").help("File, or data directory of a member that is not running.");

fn open(flags: &FlagReader) -> Result<BoltFile, BoxError> {
    let path = Path::new(flags.text("FILE"));
    let member = path.join("member");
    Ok(match member.is_dir() {
        true => BoltFile::open(&store_version::file_in(&member))?,
        false => BoltFile::open(path)?,
    })
}

/// Returns the path of a bucket: the names of the buckets that contain it, and its own name,
/// separated by slashes. The root, which contains all buckets, is `(buckets)`.
fn bucket_name(bucket: &BucketEntry) -> String {
    if bucket.path.is_empty() {
        return "(buckets)".to_owned();
    }
    let names = bucket.path.iter().map(|name| format::text_or_hex(name));
    names.collect::<Vec<_>>().join("/")
}
