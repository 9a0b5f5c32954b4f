//! Stores in numbered directories, and marks. A mark is a small file that names a store.
//!
//! ```text
//!   snap/current      "store 4": the current store              snap/store.4/
//!   snap/7310.copy    "store 5": received at index 7,310        snap/store.5/
//!                     no mark: being received                   snap/store.6/
//! ```
//!
//! A store is not moved. A received store is kept by renaming `mark.new` to `7310.copy`, and
//! promoted by renaming `7310.copy` to `current`. `docs/copies.md` describes a crash at any step.
//!
//! * Each rename and removal of a mark is synced before the next step starts.
//! * A mark names a store whose data is on disk: engines sync their commits and their file names.
//!   Only the first mark `current` is written before its store, which is empty.
//! * One [`DiskStoreDir`] uses the directory, and holds a lock on the file `lock`.
//! * A directory with stores and without `current` is rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use clearlane_engine::{Engine, EngineKind, Error, Options, Result, open};
use clearlane_replica::raft_snapshot::{StagedStore, StoreDir};
use clearlane_wal::files::{File, FileSystem, read_short, remove_if_there, replace};
use parking_lot::Mutex;

use super::log_opening_notes;

const CURRENT: &str = "current";
const SNAPSHOT_SUFFIX: &str = ".copy";
const MARK_NEW: &str = "mark.new";
const LOCK: &str = "lock";
const STORE_PREFIX: &str = "store.";
const FORMAT: &str = "clearlane-vault 1";

#[derive(Debug)]
pub struct DiskStoreDir {
    files: Arc<dyn FileSystem>,
    dir: PathBuf,
    kind: EngineKind,
    options: Options,
    open_stores: Mutex<OpenStores>,
}

/// The state that only this process has. All other state is in the marks on disk.
#[derive(Debug)]
struct OpenStores {
    _lock: Box<dyn File>,
    /// The number of the next store. It is above the numbers of all stores and marks found when the
    /// directory was opened.
    next: u64,
    /// The open stores. The references are weak, so a store closes when it is no longer used.
    engines: BTreeMap<u64, Weak<dyn Engine>>,
    /// Received stores kept by this process. They stay open until they are promoted or discarded.
    kept: BTreeMap<u64, Arc<dyn Engine>>,
}

impl DiskStoreDir {
    /// Opens the directory. Creates `dir` if it is missing, but not its parent. Marks are accessed
    /// through `files`, and stores by their engine.
    pub fn new(
        files: Arc<dyn FileSystem>,
        dir: &Path,
        kind: EngineKind,
        options: Options,
    ) -> Result<DiskStoreDir> {
        make_dir(&*files, dir).map_err(path_error(dir))?;
        let lock = lock(&*files, dir)?;
        // Sync the directory, because names from a killed process may not be on disk yet.
        files.sync_dir(dir).map_err(path_error(dir))?;
        let (open, kept) = Default::default();
        let stores = Mutex::new(OpenStores { _lock: lock, next: 0, engines: open, kept });
        let store_dir =
            DiskStoreDir { files, dir: dir.to_owned(), kind, options, open_stores: stores };
        let marked = store_dir.marks()?.into_iter().map(|(_, number)| number);
        let there = store_dir.stores()?.into_iter().chain(marked);
        store_dir.open_stores.lock().next = there.max().map_or(0, |last| last + 1);
        if !kind.is_durable() {
            // The received stores were in the memory of a process that has ended, so only their
            // marks are left.
            for index in store_dir.kept_indexes()? {
                store_dir.discard(index)?;
            }
        }
        Ok(store_dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn store_path(&self, number: u64) -> PathBuf {
        self.path(&store_name(number))
    }

    fn names(&self) -> Result<Vec<String>> {
        self.files.list(&self.dir).map_err(path_error(&self.dir))
    }

    /// Returns the marks, each with the number of the store that it names.
    fn marks(&self) -> Result<Vec<(String, u64)>> {
        let names = self.names()?.into_iter();
        let marks = names.filter(|name| name == CURRENT || snapshot_index(name).is_some());
        marks.map(|name| self.read_mark(&name).map(|number| (name, number))).collect()
    }

    fn mark(&self, wanted: &str) -> Result<Option<u64>> {
        Ok(self.marks()?.into_iter().find(|(name, _)| name == wanted).map(|(_, number)| number))
    }

    /// Returns the number of the store that a mark names.
    fn read_mark(&self, name: &str) -> Result<u64> {
        let path = self.path(name);
        // A mark has two short lines, so it is shorter than 1 KiB.
        let text = read_short(&*self.files, &path, 1 << 10).map_err(path_error(&path))?;
        let number = std::str::from_utf8(&text).ok().and_then(parse_mark);
        let detail = "not a valid marker of a store".to_owned();
        number.ok_or(Error::Corrupt { path, detail })
    }

    fn write_mark(&self, name: &str, number: u64) -> Result<()> {
        let written =
            replace(&*self.files, &self.dir, MARK_NEW, name, print_mark(number).as_bytes());
        written.map_err(path_error(&self.path(name)))
    }

    /// Removes a mark. After that, the store that it named may be removed.
    fn remove_mark(&self, name: &str) -> Result<()> {
        let path = self.path(name);
        remove_if_there(&*self.files, &path)
            .and_then(|()| self.files.sync_dir(&self.dir))
            .map_err(path_error(&path))
    }

    fn stores(&self) -> Result<BTreeSet<u64>> {
        let entries = match fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(path_error(&self.dir)(error)),
        };
        let names = entries.map(|entry| Ok(entry?.file_name()));
        let names: Vec<_> = names.collect::<io::Result<_>>().map_err(path_error(&self.dir))?;
        Ok(names.iter().filter_map(|name| store_number(name.to_str()?)).collect())
    }

    fn open_store(&self, stores: &mut OpenStores, number: u64) -> Result<Arc<dyn Engine>> {
        if let Some(engine) = stores.engines.get(&number).and_then(Weak::upgrade) {
            return Ok(engine);
        }
        let path = self.store_path(number);
        let engine = open(self.kind, &path, self.options.clone())?;
        log_opening_notes(&path, &engine.opening_notes());
        stores.engines.insert(number, Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Removes stores without a mark that are not open. Callers may ignore an error: leftovers only
    /// use disk space, and the next call tries again.
    fn remove_unnamed(&self, stores: &mut OpenStores) -> Result<()> {
        stores.engines.retain(|_, engine| engine.strong_count() > 0);
        let named: BTreeSet<u64> = self.marks()?.into_iter().map(|(_, number)| number).collect();
        for number in self.stores()? {
            if !named.contains(&number) && !stores.engines.contains_key(&number) {
                remove_store(&self.store_path(number))?;
            }
        }
        Ok(())
    }
}

impl StoreDir for DiskStoreDir {
    fn free_space(&self) -> u64 {
        self.files.free_space(&self.dir)
    }

    fn temporary_dir(&self) -> Option<PathBuf> {
        Some(self.dir.clone())
    }

    fn open(&self) -> Result<Arc<dyn Engine>> {
        let mut stores = self.open_stores.lock();
        let number = match self.mark(CURRENT)? {
            Some(number) => number,
            None => {
                if let Some(number) = self.stores()?.first() {
                    let found = format!("it has store.{number}, but no file named {CURRENT}");
                    return Err(Error::Foreign { path: self.dir.clone(), found });
                }
                let number = stores.next;
                stores.next += 1;
                // The mark is written first, because a directory with stores and without `current`
                // is rejected.
                self.write_mark(CURRENT, number)?;
                number
            }
        };
        self.open_store(&mut stores, number)
    }

    fn stage(&self) -> Result<StagedStore> {
        let mut stores = self.open_stores.lock();
        let number = stores.next;
        stores.next += 1;
        let engine = self.open_store(&mut stores, number)?;
        Ok(StagedStore { number, engine })
    }

    fn keep(&self, staged: StagedStore, index: u64) -> Result<()> {
        let mut stores = self.open_stores.lock();
        let name = snapshot_name(index);
        // If this process has already kept a store at this index, the new one is not needed. If a
        // mark is visible but its store is not in `kept`, the mark may not be on disk, for example
        // because its sync failed. In that case it is written again.
        if stores.kept.contains_key(&index) && self.mark(&name)?.is_some() {
            drop(staged);
        } else {
            self.write_mark(&name, staged.number)?;
            stores.kept.insert(index, staged.engine);
        }
        let _ = self.remove_unnamed(&mut stores);
        Ok(())
    }

    fn abandon(&self, staged: StagedStore) -> Result<()> {
        drop(staged);
        self.remove_unnamed(&mut self.open_stores.lock())
    }

    fn kept_indexes(&self) -> Result<Vec<u64>> {
        let _shelf = self.open_stores.lock();
        let marks = self.marks()?.into_iter();
        let mut kept: Vec<u64> = marks.filter_map(|(name, _)| snapshot_index(&name)).collect();
        kept.sort_unstable();
        Ok(kept)
    }

    fn promote(&self, index: u64) -> Result<Arc<dyn Engine>> {
        let mut stores = self.open_stores.lock();
        let name = snapshot_name(index);
        let Some(number) = self.mark(&name)? else {
            return Err(Error::Storage(format!("there is no received store at entry {index}")));
        };
        // The store is opened first, so that a store that cannot be opened does not become the
        // current one.
        let engine = self.open_store(&mut stores, number)?;
        let path = self.path(CURRENT);
        self.files.rename(&self.path(&name), &path).map_err(path_error(&path))?;
        self.files.sync_dir(&self.dir).map_err(path_error(&self.dir))?;
        stores.kept.retain(|kept, _| *kept > index);
        for (name, _) in self.marks()? {
            if snapshot_index(&name).is_some_and(|kept| kept < index) {
                self.remove_mark(&name)?;
            }
        }
        let _ = self.remove_unnamed(&mut stores);
        Ok(engine)
    }

    fn discard(&self, index: u64) -> Result<()> {
        let mut stores = self.open_stores.lock();
        self.remove_mark(&snapshot_name(index))?;
        stores.kept.remove(&index);
        let _ = self.remove_unnamed(&mut stores);
        Ok(())
    }

    fn remove_leftovers(&self) -> Result<()> {
        let mut stores = self.open_stores.lock();
        if self.mark(CURRENT)?.is_none() {
            // `open` reports the missing mark.
            return Ok(());
        }
        self.remove_mark(MARK_NEW)?;
        self.remove_unnamed(&mut stores)
    }
}

fn snapshot_name(index: u64) -> String {
    format!("{index}{SNAPSHOT_SUFFIX}")
}

fn snapshot_index(name: &str) -> Option<u64> {
    number(name.strip_suffix(SNAPSHOT_SUFFIX)?)
}

fn store_number(name: &str) -> Option<u64> {
    number(name.strip_prefix(STORE_PREFIX)?)
}

/// Returns whether a numbered store, or the mark of the current one, has this name.
pub(super) fn is_numbered(name: &str) -> bool {
    name == CURRENT || store_number(name).is_some()
}

fn store_name(number: u64) -> String {
    format!("{STORE_PREFIX}{number}")
}

/// Returns the number in its canonical form, or `None` for any other text, such as `+7` or `007`.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number: &u64| number.to_string() == text)
}

fn print_mark(store: u64) -> String {
    format!("{FORMAT}\nstore {store}\n")
}

fn parse_mark(text: &str) -> Option<u64> {
    // The number is limited, so that the next number does not overflow.
    let store = text.strip_prefix(FORMAT)?.strip_prefix("\nstore ")?.strip_suffix('\n')?;
    number(store).filter(|store| *store < u64::MAX / 2)
}

pub(super) fn make_dir(files: &dyn FileSystem, dir: &Path) -> io::Result<()> {
    match files.list(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            files.create_dir(dir)?;
            files.sync_dir(dir.parent().filter(|to| *to != Path::new("")).unwrap_or(Path::new(".")))
        }
        other => other.map(drop),
    }
}

fn lock(files: &dyn FileSystem, dir: &Path) -> Result<Box<dyn File>> {
    let path = dir.join(LOCK);
    let take = || {
        let mut file = match files.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => files.create(&path)?,
            other => other?,
        };
        Ok(file.try_lock()?.then_some(file))
    };
    let file = take().map_err(path_error(&path))?;
    file.ok_or(Error::Locked { path })
}

/// Removes a store. Does nothing if a read of the store is still open, because the engine then
/// still holds the lock of the store's directory.
fn remove_store(path: &Path) -> Result<()> {
    let handle = fs::File::open(path).map_err(path_error(path))?;
    match handle.try_lock() {
        Ok(()) => fs::remove_dir_all(path).map_err(path_error(path)),
        Err(fs::TryLockError::WouldBlock) => Ok(()),
        Err(fs::TryLockError::Error(error)) => Err(path_error(path)(error)),
    }
}

pub(super) fn path_error(path: &Path) -> impl Fn(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::Path { path: path.clone(), source }
}
