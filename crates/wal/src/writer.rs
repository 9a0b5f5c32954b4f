//! Appends to the log: records are buffered, a sync writes them to the disk, and a full segment is
//! *cut*: shortened to its records and followed by a new segment.
//!
//! ```text
//!   append ── check rules ── encode into the buffer ── (128 KiB: write, no sync)
//!   sync   ── state ── write the rest ── segment full? ─ no ─ reserve space ── sync
//!                                                      └ yes ─ cut
//! ```
//!
//! * A sync covers entries, followed by at most one state. If it also covers a snapshot, more
//!   states and entries may follow. A start relies on this to distinguish a hole from a torn write
//!   (`SegmentBytes::find_later_sync`).
//! * A segment is full when its records reach its size. It may be longer by one batch, or by more
//!   while the disk has no space for another segment.
//! * The first failed write or sync is the last operation: every later operation returns its error.
//!   Linux drops pages that it could not write, and reports that only once. So a second sync would
//!   succeed although data is lost.
//! * `docs/log.md` draws the cut. `Wal::cut` lists its steps. After the cut, `sync` writes the
//!   durable end.
//! * If the disk is full, no segment is cut. Writes that still need space wait in the server's
//!   `FileSystem`, which is `TimedFiles`. See `server/src/threads/disk_space.rs`.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::durable_end::{DurableEnd, DurableEndFile};
use super::frame;
use super::log_validator::LogValidator;
use super::scan::OpenSegment;
use super::segment_name::SegmentName;
use super::{Append, Options, ShortTail, TEMPORARY_NAMES, allocate, segment_length};
use crate::error::{Error, Result};
use crate::files::{FileSystem, remove_if_there};
use crate::wire::{Entry, HardState, Metadata, Record, RecordKind, WalSnapshot};

/// The buffer is written without waiting for a sync when it has at least this many bytes.
const BUFFER_MAX: usize = 128 << 10;

#[derive(Debug)]
pub struct Wal {
    wal_dir: WalDir,
    /// The segments before the last one, oldest first. A segment that this log has read or written
    /// is `Some`: it is open and locked.
    earlier_segments: VecDeque<(SegmentName, Option<OpenSegment>)>,
    last_segment: OpenSegment,
    end: LogEnd,
    /// Encoded records, which will be written at `end.offset`.
    buffer: Vec<u8>,
    /// The newest state, if its record is not in the buffer yet. Otherwise `None`.
    pending_state: Option<HardState>,
    /// Scratch space for the data of one record.
    data: Vec<u8>,
    /// If true, something was appended since the last sync.
    is_dirty: bool,
    /// The index of the newest snapshot whose record is on disk.
    durable_snapshot_index: u64,
    /// The file that names the end of the last sync. `None` if the disk was full when the log was
    /// opened.
    durable_end: Option<DurableEndFile>,
    /// The error that [`Options::accept_loss`] suppressed when the log was opened, or `None` if
    /// there was no such error.
    pub accepted_loss: Option<Error>,
    /// The lost end of the last segment, if the segment was too short when the log was opened and
    /// the options accepted this loss. Otherwise `None`.
    pub short_tail: Option<ShortTail>,
    /// If true, the log ended with a full segment when it was opened. A full segment is synced when
    /// it is cut, so everything in it was synced.
    pub ended_in_full_segment: bool,
    failed: Option<Error>,
}

#[derive(Debug)]
pub(super) struct WalDir {
    pub(super) files: Arc<dyn FileSystem>,
    pub(super) dir: PathBuf,
    pub(super) options: Options,
}

#[derive(Debug, Default)]
pub(super) struct LogEnd {
    pub(super) metadata: Metadata,
    pub(super) validator: LogValidator,
    pub(super) crc: u32,
    /// The offset in the last segment where the next record goes.
    pub(super) offset: u64,
    /// The index of the newest snapshot from which a start is possible.
    pub(super) snapshot_index: u64,
}

impl Wal {
    /// Creates a log that starts with a snapshot at index 0, followed by the first entries and a
    /// state, if there are any. When it returns `Ok`, all of it is on disk. If it fails, there is
    /// either no log or a complete one.
    pub fn create(
        files: Arc<dyn FileSystem>,
        dir: &Path,
        metadata: Metadata,
        options: Options,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> Result<Wal> {
        if super::exists(&*files, dir)? {
            return Err(Error::Exists { path: dir.to_owned() });
        }
        // The directory will be replaced, so it must be empty if it exists.
        if let Ok(names) = files.list(dir)
            && !names.is_empty()
        {
            return Err(Error::NotEmpty { path: dir.to_owned(), names: names.join(", ") });
        }
        let wal_dir = WalDir { files, dir: dir.to_owned(), options };
        let mut end = LogEnd { metadata, ..LogEnd::default() };
        let mut head = Vec::new();
        end.put_segment_head(&mut head);
        end.put(&mut head, RecordKind::Snapshot, &WalSnapshot::default().encode());
        end.put_first_records(&mut head, entries, state).map_err(Error::Refused)?;
        end.offset = head.len() as u64;
        let unmade = |source| Error::path(dir, "make a log", source);
        let segment = wal_dir.create_first_segment(&head, &end).map_err(unmade)?;
        let durable_end = DurableEndFile::open(&*wal_dir.files, dir).map_err(unmade)?;
        let mut wal = Wal::new(wal_dir, VecDeque::new(), segment, end);
        wal.durable_end = Some(durable_end);
        Ok(wal)
    }

    pub(super) fn new(
        wal_dir: WalDir,
        earlier_segments: VecDeque<(SegmentName, Option<OpenSegment>)>,
        last_segment: OpenSegment,
        end: LogEnd,
    ) -> Wal {
        Wal {
            wal_dir,
            earlier_segments,
            last_segment,
            buffer: Vec::with_capacity(BUFFER_MAX),
            pending_state: None,
            data: Vec::new(),
            is_dirty: false,
            durable_snapshot_index: end.snapshot_index,
            durable_end: None,
            accepted_loss: None,
            short_tail: None,
            ended_in_full_segment: false,
            failed: None,
            end,
        }
    }

    /// Returns the index of the last appended entry, or of a received snapshot if the log restarts
    /// there.
    pub fn last_index(&self) -> u64 {
        self.end.validator.last_index
    }

    /// Appends entries, and then the state. Returns whether raft must wait for a
    /// [`sync`](Wal::sync) before it sends messages. It need not wait if only the commit index
    /// rose, because a member can learn the commit index again.
    pub fn save(&mut self, entries: &[Entry], state: Option<&HardState>) -> Result<bool> {
        self.append(None, entries, state)
    }

    /// Appends all of an [`Append`], or nothing if it breaks a rule. Returns whether it needs a
    /// sync. After a failed write the log accepts nothing more.
    pub fn append_all(&mut self, append: &Append) -> Result<bool> {
        let Append { snapshot, entries, hard_state: state } = append;
        self.append(snapshot.as_ref(), entries, state.as_ref())
    }

    fn append(
        &mut self,
        snapshot: Option<&WalSnapshot>,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> Result<bool> {
        self.require_not_failed()?;
        let state = state.filter(|state| !state.is_empty());
        let old = self.end.validator.hard_state;
        let between = snapshot.filter(|_| !entries.is_empty()).map(|snapshot| {
            let state = *state.unwrap_or(&old);
            HardState { commit: snapshot.index.max(old.commit), ..state }
        });
        let rules = self.check_append(snapshot, between.as_ref(), entries, state)?;
        if let Some(snapshot) = snapshot {
            // A reader uses the commit index to decide whether the log restarts at this snapshot.
            // So the pending state is written before the snapshot.
            self.put_pending_state();
            self.put(RecordKind::Snapshot, |out| out.extend(snapshot.encode()));
            self.end.snapshot_index = self.end.snapshot_index.max(snapshot.index);
        }
        // With this state the snapshot is valid even if the log ends here. The commit index in the
        // state also shows that the next entries follow the snapshot.
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
            self.pending_state = Some(*state);
            self.is_dirty = true;
        }
        self.end.validator = rules;
        let is_voted = state.is_some_and(|new| (new.term, new.vote) != (old.term, old.vote));
        Ok(snapshot.is_some() || !entries.is_empty() || is_voted)
    }

    /// Returns the validator after the append. Fails if the append breaks a rule.
    fn check_append(
        &self,
        snapshot: Option<&WalSnapshot>,
        between: Option<&HardState>,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> Result<LogValidator> {
        let mut rules = self.end.validator.clone();
        let mut check = || {
            if let Some(snapshot) = snapshot {
                if snapshot.index > 0 && snapshot.conf_state.is_none() {
                    return Err(format!("a snapshot at {} without members", snapshot.index));
                }
                rules.accept_snapshot(snapshot)?;
            }
            between.map_or(Ok(()), |state| rules.accept_hard_state(state))?;
            entries.iter().try_for_each(|entry| rules.accept_entry(entry))?;
            state.map_or(Ok(()), |state| rules.accept_hard_state(state))
        };
        check().map_err(Error::Refused)?;
        Ok(rules)
    }

    fn put_pending_state(&mut self) {
        if let Some(state) = self.pending_state.take() {
            self.put(RecordKind::State, |out| out.extend(state.encode()));
        }
    }

    fn put(&mut self, kind: RecordKind, encode: impl FnOnce(&mut Vec<u8>)) {
        self.data.clear();
        encode(&mut self.data);
        self.end.put(&mut self.buffer, kind, &self.data);
        self.is_dirty = true;
    }

    /// Syncs everything that was appended. If the segment is full, ends it and starts the next one,
    /// unless the disk lacks the space.
    pub fn sync(&mut self) -> Result<()> {
        self.require_not_failed()?;
        if !self.is_dirty {
            return Ok(());
        }
        self.put_pending_state();
        self.flush()?;
        let is_full = self.should_cut();
        if is_full {
            self.cut()?;
        } else {
            self.reserve()?;
            let synced = self.last_segment.file.sync();
            self.latch_error(synced, "sync")?;
        }
        self.is_dirty = false;
        self.durable_snapshot_index = self.end.snapshot_index;
        self.write_durable_end(is_full);
        Ok(())
    }

    /// Creates or replaces the file that names the durable end. Everything that was appended must
    /// be on disk.
    pub(super) fn create_durable_end(&mut self) -> Result<()> {
        let WalDir { files, dir, .. } = &self.wal_dir;
        let created = DurableEndFile::create(&**files, dir, &self.durable_end());
        self.durable_end = created.map_err(|source| {
            Error::path(dir, "write the file that names its durable end", source)
        })?;
        Ok(())
    }

    fn durable_end(&self) -> DurableEnd {
        self.end.durable_end(self.last_segment.name)
    }

    /// Overwrites the durable end after a sync of the log. This function syncs the file `durable`
    /// itself only once per segment. This is enough to notice a missing last segment after a power
    /// cut.
    ///
    /// A failure is ignored. The file then names the end of an earlier sync, which is still
    /// correct.
    fn write_durable_end(&mut self, is_new_segment: bool) {
        let end = self.durable_end();
        if let Some(file) = &mut self.durable_end
            && file.write(&end).is_ok()
            && is_new_segment
        {
            let _ = file.sync();
        }
    }

    /// Writes the buffer, without a sync.
    fn flush(&mut self) -> Result<()> {
        let written = self.last_segment.file.write_at(self.end.offset, &self.buffer);
        self.latch_error(written, "write")?;
        self.end.offset += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Extends the reserve after the end of the log if less than half of it is left.
    fn reserve(&mut self) -> Result<()> {
        let reserve = self.wal_dir.options.reserve();
        if self.end.offset + reserve / 2 > self.last_segment.reserved {
            let allocated = allocate(&mut *self.last_segment.file, self.end.offset + reserve);
            self.last_segment.reserved =
                self.latch_error(allocated, "reserve space")?.max(self.last_segment.reserved);
        }
        Ok(())
    }

    /// Returns whether the segment is full and there is space for another segment: for its reserve,
    /// and as much again for other files. If there is no space, the log continues in this segment,
    /// which still has its own reserve, and each later sync checks again.
    fn should_cut(&self) -> bool {
        let WalDir { files, dir, options } = &self.wal_dir;
        // The cut frees space that was reserved and not used.
        let given_back = self.last_segment.reserved.saturating_sub(self.end.offset);
        self.end.offset >= options.segment_bytes
            && files.free_space(dir).saturating_add(given_back) >= 2 * options.reserve()
    }

    /// Ends the segment and starts the next. Each step is on disk before the next one starts:
    ///
    /// 1. The old segment is cut to its contents and synced. This is the sync that the caller
    ///    requested.
    /// 2. The new segment is created under a temporary name, locked, and extended. It gets its
    ///    head: the running crc, the metadata and the last state. It is synced. If it has less than
    ///    its full length, the file `length` is then removed, because it would be wrong.
    /// 3. The new segment is renamed to its final name, and the directory is synced.
    ///
    /// After a crash between any two steps, the log ends with the old segment. A temporary file may
    /// remain, which is removed when the log is opened.
    fn cut(&mut self) -> Result<()> {
        let file = &mut self.last_segment.file;
        let trimmed = file.set_length(self.end.offset).and_then(|()| file.sync());
        self.latch_error(trimmed, "cut and sync a full segment")?;
        let name = SegmentName {
            sequence: self.last_segment.name.sequence + 1,
            index: self.last_index().saturating_add(1),
        };
        let mut head = Vec::new();
        self.end.put_segment_head(&mut head);
        let built = self.wal_dir.create_segment(name, &head);
        let next = self.latch_error(built, "create the next segment")?;
        let full = std::mem::replace(&mut self.last_segment, next);
        self.earlier_segments.push_back((full.name, Some(full)));
        self.end.offset = head.len() as u64;
        Ok(())
    }

    /// Removes the oldest segments that a start from `durable_index` does not need, until only
    /// [`Options::segments_max`] are left. A `durable_index` above the newest recorded snapshot is
    /// treated as the index of that snapshot. Returns the number of removed segments.
    pub fn purge(&mut self, durable_index: u64) -> Result<usize> {
        self.require_not_failed()?;
        let needed = durable_index.min(self.durable_snapshot_index);
        let max = self.wal_dir.options.segments_max.unwrap_or(usize::MAX).max(1);
        let mut removed = 0;
        // A full last segment is counted twice, as if the next segment already existed. If the next
        // segment could not be created for lack of space, removing an earlier segment frees that
        // space.
        let is_full = self.end.offset >= self.wal_dir.options.segment_bytes;
        while self.earlier_segments.len() + usize::from(is_full) >= max
            && self.second_segment().index <= needed
        {
            let Some((name, segment)) = self.earlier_segments.pop_front() else { break };
            let path = self.wal_dir.dir.join(name.to_string());
            // The directory is synced after each removal. Otherwise a power cut could bring back
            // the older of two segments, and leave a gap. It is not an error if an operator has
            // already removed the file.
            let gone = remove_if_there(&*self.wal_dir.files, &path);
            let gone = gone.and_then(|()| self.wal_dir.files.sync_dir(&self.wal_dir.dir));
            self.latch_error(gone, "remove an earlier segment")?;
            drop(segment);
            removed += 1;
        }
        Ok(removed)
    }

    fn second_segment(&self) -> SegmentName {
        self.earlier_segments.get(1).map_or(self.last_segment.name, |(name, _)| *name)
    }

    pub fn segment_count(&self) -> usize {
        self.earlier_segments.len() + 1
    }

    /// See [`FileSystem::syncs`].
    pub fn syncs(&self) -> bool {
        self.wal_dir.files.syncs()
    }

    /// Syncs and unlocks the segments. Without this call, unsynced records may be lost, as in a
    /// crash.
    pub fn close(mut self) -> Result<()> {
        self.sync()?;
        if let Some(file) = &mut self.durable_end {
            let _ = file.sync();
        }
        Ok(())
    }

    fn require_not_failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Stores an error, which every later operation returns.
    fn latch_error<T>(&mut self, done: io::Result<T>, doing: &'static str) -> Result<T> {
        done.map_err(|source| {
            let (path, source) = (self.last_segment.path.clone(), Arc::new(source));
            let error = Error::Failed { path, doing, source };
            self.failed = Some(error.clone());
            error
        })
    }
}

impl LogEnd {
    /// Returns the end of the log as its durable end. All appended records must be on disk.
    fn durable_end(&self, segment: SegmentName) -> DurableEnd {
        let (offset, crc) = (self.offset, self.crc);
        DurableEnd { segment, offset, crc, last_index: self.validator.last_index }
    }

    /// Appends a record to `out`, and its data to the running crc.
    fn put(&mut self, out: &mut Vec<u8>, kind: RecordKind, data: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, data);
        frame::put(out, &Record { kind, crc: self.crc, data: Some(data) });
    }

    /// Appends the first records of a new log.
    fn put_first_records(
        &mut self,
        out: &mut Vec<u8>,
        entries: &[Entry],
        state: Option<&HardState>,
    ) -> std::result::Result<(), String> {
        let mut data = Vec::new();
        for entry in entries {
            self.validator.accept_entry(entry)?;
            data.clear();
            entry.encode_to(&mut data);
            self.put(out, RecordKind::Entry, &data);
        }
        if let Some(state) = state {
            self.validator.accept_hard_state(state)?;
            self.put(out, RecordKind::State, &state.encode());
        }
        Ok(())
    }

    /// Appends the records at the start of every segment.
    fn put_segment_head(&mut self, out: &mut Vec<u8>) {
        frame::put(out, &Record { kind: RecordKind::Crc, crc: self.crc, data: None });
        self.put(out, RecordKind::Metadata, &self.metadata.encode());
        let state = self.validator.hard_state;
        if !state.is_empty() {
            self.put(out, RecordKind::State, &state.encode());
        }
    }
}

impl WalDir {
    /// Creates the directory with the first segment, under a temporary name at first.
    fn create_first_segment(&self, head: &[u8], end: &LogEnd) -> io::Result<OpenSegment> {
        let mut temporary = self.dir.clone().into_os_string();
        temporary.push(".tmp");
        let temporary = PathBuf::from(temporary);
        self.remove_temporary(&temporary)?;
        self.files.create_dir(&temporary)?;
        let name = SegmentName { sequence: 0, index: 0 };
        let mut segment = self.create_segment_file(name, temporary.join(name.to_string()), head)?;
        if self.options.has_full_length(&*segment.file)? {
            segment_length::write_first(&*self.files, &temporary, self.options.segment_bytes)?;
        }
        DurableEndFile::create_first(&*self.files, &temporary, &end.durable_end(name))?;
        self.files.sync_dir(&temporary)?;
        if let Err(error) = self.files.rename(&temporary, &self.dir) {
            // Only the error of the rename is reported.
            let _ = self.remove_temporary(&temporary);
            return Err(match error.kind() {
                io::ErrorKind::ResourceBusy => io::Error::new(
                    error.kind(),
                    "it is a mount point, which cannot be replaced; use a directory inside it",
                ),
                _ => error,
            });
        }
        if let Some(parent) = self.dir.parent() {
            self.files.sync_dir(parent)?;
        }
        segment.path = self.dir.join(name.to_string());
        Ok(segment)
    }

    /// Removes the files that an interrupted [`create_first_segment`](WalDir::create_first_segment)
    /// has left.
    fn remove_temporary(&self, temporary: &Path) -> io::Result<()> {
        let names = match self.files.list(temporary) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            listed => listed?,
        };
        names.iter().try_for_each(|name| self.files.remove(&temporary.join(name)))?;
        self.files.remove_dir(temporary)
    }

    fn create_segment(&self, name: SegmentName, head: &[u8]) -> io::Result<OpenSegment> {
        // The two names are used in turn, as in etcd, which prepares one segment while the other is
        // being renamed.
        let temporary = self.dir.join(TEMPORARY_NAMES[(name.sequence % 2) as usize]);
        let mut segment = self.create_segment_file(name, temporary.clone(), head)?;
        segment.path = self.dir.join(name.to_string());
        if !self.options.has_full_length(&*segment.file)? {
            segment_length::clear(&*self.files, &self.dir)?;
        }
        self.files.rename(&temporary, &segment.path)?;
        self.files.sync_dir(&self.dir)?;
        Ok(segment)
    }

    /// Creates a segment file, which is locked and synced.
    fn create_segment_file(
        &self,
        name: SegmentName,
        path: PathBuf,
        head: &[u8],
    ) -> io::Result<OpenSegment> {
        let mut file = self.files.create(&path)?;
        if !file.try_lock()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let dir = path.parent().unwrap_or(&self.dir);
        let reserved = self.options.preallocate(&*self.files, dir, &mut *file, 0)?;
        file.write_at(0, head)?;
        file.sync()?;
        Ok(OpenSegment { name, path, file, reserved })
    }
}
