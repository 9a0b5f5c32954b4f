//! A real directory that can lose file names, as a simulated disk does.
//!
//! A power failure undoes renames and removals that happened after the last sync of their
//! directories. The seed selects the first change that is undone. All later changes are undone as
//! well. Each replaced or removed file gets a second name, so that it can be restored.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_wal::files::{File, FileSystem, OsFileSystem};
use parking_lot::Mutex;

#[derive(Clone, Debug)]
pub(crate) struct NamesOnDisk(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    spare: PathBuf,
    spare_names: u64,
    /// Number of operations that still succeed before the power fails. `None` if it never fails.
    left: Option<u64>,
    unsynced: Vec<Change>,
}

#[derive(Debug)]
struct Change {
    /// The directories of the change that have not been synced since the change.
    dirs: Vec<PathBuf>,
    from: Option<PathBuf>,
    to: PathBuf,
    /// A second name for the file that was at `to` before. `None` if there was no file.
    before: Option<PathBuf>,
}

impl NamesOnDisk {
    /// Creates a file system without unsynced changes. The second names of files are in the
    /// directory `spare`, which this function creates.
    pub(crate) fn new(spare: &Path) -> NamesOnDisk {
        fs::create_dir_all(spare).unwrap();
        let (spare, unsynced) = (spare.to_owned(), Vec::new());
        NamesOnDisk(Arc::new(Mutex::new(State { spare, spare_names: 0, left: None, unsynced })))
    }

    /// Makes the operation with this number and all later operations fail. The next operation has
    /// the number 1.
    pub(crate) fn fail_at(&self, operation: u64) {
        self.0.lock().left = Some(operation - 1);
    }

    pub(crate) fn after_kill(&self) -> NamesOnDisk {
        let mut state = self.0.lock();
        let (spare, unsynced) = (state.spare.clone(), std::mem::take(&mut state.unsynced));
        let spare_names = state.spare_names;
        NamesOnDisk(Arc::new(Mutex::new(State { spare, spare_names, left: None, unsynced })))
    }

    pub(crate) fn after_power_cut(&self, seed: u64) -> NamesOnDisk {
        let next = self.after_kill();
        let changes = std::mem::take(&mut next.0.lock().unsynced);
        let kept = seed as usize % (changes.len() + 1);
        for change in changes[kept..].iter().rev() {
            match &change.from {
                Some(from) => fs::rename(&change.to, from).unwrap(),
                None => assert!(!change.to.exists()),
            }
            if let Some(before) = &change.before {
                fs::hard_link(before, &change.to).unwrap();
            }
        }
        next
    }

    fn operation(&self) -> io::Result<()> {
        match &mut self.0.lock().left {
            Some(0) => Err(io::Error::other("the power is gone")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Records a change. It must be called before the file at `to` is replaced or removed.
    fn note(&self, from: Option<&Path>, to: &Path) -> io::Result<()> {
        let mut state = self.0.lock();
        let before = match to.exists() {
            true => {
                state.spare_names += 1;
                let name = state.spare.join(state.spare_names.to_string());
                fs::hard_link(to, &name)?;
                Some(name)
            }
            false => None,
        };
        let dirs = from.into_iter().chain([to]).map(|path| path.parent().unwrap().to_owned());
        let (dirs, from, to) = (dirs.collect(), from.map(Path::to_owned), to.to_owned());
        state.unsynced.push(Change { dirs, from, to, before });
        Ok(())
    }
}

impl FileSystem for NamesOnDisk {
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.operation()?;
        OsFileSystem.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.operation()?;
        OsFileSystem.create_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.operation()?;
        OsFileSystem.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.operation()?;
        OsFileSystem.open(path)
    }

    fn open_to_read(&self, path: &Path) -> io::Result<Box<dyn File>> {
        self.operation()?;
        OsFileSystem.open_to_read(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operation()?;
        self.note(Some(from), to)?;
        OsFileSystem.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.operation()?;
        if path.exists() {
            self.note(None, path)?;
        }
        OsFileSystem.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.operation()?;
        OsFileSystem.remove_dir(dir)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.operation()?;
        let mut state = self.0.lock();
        state.unsynced.iter_mut().for_each(|change| change.dirs.retain(|other| other != dir));
        state.unsynced.retain(|change| !change.dirs.is_empty());
        Ok(())
    }

    fn free_space(&self, dir: &Path) -> u64 {
        OsFileSystem.free_space(dir)
    }
}
