//! Appending: records gather in memory, a sync carries them to the disk, a full segment is cut.
//!
//! ```text
//!   append ── check rules ── encode into the buffer ── (128 KiB: write, no sync)
//!   sync   ── write the rest ── segment full? ─ no ─ reserve room ── sync
//!                                             └ yes ─ cut
//! ```
//!
//! # The cut
//!
//! A segment is full when what was written reaches its size; it may be longer by one batch, and by more
//! while the disk has no room for another. Then, in this order, each step on disk before the next:
//!
//! 1. The old segment is cut to what was written, and synced: this is the sync that was asked for.
//! 2. The new one is made under a temporary name, locked, made long, and gets its head: the sum so
//!    far, the metadata, the last state. It is synced.
//! 3. It gets its name, and the directory is synced.
//!
//! Killed between any two, there is a log that ends where the old segment ends, and perhaps a
//! temporary file, which is removed when the log is opened.
//!
//! # Failure
//!
//! After a failed write or sync nobody knows what is on disk. Linux drops the pages that it could
//! not write and reports that once, so that a second sync would succeed and lie. So the first
//! failure is the last operation: it is kept, and every later call returns it.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::frame;
use super::name::SegmentName;
use super::rules::Rules;
use super::scan::OpenSegment;
use super::{Append, Options, ShortTail, TEMPORARY, allocate, length};
use crate::error::{Error, Result};
use crate::files::Files;
use crate::wire::{Entry, HardState, Metadata, Record, RecordKind, Snapshot};

/// What is written at once before anyone asks for a sync.
const BUFFER_MAX: usize = 128 << 10;

/// A log that is open to append to it.
#[derive(Debug)]
pub struct Wal {
    place: Place,
    /// The segments before the tail, oldest first. Those that were read are locked.
    earlier: VecDeque<(SegmentName, Option<OpenSegment>)>,
    tail: OpenSegment,
    end: Tail,
    /// Records that were not written yet; they belong to `end.offset`.
    buffer: Vec<u8>,
    /// Where the data of a record is encoded, to be summed.
    data: Vec<u8>,
    /// Whether something was appended since the last sync.
    is_dirty: bool,
    /// The newest snapshot whose record is on disk.
    durable_snapshot: u64,
    short: Option<ShortTail>,
    failed: Option<Error>,
}

/// Where a log is, and how it is kept.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) files: Arc<dyn Files>,
    pub(super) dir: PathBuf,
    pub(super) options: Options,
}

/// Where a log ends.
#[derive(Debug)]
pub(super) struct Tail {
    pub(super) metadata: Metadata,
    pub(super) rules: Rules,
    pub(super) crc: u32,
    /// In the last segment, behind what was written.
    pub(super) offset: u64,
    /// The newest snapshot from which a start may be made.
    pub(super) snapshot: u64,
}

impl Wal {
    /// Makes a log that holds nothing but the start of everything, a snapshot at index 0. It is on
    /// disk when this returns, or not there at all.
    pub fn create(
        files: Arc<dyn Files>,
        dir: &Path,
        metadata: Metadata,
        options: Options,
    ) -> Result<Wal> {
        Wal::create_with(files, dir, metadata, options, &[], None)
    }

    /// The same, with first entries and a state: all of it is there, or no log.
    pub fn create_with(
        files: Arc<dyn Files>,
        dir: &Path,
        metadata: Metadata,
        options: Options,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> Result<Wal> {
        if super::exists(&*files, dir)? {
            return Err(Error::Exists { path: dir.to_owned() });
        }
        let place = Place { files, dir: dir.to_owned(), options };
        let rules = Rules::after(0);
        let mut end = Tail { metadata, rules, crc: 0, offset: 0, snapshot: 0 };
        let mut head = Vec::new();
        end.put_head(&mut head);
        end.put(&mut head, RecordKind::Snapshot, &Snapshot::default().encode());
        end.put_first(&mut head, entries, state).map_err(Error::Refused)?;
        let tail = place.build(&head).map_err(|source| Error::path(dir, "make a log", source))?;
        end.offset = head.len() as u64;
        Ok(Wal::new(place, VecDeque::new(), tail, end))
    }

    fn new(
        place: Place,
        earlier: VecDeque<(SegmentName, Option<OpenSegment>)>,
        tail: OpenSegment,
        end: Tail,
    ) -> Wal {
        let durable_snapshot = end.snapshot;
        let (buffer, data) = (Vec::with_capacity(BUFFER_MAX), Vec::new());
        let (is_dirty, short, failed) = (false, None, None);
        Wal { place, earlier, tail, end, buffer, data, is_dirty, durable_snapshot, short, failed }
    }

    /// Goes on with a log that was read: `unread` are the segments before those that were.
    pub(super) fn resume(
        place: Place,
        unread: &[SegmentName],
        mut read: Vec<OpenSegment>,
        end: Tail,
    ) -> Result<Wal> {
        let tail = read.pop().ok_or_else(|| Error::Missing { path: place.dir.clone() })?;
        let unread = unread.iter().map(|name| (*name, None));
        let read = read.into_iter().map(|segment| (segment.name, Some(segment)));
        Ok(Wal::new(place, unread.chain(read).collect(), tail, end))
    }

    /// The last segment was shorter than it was made when the log was opened.
    pub(super) fn has_lost(&mut self, expected: u64, found: u64) {
        let (path, last_index) = (self.tail.path.clone(), self.last_index());
        self.short = Some(ShortTail { path, expected, found, last_index });
    }

    /// The segment that was last when the log was opened, if it had lost its end.
    pub fn short_tail(&self) -> Option<&ShortTail> {
        self.short.as_ref()
    }

    /// Whose log it is.
    pub fn metadata(&self) -> Metadata {
        self.end.metadata
    }

    /// The last state that was appended.
    pub fn state(&self) -> HardState {
        self.end.rules.state()
    }

    /// The index of the last entry that was appended, or of a snapshot beyond it.
    pub fn last_index(&self) -> u64 {
        self.end.rules.last()
    }

    /// Appends entries, then the state if there is one. Returns whether raft must wait for a
    /// [`sync`](Wal::sync) before it speaks of this: not if only the commit index rose, for that
    /// can be learned again.
    pub fn save(&mut self, entries: &[Entry], state: Option<&HardState>) -> Result<bool> {
        self.append(None, entries, state)
    }

    /// Records a snapshot and syncs.
    pub fn save_snapshot(&mut self, snapshot: &Snapshot) -> Result<()> {
        self.append(Some(snapshot), &[], None)?;
        self.sync()
    }

    /// Appends all of an [`Append`], or nothing; returns whether it needs a sync.
    pub fn append_all(&mut self, append: &Append) -> Result<bool> {
        let Append { snapshot, entries, state } = append;
        self.append(snapshot.as_ref(), entries, state.as_ref())
    }

    fn append(
        &mut self,
        snapshot: Option<&Snapshot>,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> Result<bool> {
        self.require_health()?;
        let state = state.filter(|state| !state.is_empty());
        let old = self.state();
        let between = snapshot.filter(|_| !entries.is_empty()).map(|snapshot| {
            let state = *state.unwrap_or(&old);
            HardState { commit: snapshot.index.max(old.commit), ..state }
        });
        let rules = self.checked(snapshot, between.as_ref(), entries, state)?;
        if let Some(snapshot) = snapshot {
            self.put(RecordKind::Snapshot, |out| out.extend(snapshot.encode()));
            self.end.snapshot = self.end.snapshot.max(snapshot.index);
        }
        // Torn behind this, the log still knows that the snapshot counts, and where entries begin.
        if let Some(state) = between {
            self.put(RecordKind::State, |out| out.extend(state.encode()));
        }
        for entry in entries {
            self.put(RecordKind::Entry, |out| entry.encode_to(out));
            if self.buffer.len() >= BUFFER_MAX {
                self.flush()?;
            }
        }
        if let Some(state) = state {
            self.put(RecordKind::State, |out| out.extend(state.encode()));
        }
        self.end.rules = rules;
        let is_voted = state.is_some_and(|new| (new.term, new.vote) != (old.term, old.vote));
        Ok(snapshot.is_some() || !entries.is_empty() || is_voted)
    }

    /// Where the log stands after an append that breaks no rule.
    fn checked(
        &self,
        snapshot: Option<&Snapshot>,
        between: Option<&HardState>,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> Result<Rules> {
        let mut rules = self.end.rules.clone();
        let mut check = || {
            if let Some(snapshot) = snapshot {
                if snapshot.index > 0 && snapshot.conf_state.is_none() {
                    return Err(format!("a snapshot at {} without members", snapshot.index));
                }
                rules.snapshot(snapshot)?;
            }
            between.map_or(Ok(()), |state| rules.state_is(state))?;
            entries.iter().try_for_each(|entry| rules.entry(entry))?;
            state.map_or(Ok(()), |state| rules.state_is(state))
        };
        check().map_err(Error::Refused)?;
        Ok(rules)
    }

    /// Encodes a record into the buffer.
    fn put(&mut self, kind: RecordKind, encode: impl FnOnce(&mut Vec<u8>)) {
        self.data.clear();
        encode(&mut self.data);
        self.end.put(&mut self.buffer, kind, &self.data);
        self.is_dirty = true;
    }

    /// Returns when everything that was appended is on disk. Cuts the segment if it is full.
    pub fn sync(&mut self) -> Result<()> {
        self.require_health()?;
        if !self.is_dirty {
            return Ok(());
        }
        self.flush()?;
        if self.is_due() {
            self.cut()?;
        } else {
            self.reserve()?;
            let synced = self.tail.file.sync();
            self.kept(synced, "sync")?;
        }
        self.is_dirty = false;
        self.durable_snapshot = self.end.snapshot;
        Ok(())
    }

    /// Writes the buffer, without a sync.
    fn flush(&mut self) -> Result<()> {
        let written = self.tail.file.write_at(self.end.offset, &self.buffer);
        self.kept(written, "write")?;
        self.end.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Sees to it that there is room behind the end when others have filled the disk.
    fn reserve(&mut self) -> Result<()> {
        let reserve = self.place.options.reserve();
        if self.end.offset + reserve / 2 > self.tail.reserved {
            let allocated = allocate(&mut *self.tail.file, self.end.offset + reserve);
            self.tail.reserved = self.kept(allocated, "reserve room")?.max(self.tail.reserved);
        }
        Ok(())
    }

    /// Whether the segment is full, and there is room for another: if not, this one still has a reserve.
    fn is_due(&self) -> bool {
        let Place { files, dir, options } = &self.place;
        // What was reserved and not used is given back by the cut.
        let given_back = self.tail.reserved.saturating_sub(self.end.offset);
        self.end.offset >= options.segment_bytes
            && files.free_space(dir).saturating_add(given_back) >= 2 * options.reserve()
    }

    /// Ends the segment and begins the next.
    fn cut(&mut self) -> Result<()> {
        let file = &mut self.tail.file;
        let trimmed = file.set_length(self.end.offset).and_then(|()| file.sync());
        self.kept(trimmed, "cut and sync")?;
        let name = SegmentName {
            sequence: self.tail.name.sequence + 1,
            index: self.last_index().saturating_add(1),
        };
        let mut head = Vec::new();
        self.end.put_head(&mut head);
        let built = self.place.build_next(name, &head);
        let next = self.kept(built, "begin the segment after it")?;
        let full = std::mem::replace(&mut self.tail, next);
        self.earlier.push_back((full.name, Some(full)));
        self.end.offset = head.len() as u64;
        Ok(())
    }

    /// Removes the oldest segments of which nothing is needed for a start from `durable_index`, as
    /// long as there are more than [`Options::segments_max`]. An index for which no snapshot is on
    /// record counts as the newest that is. Returns how many were removed.
    pub fn purge(&mut self, durable_index: u64) -> Result<usize> {
        self.require_health()?;
        let needed = durable_index.min(self.durable_snapshot);
        let max = self.place.options.segments_max.unwrap_or(usize::MAX).max(1);
        let mut removed = 0;
        // A full one counts although there was no room yet to begin the next: removing makes some.
        let is_full = self.end.offset >= self.place.options.segment_bytes;
        while self.earlier.len() + usize::from(is_full) >= max && self.second().index <= needed {
            let Some((name, segment)) = self.earlier.pop_front() else { break };
            let path = self.place.dir.join(name.to_string());
            // One by one, or a power cut could bring back the older of two.
            let gone = self.place.files.remove(&path);
            let gone = gone.and_then(|()| self.place.files.sync_dir(&self.place.dir));
            self.kept(gone, "remove a segment before it")?;
            drop(segment);
            removed += 1;
        }
        Ok(removed)
    }

    /// The name of the oldest segment but one.
    fn second(&self) -> SegmentName {
        self.earlier.get(1).map_or(self.tail.name, |(name, _)| *name)
    }

    /// How many segments there are.
    pub fn segments(&self) -> usize {
        self.earlier.len() + 1
    }

    /// Syncs, and unlocks the segments. Without it, what was not synced is lost, as in a crash.
    pub fn close(mut self) -> Result<()> {
        self.sync()
    }

    fn require_health(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Keeps the error of an operation, if it is one, as the answer to all that follows.
    fn kept<T>(&mut self, done: io::Result<T>, doing: &'static str) -> Result<T> {
        done.map_err(|source| {
            let (path, source) = (self.tail.path.clone(), Arc::new(source));
            let error = Error::Failed { path, doing, source };
            self.failed = Some(error.clone());
            error
        })
    }
}

impl Tail {
    /// Appends a record to `out`, and its data to the sum.
    fn put(&mut self, out: &mut Vec<u8>, kind: RecordKind, data: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, data);
        frame::put(out, &Record { kind, crc: self.crc, data: Some(data) });
    }

    /// Appends what a new log is to begin with.
    fn put_first(
        &mut self,
        out: &mut Vec<u8>,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> std::result::Result<(), String> {
        let mut data = Vec::new();
        for entry in entries {
            self.rules.entry(entry)?;
            data.clear();
            entry.encode_to(&mut data);
            self.put(out, RecordKind::Entry, &data);
        }
        if let Some(state) = state {
            self.rules.state_is(state)?;
            self.put(out, RecordKind::State, &state.encode());
        }
        Ok(())
    }

    /// Appends what every segment begins with.
    fn put_head(&mut self, out: &mut Vec<u8>) {
        frame::put(out, &Record { kind: RecordKind::Crc, crc: self.crc, data: None });
        self.put(out, RecordKind::Metadata, &self.metadata.encode());
        let state = self.rules.state();
        if !state.is_empty() {
            self.put(out, RecordKind::State, &state.encode());
        }
    }
}

impl Place {
    /// Makes the directory with the first segment, under a temporary name first.
    fn build(&self, head: &[u8]) -> io::Result<OpenSegment> {
        let mut temporary = self.dir.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        self.clear(&temporary)?;
        self.files.create_dir(&temporary)?;
        let name = SegmentName { sequence: 0, index: 0 };
        let mut segment = self.segment(name, temporary.join(name.to_string()), head)?;
        if self.options.is_long(&*segment.file)? {
            length::write_first(&*self.files, &temporary, self.options.segment_bytes)?;
        }
        self.files.sync_dir(&temporary)?;
        self.files.rename(&temporary, &self.dir)?;
        if let Some(parent) = self.dir.parent() {
            self.files.sync_dir(parent)?;
        }
        segment.path = self.dir.join(name.to_string());
        Ok(segment)
    }

    /// Removes what an interrupted [`build`](Place::build) left.
    fn clear(&self, temporary: &Path) -> io::Result<()> {
        let names = match self.files.list(temporary) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed?,
        };
        names.iter().try_for_each(|name| self.files.remove(&temporary.join(name)))?;
        self.files.remove_dir(temporary)
    }

    /// Makes a segment after the first.
    fn build_next(&self, name: SegmentName, head: &[u8]) -> io::Result<OpenSegment> {
        // Two names in turn, as etcd has them, which prepares one while the other is renamed.
        let temporary = self.dir.join(TEMPORARY[(name.sequence % 2) as usize]);
        let mut segment = self.segment(name, temporary.clone(), head)?;
        segment.path = self.dir.join(name.to_string());
        if !self.options.is_long(&*segment.file)? {
            length::forget(&*self.files, &self.dir)?;
        }
        self.files.rename(&temporary, &segment.path)?;
        self.files.sync_dir(&self.dir)?;
        Ok(segment)
    }

    /// Makes the file of a segment at a path, locked and synced.
    fn segment(&self, name: SegmentName, path: PathBuf, head: &[u8]) -> io::Result<OpenSegment> {
        let mut file = self.files.create(&path)?;
        if !file.try_lock()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let dir = path.parent().unwrap_or(&self.dir);
        let reserved = self.options.allocate_ahead(&*self.files, dir, &mut *file, 0)?;
        file.write_at(0, head)?;
        file.sync()?;
        Ok(OpenSegment { name, path, file, reserved })
    }
}
