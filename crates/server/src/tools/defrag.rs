//! `defrag`: the store of a member that does not run, rewritten without what was deleted.
//!
//! A member that runs does the same on request, and goes on serving.

use std::sync::Arc;

use clearlane_engine::{EngineKind, Options};
use clearlane_member::copies::{DirectoryVault, Vault as _};
use clearlane_raft_log::files::Disk;

use super::{Asked, Failure, Tool};
use crate::config::table::flag;
use crate::config::value::Kind::{OneOf, Text};
use crate::data::etcd;

pub(super) const TOOL: Tool = Tool {
    name: &["defrag"],
    takes: &[],
    flags: &[
        flag("data-dir", Text, "", "The member's data."),
        flag("engine", OneOf(&["redb", "sled"]), "redb", "What has the data on disk."),
    ],
    work: defrag,
};

/// So many records go over in one step.
const STEP: usize = 10_000;

fn defrag(asked: &Asked) -> Result<String, Failure> {
    let data_dir = asked.path("data-dir").ok_or("defrag takes --data-dir=DIR")?;
    etcd::refuse_data(&data_dir)?;
    let snap = data_dir.join("member/snap");
    if !snap.is_dir() {
        return Err(format!("{} has no store", data_dir.display()).into());
    }
    let kind: EngineKind = asked.text("engine").parse()?;
    let vault = DirectoryVault::new(Arc::new(Disk), &snap, kind, Options::default())?;
    let engine = vault.open()?;
    let before = engine.size_on_disk()?;
    let mut work = engine.begin_defragment()?;
    while !work.step(STEP)? {}
    work.finish()?;
    let after = engine.size_on_disk()?;
    Ok(format!("{}: {before} bytes, now {after}\n", data_dir.display()))
}
