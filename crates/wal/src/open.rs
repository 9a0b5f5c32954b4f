//! Opens a log: its segments, the records after a snapshot, and the repair of a torn end.
//!
//! A member starts from a snapshot. A snapshot is a record of the log; it states that the store has
//! everything up to some index. [`valid_snapshots`] lists the snapshots from which a start may
//! choose. [`read`] and [`Wal::open`] read the records after one of these snapshots. Both functions
//! start with the last segment whose name has an index at or below the snapshot's index.
//!
//! [`read`] ignores a torn end. [`Wal::open`] repairs it in one step, whereas etcd repairs the log
//! and opens it again: see [`repair`](super::repair).
//!
//! A torn end is harmless only if everything that was synced is still present. Opening fails in
//! these cases, unless the caller accepts the loss:
//!
//! * The log ends before its [durable end](super::durable_end): `LostEnd`.
//! * Records of a later sync follow the torn bytes (`frame.rs`): `LostRecord`.
//! * The last segment is shorter than the file `length` states (`repair.rs`): `ShortSegment`.
//!
//! Opening also fails if the start is older than a received snapshot whose index is committed. The
//! log restarts at that snapshot, and earlier entries are void or have a gap.

use std::path::Path;
use std::sync::Arc;

use super::durable_end::{self, DurableEnd};
use super::repair::repair_tail;
use super::scan::{OpenSegment, ScanEnd, ScannedRecord, scan};
use super::segment_name::SegmentName;
use super::writer::{Wal, WalDir};
use super::{Contents, Options};
use crate::error::{Error, Result};
use crate::files::{File, FileSystem};
use crate::wire::{HardState, WalSnapshot};

pub fn exists(files: &dyn FileSystem, dir: &Path) -> Result<bool> {
    match segment_names(files, dir) {
        Ok(_) => Ok(true),
        Err(Error::Missing { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns the snapshots from which a start may choose, in the order of their records. Reads all
/// segments and changes none.
///
/// A snapshot is valid if two conditions hold. Its index must be committed according to the last
/// state. No entry at or below its index may follow it. The record of a received snapshot is
/// written before the state that covers it. If the power fails in between, the snapshot was not
/// taken, but its record remains. The log may then grow past the snapshot's index by entries:
///
/// ```text
///   1 2 3 │ S(9) │ 10 11        taken; 4 to 9 are in the store that was received
///   1 2 3 │ S(9) │ 4 5 ... 12   not taken
///   1 2 3'│ S(3) │ 4 5          taken; entry 3' is of another term, and void
/// ```
pub fn valid_snapshots(files: &dyn FileSystem, dir: &Path) -> Result<Vec<WalSnapshot>> {
    let segments = open_segments(dir, &segment_names(files, dir)?, |path| to_read(files, path))?;
    let mut found = Vec::new();
    let ScanEnd { end, .. } = scan(&segments, None, |scanned| {
        match scanned {
            ScannedRecord::Snapshot { snapshot, .. } => found.push(snapshot),
            ScannedRecord::Entry(entry) => {
                found.retain(|snapshot: &WalSnapshot| snapshot.index < entry.index)
            }
            ScannedRecord::State(_) => {}
        }
        Ok(())
    })?;
    found.retain(|snapshot| snapshot.index <= end.validator.hard_state.commit);
    Ok(found)
}

/// Reads the log after the snapshot with this index and term. Locks nothing and changes nothing. A
/// torn end is omitted.
pub fn read(files: &dyn FileSystem, dir: &Path, (index, term): (u64, u64)) -> Result<Contents> {
    let names = segment_names(files, dir)?;
    let needed = segments_from(&names, index).ok_or_else(|| no_snapshot(dir, (index, term)))?;
    let segments = open_segments(dir, needed, |path| to_read(files, path))?;
    Ok(read_contents(dir, &segments, None, (index, term))?.0)
}

impl Wal {
    /// Opens a log to append to it. Returns its contents after the snapshot with the index and term
    /// `start`. All these contents are on disk. A torn end is cut off. Fails if the log has lost
    /// its end, unless the options accept that.
    pub fn open(
        files: Arc<dyn FileSystem>,
        dir: &Path,
        start: (u64, u64),
        options: Options,
    ) -> Result<(Wal, Contents)> {
        let names = segment_names(&*files, dir)?;
        let needed = segments_from(&names, start.0).ok_or_else(|| no_snapshot(dir, start))?;
        let mut segments = open_segments(dir, needed, |path| locked(&*files, path))?;
        let unread = |source| Error::path(dir, "read the file that names its durable end", source);
        let durable = durable_end::read(&*files, dir).map_err(unread)?;
        // If the durable end is before the segments that this start needs, no record up to the
        // durable end is needed, so none is checked.
        let durable = durable.filter(|end| end.segment.sequence >= needed[0].sequence);
        let (contents, found) = read_contents(dir, &segments, durable.as_ref(), start)?;
        let durable = durable.filter(|_| !found.has_durable_end);
        let lost = find_loss(dir, needed[needed.len() - 1], &found, durable);
        if let Some(error) = lost.clone().filter(|_| !options.accept_loss) {
            return Err(error);
        }
        let ScanEnd { mut end, written, .. } = found;
        // The log ends with the last returned entry, even if a snapshot that was not taken follows
        // it.
        end.validator.truncate(start.0 + contents.entries.len() as u64);
        let snapshots = contents.snapshots.iter().map(|snapshot| snapshot.index);
        let snapshot = snapshots.filter(|index| *index <= contents.hard_state.commit).max();
        end.snapshot_index = snapshot.unwrap_or(start.0);
        let Some(mut last) = segments.pop() else { return Err(no_snapshot(dir, start)) };
        if durable.is_some() {
            // The durable end is removed before the log is cut. After a crash the remaining log
            // would otherwise be rejected, although its loss was accepted.
            let removed = durable_end::remove(&*files, dir);
            removed.map_err(|source| {
                Error::path(dir, "remove the file that names its durable end", source)
            })?;
        }
        let length = last.file.length().map_err(|source| Error::path(dir, "read it", source))?;
        let is_full = length == end.offset && length >= options.segment_bytes;
        let short_tail = repair_tail(&*files, dir, &mut last, (&end, written), &options)?;
        let unread = names[..names.len() - needed.len()].iter().map(|name| (*name, None));
        let read = segments.into_iter().map(|segment| (segment.name, Some(segment)));
        let wal_dir = WalDir { files, dir: dir.to_owned(), options };
        let mut wal = Wal::new(wal_dir, unread.chain(read).collect(), last, end);
        (wal.accepted_loss, wal.short_tail) = (lost, short_tail);
        wal.ended_in_full_segment = is_full;
        wal.create_durable_end()?;
        Ok((wal, contents))
    }
}

/// Returns the error for a log that has lost records that were on disk, or that has a different
/// record at its durable end. Returns `None` if no loss is found. `durable` is the expected durable
/// end. It is `None` if the log has a record that ends there, or if no durable end is expected.
/// `last` is the last segment.
fn find_loss(
    dir: &Path,
    last: SegmentName,
    found: &ScanEnd,
    durable: Option<DurableEnd>,
) -> Option<Error> {
    let ScanEnd { end, later_sync, .. } = found;
    let last_index = end.validator.last_index;
    let Some(durable) = durable else {
        let path = dir.join(last.to_string());
        return later_sync.map(|later| Error::LostRecord {
            path,
            offset: end.offset,
            last_index,
            later,
        });
    };
    if !durable.is_after((last.sequence, end.offset)) {
        let detail = "the record here is not the record that was synced";
        let path = dir.join(durable.segment.to_string());
        return Some(Error::corrupt(&path, durable.offset, detail));
    }
    Some(Error::LostEnd {
        path: dir.to_owned(),
        segment: last.to_string(),
        offset: end.offset,
        last_index,
        durable: durable.to_string(),
    })
}

fn no_snapshot(dir: &Path, (index, term): (u64, u64)) -> Error {
    Error::NoSnapshot { path: dir.to_owned(), index, term }
}

/// Returns the names of the segments in order. Fails if there is none, or if one is missing between
/// two others.
fn segment_names(files: &dyn FileSystem, dir: &Path) -> Result<Vec<SegmentName>> {
    let missing = || Error::Missing { path: dir.to_owned() };
    let found = files.list(dir).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => missing(),
        _ => Error::path(dir, "list it", source),
    })?;
    let mut names: Vec<SegmentName> =
        found.iter().filter_map(|name| SegmentName::parse(name)).collect();
    names.sort();
    for pair in names.windows(2) {
        if pair[0].sequence.checked_add(1) != Some(pair[1].sequence) {
            let path = dir.join(pair[1].to_string());
            return Err(Error::corrupt(&path, 0, format!("it does not follow {}", pair[0])));
        }
    }
    if names.is_empty() { Err(missing()) } else { Ok(names) }
}

/// Returns the segments that contain everything after `index`, or `None` if the oldest of these
/// segments has been removed.
fn segments_from(names: &[SegmentName], index: u64) -> Option<&[SegmentName]> {
    let first = names.iter().rposition(|name| name.index <= index)?;
    Some(&names[first..])
}

fn open_segments(
    dir: &Path,
    names: &[SegmentName],
    open: impl Fn(&Path) -> Result<Box<dyn File>>,
) -> Result<Vec<OpenSegment>> {
    let segments = names.iter().map(|name| {
        let path = dir.join(name.to_string());
        Ok(OpenSegment { name: *name, file: open(&path)?, path, reserved: 0 })
    });
    segments.collect()
}

fn to_read(files: &dyn FileSystem, path: &Path) -> Result<Box<dyn File>> {
    files.open_to_read(path).map_err(|source| Error::path(path, "open it", source))
}

fn locked(files: &dyn FileSystem, path: &Path) -> Result<Box<dyn File>> {
    let mut file = files.open(path).map_err(|source| Error::path(path, "open it", source))?;
    let is_locked = file.try_lock().map_err(|source| Error::path(path, "lock it", source))?;
    if is_locked { Ok(file) } else { Err(Error::Locked { path: path.to_owned() }) }
}

fn read_contents(
    dir: &Path,
    segments: &[OpenSegment],
    durable: Option<&DurableEnd>,
    (start, term): (u64, u64),
) -> Result<(Contents, ScanEnd)> {
    let (mut entries, mut snapshots) = (Vec::new(), Vec::<WalSnapshot>::new());
    let (mut state, mut is_there) = (HardState::default(), false);
    // The indexes of snapshots at which the log restarts, if those snapshots were taken.
    let mut begins = Vec::new();
    let found = scan(segments, durable, |scanned| {
        if let ScannedRecord::Entry(entry) = &scanned {
            snapshots.retain(|snapshot| snapshot.index < entry.index);
            begins.retain(|begin| *begin < entry.index);
        }
        match scanned {
            ScannedRecord::Entry(entry) if entry.index > start => {
                let place = usize::try_from(entry.index - start - 1).unwrap_or(usize::MAX);
                if place > entries.len() {
                    let last = start + entries.len() as u64;
                    return Err(format!("entry {} cannot follow entry {last}", entry.index));
                }
                entries.truncate(place);
                entries.push(entry);
            }
            // This entry is at or below the start. If entries above the start come before it in the
            // log, it has replaced them.
            ScannedRecord::Entry(_) => entries.clear(),
            ScannedRecord::State(new) => state = new,
            ScannedRecord::Snapshot { snapshot, restarts_log: anew } => {
                if snapshot.index == start {
                    is_there = snapshot.term == term;
                    if !is_there {
                        return Err(format!("the snapshot at {start} has term {}", snapshot.term));
                    }
                }
                if anew {
                    let kept = snapshot.index.saturating_sub(start);
                    entries.truncate(usize::try_from(kept).unwrap_or(usize::MAX));
                    begins.push(snapshot.index);
                }
                snapshots.push(snapshot);
            }
        }
        Ok(())
    })?;
    if !is_there {
        return Err(no_snapshot(dir, (start, term)));
    }
    // The start must be committed. Each segment starts with the last state, so a smaller commit
    // index may also mean that this state is missing.
    if state.commit < start {
        let why = format!("a start at {start}: the log is committed only up to {}", state.commit);
        return Err(Error::Refused(why));
    }
    if let Some(begin) = begins.iter().find(|begin| (start + 1..=state.commit).contains(begin)) {
        let why = format!("a start at {start}: the log restarts at {begin}");
        return Err(Error::Refused(why));
    }
    let metadata = found.end.metadata;
    Ok((Contents { metadata, hard_state: state, snapshots, entries }, found))
}
