//! Telling etcd's data from ours, by looking: nothing is locked, made or changed.
//!
//! ```text
//!   ours     member/format   member/wal/*.wal   member/snap/current, store.0/, lock
//!   etcd's                   member/wal/*.wal   member/snap/db (bbolt), *.snap, *.snap.db
//! ```
//!
//! The log is the same in both, so it is not checked. A member of ours writes `format` before
//! anything else.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::error::{Error, Result};

/// The magic number of a meta page of bbolt, in the byte order of the machine that wrote it.
const MAGIC: u32 = 0xED0C_DAED;
/// It precedes the magic number.
const PAGE_HEADER: u64 = 16;
/// The first two pages are meta pages, and pages are as long as those of the machine that wrote the
/// file.
const PAGES: [u64; 5] = [0, 4 << 10, 8 << 10, 16 << 10, 64 << 10];

pub(crate) fn reject_etcd_data(data_dir: &Path) -> Result<()> {
    match detect_etcd_data(&data_dir.join("member"))? {
        Some(found) => Err(Error::Etcd { dir: data_dir.to_owned(), found }),
        None => Ok(()),
    }
}

/// Names what was found of etcd's.
fn detect_etcd_data(member: &Path) -> Result<Option<String>> {
    let snap = member.join("snap");
    let database = match File::open(snap.join("db")) {
        Ok(mut file) => Some(is_bbolt(&mut file)?),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(error.into()),
    };
    let has_format = member.join("format").try_exists()?;
    if database == Some(true) {
        let beside = if has_format { ", beside files of Clearlane (member/format)" } else { "" };
        return Ok(Some(format!("member/snap/db is a bbolt database{beside}")));
    }
    if has_format {
        return Ok(None);
    }
    let names = names(&snap)?;
    let is_store = |name: &String| name == "current" || name.starts_with("store.");
    if names.iter().any(is_store) {
        return Ok(None);
    }
    if database.is_some() {
        return Ok(Some("member/snap/db, which is empty, cut off or damaged".to_owned()));
    }
    let ends = |name: &&String| name.ends_with(".snap") || name.ends_with(".snap.db");
    if let Some(snapshot) = names.iter().find(ends) {
        return Ok(Some(format!("member/snap/{snapshot}, and no database")));
    }
    let has_log = self::names(&member.join("wal"))?.iter().any(|name| name.ends_with(".wal"));
    Ok(has_log.then(|| "a log in member/wal, and neither a database nor member/format".to_owned()))
}

/// Whether there is a meta page where bbolt has one. A directory has none.
fn is_bbolt(file: &mut File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    for page in PAGES {
        let mut magic = [0; 4];
        file.seek(SeekFrom::Start(page + PAGE_HEADER))?;
        match file.read_exact(&mut magic) {
            Ok(()) if u32::from_ne_bytes(magic) == MAGIC => return Ok(true),
            Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
    }
    Ok(false)
}

/// Sorted; empty if there is no directory.
fn names(dir: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_missing(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}
