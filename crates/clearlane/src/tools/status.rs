//! `snapshot status`: shows the contents of a file, in the formats of `etcdutl snapshot status`.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;
use clearlane_engine::bolt_file::BoltFile;
use clearlane_engine::{Bucket, Snapshot};
use clearlane_mvcc::{RecordKind, RevisionKey};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_server::snapshot::snapshot_file;
use prost::Message as _;

use super::lock_wait::{self, Access, wait_until_unlocked};
use super::{Action, BoxError, Tool, output};
use crate::config::arguments::FlagReader;
use crate::config::table::flag;
use crate::config::value::ValueKind::Text;

pub(super) const TOOL: Tool = Tool {
    name: &["snapshot", "status"],
    about: "Check a saved snapshot, and print its hash, revision, keys, size and storage version",
    positional: &[flag("FILE", Text, "").help("Saved snapshot, or a copy of a store's file.")],
    words: None,
    flags: &[output::FORMAT, lock_wait::TIMEOUT],
    action: Action::Text(status),
};

fn status(flags: &FlagReader) -> Result<String, BoxError> {
    let path = Path::new(flags.text("FILE"));
    wait_until_unlocked(flags, path, Access::Read)?;
    let status = in_file(path, describe(path))?;
    Ok(match flags.text("write-out") {
        "json" => status.to_json(),
        "table" => status.to_table(),
        "fields" => status.to_fields(),
        _ => format!("{}\n", status.texts().join(", ")),
    })
}

/// Adds the path of the file to an error that does not start with it.
pub(super) fn in_file<T>(path: &Path, outcome: Result<T, BoxError>) -> Result<T, BoxError> {
    outcome.map_err(|error| {
        let (path, text) = (path.display().to_string(), error.to_string());
        if text.starts_with(&path) { error } else { format!("{path}: {text}").into() }
    })
}

/// Returns the revision of the last record, or 1 if there is none.
pub(super) fn revision(snapshot: &dyn Snapshot) -> Result<i64, BoxError> {
    snapshot.last_key(Bucket::Key)?.map_or(Ok(1), |last| main_revision(&last))
}

fn main_revision(key: &[u8]) -> Result<i64, BoxError> {
    let decoded = RevisionKey::decode(key).map_err(|_| "a record of bucket key has no revision")?;
    Ok(decoded.0.main)
}

#[derive(Debug, Default)]
struct Status {
    /// The hash of all buckets in the order of their names. For each bucket, it covers the name and
    /// each key and value.
    hash: u32,
    revision: i64,
    /// Number of keys that are not deleted.
    total_key: usize,
    total_size: u64,
    /// The storage version. Empty if the file has none, as before etcd 3.6.
    version: String,
    /// The keys that are not deleted. Used only while records are added.
    keys: HashSet<Bytes>,
}

fn describe(path: &Path) -> Result<Status, BoxError> {
    let mut file = snapshot_file::open(path)?;
    let length = file.metadata()?.len();
    snapshot_file::check(&mut file, snapshot_file::has_sum(length))?;
    let file = BoltFile::open(path)?;
    let newest = file.newest()?.meta;
    // One intact meta page is enough, so problems of the two meta pages are ignored.
    let survey = file.survey()?;
    let mut problems = survey.problems.iter().filter(|problem| problem.page.is_none_or(|p| p > 1));
    if let Some(first) = problems.next() {
        let more = match problems.count() {
            0 => String::new(),
            more => format!(", and {more} more; `clearlane bolt check` shows all"),
        };
        return Err(format!("damaged: {first}{more}").into());
    }
    let mut status = Status::default();
    let names = survey.buckets.iter().filter_map(|bucket| match &bucket.path[..] {
        [name] => Some(name),
        _ => None,
    });
    for name in names {
        status.hash = crc32c::crc32c_append(status.hash, name);
        let mut outcome = Ok(());
        file.scan(&[name], &mut |record| {
            let value = if record.bucket.is_some() { Bytes::new() } else { record.value };
            outcome = status.add(name, &record.key, &value);
            if outcome.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        outcome?;
    }
    Ok(status.ended(newest.high_water * file.page_size() as u64))
}

impl Status {
    fn add(&mut self, bucket: &[u8], key: &[u8], value: &[u8]) -> Result<(), BoxError> {
        self.hash = crc32c::crc32c_append(crc32c::crc32c_append(self.hash, key), value);
        if bucket == Bucket::Meta.name().as_bytes() && key == STORAGE_VERSION {
            self.version = String::from_utf8_lossy(value).into_owned();
        }
        if bucket != Bucket::Key.name().as_bytes() {
            return Ok(());
        }
        let (revision, kind) =
            RevisionKey::decode(key).map_err(|_| "a record of bucket key has no revision")?;
        self.revision = revision.main;
        let record = KeyValue::decode(value)?;
        match kind {
            RecordKind::Tombstone => self.keys.remove(&record.key),
            RecordKind::Put => self.keys.insert(record.key),
        };
        Ok(())
    }

    fn ended(self, total_size: u64) -> Status {
        Status { total_key: self.keys.len(), total_size, keys: HashSet::new(), ..self }
    }

    fn texts(&self) -> [String; 5] {
        let Status { hash, revision, total_key, total_size, version, .. } = self;
        let (revision, total_key) = (revision.to_string(), total_key.to_string());
        [format!("{hash:x}"), revision, total_key, size_text(*total_size), version.clone()]
    }

    fn to_json(&self) -> String {
        let Status { hash, revision, total_key, total_size, version, .. } = self;
        format!(
            "{{\"hash\":{hash},\"revision\":{revision},\"totalKey\":{total_key},\
             \"totalSize\":{total_size},\"version\":{}}}\n",
            serde_json::Value::from(version.as_str()),
        )
    }

    fn to_table(&self) -> String {
        let heads = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"];
        output::table(heads, &self.texts())
    }

    fn to_fields(&self) -> String {
        let Status { hash, revision, total_key, total_size, version, .. } = self;
        format!(
            "\"Hash\" : {hash}\n\"Revision\" : {revision}\n\"Keys\" : {total_key}\n\
             \"Size\" : {total_size}\n\"Version\" : {version}\n"
        )
    }
}

/// Returns a size with units of 1,000, as etcdutl prints it.
fn size_text(bytes: u64) -> String {
    if bytes < 10 {
        return format!("{bytes} B");
    }
    let (mut size, mut units) = (bytes as f64, ["B", "kB", "MB", "GB", "TB", "PB", "EB"].iter());
    let mut unit = units.next();
    while size >= 1000.0 {
        size /= 1000.0;
        unit = units.next();
    }
    let rounded = (size * 10.0).round() / 10.0;
    let unit = unit.expect("2^64 bytes are 18 EB");
    if rounded < 10.0 { format!("{rounded:.1} {unit}") } else { format!("{rounded:.0} {unit}") }
}

/// The key of the storage version in bucket `meta`.
const STORAGE_VERSION: &[u8] = b"storageVersion";

#[cfg(test)]
mod tests {
    use super::size_text;

    #[test]
    fn sizes_are_printed_as_etcdutl_prints_them() {
        let sizes = [0, 9, 10, 999, 1_000, 9_949, 20_480, 82_854_982, 1_048_576_000, u64::MAX];
        let printed = sizes.map(size_text);
        let expected = [
            "0 B", "9 B", "10 B", "999 B", "1.0 kB", "9.9 kB", "20 kB", "83 MB", "1.0 GB", "18 EB",
        ];
        assert_eq!(printed, expected);
    }
}
