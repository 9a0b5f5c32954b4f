//! `defrag`: rewrites the store of a stopped member without deleted data.
//!
//! A running member does the same on request, and continues to serve clients. In an old era it
//! holds locks while it does so, like etcd, and requests wait.

use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_server::snapshot::open_store_dir;
use clearlane_wal::files::OsFileSystem;

use super::lock_wait::{self, Access, wait_until_unlocked};
use super::{Action, BoxError, Tool, output};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::{OneOf, Text};
use crate::data::store_version;

pub(super) const TOOL: Tool = Tool {
    name: &["defrag"],
    about: "Defragment the store of a member that is not running",
    positional: &[],
    words: None,
    flags: &[
        flag("data-dir", Text, "").help("Data directory of the member."),
        flag("engine", OneOf(&["bolt", "sled"]), "bolt").help("Storage engine of the store."),
        output::NO_FORMAT,
        lock_wait::TIMEOUT,
    ],
    action: Action::Text(defrag),
};

const RECORDS_PER_STEP: usize = 10_000;

fn defrag(flags: &FlagReader) -> Result<String, BoxError> {
    let data_dir = flags.path("data-dir").ok_or("defrag takes --data-dir=DIR")?;
    let (member, kind) = (data_dir.join("member"), flags.text("engine").parse::<EngineKind>()?);
    let snap = member.join("snap");
    // Engine `bolt` has one file. Other engines have a file that names the current store.
    let (file, mark) = (store_version::file_in(&member), snap.join("current"));
    if !file.exists() && !mark.exists() {
        return Err(format!("{} has no store", data_dir.display()).into());
    }
    wait_until_unlocked(flags, &file, Access::Write)?;
    if kind == EngineKind::Bolt {
        // The check fails for a store of a later version, because this program could lose some of
        // its data. The argument `true` disables the check for a missing log.
        store_version::check(&file, true)?;
    }
    let store_dir = open_store_dir(Arc::new(OsFileSystem), &snap, kind, Options::default())?;
    let engine = store_dir.open()?;
    let before = engine.size_on_disk()?;
    let mut work = engine.begin_defragment()?;
    while !work.step(RECORDS_PER_STEP)? {}
    work.finish()?;
    let after = engine.size_on_disk()?;
    Ok(format!("{}: {before} bytes, now {after}\n", data_dir.display()))
}
