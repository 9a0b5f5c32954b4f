//! `snapshot restore`: creates a new member's data from a saved store.
//!
//! The list of members and the position in the log are removed. Keys, leases and users stay. The
//! first entries of the new log name the members. So the command must be run once for each member,
//! with the same file and the same `--initial-cluster`.
//!
//! Clients may have seen revisions that are not in the file. They would later see the same
//! revisions with different contents. `--bump-revision` makes the store start at a higher revision.
//! `--mark-compacted` compacts everything before that revision, so that old watchers are cancelled
//! and their clients start again.
//!
//! For engine `bolt`, the saved file is copied without its checksum, and the copy is opened. For
//! another engine the records of the file are copied.
//!
//! The store is filled in the directory `member.restoring` of the data directory, which is renamed
//! to `member` when the store is complete. The log is written last.

use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_engine::{Bucket, Engine, EngineKind, KeyRange, Options};
use clearlane_mvcc::{REVISION_MAX, Revision};
use clearlane_server::snapshot::open_store_dir;
use clearlane_server::snapshot::snapshot_file;
use clearlane_wal::files::OsFileSystem;

use super::lock_wait::{self, Access, wait_until_unlocked};
use super::status::{in_file, revision};
use super::{Action, BoxError, Tool, output};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::{Count, OneOf, Switch, Text};
use crate::data::{InitialCluster, MemberConfig, create_private_dir, store_version};

pub(super) const TOOL: Tool = Tool {
    name: &["snapshot", "restore"],
    about: "Create the data directory of a new member from a saved snapshot",
    positional: &[flag("FILE", Text, "").help("Saved snapshot.")],
    words: None,
    flags: &[
        flag("data-dir", Text, "").help("Data directory to create (default: ${name}.etcd)."),
        flag("wal-dir", Text, "")
            .help("Directory of the write-ahead log (default: inside the data directory)."),
        flag("name", Text, "default").help("Name of the member."),
        flag("initial-cluster", Text, "default=http://localhost:2380").help(
            "Members of the new cluster: NAME=URL, separated by commas (if not set: only this \
             member).",
        ),
        flag("initial-cluster-token", Text, "etcd-cluster")
            .help("Token from which the IDs of the cluster and its members are made."),
        flag("initial-advertise-peer-urls", Text, "http://localhost:2380")
            .help("Addresses that this member advertises to other members, separated by commas."),
        flag("skip-hash-check", Switch, "false")
            .help("Do not verify the checksum, for a file that has none."),
        flag("bump-revision", Count, "0")
            .help("Number of revisions by which the current revision is increased."),
        flag("mark-compacted", Switch, "false").help(
            "Mark all revisions before the increased revision as compacted; needs --bump-revision.",
        ),
        flag("initial-memory-map-size", Count, "0").ignored(
            "Bytes of the store's file that are mapped into memory.",
            "pages are read, not mapped",
        ),
        flag("engine", OneOf(&["bolt", "sled"]), "bolt").help("Storage engine of the store."),
        output::NO_FORMAT,
        lock_wait::TIMEOUT,
    ],
    action: Action::Text(restore),
};

/// The name of the directory, inside the data directory, where the store is filled.
const MADE: &str = "member.restoring";

/// Keys of `Bucket::Meta`: a scheduled compaction, and the position in the log.
const SCHEDULED: &[u8] = b"scheduledCompactRev";
const PROGRESS: [&[u8]; 3] = [b"consistent_index", b"term", b"confState"];

fn restore(flags: &FlagReader) -> Result<String, BoxError> {
    let bump = flags.count("bump-revision");
    let bump = i64::try_from(bump).ok().filter(|bump| *bump <= REVISION_MAX);
    let bump = bump.ok_or(format!("--bump-revision must be at most {REVISION_MAX}"))?;
    let marks = flags.switch("mark-compacted");
    if marks && bump == 0 {
        return Err("--mark-compacted needs --bump-revision".into());
    }
    let start = member_config(flags)?;
    let data_dir = &start.data_dir;
    let made = data_dir.join(MADE);
    let dirs: Vec<&PathBuf> =
        [Some(data_dir), start.wal_dir.as_ref()].into_iter().flatten().collect();
    for dir in &dirs {
        check_empty(dir)?;
    }
    let earlier: Vec<bool> = dirs.iter().map(|dir| dir.exists()).collect();
    let restored = fill(flags, &made, start.engine_kind, (bump, marks)).and_then(|revision| {
        in_file(&made, fs::rename(&made, data_dir.join("member")).map_err(BoxError::from))?;
        start.create()?;
        Ok(revision)
    });
    let revision = restored.inspect_err(|_| {
        // An error during this removal is ignored, because the earlier error is reported. The next
        // attempt removes `member.restoring`, and fails if anything else is left.
        dirs.iter().zip(earlier).for_each(|(dir, existed)| drop(remove_contents(dir, existed)));
    })?;
    Ok(format!("restored {} at revision {revision}\n", data_dir.display()))
}

/// Fails unless the directory is empty or does not exist. Removes the store of an interrupted
/// attempt first.
fn check_empty(dir: &Path) -> Result<(), BoxError> {
    let made = dir.join(MADE);
    if made.exists() {
        in_file(&made, fs::remove_dir_all(&made).map_err(BoxError::from))?;
    }
    match fs::read_dir(dir) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(format!("{} is not empty", dir.display()).into()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => in_file(dir, Err(error.into())),
    }
}

/// Removes the contents of a directory. Also removes the directory itself, unless `existed` is
/// true.
fn remove_contents(dir: &Path, existed: bool) -> io::Result<()> {
    if !existed {
        return fs::remove_dir_all(dir);
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => fs::remove_dir_all(entry.path())?,
            false => fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// Creates the store in the directory `made`, and returns its revision.
fn fill(
    flags: &FlagReader,
    made: &Path,
    kind: EngineKind,
    (bump, marks): (i64, bool),
) -> Result<i64, BoxError> {
    let (path, checks_sum) = (Path::new(flags.text("FILE")), !flags.switch("skip-hash-check"));
    wait_until_unlocked(flags, path, Access::Read)?;
    // A file that is not in etcd's format causes an error before any directory is created.
    let _locked = in_file(path, snapshot_file::open_bolt(path).map_err(BoxError::from))?;
    let snap = made.join("snap");
    in_file(&snap, create_private_dir(&snap).map_err(BoxError::from))?;
    let copies = kind == EngineKind::Bolt;
    if copies {
        let to = snap.join("db");
        in_file(path, snapshot_file::copy(path, &to, checks_sum).map_err(BoxError::from))?;
    }
    let store_dir = open_store_dir(Arc::new(OsFileSystem), &snap, kind, Options::default())?;
    let engine = in_file(path, store_dir.open().map_err(without_path))?;
    if !copies {
        let filled = snapshot_file::restore(path, &engine, checks_sum);
        in_file(path, filled.map_err(BoxError::from))?;
    }
    let snapshot = engine.snapshot()?;
    let get = |bucket, key: &[u8]| {
        let found = snapshot.get(bucket, key).map_err(clearlane_replica::Error::from)?;
        Ok(found.map(|value| value.to_vec()))
    };
    store_version::check_versions(path, &get)?;
    let now = reset_cluster_and_revision(&*engine, bump, marks)?;
    drop((engine, store_dir));
    Ok(now)
}

/// Removes the path from an error that reports damage. The removed path belongs to the copy, which
/// the user does not know.
fn without_path(error: clearlane_engine::Error) -> BoxError {
    match error {
        clearlane_engine::Error::Corrupt { detail, .. } => format!("damaged: {detail}").into(),
        other => other.into(),
    }
}

fn member_config(flags: &FlagReader) -> Result<MemberConfig, BoxError> {
    let name = flags.text("name");
    let data_dir = flags.path("data-dir").unwrap_or_else(|| format!("{name}.etcd").into());
    let urls = flags.text("initial-advertise-peer-urls").split(',').map(str::to_owned);
    let urls: Vec<String> = urls.collect();
    let era = clearlane_backend::Era::Clearlane;
    let by_default = MemberConfig::new(name, &data_dir, "", era);
    Ok(MemberConfig {
        wal_dir: flags.path("wal-dir"),
        initial_cluster: match flags.is_set("initial-cluster") {
            true => flags.text("initial-cluster").parse()?,
            false => InitialCluster::single(name, &urls),
        },
        peer_urls: urls,
        cluster_token: flags.text("initial-cluster-token").to_owned(),
        engine_kind: flags.text("engine").parse::<EngineKind>()?,
        ..by_default
    })
}

/// Removes the members and the position in the log, and raises the revision by `bump`. If `marks`
/// is also true, schedules a compaction at the new revision. Returns the new revision.
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
        let bumped = now.checked_add(bump).filter(|bumped| *bumped <= REVISION_MAX);
        let too_far = || format!("--bump-revision leads from {now} to more than {REVISION_MAX}");
        now = bumped.ok_or_else(too_far)?;
        // The revision of a store is the revision of its last record. So a put of the empty key is
        // added, because no client can use this key. etcd adds the same record, so the hash equals
        // the hash of a member that etcdutl has restored.
        txn.put(Bucket::Key, &Revision::new(now, 0).put_key(), b"")?;
        if marks {
            txn.put(Bucket::Meta, SCHEDULED, &Revision::new(now, 0).put_key())?;
        }
    }
    txn.commit()?;
    Ok(now)
}
