//! `snapshot restore`: a new member's data, made from a saved store.
//!
//! The list of members and the position in the log are removed; keys, leases and users stay. The
//! first entries of the new log name the members: run this for each of them, with the same file and
//! the same `--initial-cluster`.
//!
//! Clients may have seen revisions that the file does not have, and would see the same revision
//! twice, with different contents. `--bump-revision` begins further on, and `--mark-compacted`
//! compacts all before that, so that watchers are notified to begin anew.
//!
//! The store is filled in a directory `.restoring` beside the data directory, which is renamed when
//! it is whole. The log is written last.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options};
use clearlane_mvcc::Revision;
use clearlane_server::raft_snapshot::{DiskStoreDir, StoreDir as _};
use clearlane_server::snapshot_file;
use clearlane_wal::files::OsFileSystem;

use super::status::{open_file, revision};
use super::{BoxError, Tool, ToolArguments};
use crate::config::table::flag;
use crate::config::value::ValueKind::{Count, OneOf, Switch, Text};
use crate::data::{InitialCluster, MemberConfig};

pub(super) const TOOL: Tool = Tool {
    name: &["snapshot", "restore"],
    positional_names: &["FILE"],
    flags: &[
        flag("data-dir", Text, "").help("Where the data is made; ${name}.etcd if nothing is said."),
        flag("wal-dir", Text, "").help("Where the log is made, if not there."),
        flag("name", Text, "default").help("What the member is called."),
        flag("initial-cluster", Text, "default=http://localhost:2380")
            .help("The new cluster's members."),
        flag("initial-cluster-token", Text, "etcd-cluster").help("Tells clusters apart."),
        flag("initial-advertise-peer-urls", Text, "http://localhost:2380").help("Of this member."),
        flag("skip-hash-check", Switch, "false").help("For a file that has no sum."),
        flag("bump-revision", Count, "0").help("Begin so many revisions further on."),
        flag("mark-compacted", Switch, "false").help("No read or watcher can begin before that."),
        flag("engine", OneOf(&["redb", "sled"]), "redb").help("What has the data on disk."),
    ],
    action: restore,
};

/// Keys of `Bucket::Meta`: a scheduled compaction, and the position in the log.
const SCHEDULED: &[u8] = b"scheduledCompactRev";
const PROGRESS: [&[u8]; 3] = [b"consistent_index", b"term", b"confState"];

fn restore(asked: &ToolArguments) -> Result<String, BoxError> {
    let bump = i64::try_from(asked.flags.count("bump-revision"))?;
    let marks = asked.flags.switch("mark-compacted");
    if marks && bump == 0 {
        return Err(
            "--mark-compacted is for a revision that was bumped: give --bump-revision".into()
        );
    }
    let start = member_config(asked)?;
    let data_dir = &start.data_dir;
    for dir in [Some(data_dir), start.wal_dir.as_ref()].into_iter().flatten() {
        if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(format!("{} is not empty", dir.display()).into());
        }
    }
    let mut file = open_file(Path::new(&asked.positional[0]))?;
    let made = data_dir.with_added_extension("restoring");
    if made.exists() {
        fs::remove_dir_all(&made)?;
    }
    let snap = made.join("member/snap");
    fs::create_dir_all(&snap)?;
    let store_dir =
        DiskStoreDir::new(Arc::new(OsFileSystem), &snap, start.engine_kind, Options::default())?;
    let engine = store_dir.open()?;
    snapshot_file::restore(&mut file, Arc::clone(&engine), !asked.flags.switch("skip-hash-check"))?;
    let now = reset_cluster_and_revision(&*engine, bump, marks)?;
    drop((engine, store_dir));
    if data_dir.exists() {
        fs::remove_dir(data_dir)?;
    }
    fs::rename(&made, data_dir)?;
    start.create()?;
    Ok(format!("restored {} at revision {now}\n", data_dir.display()))
}

fn member_config(asked: &ToolArguments) -> Result<MemberConfig, BoxError> {
    let name = asked.flags.text("name");
    let data_dir = asked.flags.path("data-dir").unwrap_or_else(|| format!("{name}.etcd").into());
    let urls = asked.flags.text("initial-advertise-peer-urls").split(',').map(str::to_owned);
    let urls: Vec<String> = urls.collect();
    let era = clearlane_backend::Era::Clearlane;
    let by_default = MemberConfig::new(name, &data_dir, "", era);
    Ok(MemberConfig {
        wal_dir: asked.flags.path("wal-dir"),
        initial_cluster: match asked.flags.is_set("initial-cluster") {
            true => asked.flags.text("initial-cluster").parse()?,
            false => InitialCluster::single(name, &urls),
        },
        peer_urls: urls,
        cluster_token: asked.flags.text("initial-cluster-token").to_owned(),
        engine_kind: asked.flags.text("engine").parse::<EngineKind>()?,
        ..by_default
    })
}

/// Returns the new revision.
fn reset_cluster_and_revision(
    engine: &dyn Engine,
    bump: i64,
    marks: bool,
) -> Result<i64, BoxError> {
    let mut now = revision(&*engine.snapshot()?)?;
    let mut txn = engine.begin_write()?;
    for bucket in [Bucket::Members, Bucket::MembersRemoved] {
        let mut keys = Vec::new();
        txn.scan(bucket, KeyRange::ALL, &mut |key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        })?;
        for key in keys {
            txn.delete(bucket, &key)?;
        }
    }
    for key in PROGRESS {
        txn.delete(Bucket::Meta, key)?;
    }
    if bump > 0 {
        now = now.checked_add(bump).ok_or("there is no revision so far on")?;
        // A store is at the revision of its last record. The end of a key that no client can name
        // is seen by no client, and goes with the next compaction. (etcd puts such a key, which
        // stays.)
        txn.put(Bucket::Key, &Revision::new(now, 0).tombstone_key(), b"")?;
        if marks {
            txn.put(Bucket::Meta, SCHEDULED, &Revision::new(now, 0).put_key())?;
        }
    }
    txn.commit()?;
    Ok(now)
}
