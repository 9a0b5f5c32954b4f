//! A store of the engine `bolt` in one file, as in etcd: `member/snap/db`.
//!
//! A file that replaces the store is written next to it under a name such as `db.tmp.7`. When the
//! new file is on disk, it is renamed over the old file. Snapshots of the old file can still be
//! read, because the system keeps a file without a name until the file is closed.
//!
//! * The file carries its own lock, which is bbolt's. The caller must also lock the directory,
//!   because the file does not exist yet while a store is created.
//! * The lock `SingleFile::state` is held during each rename. While it is held, this module takes
//!   only the lock of a [`SharedPath`], and [`rename`](SingleFileStore::rename) calls the caller's
//!   function.
//! * [`rename`](SingleFileStore::rename) gives the file another name while it is in use.
//! * `durable/` implements defragmentations. This module only replaces the file at the end of a
//!   defragmentation.
//! * After [`retire`](SingleFileStore::retire) a defragmentation can no longer rename its result
//!   over the file, because the name may then belong to another store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::bolt::BoltStore;
use crate::directory::{names, remove_data, sync_parent};
use crate::durable::DurableEngine;
use crate::error::{Error, Result};
use crate::interface::Engine;
use crate::options::Options;
use crate::place::{Generation, Place, SharedPath};

const NEXT: &str = ".tmp.";
/// The number in the next temporary file name. Numbers are unique in the process, because a
/// replaced store may still be writing its temporary file.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// An open store, and the right to rename its file.
#[derive(Clone, Debug)]
pub struct SingleFileStore {
    engine: Arc<dyn Engine>,
    place: Arc<SingleFile>,
}

impl SingleFileStore {
    /// Opens the store at `path`. Creates a store if the file is missing or empty.
    pub fn open(path: &Path, options: Options) -> Result<SingleFileStore> {
        let place = Arc::new(SingleFile::new(path, options.syncs));
        let opened = DurableEngine::<BoltStore>::open(Arc::clone(&place) as _, options)?;
        Ok(SingleFileStore { engine: Arc::new(opened), place })
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Renames the file by calling `rename` with the file's current path. `rename` must move the
    /// file to `to`. A defragmentation of this store waits for the end of the call before it
    /// replaces the file.
    pub fn rename(&self, to: &Path, rename: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
        let state = self.place.state.lock();
        rename(&self.place.path.get()).map_err(Error::at(to))?;
        self.place.path.set(to);
        if let Some(made_here) = &state.made_here {
            made_here.set(to);
        }
        Ok(())
    }

    /// Announces that another file is about to get the current name of this store's file. After
    /// this call, no defragmentation of this store can rename its result to that name.
    pub fn retire(&self) {
        self.place.state.lock().is_retired = true;
    }
}

#[derive(Debug)]
struct SingleFile {
    path: SharedPath,
    /// See [`Options::syncs`].
    syncs: bool,
    state: Mutex<PlaceState>,
}

#[derive(Debug, Default)]
struct PlaceState {
    is_retired: bool,
    /// The path of the current data, if this object has made the data current.
    /// [`rename`](SingleFileStore::rename) must change this path as well. The field is `None` if
    /// the current data was opened, because the data then shares [`SingleFile::path`].
    made_here: Option<SharedPath>,
}

impl SingleFile {
    fn new(path: &Path, syncs: bool) -> SingleFile {
        SingleFile { path: path.into(), syncs, state: Mutex::default() }
    }

    fn sync_parent(&self, path: &Path) -> Result<()> {
        if self.syncs { sync_parent(path) } else { Ok(()) }
    }

    /// Returns the common prefix of the names of all temporary files.
    fn next_prefix(&self) -> PathBuf {
        let mut prefix = self.path.get().into_os_string();
        prefix.push(NEXT);
        prefix.into()
    }

    fn next_path(&self, number: u64) -> PathBuf {
        let mut path = self.next_prefix().into_os_string();
        path.push(number.to_string());
        path.into()
    }
}

impl Place for SingleFile {
    fn current(&self) -> Option<Generation> {
        // If etcd is killed while it creates the file, it leaves an empty file. Such a file is not
        // a store.
        let found = fs::metadata(self.path.get());
        let is_missing = match found {
            Ok(found) => found.is_file() && found.len() == 0,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        (!is_missing).then(|| Generation { number: 0, path: self.path.clone() })
    }

    fn prepare_next(&self) -> Result<Generation> {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::AcqRel);
        let path = self.next_path(number);
        remove_data(&path)?;
        Ok(Generation { number, path: path.as_path().into() })
    }

    fn make_current(&self, next: &Generation) -> Result<bool> {
        let mut state = self.state.lock();
        let path = self.path.get();
        if state.is_retired {
            return Ok(false);
        }
        self.sync_parent(&path)?;
        fs::rename(next.path.get(), &path).map_err(Error::at(&path))?;
        next.path.set(&path);
        state.made_here = Some(next.path.clone());
        self.sync_parent(&path).map(|()| true)
    }

    fn keeps_replaced(&self) -> bool {
        false
    }

    fn remove_leftovers(&self) -> Result<()> {
        let prefix = self.next_prefix();
        let Some(prefix) = prefix.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
        let path = self.path.get();
        let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
        for name in names(dir)?.iter().filter(|name| name.starts_with(prefix)) {
            remove_data(&dir.join(name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bucket::Bucket;

    fn put(store: &SingleFileStore, value: &[u8]) {
        let mut txn = store.engine().begin_write().unwrap();
        txn.put(Bucket::Key, b"a", value).unwrap();
        txn.commit().unwrap();
    }

    #[test]
    fn a_defragmentation_of_a_replaced_store_replaces_nothing_and_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("db"), dir.path().join("tmp0"));
        let options = || Options { cache_bytes: 1 << 20, ..Options::default() };
        let old = SingleFileStore::open(&path, options()).unwrap();
        put(&old, b"old");
        let mut work = old.engine().begin_defragment().unwrap();
        while !work.step(10).unwrap() {}
        let new = SingleFileStore::open(&other, options()).unwrap();
        put(&new, b"new");
        old.retire();
        new.rename(&path, |from| fs::rename(from, &path)).unwrap();
        assert!(matches!(work.finish(), Err(Error::Storage(_))));
        put(&old, b"and it is written still");
        drop((old, new));
        assert_eq!(names(dir.path()).unwrap(), ["db"]);
        let found = SingleFileStore::open(&path, options()).unwrap();
        let found = found.engine().snapshot().unwrap().get(Bucket::Key, b"a").unwrap();
        assert_eq!(found.as_deref(), Some(&b"new"[..]));
    }

    /// `etcdutl defrag` opens the file and then waits for its lock. If the file is replaced during
    /// this wait, the old file must no longer be a valid store when `etcdutl defrag` gets the lock.
    #[test]
    fn a_file_that_was_replaced_is_no_store_when_its_lock_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = || Options { cache_bytes: 1 << 20, ..Options::default() };
        let store = SingleFileStore::open(&path, options()).unwrap();
        put(&store, b"old");
        let waiting = fs::File::open(&path).unwrap();
        let reader = store.engine().snapshot().unwrap();
        let mut work = store.engine().begin_defragment().unwrap();
        while !work.step(10).unwrap() {}
        work.finish().unwrap();
        put(&store, b"new");
        assert_eq!(reader.get(Bucket::Key, b"a").unwrap().as_deref(), Some(&b"old"[..]));
        assert!(waiting.try_lock_shared().is_err());
        drop(reader);
        waiting.try_lock_shared().unwrap();
        let copy = dir.path().join("copy");
        std::io::copy(&mut &waiting, &mut fs::File::create(&copy).unwrap()).unwrap();
        assert!(fs::metadata(&copy).unwrap().len() > 0);
        let error = SingleFileStore::open(&copy, options()).unwrap_err();
        assert!(matches!(&error, Error::Corrupt { .. }), "{error}");
        drop(store);
        SingleFileStore::open(&path, options()).unwrap();
    }

    #[test]
    fn errors_name_the_file_as_it_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let (path, made) = (dir.path().join("db"), dir.path().join("tmp0"));
        let options = Options { cache_bytes: 1, ..Options::default() };
        let store = SingleFileStore::open(&made, options).unwrap();
        // Root pages are always in memory. So the tree must have branches, or the get would read no
        // page from the damaged file.
        let mut txn = store.engine().begin_write().unwrap();
        for number in 0..1_000_u32 {
            txn.put(Bucket::Key, &number.to_be_bytes(), &[7; 60]).unwrap();
        }
        txn.commit().unwrap();
        let snapshot = store.engine().snapshot().unwrap();
        store.rename(&path, |from| fs::rename(from, &path)).unwrap();
        let length = fs::metadata(&path).unwrap().len() as usize;
        let pages = vec![9; length - 2 * 4096];
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &pages, 2 * 4096).unwrap();
        let found = snapshot.get(Bucket::Key, &700_u32.to_be_bytes()).map(drop);
        let message = found.unwrap_err().to_string();
        assert!(message.starts_with(&format!("{}: damaged", path.display())), "{message}");
    }
}
