//! A disk in memory that fails or loses its power at operations that a test chooses.
//!
//! A file is a *node*; a name leads to it. Both are kept twice, as a program sees them and as they
//! are on the medium, with the list of changes since the last sync. What a power cut may leave is
//! at [`SimulatedDisk::after_power_cut`].
//!
//! * Operations are counted from 1: writes, changes of length, syncs, changes of names.
//!   [`SimulatedDisk::fail_at`] says what happens at one of them.
//! * [`SimulatedDisk::skip_syncs`] makes a disk that lies: with it a test shows that it can fail.
//! * There is no clock. An operation has a cost in microseconds, which a simulation takes with
//!   [`SimulatedDisk::take_cost`] and lets pass before it reports the operation as done.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{File, FileSystem, SECTOR};

/// In microseconds; a test may change it.
const COST_SYNC_US: u64 = 500;
const COST_OTHER_US: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power fails before the operation is done; it and all later ones fail.
    PowerCut,
    /// The operation fails, and whether it was done is not known. Later ones succeed.
    Error,
}

/// Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    nodes: Vec<Inode>,
    /// As a program sees them.
    names: Names,
    /// As they are on the medium.
    synced_names: Names,
    /// Changes of names since the last sync, in order.
    name_changes: Vec<NameChange>,
    /// Node to the number of the opening that holds its lock.
    lock_owners: BTreeMap<usize, u64>,
    open_count: u64,
    operation_count: u64,
    faults: BTreeMap<u64, Fault>,
    is_power_off: bool,
    sync_count: u64,
    skip_sync_every: Option<u64>,
    cost_us: u64,
}

type Names = BTreeMap<PathBuf, Target>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// With its node.
    File(usize),
    Directory,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    written: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<FileChange>,
}

#[derive(Clone, Debug)]
enum FileChange {
    Write { offset: u64, data: Vec<u8> },
    Length(u64),
}

#[derive(Clone, Debug)]
struct NameChange {
    /// The name that it had before, if it is renamed.
    from: Option<PathBuf>,
    path: PathBuf,
    /// `None` if it is removed.
    target: Option<Target>,
}

impl SimulatedDisk {
    pub fn new<P: AsRef<Path>>(directories: impl IntoIterator<Item = P>) -> SimulatedDisk {
        let directories = directories.into_iter().map(|path| path.as_ref().to_owned());
        SimulatedDisk::synced(Vec::new(), directories.map(|dir| (dir, Target::Directory)).collect())
    }

    fn synced(nodes: Vec<Inode>, names: Names) -> SimulatedDisk {
        let synced_names = names.clone();
        let state = DiskState { nodes, names, synced_names, ..DiskState::default() };
        SimulatedDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Lets `fault` happen at the `operation`-th operation from now, counted from 1.
    pub fn fail_at(&self, operation: u64, fault: Fault) {
        let mut state = self.state.lock();
        let at = state.operation_count + operation;
        state.faults.insert(at, fault);
    }

    /// Each sync whose number `every` divides does nothing and reports success.
    pub fn skip_syncs(&self, every: u64) {
        self.state.lock().skip_sync_every = Some(every.max(1));
    }

    /// `false` after a [`Fault::PowerCut`].
    pub fn has_power(&self) -> bool {
        !self.state.lock().is_power_off
    }

    pub fn operations(&self) -> u64 {
        self.state.lock().operation_count
    }

    /// Of files and of directories.
    pub fn syncs(&self) -> u64 {
        self.state.lock().sync_count
    }

    /// The cost of the operations since the last call, in microseconds.
    pub fn take_cost(&self) -> u64 {
        std::mem::take(&mut self.state.lock().cost_us)
    }

    /// The disk after the process died, and the machine did not: all that was written is there, and
    /// no lock is held. What was not synced still is not.
    pub fn after_kill(&self) -> SimulatedDisk {
        let state = self.state.lock();
        let after = DiskState {
            nodes: state.nodes.clone(),
            names: state.names.clone(),
            synced_names: state.synced_names.clone(),
            name_changes: state.name_changes.clone(),
            ..DiskState::default()
        };
        SimulatedDisk { state: Arc::new(Mutex::new(after)) }
    }

    /// The disk when the power is back. Everything on it is synced.
    ///
    /// * Of the changes of a file's length, the first few happened, because a file system keeps
    ///   their order.
    /// * Each sector has had the first few of the writes that touched it. So a long write may be
    ///   torn, and a later write be there while an earlier one, to another sector, is missing.
    /// * Each change of a name happened or not, independently of the others.
    pub fn after_power_cut(&self, seed: u64) -> SimulatedDisk {
        let mut rng = StdRng::seed_from_u64(seed);
        let state = self.state.lock();
        // Some cuts lose nearly everything, others nearly nothing.
        let kept_of_eight = rng.random_range(0..=8);
        let nodes = state.nodes.iter().map(|node| {
            let found = node.after_power_cut(kept_of_eight, &mut rng);
            Inode { written: found.clone(), synced: found, unsynced: Vec::new() }
        });
        let nodes = nodes.collect();
        let mut names = state.synced_names.clone();
        for change in &state.name_changes {
            if rng.random_ratio(kept_of_eight, 8) {
                change.apply(&mut names);
            }
        }
        // Drops files in directories that were lost.
        let kept = names.clone();
        let has_dir = |path: &Path| path.parent().is_some_and(|dir| kept.contains_key(dir));
        names.retain(|path, target| *target == Target::Directory || has_dir(path));
        SimulatedDisk::synced(nodes, names)
    }
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            FileChange::Length(length) => bytes.resize(*length as usize, 0),
            FileChange::Write { offset, data } => {
                let (from, to) = (*offset as usize, *offset as usize + data.len());
                bytes.resize(bytes.len().max(to), 0);
                bytes[from..to].copy_from_slice(data);
            }
        }
    }
}

impl Inode {
    fn sync_all(&mut self) {
        self.unsynced.drain(..).for_each(|change| change.apply(&mut self.synced));
    }

    fn after_power_cut(&self, kept_of_eight: u32, rng: &mut StdRng) -> Vec<u8> {
        let mut found = self.synced.clone();
        let lengths = self.unsynced.iter().filter(|change| matches!(change, FileChange::Length(_)));
        let lengths_kept = match kept_of_eight {
            8 => usize::MAX,
            _ => rng.random_range(0..=lengths.count()),
        };
        let (mut lengths_seen, mut stopped) = (0, BTreeSet::new());
        for change in &self.unsynced {
            match change {
                FileChange::Length(length) => {
                    lengths_seen += 1;
                    if lengths_seen <= lengths_kept {
                        found.resize(*length as usize, 0);
                    }
                }
                FileChange::Write { offset, data } => {
                    for (from, part) in split_at_sectors(*offset, data) {
                        // Once a sector has missed a write, it misses those that follow.
                        let sector = from / SECTOR;
                        if stopped.contains(&sector) || !rng.random_ratio(kept_of_eight, 8) {
                            stopped.insert(sector);
                            continue;
                        }
                        let (from, to) = (from as usize, from as usize + part.len());
                        if let Some(place) = found.get_mut(from..to) {
                            place.copy_from_slice(part);
                        }
                    }
                }
            }
        }
        found
    }
}

/// The pieces of a write, each within one sector.
fn split_at_sectors(offset: u64, data: &[u8]) -> Vec<(u64, &[u8])> {
    let (mut from, end) = (offset, offset + data.len() as u64);
    let mut pieces = Vec::new();
    while from < end {
        let to = ((from / SECTOR + 1) * SECTOR).min(end);
        pieces.push((from, &data[(from - offset) as usize..(to - offset) as usize]));
        from = to;
    }
    pieces
}

impl NameChange {
    fn apply(&self, names: &mut Names) {
        let NameChange { from, path, target } = self;
        let before = from.as_ref().map(|from| names.remove(from));
        match target {
            None => drop(names.remove(path)),
            // The directory had been lost.
            Some(Target::Directory) if before == Some(None) => {}
            Some(target) => drop(names.insert(path.clone(), *target)),
        }
        if let (Some(from), Some(Target::Directory)) = (from, target) {
            let inside = names.extract_if(.., |inner, _| inner.parent() == Some(from));
            let moved = inside.filter_map(|(inner, at)| Some((path.join(inner.file_name()?), at)));
            let moved: Vec<_> = moved.collect();
            names.extend(moved);
        }
    }
}

impl DiskState {
    fn count_operation(&mut self, cost_us: u64) -> io::Result<()> {
        self.require_power()?;
        self.operation_count += 1;
        self.cost_us += cost_us;
        match self.faults.get(&self.operation_count) {
            None => Ok(()),
            Some(Fault::Error) => Err(io::Error::other("the disk reported an error")),
            Some(Fault::PowerCut) => {
                self.is_power_off = true;
                self.require_power()
            }
        }
    }

    fn require_power(&self) -> io::Result<()> {
        if self.is_power_off { Err(io::Error::other("the power failed")) } else { Ok(()) }
    }

    /// Returns whether the sync is an honest one.
    fn count_sync(&mut self) -> io::Result<bool> {
        self.count_operation(COST_SYNC_US)?;
        self.sync_count += 1;
        Ok(self.skip_sync_every.is_none_or(|every| !self.sync_count.is_multiple_of(every)))
    }

    /// An error if there is one already.
    fn add_name(&mut self, path: &Path, target: Target) -> io::Result<()> {
        self.require_dir(path.parent())?;
        if self.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        self.count_operation(COST_OTHER_US)?;
        self.change_name(None, path, Some(target));
        Ok(())
    }

    fn change_name(&mut self, from: Option<&Path>, path: &Path, target: Option<Target>) {
        let (from, path) = (from.map(Path::to_owned), path.to_owned());
        let change = NameChange { from, path, target };
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }

    fn node(&self, path: &Path) -> io::Result<usize> {
        match self.names.get(path) {
            Some(Target::File(node)) => Ok(*node),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    fn require_dir(&self, dir: Option<&Path>) -> io::Result<()> {
        let found = dir.and_then(|dir| self.names.get(dir));
        if found == Some(&Target::Directory) { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    fn inside(&self, dir: &Path) -> impl Iterator<Item = &PathBuf> {
        self.names.keys().filter(move |path| path.parent() == Some(dir))
    }
}

impl FileSystem for SimulatedDisk {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let state = self.state.lock();
        state.require_power()?;
        state.require_dir(Some(dir))?;
        let names =
            state.inside(dir).filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.state.lock().add_name(dir, Target::Directory)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let mut state = self.state.lock();
        let node = state.nodes.len();
        state.add_name(path, Target::File(node))?;
        state.nodes.push(Inode::default());
        drop(state);
        self.open(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let mut state = self.state.lock();
        state.require_power()?;
        let node = state.node(path)?;
        state.open_count += 1;
        let open_number = state.open_count;
        Ok(Box::new(SimulatedFile { disk: self.clone(), node, open_number }))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.require_dir(to.parent())?;
        let target = *state.names.get(from).ok_or(ErrorKind::NotFound)?;
        let is_taken = state.node(to).is_ok() || state.inside(to).next().is_some();
        if target == Target::Directory && is_taken {
            return Err(ErrorKind::AlreadyExists.into());
        }
        state.count_operation(COST_OTHER_US)?;
        state.change_name(Some(from), to, Some(target));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.node(path)?;
        state.count_operation(COST_OTHER_US)?;
        state.change_name(None, path, None);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.require_dir(Some(dir))?;
        if state.inside(dir).next().is_some() {
            return Err(ErrorKind::DirectoryNotEmpty.into());
        }
        state.count_operation(COST_OTHER_US)?;
        state.change_name(None, dir, None);
        Ok(())
    }

    fn free_space(&self, _dir: &Path) -> u64 {
        u64::MAX
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.require_dir(Some(dir))?;
        if !state.count_sync()? {
            return Ok(());
        }
        let DiskState { name_changes, synced_names, .. } = &mut *state;
        for change in name_changes.extract_if(.., |change| change.path.parent() == Some(dir)) {
            change.apply(synced_names);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct SimulatedFile {
    disk: SimulatedDisk,
    node: usize,
    open_number: u64,
}

impl SimulatedFile {
    /// Applies a change, and keeps it in the list until a sync. A change that fails may have
    /// happened, too: the next program or the seed of a power cut finds out.
    fn change(&self, change: FileChange) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        state.require_power()?;
        let counted = state.count_operation(COST_OTHER_US);
        let node = &mut state.nodes[self.node];
        change.apply(&mut node.written);
        node.unsynced.push(change);
        counted
    }
}

impl File for SimulatedFile {
    fn length(&self) -> io::Result<u64> {
        let state = self.disk.state.lock();
        state.require_power()?;
        Ok(state.nodes[self.node].written.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.disk.state.lock();
        state.require_power()?;
        let from = offset as usize;
        let bytes = state.nodes[self.node].written.get(from..from + out.len());
        out.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        if self.length()? < end {
            self.change(FileChange::Length(end))?;
        }
        self.change(FileChange::Write { offset, data: data.to_vec() })
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.change(FileChange::Length(length))
    }

    fn allocate(&mut self, length: u64) -> io::Result<()> {
        if self.length()? < length { self.change(FileChange::Length(length)) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state.lock();
        let counted = state.count_sync();
        let off = state.is_power_off;
        let node = &mut state.nodes[self.node];
        match counted {
            Ok(true) => node.sync_all(),
            Ok(false) => {}
            // As on Linux: what a sync failed to write counts as written from then on. A second
            // sync would succeed, and the bytes be gone.
            Err(_) if !off => node.unsynced.clear(),
            Err(_) => {}
        }
        counted.map(|_| ())
    }

    fn try_lock(&mut self) -> io::Result<bool> {
        let mut state = self.disk.state.lock();
        state.require_power()?;
        let holder = *state.lock_owners.entry(self.node).or_insert(self.open_number);
        Ok(holder == self.open_number)
    }
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        let mut state = self.disk.state.lock();
        if state.lock_owners.get(&self.node) == Some(&self.open_number) {
            state.lock_owners.remove(&self.node);
        }
    }
}
