//! Repairs a log's torn end when the log is opened for appending. In etcd: `wal.Repair`.

use std::path::{Path, PathBuf};

use super::scan::OpenSegment;
use super::writer::LogEnd;
use super::{Options, ShortTail, segment_length};
use crate::error::{Error, Result};
use crate::files::{FileSystem, create_with, remove_if_there};

/// Ends the log on disk after the last record that was read. `written` is the offset after the last
/// non-zero byte in the last segment.
///
/// Fails if the last segment has become [shorter](segment_length) and no crash can explain that. If
/// the options accept the loss, the segment gets its length back, and the loss is returned.
///
/// If the end is torn, the segment is first copied to `<segment>.broken` for the operator, up to
/// the end of its written part. Then the segment is cut after its last record, extended with zeros,
/// and synced. The zeros must be on disk before anything is appended. Otherwise the torn bytes
/// could follow the new records after the next power cut, and be read as damage or as records.
pub(super) fn repair_tail(
    files: &dyn FileSystem,
    dir: &Path,
    tail: &mut OpenSegment,
    (end, written): (&LogEnd, u64),
    options: &Options,
) -> Result<Option<ShortTail>> {
    let unread = |source| Error::path(dir, "read the length of its last segment", source);
    let mut expected = segment_length::read(files, dir).map_err(unread)?;
    let found = tail.file.length().map_err(unread)?;
    let (path, last_index) = (tail.path.clone(), end.validator.last_index);
    // etcd cuts a segment after its last record, both at a start and in a repair. If it is killed
    // at that point, the file ends with a record. Clearlane removes the expected length before it
    // cuts.
    let is_cut_by_etcd = options.etcd_wrote_last && found == end.offset;
    let lost = expected.filter(|expected| found < *expected && !is_cut_by_etcd);
    let lost = lost.map(|expected| ShortTail { path, expected, found, last_index });
    if let Some(short) = lost.clone().filter(|_| !options.accept_loss) {
        return Err(Error::ShortSegment { short });
    }
    if written > end.offset {
        save_broken_segment(files, tail, written)?;
    }
    let failed = |source| Error::path(&tail.path, "cut off its torn end", source);
    if written > end.offset {
        // After a crash between the cut and the extension, the segment would be short although
        // nothing is lost. So the expected length is removed first.
        segment_length::clear(files, dir).map_err(failed)?;
        expected = None;
        tail.file.set_length(end.offset).map_err(failed)?;
    }
    // This extends the segment again, with zeros and reserved space after the end.
    tail.reserved = options.preallocate(files, dir, &mut *tail.file, end.offset).map_err(failed)?;
    // The bytes may be only in the page cache, if the previous process died before its sync. The
    // same is true for names, which `remove_leftovers` syncs.
    tail.file.sync().map_err(failed)?;
    let kept = match (options.has_full_length(&*tail.file).map_err(failed)?, expected) {
        (true, Some(expected)) if expected == options.segment_bytes => Ok(()),
        (true, _) => segment_length::write(files, dir, options.segment_bytes),
        (false, Some(_)) => segment_length::clear(files, dir),
        (false, None) => Ok(()),
    };
    kept.map_err(|source| Error::path(dir, "write the length of its last segment", source))?;
    remove_leftovers(files, dir)?;
    Ok(lost)
}

/// Removes temporary files of unfinished segments, and syncs the directory and its parent.
fn remove_leftovers(files: &dyn FileSystem, dir: &Path) -> Result<()> {
    for name in files.list(dir).map_err(|source| Error::path(dir, "list it", source))? {
        if super::TEMPORARY_NAMES.contains(&name.as_str()) {
            let path = dir.join(name);
            files.remove(&path).map_err(|source| Error::path(&path, "remove it", source))?;
        }
    }
    for dir in [Some(dir), dir.parent()].into_iter().flatten() {
        files.sync_dir(dir).map_err(|source| Error::path(dir, "sync it", source))?;
    }
    Ok(())
}

/// Copies the first `written` bytes of the segment to `<segment>.broken`. Replaces an earlier copy.
fn save_broken_segment(files: &dyn FileSystem, tail: &OpenSegment, written: u64) -> Result<()> {
    let mut bytes = vec![0; written as usize];
    let read = tail.file.read_at(0, &mut bytes);
    read.map_err(|source| Error::path(&tail.path, "read it", source))?;
    let mut path = tail.path.clone().into_os_string();
    path.push(".broken");
    let path = PathBuf::from(path);
    remove_if_there(files, &path)
        .and_then(|()| create_with(files, &path, &bytes))
        .map_err(|source| Error::path(&path, "copy a torn segment to it", source))
}
