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
//! etcd's file is copied as it is, for an engine `bolt`, and then opened; for another engine its
//! records are copied. So are those of a file in our former format.
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
use clearlane_server::raft_snapshot::open_store_dir;
use clearlane_server::snapshot_file;
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
        flag("initial-advertise-peer-urls", Text, "http://localhost:2380").help(
            "Addresses of this member that other members are told to use, separated by commas.",
        ),
        flag("skip-hash-check", Switch, "false")
            .help("Do not verify the checksum, for a file that has none."),
        flag("bump-revision", Count, "0")
            .help("Number of revisions that the current revision is increased by."),
        flag("mark-compacted", Switch, "false")
            .help("Mark all revisions before the bumped one as compacted; needs --bump-revision."),
        flag("initial-memory-map-size", Count, "0").ignored(
            "Bytes of the store's file that are mapped into memory.",
            "pages are read, and not mapped",
        ),
        flag("engine", OneOf(&["bolt", "sled"]), "bolt").help("Storage engine of the store."),
        output::NO_FORMAT,
        lock_wait::TIMEOUT,
    ],
    action: Action::Text(restore),
};

/// The store is filled in this directory.
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
        return Err(
            "--mark-compacted is for a revision that was bumped: give --bump-revision".into()
        );
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
        // This error is reported. The next attempt fails if something is left.
        dirs.iter().zip(earlier).for_each(|(dir, existed)| drop(remove_contents(dir, existed)));
    })?;
    Ok(format!("restored {} at revision {revision}\n", data_dir.display()))
}

/// Fails unless the directory is empty or does not exist. Removes the store of an attempt that was
/// interrupted.
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

/// Removes the directory too, unless it existed before.
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

/// Makes the store in the directory `made`, and returns its revision.
fn fill(
    flags: &FlagReader,
    made: &Path,
    kind: EngineKind,
    (bump, marks): (i64, bool),
) -> Result<i64, BoxError> {
    let (path, checks_sum) = (Path::new(flags.text("FILE")), !flags.switch("skip-hash-check"));
    wait_until_unlocked(flags, path, Access::Read)?;
    let is_bolt = snapshot_file::open(path).and_then(|mut file| snapshot_file::is_bolt(&mut file));
    let is_bolt = in_file(path, is_bolt.map_err(BoxError::from))?;
    // What is not etcd's is refused before there is a directory.
    let _locked = if is_bolt { Some(snapshot_file::open_bolt(path)?) } else { None };
    let snap = made.join("snap");
    in_file(&snap, create_private_dir(&snap).map_err(BoxError::from))?;
    let copies = is_bolt && kind == EngineKind::Bolt;
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
        let found = snapshot.get(bucket, key).map_err(clearlane_server::Error::from)?;
        Ok(found.map(|value| value.to_vec()))
    };
    store_version::check_versions(path, &get)?;
    let now = reset_cluster_and_revision(&*engine, bump, marks)?;
    drop((engine, store_dir));
    Ok(now)
}

/// The path is that of the copy.
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
        let bumped = now.checked_add(bump).filter(|bumped| *bumped <= REVISION_MAX);
        let too_far = || format!("--bump-revision leads from {now} to more than {REVISION_MAX}");
        now = bumped.ok_or_else(too_far)?;
        // A store is at the revision of its last record. etcd's record, for the hash of a member
        // that etcdutl has restored: a put of the key that no client can name.
        txn.put(Bucket::Key, &Revision::new(now, 0).put_key(), b"")?;
        if marks {
            txn.put(Bucket::Meta, SCHEDULED, &Revision::new(now, 0).put_key())?;
        }
    }
    txn.commit()?;
    Ok(now)
}
