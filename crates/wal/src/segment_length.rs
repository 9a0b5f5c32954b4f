//! The least length of the last segment: detects a last segment that was cut short.
//!
//! A segment has its final length from the start, with zeros after its records; where the disk is
//! full, it is sparse. It is cut to its contents when it is full. So the last segment is never
//! shorter than [`Options::segment_bytes`](super::Options), unless something else has cut it: a
//! repair of the file system, an interrupted copy. The log is refused then.
//!
//! The file `length` next to the segments states the length. It is written when the last segment
//! has that length on disk. It is removed before a repair cuts the segment, or if the file system
//! cannot give a segment its full length. So no crash of Clearlane leaves a short segment with this
//! file. A crash of etcd in its repair does: see [`repair`](super::repair). Logs of etcd and of
//! earlier versions do not have the file; then no length is expected.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::files::{
    FileSystem, create_with, is_out_of_space, read_short, remove_if_there, replace,
};

const LENGTH_FILE: &str = "length";
const LENGTH_FILE_NEW: &str = "length.tmp";
const FORMAT: &str = "clearlane-wal 1\nsegment ";
/// Longer than any text that is written here.
const TEXT_BYTES_MAX: u64 = 64;

/// A last segment that has become shorter than it was made: its last records may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortTail {
    pub path: PathBuf,
    /// The least number of bytes that it had.
    pub expected: u64,
    pub found: u64,
    /// The last entry that was found.
    pub last_index: u64,
}

/// `None` if no length is expected.
pub(super) fn read(files: &dyn FileSystem, dir: &Path) -> io::Result<Option<u64>> {
    let text = match read_short(files, &dir.join(LENGTH_FILE), TEXT_BYTES_MAX) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let number = text.strip_prefix(FORMAT.as_bytes()).and_then(|rest| rest.strip_suffix(b"\n"));
    Ok(number.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok()))
}

/// The last segment must have this length on disk already.
pub(super) fn write(files: &dyn FileSystem, dir: &Path, length: u64) -> io::Result<()> {
    match replace(files, dir, LENGTH_FILE_NEW, LENGTH_FILE, text(length).as_bytes()) {
        // A member starts on a full disk, too.
        Err(error) if is_out_of_space(&error) => clear(files, dir),
        written => written,
    }
}

/// As `write`, in a directory that is not a log's yet.
pub(super) fn write_first(files: &dyn FileSystem, dir: &Path, length: u64) -> io::Result<()> {
    create_with(files, &dir.join(LENGTH_FILE), text(length).as_bytes())
}

/// From now on no length is expected.
pub(super) fn clear(files: &dyn FileSystem, dir: &Path) -> io::Result<()> {
    remove_if_there(files, &dir.join(LENGTH_FILE))?;
    files.sync_dir(dir)
}

fn text(length: u64) -> String {
    format!("{FORMAT}{length}\n")
}
