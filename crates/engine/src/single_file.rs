//! A store of the engine `bolt` that is one file, as etcd has it: `member/snap/db`.
//!
//! Whatever takes the file's place is made beside it, as `db.tmp.7`, and renamed over it when it is
//! on disk. What is open under the old name goes on being read: the system keeps such a file until
//! it is closed.
//!
//! * The file carries its own lock, bbolt's. The directory must be locked by the caller: while a
//!   store is made, there is no such file. `state` is held over each rename, and no lock is taken
//!   under it but that of a [`SharedPath`].
//! * [`rename`](SingleFileStore::rename) gives the file another name while it is in use. After
//!   [`retire`](SingleFileStore::retire) a defragmentation cannot put its result in place of what
//!   has the name by then.

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
/// Of the next attempt. None is used twice by a process, whichever store makes it: one that was
/// replaced may still be at it.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

/// An open store, and the right to move its file.
#[derive(Clone, Debug)]
pub struct SingleFileStore {
    engine: Arc<dyn Engine>,
    place: Arc<SingleFile>,
}

impl SingleFileStore {
    /// Opens the store at `path`, and makes one if there is no file, or an empty one.
    pub fn open(path: &Path, options: Options) -> Result<SingleFileStore> {
        let place = Arc::new(SingleFile::new(path));
        let opened = DurableEngine::<BoltStore>::open(Arc::clone(&place) as _, options)?;
        Ok(SingleFileStore { engine: Arc::new(opened), place })
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Renames the file by `rename`, which gets its present path. No defragmentation of it ends
    /// meanwhile.
    pub fn rename(&self, to: &Path, rename: impl FnOnce(&Path) -> io::Result<()>) -> Result<()> {
        let state = self.place.state.lock();
        rename(&self.place.path.get()).map_err(Error::at(to))?;
        self.place.path.set(to);
        if let Some(made_here) = &state.made_here {
            made_here.set(to);
        }
        Ok(())
    }

    /// Another file is about to get the name. When this returns, no defragmentation of this store
    /// will take it back.
    pub fn retire(&self) {
        self.place.state.lock().is_retired = true;
    }
}

#[derive(Debug)]
struct SingleFile {
    path: SharedPath,
    state: Mutex<PlaceState>,
}

#[derive(Debug, Default)]
struct PlaceState {
    is_retired: bool,
    /// The path of the data that has the file's name, if this process has made it.
    made_here: Option<SharedPath>,
}

impl SingleFile {
    fn new(path: &Path) -> SingleFile {
        SingleFile { path: path.into(), state: Mutex::default() }
    }

    /// What every name of an attempt begins with.
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
        // etcd, killed while it made the file, leaves an empty one.
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
        sync_parent(&path)?;
        fs::rename(next.path.get(), &path).map_err(Error::at(&path))?;
        next.path.set(&path);
        state.made_here = Some(next.path.clone());
        sync_parent(&path).map(|()| true)
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

    /// As `etcdutl defrag` has it open, which waits for the lock.
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
        // A root that is a leaf would be at hand.
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
        let told = found.unwrap_err().to_string();
        assert!(told.starts_with(&format!("{}: damaged", path.display())), "{told}");
    }
}
