//! Stores of the engine `bolt`, each a file with the name that etcd gives it.
//!
//! ```text
//!   snap/db                          the current store
//!   snap/0000000000001c8e.snap.db    the store received at index 7,310
//!   snap/tmp6                        being received
//! ```
//!
//! A rename *keeps* a complete received store: the store gets the name with its index. Another
//! rename *promotes* it to the current store. The store is open during both renames. The replaced
//! `db` stays readable through its open file until its last read ends. `docs/copies.md` describes a
//! crash at any step.
//!
//! * Each rename and removal is synced before the next step starts.
//! * One [`FileStoreDir`] uses the directory, and locks it. It opens no store in a directory that
//!   has the [numbered stores](super::numbered_stores) of another engine.

use std::collections::BTreeMap;
use std::fs::{self, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clearlane_engine::{Engine, Error, Options, Result, SingleFileStore};
use clearlane_replica::raft_snapshot::{StagedStore, StoreDir};
use clearlane_wal::files::{FileSystem, remove_if_there};
use parking_lot::Mutex;

use super::log_opening_notes;
use super::numbered_stores::{is_numbered, make_dir, path_error};

const CURRENT: &str = "db";
const SNAPSHOT_SUFFIX: &str = ".snap.db";
/// The prefix for files that are being received. etcd uses the same prefix.
const STAGED_PREFIX: &str = "tmp";

#[derive(Debug)]
pub struct FileStoreDir {
    files: Arc<dyn FileSystem>,
    dir: PathBuf,
    options: Options,
    open_stores: Mutex<OpenStores>,
}

/// The stores that this process has open.
#[derive(Debug)]
struct OpenStores {
    /// The lock of the directory.
    _lock: fs::File,
    next: u64,
    current: Option<SingleFileStore>,
    staged: BTreeMap<u64, SingleFileStore>,
    /// Received stores kept by this process. They stay open until they are promoted or discarded.
    kept: BTreeMap<u64, SingleFileStore>,
}

impl FileStoreDir {
    /// Opens the directory. Creates `dir` if it is missing, but not its parent. `files` renames and
    /// removes the stores.
    pub fn new(files: Arc<dyn FileSystem>, dir: &Path, options: Options) -> Result<FileStoreDir> {
        make_dir(&*files, dir).map_err(path_error(dir))?;
        let lock = lock(dir)?;
        // Sync the directory, because renames of a killed process may not be on disk yet.
        files.sync_dir(dir).map_err(path_error(dir))?;
        let (current, staged, kept) = Default::default();
        let open_stores = OpenStores { _lock: lock, next: 0, current, staged, kept };
        Ok(FileStoreDir { files, dir: dir.to_owned(), options, open_stores: open_stores.into() })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn copy_path(&self, index: u64) -> PathBuf {
        self.path(&copy_name(index))
    }

    fn names(&self) -> Result<Vec<String>> {
        self.files.list(&self.dir).map_err(path_error(&self.dir))
    }

    fn open_store(&self, path: &Path) -> Result<SingleFileStore> {
        let store = SingleFileStore::open(path, self.options.clone())?;
        log_opening_notes(path, &store.engine().opening_notes());
        Ok(store)
    }

    /// Renames the file, syncs the directory, and updates the path in `store`.
    fn rename(&self, store: &SingleFileStore, to: &Path) -> Result<()> {
        store.rename(to, |from| {
            self.files.rename(from, to)?;
            self.files.sync_dir(&self.dir)
        })
    }

    fn remove(&self, path: &Path) -> Result<()> {
        remove_if_there(&*self.files, path)
            .and_then(|()| self.files.sync_dir(&self.dir))
            .map_err(path_error(path))
    }

    /// Fails if the directory has stores of another engine.
    fn check_engine(&self) -> Result<()> {
        if self.names()?.iter().any(|name| is_numbered(name)) {
            let found = "it has numbered stores, which engine bolt does not use";
            return Err(Error::Foreign { path: self.dir.clone(), found: found.to_owned() });
        }
        Ok(())
    }

    fn copies(&self) -> Result<Vec<u64>> {
        let mut copies: Vec<u64> = self.names()?.iter().filter_map(|n| copy_index(n)).collect();
        copies.sort_unstable();
        Ok(copies)
    }
}

impl StoreDir for FileStoreDir {
    fn free_space(&self) -> u64 {
        self.files.free_space(&self.dir)
    }

    fn temporary_dir(&self) -> Option<PathBuf> {
        Some(self.dir.clone())
    }

    fn open(&self) -> Result<Arc<dyn Engine>> {
        let mut stores = self.open_stores.lock();
        if stores.current.is_none() {
            self.check_engine()?;
            stores.current = Some(self.open_store(&self.path(CURRENT))?);
        }
        Ok(Arc::clone(stores.current.as_ref().expect("it was opened").engine()))
    }

    fn stage(&self) -> Result<StagedStore> {
        let mut stores = self.open_stores.lock();
        let number = stores.next;
        stores.next += 1;
        let path = self.path(&staged_name(number));
        self.remove(&path)?;
        let store = self.open_store(&path)?;
        let engine = Arc::clone(store.engine());
        stores.staged.insert(number, store);
        Ok(StagedStore { number, engine })
    }

    fn keep(&self, staged: StagedStore, index: u64) -> Result<()> {
        let mut stores = self.open_stores.lock();
        let Some(store) = stores.staged.remove(&staged.number) else {
            return Err(Error::Storage(format!("no store {} is staged", staged.number)));
        };
        // If this process has already kept a store at this index, the new one is not needed. If a
        // name is visible but is not in `kept`, it may not be on disk, for example because its sync
        // failed. In that case the rename is repeated.
        if stores.kept.contains_key(&index) && self.copies()?.contains(&index) {
            return self.remove(&self.path(&staged_name(staged.number)));
        }
        self.rename(&store, &self.copy_path(index))?;
        stores.kept.insert(index, store);
        Ok(())
    }

    fn abandon(&self, staged: StagedStore) -> Result<()> {
        self.open_stores.lock().staged.remove(&staged.number);
        self.remove(&self.path(&staged_name(staged.number)))
    }

    fn kept_indexes(&self) -> Result<Vec<u64>> {
        let _stores = self.open_stores.lock();
        self.copies()
    }

    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>> {
        let mut stores = self.open_stores.lock();
        if !self.copies()?.contains(&index) {
            return Err(Error::Storage(format!("there is no received store at entry {index}")));
        }
        // The store is opened first, so that a store that cannot be opened does not become the
        // current one.
        let store = match stores.kept.get(&index) {
            Some(store) => store.clone(),
            None => self.open_store(&self.copy_path(index))?,
        };
        if let Some(current) = &stores.current {
            current.retire();
        }
        self.rename(&store, &self.path(CURRENT))?;
        stores.kept.retain(|kept, _| *kept > index);
        for lower in self.copies()?.into_iter().filter(|kept| *kept < index) {
            self.remove(&self.copy_path(lower))?;
        }
        let engine = Arc::clone(store.engine());
        stores.current = Some(store);
        Ok(engine)
    }

    fn discard(&self, index: u64) -> Result<()> {
        let mut stores = self.open_stores.lock();
        stores.kept.remove(&index);
        self.remove(&self.copy_path(index))
    }

    fn remove_leftovers(&self) -> Result<()> {
        let stores = self.open_stores.lock();
        let in_use: Vec<String> = stores.staged.keys().map(|number| staged_name(*number)).collect();
        let is_leftover = |name: &&String| {
            name.starts_with(STAGED_PREFIX) && !in_use.iter().any(|used| name.starts_with(used))
        };
        for name in self.names()?.iter().filter(is_leftover) {
            self.remove(&self.path(name))?;
        }
        Ok(())
    }
}

fn staged_name(number: u64) -> String {
    format!("{STAGED_PREFIX}{number}")
}

fn copy_name(index: u64) -> String {
    format!("{index:016x}{SNAPSHOT_SUFFIX}")
}

/// Returns the index in a name that [`copy_name`] has returned, or `None` for any other name.
fn copy_index(name: &str) -> Option<u64> {
    let index = u64::from_str_radix(name.strip_suffix(SNAPSHOT_SUFFIX)?, 16).ok()?;
    (copy_name(index) == name).then_some(index)
}

fn lock(dir: &Path) -> Result<fs::File> {
    let handle = fs::File::open(dir).map_err(path_error(dir))?;
    match handle.try_lock() {
        Ok(()) => Ok(handle),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { path: dir.to_owned() }),
        Err(TryLockError::Error(error)) => Err(path_error(dir)(error)),
    }
}
