//! The minimum length of the last segment, which detects a last segment that has lost its end.
//!
//! A segment gets its full length when it is created, with zeros after its records. If the disk has
//! too little space, a part of the segment is sparse, or the segment grows as it is written. When a
//! segment is full, it is shortened to its contents, and the next segment becomes the last one. So
//! the last segment is never shorter than when it was created, unless something else has shortened
//! it, such as a repair of the file system or an interrupted copy. Then opening the log fails.
//!
//! The file `length` next to the segments states this minimum length,
//! [`Options::segment_bytes`](super::Options). It is written when the last segment has the length
//! on disk. It is removed before a repair shortens the segment, or if the file system cannot give a
//! segment its full length. So no crash of Clearlane leaves a short segment together with this
//! file. A crash of etcd during its repair may leave both: see [`repair`](super::repair). If there
//! is no such file, as in logs of etcd, no length is expected.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files::{
    FileSystem, create_with, is_out_of_space, read_short, remove_if_there, replace,
};

const LENGTH_FILE: &str = "length";
const LENGTH_FILE_NEW: &str = "length.tmp";
const FORMAT: &str = "clearlane-wal 1\nsegment ";
/// Maximum number of bytes to read from the file. This is more than the length of any text that
/// this module writes.
const TEXT_BYTES_MAX: u64 = 64;

/// A last segment that is shorter than when it was created. Its last records may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortTail {
    pub path: PathBuf,
    /// The minimum length of the segment in bytes.
    pub expected: u64,
    pub found: u64,
    /// The index of the last entry that was found.
    pub last_index: u64,
}

/// Returns the expected length, or `None` if no length is expected.
pub(super) fn read(files: &dyn FileSystem, dir: &Path) -> io::Result<Option<u64>> {
    let text = match read_short(files, &dir.join(LENGTH_FILE), TEXT_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let number = text.strip_prefix(FORMAT.as_bytes()).and_then(|rest| rest.strip_suffix(b"\n"));
    Ok(number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()))
}

/// Writes the expected length, or removes it if the disk is full. The last segment must already
/// have this length on disk.
pub(super) fn write(files: &dyn FileSystem, dir: &Path, length: u64) -> io::Result<()> {
    match replace(files, dir, LENGTH_FILE_NEW, LENGTH_FILE, text(length).as_bytes()) {
        // A member must also be able to start on a full disk.
        Err(error) if is_out_of_space(&error) => clear(files, dir),
        written => written,
    }
}

/// Writes the expected length into the temporary directory of a new log. Unlike `write`, fails if
/// the disk is full.
pub(super) fn write_first(files: &dyn FileSystem, dir: &Path, length: u64) -> io::Result<()> {
    create_with(files, &dir.join(LENGTH_FILE), text(length).as_bytes())
}

/// Removes the expected length. After this call no length is expected.
pub(super) fn clear(files: &dyn FileSystem, dir: &Path) -> io::Result<()> {
    remove_if_there(files, &dir.join(LENGTH_FILE))?;
    files.sync_dir(dir)
}

fn text(length: u64) -> String {
    format!("{FORMAT}{length}\n")
}
