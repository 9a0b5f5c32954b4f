//! `migrate`: sets the storage version of a stopped member, like `etcdutl migrate`.
//!
//! Stores of different versions differ only in the record `storageVersion` of bucket `meta`, which
//! a store of version 3.5 does not have. A downgrade fails if the log has an entry after its last
//! snapshot that the older version cannot read. The cluster version is not changed.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use clearlane_engine::bolt_file::BoltFile;
use clearlane_engine::{Bucket, Engine, EngineKind, Options, Read};
use clearlane_proto::nested::decode_raft_request;
use clearlane_server::snapshot::open_store_dir;
use clearlane_wal as wal;
use clearlane_wal::EntryKind;
use clearlane_wal::files::OsFileSystem;

use super::lock_wait::{self, Access, wait_until_unlocked};
use super::{Action, BoxError, Tool, output};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::{OneOf, Switch, Text};

const VERSIONS: &[&str] = &["3.5", "3.6", "3.7"];

pub(super) const TOOL: Tool = Tool {
    name: &["migrate"],
    about: "Set the storage version of a member that is not running",
    positional: &[],
    words: None,
    flags: &[
        flag("data-dir", Text, "").help("Data directory of the member."),
        flag("target-version", OneOf(VERSIONS), "").help("Storage version to set."),
        flag("force", Switch, "false").help(
            "Set it also if the log has entries that the version cannot read, or the storage \
             version is unknown.",
        ),
        output::NO_FORMAT,
        lock_wait::TIMEOUT,
    ],
    action: Action::Text(migrate),
};

/// Keys of bucket `meta`.
const STORAGE_VERSION: &[u8] = b"storageVersion";
const TERM: &[u8] = b"term";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u64,
    minor: u64,
    patch: u64,
}

const V3_5: Version = Version::new(3, 5);
const V3_6: Version = Version::new(3, 6);
const V3_7: Version = Version::new(3, 7);

fn migrate(flags: &FlagReader) -> Result<String, BoxError> {
    let data_dir = flags.path("data-dir").ok_or("migrate takes --data-dir=DIR")?;
    let target = flags.text("target-version");
    let target: Version = match target {
        "" => return Err(format!("migrate takes --target-version={}", VERSIONS.join("|")).into()),
        target => format!("{target}.0").parse()?,
    };
    let (wal, snap) = (data_dir.join("member/wal"), data_dir.join("member/snap"));
    let file = snap.join("db");
    if !file.exists() {
        return Err(format!("{} has no store of engine bolt", data_dir.display()).into());
    }
    wait_until_unlocked(flags, &file, Access::Write)?;
    let current = detect(&BoltFile::open(&file)?, &file)?;
    let message = |what: &str| format!("{}: storage version {what}\n", data_dir.display());
    if current == target {
        return Ok(message(&format!("{target} already")));
    }
    let needed = needed_by_log(&wal)?;
    if let Err(why) = check(current, target, needed)
        && !flags.switch("force")
    {
        return Err(format!("{}: {why}; nothing was changed", file.display()).into());
    }
    let store_dir =
        open_store_dir(Arc::new(OsFileSystem), &snap, EngineKind::Bolt, Options::default())?;
    let engine = store_dir.open()?;
    if detect(&*engine.snapshot()?, &file)? != current {
        return Err(
            format!("{}: another program has changed it in the meantime", file.display()).into()
        );
    }
    set(&*engine, target)?;
    Ok(message(&format!("{current}, now {target}")))
}

/// Returns the storage version of a store. etcd 3.5 writes no version, but it writes a term. So a
/// store with only a term has version 3.5. Fails if the store has neither.
fn detect<R: Read + ?Sized>(store: &R, path: &Path) -> Result<Version, BoxError> {
    let path = path.display();
    if let Some(text) = store.get(Bucket::Meta, STORAGE_VERSION)? {
        let text = String::from_utf8_lossy(&text);
        return text.parse().map_err(|why| format!("{path}: storageVersion is {why}").into());
    }
    let term = store.get(Bucket::Meta, TERM)?;
    if term.is_none_or(|term| term.iter().all(|byte| *byte == 0)) {
        let why = "it has neither a storage version nor a term: it was written before etcd 3.5, or \
                   no entry was applied yet";
        return Err(format!("{path}: {why}").into());
    }
    Ok(V3_5)
}

/// Returns the lowest version that can read the log's entries after its last snapshot. `None`
/// stands for version 3.5.
fn needed_by_log(dir: &Path) -> Result<Option<Version>, BoxError> {
    let last = wal::valid_snapshots(&OsFileSystem, dir)?.pop().unwrap_or_default();
    let mut needed = None;
    for entry in wal::read(&OsFileSystem, dir, (last.index, last.term))?.entries {
        if entry.kind != EntryKind::Normal {
            continue;
        }
        let at = |why: String| format!("{}: entry {}: {why}", dir.display(), entry.index);
        let request = decode_raft_request(entry.data.clone()).map_err(|why| at(why.to_string()))?;
        // Version 3.5 supports all requests except `downgrade_version_test`, which only etcd's
        // tests use. That request needs the version that it names, and at least 3.6.
        if let Some(test) = request.downgrade_version_test {
            let named: Version = test.ver.parse().map_err(&at)?;
            needed = needed.max(Some(named.max(V3_6)));
        }
    }
    Ok(needed)
}

fn check(current: Version, target: Version, needed: Option<Version>) -> Result<(), String> {
    if !(V3_5..V3_7.next_minor()).contains(&current) {
        return Err(format!("the storage version is {current}, but only 3.5 to 3.7 are known"));
    }
    match needed.filter(|needed| target < current && target < *needed) {
        Some(needed) => {
            Err(format!("the log has entries that need {needed}; {target} cannot read them"))
        }
        None => Ok(()),
    }
}

fn set(engine: &dyn Engine, target: Version) -> Result<(), BoxError> {
    let mut txn = engine.begin_write()?;
    if target < V3_6 {
        txn.delete(Bucket::Meta, STORAGE_VERSION)?;
    } else {
        let Version { major, minor, patch } = target;
        txn.put(Bucket::Meta, STORAGE_VERSION, format!("{major}.{minor}.{patch}").as_bytes())?;
    }
    Ok(txn.commit()?)
}

impl Version {
    const fn new(major: u64, minor: u64) -> Version {
        Version { major, minor, patch: 0 }
    }

    const fn next_minor(self) -> Version {
        Version::new(self.major, self.minor + 1)
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let parts: Vec<Option<u64>> = text.split('.').map(|part| part.parse().ok()).collect();
        match parts[..] {
            [Some(major), Some(minor), Some(patch)] => Ok(Version { major, minor, patch }),
            _ => Err(format!("{text:?}, which is not a version such as 3.7.0")),
        }
    }
}

/// Writes the version, without the patch number if it is 0.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Version { major, minor, patch } = self;
        match patch {
            0 => write!(f, "{major}.{minor}"),
            _ => write!(f, "{major}.{minor}.{patch}"),
        }
    }
}
