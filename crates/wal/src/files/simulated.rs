//! A disk in memory that fails or loses its power at operations that a test chooses.
//!
//! A file is a *node*, and names refer to nodes. Names and nodes are kept in two versions: as a
//! program sees them, and as they are on the medium, with the list of changes since the last sync.
//! [`SimulatedDisk::after_power_cut`] describes what can be on the disk after a power cut.
//!
//! * Operations are counted from 1: writes, changes of length, syncs and changes of names.
//!   [`SimulatedDisk::fail_at`] chooses the fault of one operation.
//! * [`SimulatedDisk::skip_syncs`] makes the disk lie about syncs. A test of power cuts must fail
//!   on such a disk, which shows that the test detects losses.
//! * There is no clock. Each operation has a cost in microseconds. A simulation takes the cost with
//!   [`SimulatedDisk::take_cost`] and lets that time pass before it reports the operation as done.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{File, FileSystem, SECTOR};

/// Cost of a sync in microseconds. Every other operation costs `COST_OTHER_US`.
const COST_SYNC_US: u64 = 500;
const COST_OTHER_US: u64 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The power fails during the operation. A write may be partly done, and a change of a length
    /// may be done or not. Any other operation is not done. The operation and all later operations
    /// fail.
    PowerCut,
    /// The operation fails. A write or a change of a length is carried out nevertheless. After a
    /// failed sync of a file, a power cut loses the file's unsynced changes, even if a later sync
    /// succeeds. Any other operation is not done. Later operations succeed.
    Error,
}

/// A disk in memory. All clones share its contents and its power.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Debug, Default)]
struct DiskState {
    nodes: Vec<Inode>,
    /// The names as a program sees them.
    names: Names,
    /// The names as they are on the medium.
    synced_names: Names,
    /// Changes of names since the last sync, in order.
    name_changes: Vec<NameChange>,
    /// For each locked node, the number of the open file that holds the lock.
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
    /// A file, with the index of its node.
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
    /// The previous name, if the change is a rename.
    from: Option<PathBuf>,
    path: PathBuf,
    /// The new target of the name, or `None` if the name is removed.
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

    /// Makes one later operation fail with `fault`. The next operation has the number 1.
    pub fn fail_at(&self, operation: u64, fault: Fault) {
        let mut state = self.state.lock();
        let at = state.operation_count + operation;
        state.faults.insert(at, fault);
    }

    /// Makes every sync whose number is a multiple of `every` do nothing and report success.
    pub fn skip_syncs(&self, every: u64) {
        self.state.lock().skip_sync_every = Some(every.max(1));
    }

    /// Returns `false` after a [`Fault::PowerCut`].
    pub fn has_power(&self) -> bool {
        !self.state.lock().is_power_off
    }

    pub fn operations(&self) -> u64 {
        self.state.lock().operation_count
    }

    /// Returns the number of syncs of files and directories that succeeded. Skipped syncs are
    /// included.
    pub fn syncs(&self) -> u64 {
        self.state.lock().sync_count
    }

    /// Returns the cost of the operations since the last call, in microseconds.
    pub fn take_cost(&self) -> u64 {
        std::mem::take(&mut self.state.lock().cost_us)
    }

    /// Returns the disk as the next process finds it after a kill, while the machine keeps running.
    /// All writes are present, and no lock is held. Unsynced writes are still unsynced.
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

    /// Returns the disk as it is after the power has returned. Everything on it is synced.
    ///
    /// * The unsynced changes of a file's length have happened up to some change, because a file
    ///   system keeps their order.
    /// * Each sector has the unsynced writes to it up to some write. So a long write may be torn,
    ///   and a later write may be present while an earlier write to another sector is missing.
    /// * Each unsynced change of a name has happened or not, independently of the others.
    pub fn after_power_cut(&self, seed: u64) -> SimulatedDisk {
        let mut rng = StdRng::seed_from_u64(seed);
        let state = self.state.lock();
        // The share of kept changes is random, so that some power cuts lose nearly all changes and
        // others nearly none.
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
        // Removes files whose directories were lost.
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
                        // If a sector has missed one write, it also misses all later writes.
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

/// Splits a write into parts that are each within one sector.
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
            // The creation of the directory was lost, so there is nothing to rename.
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

    /// Counts a sync. Returns `false` if the disk lies about this sync and does nothing.
    fn count_sync(&mut self) -> io::Result<bool> {
        self.count_operation(COST_SYNC_US)?;
        self.sync_count += 1;
        Ok(self.skip_sync_every.is_none_or(|every| !self.sync_count.is_multiple_of(every)))
    }

    /// Adds a name. Fails if the name exists.
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
    /// Applies a change, and keeps it in the list until a sync. A change that fails is also
    /// applied. After a kill the next process sees the change. After a power cut the seed decides
    /// which parts of the change are present.
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
            // As on Linux, bytes that a sync failed to write are considered written afterwards. So
            // a second sync succeeds although the bytes are lost.
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
