//! A disk in memory whose power can fail.
//!
//! The disk counts its operations: writes, changes of length and syncs. The power fails at an
//! operation that the test has chosen. After the failure nothing reaches the disk.
//! [`SimulatedDisk::after_power_cut`] returns the contents that are found afterwards: all synced
//! bytes, and a random selection of the sectors of the unsynced writes.
//!
//! ```text
//!   write A ─ write B ─ sync ─ write C ─ write D (2 sectors) ─✂
//!   found again: A and B for certain;  C: maybe;  D: neither, one, or both sectors, even if
//!                                                 the earlier write C is missing
//! ```
//!
//! A disk that [lies](SimulatedDisk::lying) reports some syncs as done without doing them.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::file::StoreFile;

/// The number of bytes that a disk writes as a unit.
const SECTOR: usize = 512;

/// A disk in memory. All clones share its contents and its power.
#[derive(Clone, Debug)]
pub(super) struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    written: Vec<u8>,
    /// The contents that certainly survive a power cut.
    synced: Vec<u8>,
    unsynced: Vec<DiskChange>,
    /// Number of changes and syncs that still succeed before the power fails. If `None`, the power
    /// never fails.
    operations_left: Option<u64>,
    has_failed: bool,
    sync_count: u64,
    /// If set, every sync whose number is a multiple of this number reports success and does
    /// nothing.
    lie_every: Option<u64>,
    recorded: Option<Vec<DiskOperation>>,
}

#[derive(Clone, Debug)]
pub(super) enum DiskOperation {
    Change(DiskChange),
    Sync,
}

#[derive(Clone, Debug)]
pub(super) enum DiskChange {
    Write { offset: usize, data: Vec<u8> },
    Length(usize),
}

impl SimulatedDisk {
    /// Creates a disk whose contents are all synced.
    pub(super) fn with_contents(bytes: Vec<u8>) -> SimulatedDisk {
        let state = DiskState { written: bytes.clone(), synced: bytes, ..DiskState::default() };
        SimulatedDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes every `every`-th sync do nothing and report success.
    pub(super) fn lying(self, every: u64) -> SimulatedDisk {
        self.state.lock().lie_every = Some(every);
        self
    }

    /// Lets `count` more changes and syncs succeed. The power fails at the change or sync that
    /// follows.
    pub(super) fn fail_after(&self, count: u64) {
        self.state.lock().operations_left = Some(count);
    }

    /// Returns everything that was written, as after an orderly shutdown.
    pub(super) fn contents(&self) -> Vec<u8> {
        self.state.lock().written.clone()
    }

    /// Starts to record the operations of the disk.
    pub(super) fn record(&self) {
        self.state.lock().recorded = Some(Vec::new());
    }

    /// Returns the operations that were recorded since the last call, or since recording started.
    pub(super) fn take_recorded(&self) -> Vec<DiskOperation> {
        self.state.lock().recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Repeats an operation that was recorded on another disk.
    pub(super) fn repeat(&self, operation: DiskOperation) -> io::Result<()> {
        match operation {
            DiskOperation::Change(DiskChange::Write { offset, data }) => {
                self.write_at(offset as u64, &data)
            }
            DiskOperation::Change(DiskChange::Length(length)) => self.set_len(length as u64),
            DiskOperation::Sync => self.sync_data(),
        }
    }

    pub(super) fn sync_count(&self) -> u64 {
        self.state.lock().sync_count
    }

    /// Returns the disk as the next process finds it, if the previous process was killed at the
    /// point where the power would have failed. All writes are present, but a later power cut may
    /// still lose unsynced writes.
    pub(super) fn after_kill(&self) -> SimulatedDisk {
        let state = self.state.lock();
        let (synced, unsynced) = (state.synced.clone(), state.unsynced.clone());
        let mut written = synced.clone();
        unsynced.iter().for_each(|change| change.apply(&mut written));
        let state = DiskState { written, synced, unsynced, ..DiskState::default() };
        SimulatedDisk { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn after_power_cut(&self, rng: &mut StdRng) -> Vec<u8> {
        let state = self.state.lock();
        let mut found = state.synced.clone();
        // The share of kept sectors is random, so that some power cuts lose nearly all writes and
        // others lose nearly none.
        let kept_of_eight = rng.random_range(0..=8);
        let mut order: Vec<&DiskChange> = state.unsynced.iter().collect();
        // The file system keeps its changes of the length in order. So a random number of these
        // changes take effect, starting with the oldest.
        let lengths = order.iter().filter_map(|change| match change {
            DiskChange::Length(length) => Some(*length),
            DiskChange::Write { .. } => None,
        });
        let lengths: Vec<usize> = lengths.collect();
        for length in &lengths[..rng.random_range(0..=lengths.len())] {
            found.resize(*length, 0);
        }
        order.shuffle(rng);
        for change in order {
            if let DiskChange::Write { offset, data } = change {
                write_some_sectors(&mut found, *offset, data, kept_of_eight, rng);
            }
        }
        found
    }
}

/// Writes a random selection of the sectors of `data`: on average, `kept` out of eight. Skips
/// sectors outside the file.
fn write_some_sectors(disk: &mut [u8], offset: usize, data: &[u8], kept: u32, rng: &mut StdRng) {
    let mut from = offset;
    let end = offset + data.len();
    while from < end {
        let to = ((from / SECTOR + 1) * SECTOR).min(end);
        if rng.random_ratio(kept, 8) && to <= disk.len() {
            disk[from..to].copy_from_slice(&data[from - offset..to - offset]);
        }
        from = to;
    }
}

impl DiskChange {
    fn apply(&self, disk: &mut Vec<u8>) {
        match self {
            DiskChange::Length(length) => disk.resize(*length, 0),
            DiskChange::Write { offset, data } => {
                disk[*offset..*offset + data.len()].copy_from_slice(data);
            }
        }
    }
}

impl DiskState {
    fn require_power(&self) -> io::Result<()> {
        if self.has_failed { Err(io::Error::other("the power failed")) } else { Ok(()) }
    }

    fn note(&mut self, operation: impl FnOnce() -> DiskOperation) {
        if let Some(recorded) = &mut self.recorded {
            recorded.push(operation());
        }
    }

    fn change(&mut self, change: DiskChange) -> io::Result<()> {
        self.require_power()?;
        self.note(|| DiskOperation::Change(change.clone()));
        self.unsynced.push(change.clone());
        self.count_operation()?;
        change.apply(&mut self.written);
        Ok(())
    }

    /// Counts an operation, and fails if the power fails during it. If the power fails during a
    /// write, that write may be lost, like the unsynced writes before it.
    fn count_operation(&mut self) -> io::Result<()> {
        self.has_failed = self.operations_left == Some(0);
        self.operations_left = self.operations_left.map(|left| left.saturating_sub(1));
        self.require_power()
    }
}

impl StoreFile for SimulatedDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().written.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        let from = offset as usize;
        let bytes = state.written.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state.lock().change(DiskChange::Length(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        state.require_power()?;
        state.note(|| DiskOperation::Sync);
        state.count_operation()?;
        state.sync_count += 1;
        if state.lie_every.is_some_and(|every| state.sync_count.is_multiple_of(every)) {
            return Ok(());
        }
        let mut synced = std::mem::take(&mut state.synced);
        state.unsynced.drain(..).for_each(|change| change.apply(&mut synced));
        state.synced = synced;
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let offset = offset as usize;
        if offset + data.len() > state.written.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        state.change(DiskChange::Write { offset, data: data.to_vec() })
    }
}
