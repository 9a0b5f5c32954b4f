//! Log rotation: a log file is replaced before it becomes too large, for `--enable-log-rotation`.
//!
//! ```text
//!   etcd.log ── full ──▶ etcd-2026-02-03T04-05-06.789.log ── with "compress" ──▶ ….log.gz
//! ```
//!
//! Names, options and defaults come from the package lumberjack, which etcd uses. A separate thread
//! compresses and removes old files, because a member must not wait for this work.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::Value;
use time::{OffsetDateTime, UtcOffset};

use super::append_to;

const MIB: u64 = 1 << 20;
const MAX_SIZE_DEFAULT: u64 = 100;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const COMPRESSED: &str = ".gz";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RotationConfig {
    pub max_bytes: u64,
    /// Maximum age of old files in days. If 0, files of any age are kept.
    pub max_age_days: u32,
    /// Maximum number of old files. If 0, all old files are kept.
    pub backups_max: usize,
    /// If true, the names of old files contain the local time, otherwise UTC.
    pub is_local_time: bool,
    pub compresses: bool,
}

impl RotationConfig {
    /// Parses the options. As in etcd, a missing option has its default, and unknown options are
    /// ignored.
    pub fn parse(text: &str) -> Result<RotationConfig, String> {
        let parsed: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let Value::Object(options) = parsed else {
            return Err(format!("expected an object such as {{\"maxsize\": 100}}, not {text}"));
        };
        let number = |name: &str| match options.get(name) {
            None | Some(Value::Null) => Ok(0),
            Some(value) => value
                .as_u64()
                .ok_or_else(|| format!("{name} must be a whole number, 0 or more, not {value}")),
        };
        let switch = |name: &str| match options.get(name) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => {
                value.as_bool().ok_or_else(|| format!("{name} must be true or false, not {value}"))
            }
        };
        let mebibytes = Some(number("maxsize")?).filter(|size| *size > 0);
        Ok(RotationConfig {
            max_bytes: mebibytes.unwrap_or(MAX_SIZE_DEFAULT).saturating_mul(MIB),
            max_age_days: number("maxage")?.try_into().unwrap_or(u32::MAX),
            backups_max: number("maxbackups")?.try_into().unwrap_or(usize::MAX),
            is_local_time: switch("localtime")?,
            compresses: switch("compress")?,
        })
    }
}

pub(super) struct RotatedFile {
    names: BackupNames,
    max_bytes: u64,
    file: File,
    bytes: u64,
    cleanings: SyncSender<()>,
}

impl RotatedFile {
    /// Opens the log file. Must be called while the process has only one thread, because the local
    /// time offset cannot be read later.
    pub(super) fn open(path: &Path, config: RotationConfig) -> io::Result<RotatedFile> {
        let file = append_to(path)?;
        let bytes = file.metadata()?.len();
        let offset = match config.is_local_time {
            true => UtcOffset::current_local_offset().unwrap_or(UtcOffset::UTC),
            false => UtcOffset::UTC,
        };
        let names = BackupNames { path: path.to_owned(), offset };
        // One pending cleaning request is enough for all files that are replaced before the
        // cleaning runs.
        let (cleanings, wanted) = sync_channel(1);
        let cleaned = names.clone();
        thread::Builder::new().name("log-files".to_owned()).spawn(move || {
            while wanted.recv().is_ok() {
                // After an error, the next cleaning tries again.
                let _ = cleaned.clean(config, OffsetDateTime::now_utc());
            }
        })?;
        let opened = RotatedFile { names, max_bytes: config.max_bytes, file, bytes, cleanings };
        opened.request_cleaning();
        Ok(opened)
    }

    fn request_cleaning(&self) {
        let _ = self.cleanings.try_send(());
    }

    fn replace(&mut self) -> io::Result<()> {
        let backup = self.names.next(OffsetDateTime::now_utc());
        let permissions = self.file.metadata()?.permissions();
        fs::rename(&self.names.path, backup)?;
        self.file = append_to(&self.names.path)?;
        // The umask may be stricter now than when the replaced file was created, so the new file
        // gets the permissions of the replaced one. If this fails, the log continues anyway.
        let _ = self.file.set_permissions(permissions);
        self.request_cleaning();
        Ok(())
    }
}

impl Write for RotatedFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.bytes > 0 && self.bytes + line.len() as u64 > self.max_bytes {
            // If the file cannot be replaced, the log continues in it, because lost lines would be
            // worse. The next attempt to replace the file follows after `max_bytes` more bytes.
            let _ = self.replace();
            self.bytes = 0;
        }
        let written = self.file.write(line)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The names of old log files. A name is the path of the log with a time before its extension.
#[derive(Clone, Debug)]
struct BackupNames {
    path: PathBuf,
    offset: UtcOffset,
}

impl BackupNames {
    /// Returns a name with the time `now`. If that name is used, takes the first later millisecond
    /// whose name is unused.
    fn next(&self, mut now: OffsetDateTime) -> PathBuf {
        loop {
            let name = format!("{}{}{}", self.prefix(), self.stamp(now), self.extension());
            let backup = self.path.with_file_name(name);
            if !backup.exists() && !with_suffix(&backup).exists() {
                return backup;
            }
            now += Duration::from_millis(1);
        }
    }

    fn prefix(&self) -> String {
        let stem = self.path.file_stem().unwrap_or_default();
        format!("{}-", stem.to_string_lossy())
    }

    /// Returns the extension including its dot, or empty text if there is none.
    fn extension(&self) -> String {
        let dotted = |extension: &OsStr| format!(".{}", extension.to_string_lossy());
        self.path.extension().map(dotted).unwrap_or_default()
    }

    /// Returns the time as text. The texts sort in the order of their times.
    fn stamp(&self, at: OffsetDateTime) -> String {
        let at = at.to_offset(self.offset);
        let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
        let (hour, minute, second, milli) = at.to_hms_milli();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{milli:03}")
    }

    /// Returns the time in the name of an old file, or `None` if the name belongs to another file.
    fn stamp_of<'n>(&self, name: &'n str) -> Option<&'n str> {
        let name = name.strip_suffix(COMPRESSED).unwrap_or(name);
        let stamp = name.strip_prefix(&self.prefix())?.strip_suffix(&self.extension())?;
        let shape = stamp.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte });
        shape.eq("0000-00-00T00-00-00.000".bytes()).then_some(stamp)
    }

    /// Removes old files that exceed the maximum number or age, and compresses the others if the
    /// option is on.
    fn clean(&self, config: RotationConfig, now: OffsetDateTime) -> io::Result<()> {
        let dir = self.path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        let mut old = Vec::new();
        for entry in fs::read_dir(dir)? {
            if let Ok(name) = entry?.file_name().into_string()
                && let Some(stamp) = self.stamp_of(&name)
            {
                old.push((stamp.to_owned(), dir.join(&name)));
            }
        }
        // Sort the files, the newest first.
        old.sort_by(|a, b| b.cmp(a));
        let oldest = match config.max_age_days {
            0 => String::new(),
            days => self.stamp(now - DAY * days),
        };
        let mut stamps: Vec<String> = Vec::new();
        for (stamp, path) in old {
            // A file and its compressed form count as one file. Both exist if the process was
            // killed during the compression, or before the removal of the original file.
            if stamps.last() != Some(&stamp) {
                stamps.push(stamp.clone());
            }
            let is_too_many = config.backups_max > 0 && stamps.len() > config.backups_max;
            if is_too_many || stamp < oldest {
                fs::remove_file(&path)?;
            } else if config.compresses && path.extension() != Some(OsStr::new("gz")) {
                compress(&path)?;
            }
        }
        Ok(())
    }
}

fn with_suffix(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(COMPRESSED);
    name.into()
}

fn compress(path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let target = File::create(with_suffix(path))?;
    target.set_permissions(file.metadata()?.permissions())?;
    let mut compressed = GzEncoder::new(target, Compression::default());
    io::copy(&mut file, &mut compressed)?;
    compressed.finish()?.sync_all()?;
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Read as _;
    use std::os::unix::fs::PermissionsExt as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn in_dir(dir: &Path) -> BackupNames {
        BackupNames { path: dir.join("etcd.log"), offset: UtcOffset::UTC }
    }

    #[test]
    fn options_are_etcds() {
        let parsed = RotationConfig::parse("{}").unwrap();
        assert_eq!(parsed, RotationConfig { max_bytes: 100 << 20, ..Default::default() });
        let parsed = RotationConfig::parse(
            r#"{"maxsize": 2, "maxage": 3, "maxbackups": 4, "localtime": true, "compress": true}"#,
        );
        let all = RotationConfig {
            max_bytes: 2 << 20,
            max_age_days: 3,
            backups_max: 4,
            is_local_time: true,
            compresses: true,
        };
        assert_eq!(parsed, Ok(all));
        for (text, message) in [
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("7", "expected an object such as {\"maxsize\": 100}, not 7"),
            (r#"{"maxsize": -1}"#, "maxsize must be a whole number, 0 or more, not -1"),
            (r#"{"compress": "yes"}"#, "compress must be true or false, not \"yes\""),
        ] {
            assert_eq!(RotationConfig::parse(text).unwrap_err(), message);
        }
    }

    #[test]
    fn new_and_compressed_files_keep_the_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("etcd.log");
        let mut log =
            RotatedFile::open(&path, RotationConfig { max_bytes: 10, ..Default::default() })
                .unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        log.write_all(b"12345678").unwrap();
        log.write_all(b"12345678").unwrap();
        let old = names(dir.path()).into_iter().find(|name| name != "etcd.log").unwrap();
        compress(&dir.path().join(old)).unwrap();
        let modes: Vec<u32> = names(dir.path())
            .iter()
            .map(|name| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777)
            .collect();
        assert_eq!(modes, [0o664, 0o664]);
    }

    #[test]
    fn no_line_is_lost_and_no_file_is_larger_than_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let config = RotationConfig { max_bytes: 100, ..Default::default() };
        let mut log = RotatedFile::open(&dir.path().join("etcd.log"), config).unwrap();
        let lines: Vec<String> = (0..50).map(|number| format!("line {number:02}\n")).collect();
        for line in &lines {
            log.write_all(line.as_bytes()).unwrap();
        }
        let files = names(dir.path());
        assert_eq!(files.len(), 5, "{files:?}");
        let texts: Vec<String> =
            files.iter().map(|name| fs::read_to_string(dir.path().join(name)).unwrap()).collect();
        assert!(texts.iter().all(|text| text.len() <= 100), "{texts:?}");
        // The names of old files sort in the order of their times, and the current file is last.
        assert_eq!(texts.concat(), lines.concat());
    }

    #[test]
    fn what_is_too_old_or_one_too_many_is_removed_and_the_rest_compressed() {
        let dir = tempfile::tempdir().unwrap();
        let backups = in_dir(dir.path());
        let now = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for days in [0, 1, 2, 9] {
            let old = backups.next(now - DAY * days);
            fs::write(old, format!("{days} days old")).unwrap();
        }
        for other in ["etcd.log", "etcd-notes.log", "other-2023-11-14T22-13-20.000.log"] {
            fs::write(dir.path().join(other), "").unwrap();
        }
        let config = RotationConfig {
            max_age_days: 5,
            backups_max: 2,
            compresses: true,
            ..Default::default()
        };
        backups.clean(config, now).unwrap();
        backups.clean(config, now).unwrap();
        assert_eq!(
            names(dir.path()),
            [
                "etcd-2023-11-13T22-13-20.000.log.gz",
                "etcd-2023-11-14T22-13-20.000.log.gz",
                "etcd-notes.log",
                "etcd.log",
                "other-2023-11-14T22-13-20.000.log",
            ]
        );
        let mut text = String::new();
        let file = File::open(dir.path().join("etcd-2023-11-13T22-13-20.000.log.gz")).unwrap();
        GzDecoder::new(file).read_to_string(&mut text).unwrap();
        assert_eq!(text, "1 days old");
    }

    #[test]
    fn two_files_that_are_replaced_at_once_have_two_names() {
        let dir = tempfile::tempdir().unwrap();
        let (backups, now) = (in_dir(dir.path()), OffsetDateTime::UNIX_EPOCH);
        fs::write(backups.next(now), "").unwrap();
        let next = backups.next(now);
        assert_eq!(next.file_name().unwrap(), "etcd-1970-01-01T00-00-00.001.log");
    }
}
