//! A disk in memory on which the power can fail.
//!
//! The disk counts writes, changes of length and syncs, and fails at the one that it was set to;
//! from then on nothing reaches it. [`SimulatedDisk::after_power_cut`] is the disk found
//! afterwards: what was synced, and of the rest, sector by sector, what the seed says.
//!
//! ```text
//!   write A ─ write B ─ sync ─ write C ─ write D (2 sectors) ─✂
//!   found again: A, B for certain;  C: yes or no;  D: neither, one, or both sectors, even if
//!                                                  C, which came first, is missing
//! ```
//!
//! A disk that [lies](SimulatedDisk::lying) reports some syncs as done and has done nothing.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::file::StoreFile;

/// Bytes that a disk writes as a whole.
const SECTOR: usize = 512;

/// Clones are the same disk.
#[derive(Clone, Debug)]
pub(super) struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    written: Vec<u8>,
    /// Certain to survive.
    synced: Vec<u8>,
    unsynced: Vec<DiskChange>,
    /// Changes and syncs until the power fails; `None`: never.
    operations_left: Option<u64>,
    has_failed: bool,
    sync_count: u64,
    /// Every sync whose number this divides is a lie.
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
    /// All synced.
    pub(super) fn with_contents(bytes: Vec<u8>) -> SimulatedDisk {
        let state = DiskState { written: bytes.clone(), synced: bytes, ..DiskState::default() };
        SimulatedDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes one of `every` syncs from now on do nothing and report success.
    pub(super) fn lying(self, every: u64) -> SimulatedDisk {
        self.state.lock().lie_every = Some(every);
        self
    }

    /// Lets the power fail at the `count`-th change or sync from now.
    pub(super) fn fail_after(&self, count: u64) {
        self.state.lock().operations_left = Some(count);
    }

    /// Everything that was written, as after an orderly end.
    pub(super) fn contents(&self) -> Vec<u8> {
        self.state.lock().written.clone()
    }

    /// Begins to record what reaches the disk.
    pub(super) fn record(&self) {
        self.state.lock().recorded = Some(Vec::new());
    }

    /// What was recorded since the last call.
    pub(super) fn take_recorded(&self) -> Vec<DiskOperation> {
        self.state.lock().recorded.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Does the same as was done to another disk.
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

    /// What the next process finds when the one before was killed where the power would have
    /// failed: all that was written, though the disk may still lose what was not synced.
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
        // One cut loses nearly everything, another nearly nothing.
        let kept_of_eight = rng.random_range(0..=8);
        let mut order: Vec<&DiskChange> = state.unsynced.iter().collect();
        // The length is the file system's: it changes in order, up to some point.
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

/// Writes those sectors of `data` that the seed keeps and that lie within the file.
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

    /// Counts an operation, at which the power may fail. A write that it fails at is lost like
    /// the unsynced ones before it: perhaps.
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
