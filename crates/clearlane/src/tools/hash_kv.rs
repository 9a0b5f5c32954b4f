//! `hashkv`: prints the hash of a store's keys up to a revision, in the format of `etcdutl hashkv`.
//! A member with the same keys returns the same hash for the RPC HashKV.
//!
//! This tool opens the file only for reading, whereas etcdutl opens it for writing.

use std::path::Path;

use clearlane_mvcc::{Error, HashKv, UnopenedStore};
use clearlane_server::snapshot::snapshot_file;

use super::lock_wait::{self, Access, wait_until_unlocked};
use super::status::in_file;
use super::{Action, BoxError, Tool, output};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::{Number, Text};

pub(super) const TOOL: Tool = Tool {
    name: &["hashkv"],
    about: "Print the hash of a store's keys, up to a revision",
    positional: &[flag("FILE", Text, "").help("Saved snapshot, or a store's file.")],
    words: None,
    flags: &[
        flag("rev", Number, "0").help("Last revision to include (0: the newest)."),
        output::FORMAT,
        lock_wait::TIMEOUT,
    ],
    action: Action::Text(hash_kv),
};

fn hash_kv(flags: &FlagReader) -> Result<String, BoxError> {
    let path = Path::new(flags.text("FILE"));
    wait_until_unlocked(flags, path, Access::Read)?;
    let hash = in_file(path, hash_of_file(path, flags.number("rev")))?;
    Ok(match flags.text("write-out") {
        "json" => to_json(&hash),
        "table" => output::table(["HASH", "HASH REVISION", "COMPACT REVISION"], &texts(&hash)),
        "fields" => to_fields(&hash),
        _ => format!("{}\n", texts(&hash).join(", ")),
    })
}

fn hash_of_file(path: &Path, revision: i64) -> Result<HashKv, BoxError> {
    let file = snapshot_file::open_bolt(path)?;
    let store = UnopenedStore::read(&file)?;
    store.hash(revision).map_err(|error| match error {
        Error::Compacted | Error::FutureRevision => {
            let (oldest, newest) = (store.compact_revision().max(1), store.revision());
            let why = match error {
                Error::Compacted => "has been compacted",
                _ => "is a future revision",
            };
            format!("--rev: revision {revision} {why}; allowed are {oldest} to {newest}").into()
        }
        other => other.into(),
    })
}

fn texts(hash: &HashKv) -> [String; 3] {
    [hash.hash.to_string(), hash.hash_revision.to_string(), hash.compact_revision.to_string()]
}

fn to_json(HashKv { hash, hash_revision, compact_revision }: &HashKv) -> String {
    format!(
        "{{\"hash\":{hash},\"hashRevision\":{hash_revision},\
         \"compactRevision\":{compact_revision}}}\n"
    )
}

fn to_fields(HashKv { hash, hash_revision, compact_revision }: &HashKv) -> String {
    format!(
        "\"Hash\" : {hash}\n\"Hash revision\" : {hash_revision}\n\
         \"Compact revision\" : {compact_revision}\n"
    )
}
