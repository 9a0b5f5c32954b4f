//! `wal dump`: prints a log in readable form. The member with this log may be running.
//!
//! Nothing is locked and nothing is changed. A torn end of the log is omitted, because the next
//! start of the member would cut it off.

use std::fmt::{Debug, Write as _};
use std::path::{Path, PathBuf};

use clearlane_proto::etcdserverpb::InternalRaftRequest;
use clearlane_proto::nested::decode_raft_request;
use clearlane_wal as wal;
use clearlane_wal::files::OsFileSystem;
use clearlane_wal::{ConfChange, Entry, EntryKind};

use super::{Action, BoxError, Tool};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::Text;

pub(super) const TOOL: Tool = Tool {
    name: &["wal", "dump"],
    about: "Print the snapshot records and entries of a write-ahead log",
    positional: &[flag("DIR", Text, "").help("Data directory, or directory of the log.")],
    words: None,
    flags: &[],
    action: Action::Text(dump),
};

const REQUEST_CHARS_MAX: usize = 160;

fn dump(flags: &FlagReader) -> Result<String, BoxError> {
    let dir = log_of(Path::new(flags.text("DIR")));
    let snapshots = wal::valid_snapshots(&OsFileSystem, &dir)?;
    let first = snapshots.first().cloned().unwrap_or_default();
    let contents = wal::read(&OsFileSystem, &dir, (first.index, first.term))?;
    let (metadata, state) = (contents.metadata, contents.hard_state);
    let mut out = String::from("Snapshots:\n");
    for snapshot in &snapshots {
        let _ = writeln!(out, "  term={} index={}", snapshot.term, snapshot.index);
    }
    let _ = writeln!(
        out,
        "WAL metadata:\n  nodeID={:x} clusterID={:x} term={} commitIndex={} vote={:x}",
        metadata.node_id, metadata.cluster_id, state.term, state.commit, state.vote
    );
    let _ = writeln!(out, "WAL entries: {}", contents.entries.len());
    let _ = writeln!(out, "{:>6} {:>10} type data", "term", "index");
    for entry in &contents.entries {
        let _ = writeln!(out, "{:>6} {:>10} {}", entry.term, entry.index, describe(entry));
    }
    Ok(out)
}

/// Returns the directory of the log. `dir` is a data directory, or the directory of the log itself.
fn log_of(dir: &Path) -> PathBuf {
    let inside = dir.join("member/wal");
    if inside.is_dir() { inside } else { dir.to_owned() }
}

fn describe(entry: &Entry) -> String {
    match entry.kind {
        EntryKind::ConfChange => match ConfChange::decode(&entry.data) {
            Ok(change) => {
                let context = String::from_utf8_lossy(&change.context);
                cut(format!("conf {:?} id={:x} {context}", change.kind, change.node_id))
            }
            Err(garbage) => format!("conf unreadable: {garbage}"),
        },
        _ if entry.data.is_empty() => "norm".to_owned(),
        _ => match decode_raft_request(entry.data.clone()) {
            Ok(request) => cut(format!("norm {}", summarize(&request))),
            Err(garbage) => format!("norm unreadable: {garbage}"),
        },
    }
}

fn summarize(request: &InternalRaftRequest) -> String {
    let id = request.header.as_ref().map_or(0, |header| header.id);
    let kinds = [
        field_summary("put", &request.put),
        field_summary("txn", &request.txn),
        field_summary("delete_range", &request.delete_range),
        field_summary("compaction", &request.compaction),
        field_summary("range", &request.range),
        field_summary("lease_grant", &request.lease_grant),
        field_summary("lease_revoke", &request.lease_revoke),
        field_summary("lease_checkpoint", &request.lease_checkpoint),
        field_summary("alarm", &request.alarm),
        field_summary("cluster_version_set", &request.cluster_version_set),
        field_summary("cluster_member_attr_set", &request.cluster_member_attr_set),
        field_summary("downgrade_info_set", &request.downgrade_info_set),
    ];
    let kind = kinds.into_iter().flatten().next();
    format!("id={id:x} {}", kind.unwrap_or_else(|| "another request".to_owned()))
}

fn field_summary(name: &str, request: &Option<impl Debug>) -> Option<String> {
    request.as_ref().map(|request| format!("{name} {request:?}"))
}

fn cut(text: String) -> String {
    match text.char_indices().nth(REQUEST_CHARS_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}
