//! `defrag`: the store of a member that does not run, rewritten without what was deleted.
//!
//! A member that runs does the same on request, and goes on serving.

use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_server::raft_snapshot::open_store_dir;
use clearlane_wal::files::OsFileSystem;

use super::lock_wait::{self, Access, wait_until_unlocked};
use super::{Action, BoxError, Tool, output};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::{OneOf, Text};
use crate::data::store_version;

pub(super) const TOOL: Tool = Tool {
    name: &["defrag"],
    about: "Compact the store of a member that does not run",
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
    let (file, former) = (store_version::file_in(&member), snap.join("current"));
    if !file.exists() && !former.exists() {
        return Err(format!("{} has no store", data_dir.display()).into());
    }
    wait_until_unlocked(flags, &file, Access::Write)?;
    if kind == EngineKind::Bolt {
        // What a later version has in it may be lost. The log is not looked at.
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
