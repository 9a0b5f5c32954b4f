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
use std::io;
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

#[derive(Clone, Debug, Default)]
struct Names {
    /// Nodes by path.
    files: BTreeMap<PathBuf, usize>,
    directories: BTreeSet<PathBuf>,
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
enum NameChange {
    File { path: PathBuf, node: Option<usize> },
    Renamed { from: PathBuf, to: PathBuf, node: usize },
    Directory { path: PathBuf, made: bool },
    DirectoryRenamed { from: PathBuf, to: PathBuf },
}

impl SimulatedDisk {
    pub fn new<P: AsRef<Path>>(directories: impl IntoIterator<Item = P>) -> SimulatedDisk {
        let directories = directories.into_iter().map(|path| path.as_ref().to_owned()).collect();
        SimulatedDisk::synced(Vec::new(), Names { files: BTreeMap::new(), directories })
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
        // Drops names in directories that were lost.
        let Names { files, directories } = &mut names;
        files.retain(|path, _| path.parent().is_some_and(|dir| directories.contains(dir)));
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
        let Names { files, directories } = names;
        match self {
            NameChange::File { path, node } => {
                files.remove(path);
                files.extend(node.map(|node| (path.clone(), node)));
            }
            NameChange::Renamed { from, to, node } => {
                files.remove(from);
                files.insert(to.clone(), *node);
            }
            NameChange::Directory { path, made } => {
                directories.remove(path);
                directories.extend(made.then(|| path.clone()));
            }
            NameChange::DirectoryRenamed { from, to } => {
                if directories.remove(from) {
                    directories.insert(to.clone());
                }
                let inside = files.extract_if(.., |path, _| path.parent() == Some(from));
                let moved =
                    inside.filter_map(|(path, node)| Some((to.join(path.file_name()?), node)));
                let moved: Vec<_> = moved.collect();
                files.extend(moved);
            }
        }
    }

    /// Whether a sync of `dir` makes this change durable.
    fn is_synced_with(&self, dir: &Path) -> bool {
        let path = match self {
            NameChange::File { path, .. } | NameChange::Directory { path, .. } => path,
            NameChange::Renamed { to, .. } | NameChange::DirectoryRenamed { to, .. } => to,
        };
        path.parent() == Some(dir)
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

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.name_changes.push(change);
    }

    fn node(&self, path: &Path) -> io::Result<usize> {
        self.names.files.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn require_dir(&self, dir: Option<&Path>) -> io::Result<()> {
        let is_there = dir.is_some_and(|dir| self.names.directories.contains(dir));
        if is_there { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    fn require_free(&self, path: &Path) -> io::Result<()> {
        let is_free =
            !self.names.files.contains_key(path) && !self.names.directories.contains(path);
        if is_free { Ok(()) } else { Err(io::ErrorKind::AlreadyExists.into()) }
    }

    /// Paths of files, then of directories.
    fn inside(&self, dir: &Path) -> impl Iterator<Item = &PathBuf> {
        let all = self.names.files.keys().chain(&self.names.directories);
        all.filter(move |path| path.parent() == Some(dir))
    }
}

impl SimulatedDisk {
    fn open_node(&self, state: &mut DiskState, node: usize) -> Box<dyn File> {
        state.open_count += 1;
        Box::new(SimulatedFile { disk: self.clone(), node, open_number: state.open_count })
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
        let mut state = self.state.lock();
        state.require_dir(dir.parent())?;
        state.require_free(dir)?;
        state.count_operation(COST_OTHER_US)?;
        state.change_name(NameChange::Directory { path: dir.to_owned(), made: true });
        Ok(())
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let mut state = self.state.lock();
        state.require_dir(path.parent())?;
        state.require_free(path)?;
        state.count_operation(COST_OTHER_US)?;
        state.nodes.push(Inode::default());
        let node = state.nodes.len() - 1;
        state.change_name(NameChange::File { path: path.to_owned(), node: Some(node) });
        Ok(self.open_node(&mut state, node))
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        let mut state = self.state.lock();
        state.require_power()?;
        let node = state.node(path)?;
        Ok(self.open_node(&mut state, node))
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.open(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.require_dir(to.parent())?;
        let (from, to) = (from.to_owned(), to.to_owned());
        if state.names.directories.contains(&from) {
            if state.names.files.contains_key(&to) || state.inside(&to).next().is_some() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            state.count_operation(COST_OTHER_US)?;
            state.change_name(NameChange::DirectoryRenamed { from, to });
        } else {
            let node = state.node(&from)?;
            state.count_operation(COST_OTHER_US)?;
            state.change_name(NameChange::Renamed { from, to, node });
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.node(path)?;
        state.count_operation(COST_OTHER_US)?;
        state.change_name(NameChange::File { path: path.to_owned(), node: None });
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.state.lock();
        state.require_dir(Some(dir))?;
        if state.inside(dir).next().is_some() {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.count_operation(COST_OTHER_US)?;
        state.change_name(NameChange::Directory { path: dir.to_owned(), made: false });
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
        for change in name_changes.extract_if(.., |change| change.is_synced_with(dir)) {
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
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
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
