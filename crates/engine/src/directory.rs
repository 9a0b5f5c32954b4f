//! The directory of a store: its marker file, its lock, and the generations of its data.
//!
//! The marker is the file `engine`. It names the engine, the version of the format and the current
//! generation: if it names generation 7, then `data.7` is the store.
//!
//! ```text
//!   engine         clearlane-engine 1
//!                  engine bolt
//!                  generation 7
//!   data.7         the store: a file for bolt, a directory for sled, absent for memory
//!   data.8         the next generation, while a defragmentation copies the store
//!   engine.new     the next marker, before it is renamed to `engine`
//! ```
//!
//! A defragmentation builds the next generation next to the current one. Then it replaces the
//! marker by one atomic rename. A new store is made in the same way: `engine.new` is written first
//! and renamed when the data is complete. See `docs/engine.md`.
//!
//! * A directory that is rejected stays exactly as it was found. Leftovers are removed only if they
//!   have a name that we give. Without a marker, a file `engine.new` is considered ours only if its
//!   text is a new store's marker, or the beginning of one.
//! * The directory is locked (`flock`) before its contents are read. The lock ends when the engine
//!   is dropped. An engine on disk keeps the lock until all its snapshots and transactions are
//!   dropped as well. The marker cannot carry the lock, because it is replaced.
//! * A marker is complete or absent, because it is created by a rename.
//! * When [`claim`](Directory::claim) returns, the marker that it found is on disk. The process
//!   that renamed the marker may have died before it synced the directory. So `claim` syncs the
//!   directory before anything else is written.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{EngineKind, Error, Result};
use crate::place::{Generation, Place};

const MARKER: &str = "engine";
const MARKER_NEW: &str = "engine.new";
const DATA_PREFIX: &str = "data.";
const FORMAT_NAME: &str = "clearlane-engine";
const FORMAT_VERSION: u64 = 1;
/// The suffix of a trial copy. `sled/files.rs` opens such a copy before it opens the store.
const TRIAL_SUFFIX: &str = ".trial";

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    kind: EngineKind,
    /// The generation that the marker names, or [`NO_STORE`] if there is no marker yet.
    generation: AtomicU64,
    /// The number of the next new generation. No number is used twice while the directory is open:
    /// a generation that was dropped may still be closing its files, and another generation must
    /// not have files with the same names.
    next_generation: AtomicU64,
    /// The open directory. It carries the lock, and renames are synced through it.
    handle: File,
}

const NO_STORE: u64 = u64::MAX;

/// Maximum generation in a marker. No store is ever defragmented that often, so a marker with a
/// larger number is damaged. Numbers that are counted up from this limit never reach [`NO_STORE`].
const GENERATION_MAX: u64 = u64::MAX / 2;

impl Directory {
    /// Locks the directory, and fails unless `kind` may use it. Creates the directory if it is
    /// missing and its parent exists. Writes nothing else.
    pub(crate) fn claim(path: &Path, kind: EngineKind) -> Result<Arc<Directory>> {
        let made = create_if_missing(path)?;
        let handle = lock(path)?;
        let generation = inspect(path, kind)?;
        require_writable(path)?;
        match generation {
            // The process that renamed the marker may have died before it synced the rename.
            Some(_) => sync(path, &handle)?,
            None => {
                let synced = sync_parent(path);
                // The sync is attempted even if the directory existed, because an earlier process
                // may have created the directory and then been killed. If it existed, a failed sync
                // is ignored: the directory may be a mount point whose parent cannot be synced.
                if made {
                    synced?;
                }
            }
        }
        let next_generation = AtomicU64::new(generation.map_or(0, |generation| generation + 1));
        let generation = AtomicU64::new(generation.unwrap_or(NO_STORE));
        let path = path.to_owned();
        Ok(Arc::new(Directory { path, kind, generation, next_generation, handle }))
    }

    fn current_generation(&self) -> Option<u64> {
        let generation = self.generation.load(Ordering::Acquire);
        (generation != NO_STORE).then_some(generation)
    }

    fn data_path(&self, generation: u64) -> PathBuf {
        self.file(&format!("{DATA_PREFIX}{generation}"))
    }

    /// If the directory is not a store yet, makes it a store without data. Then removes leftovers.
    pub(crate) fn ensure_store(&self) -> Result<()> {
        if self.current_generation().is_none() {
            let generation = self.prepare_next()?;
            self.make_current(&generation)?;
        }
        self.remove_leftovers()
    }

    fn generation(&self, number: u64) -> Generation {
        Generation { number, path: self.data_path(number).as_path().into() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn write_announcement(&self, generation: u64) -> Result<()> {
        let path = self.file(MARKER_NEW);
        let text = Marker { kind: self.kind, generation }.to_text();
        let write = || {
            fs::write(&path, text)?;
            File::open(&path)?.sync_all()
        };
        write().map_err(Error::at(&path))?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        sync(&self.path, &self.handle)
    }
}

impl Place for Directory {
    fn current(&self) -> Option<Generation> {
        self.current_generation().map(|number| self.generation(number))
    }

    fn prepare_next(&self) -> Result<Generation> {
        if self.current_generation().is_none() {
            self.write_announcement(0)?;
        }
        let generation = self.next_generation.fetch_add(1, Ordering::AcqRel);
        remove_data(&self.data_path(generation))?;
        Ok(self.generation(generation))
    }

    fn make_current(&self, next: &Generation) -> Result<bool> {
        self.sync()?;
        self.write_announcement(next.number)?;
        let (from, to) = (self.file(MARKER_NEW), self.file(MARKER));
        fs::rename(&from, &to).map_err(Error::at(&to))?;
        self.generation.store(next.number, Ordering::Release);
        self.sync().map(|()| true)
    }

    fn keeps_replaced(&self) -> bool {
        true
    }

    fn remove_leftovers(&self) -> Result<()> {
        let current =
            self.current_generation().map(|generation| format!("{DATA_PREFIX}{generation}"));
        for name in names(&self.path)? {
            let old_data = is_data_name(&name) && Some(&name) != current.as_ref();
            if old_data || name == MARKER_NEW {
                remove_data(&self.file(&name))?;
            }
        }
        Ok(())
    }
}

struct Marker {
    kind: EngineKind,
    generation: u64,
}

impl Marker {
    fn to_text(&self) -> String {
        let Marker { kind, generation } = self;
        format!("{FORMAT_NAME} {FORMAT_VERSION}\nengine {kind}\ngeneration {generation}\n")
    }

    fn parse(path: &Path, text: &str) -> Result<Marker> {
        let damaged = || Error::corrupt(path, "not a marker of a storage engine");
        let mut lines = text.lines();
        let mut field = |name: &str| {
            let line = lines.next()?;
            line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned)
        };
        let version: u64 = field(FORMAT_NAME).and_then(|v| v.parse().ok()).ok_or_else(damaged)?;
        if version > FORMAT_VERSION {
            let known = format!("but this program knows up to {FORMAT_VERSION}");
            return Err(foreign(path, format!("format version {version}, {known}")));
        }
        let name = field("engine").ok_or_else(damaged)?;
        let kind = name.parse().map_err(|_| {
            foreign(path, format!("of engine {name:?}, which this version does not have"))
        })?;
        let generation = field("generation").and_then(|number| number.parse().ok());
        let generation = generation.filter(|generation| *generation <= GENERATION_MAX);
        Ok(Marker { kind, generation: generation.ok_or_else(damaged)? })
    }

    /// Returns whether `bytes` are the announcement of a new store: the text of `engine.new`, or
    /// the part of it that is left after an interruption.
    fn is_announcement(bytes: &[u8]) -> bool {
        // After a power cut a file may have its full length while its end is still zeros.
        let ended = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        let is_of = |kind| {
            let whole = Marker { kind, generation: 0 }.to_text();
            bytes.len() <= whole.len() && whole.as_bytes().starts_with(&bytes[..ended])
        };
        EngineKind::ALL.into_iter().any(is_of)
    }
}

/// Returns whether `name` is a name that we give to a generation's data or to a trial copy of it.
fn is_data_name(name: &str) -> bool {
    let number = name.strip_prefix(DATA_PREFIX);
    let number = number.map(|rest| rest.strip_suffix(TRIAL_SUFFIX).unwrap_or(rest));
    // "data.+7" and "data.007" also parse as numbers, but we never write such names.
    number.is_some_and(|text| text.parse().is_ok_and(|number: u64| number.to_string() == text))
}

/// Returns the path for a trial copy of a generation's data.
pub(crate) fn trial_path(data: &Path) -> PathBuf {
    let mut path = data.as_os_str().to_owned();
    path.push(TRIAL_SUFFIX);
    path.into()
}

/// Creates the directory. Returns `false` if it existed already.
fn create_if_missing(path: &Path) -> Result<bool> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(false),
        Ok(_) => Err(foreign(path, "a file, not a directory".to_owned())),
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            fs::create_dir(path).map_err(Error::at(path))?;
            Ok(true)
        }
        Err(error) => Err(Error::at(path)(error)),
    }
}

fn lock(path: &Path) -> Result<File> {
    let handle = File::open(path).map_err(Error::at(path))?;
    match handle.try_lock() {
        Ok(()) => Ok(handle),
        Err(TryLockError::WouldBlock) => Err(Error::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(Error::at(path)(error)),
    }
}

/// Returns the store's generation, or `None` if a store may be created here. Fails if the directory
/// has other files and no marker. Also fails if the marker is damaged, names another engine, or has
/// a newer format version.
fn inspect(path: &Path, kind: EngineKind) -> Result<Option<u64>> {
    let names = names(path)?;
    if names.iter().any(|name| name == MARKER) {
        let marker_path = path.join(MARKER);
        let bytes = fs::read(&marker_path).map_err(Error::at(&marker_path))?;
        let marker = Marker::parse(&marker_path, &String::from_utf8_lossy(&bytes))?;
        if marker.kind != kind {
            let found = format!("belongs to engine {}, not {kind}", marker.kind);
            return Err(foreign(path, found));
        }
        return Ok(Some(marker.generation));
    }
    // Without a marker, only files that an interrupted creation has left are allowed.
    let announced = names.iter().any(|name| name == MARKER_NEW) && has_announcement(path)?;
    let is_ours = |name: &str| announced && (name == MARKER_NEW || name == "data.0");
    match names.iter().find(|name| !is_ours(name)) {
        Some(name) => Err(foreign(path, format!("not empty (\"{name}\") and not a store"))),
        None => Ok(None),
    }
}

fn has_announcement(path: &Path) -> Result<bool> {
    let path = path.join(MARKER_NEW);
    if !path.is_file() {
        return Ok(false);
    }
    let mut bytes = Vec::new();
    // A file that is not ours may have any size, so only 1 KiB is read. Our announcement is
    // shorter.
    let read = File::open(&path).and_then(|file| file.take(1 << 10).read_to_end(&mut bytes));
    read.map_err(Error::at(&path))?;
    Ok(Marker::is_announcement(&bytes))
}

/// Fails if the directory is read-only, before the engine tries to create a file there.
fn require_writable(path: &Path) -> Result<()> {
    let found = fs::metadata(path).map_err(Error::at(path))?;
    if found.permissions().readonly() {
        return Err(Error::at(path)(io::ErrorKind::PermissionDenied.into()));
    }
    Ok(())
}

pub(crate) fn names(path: &Path) -> Result<Vec<String>> {
    let list = || -> io::Result<Vec<String>> {
        let entries = fs::read_dir(path)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    list().map_err(Error::at(path))
}

/// Removes a file or a directory, such as one generation of the data. Succeeds if nothing exists at
/// `path`.
pub(crate) fn remove_data(path: &Path) -> Result<()> {
    let removed = match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::at(path)(error)),
        _ => Ok(()),
    }
}

/// Syncs the names in a directory to the disk.
fn sync(path: &Path, handle: &File) -> Result<()> {
    #[cfg(test)]
    tests::SYNCED.with_borrow_mut(|synced| synced.push(path.to_owned()));
    handle.sync_all().map_err(Error::at(path))
}

/// Syncs the name of a directory or a file to the disk, by syncing its parent.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Ok(()),
    };
    sync(parent, &File::open(parent).map_err(Error::at(parent))?)
}

fn foreign(path: &Path, found: String) -> Error {
    Error::Foreign { path: path.to_owned(), found }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::{Directory, MARKER, Marker, sync_parent};
    use crate::error::EngineKind;

    thread_local! {
        pub(super) static SYNCED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
    }

    fn synced(work: impl FnOnce()) -> Vec<PathBuf> {
        SYNCED.take();
        work();
        SYNCED.take()
    }

    #[test]
    fn a_marker_that_was_found_is_on_disk_before_anything_else_happens() {
        // This is the state after a kill between the rename of the marker and the sync of the
        // directory.
        let dir = tempfile::tempdir().unwrap();
        let text = Marker { kind: EngineKind::Memory, generation: 7 }.to_text();
        fs::write(dir.path().join(MARKER), text).unwrap();
        fs::write(dir.path().join("data.6"), "the generation before").unwrap();
        let synced = synced(|| {
            let directory = Directory::claim(dir.path(), EngineKind::Memory).unwrap();
            assert_eq!(directory.current_generation(), Some(7));
            assert!(dir.path().join("data.6").exists(), "removed before it was allowed");
        });
        assert_eq!(synced, [dir.path()]);
    }

    #[test]
    fn a_directory_that_was_made_is_on_disk() {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("store");
        let claim = || drop(Directory::claim(&dir, EngineKind::Bolt).unwrap());
        assert_eq!(synced(claim), [parent.path()]);
        // The directory exists now. Its name is synced again, because a process may have created
        // the directory and been killed before the sync.
        assert_eq!(synced(claim), [parent.path()]);
        assert_eq!(synced(|| sync_parent(Path::new("store")).unwrap()), [Path::new(".")]);
        assert!(synced(|| sync_parent(Path::new("/")).unwrap()).is_empty());
    }

    #[test]
    fn an_announcement_is_ours_or_what_is_left_of_it() {
        let whole = Marker { kind: EngineKind::Sled, generation: 0 }.to_text().into_bytes();
        for length in 0..=whole.len() {
            assert!(Marker::is_announcement(&whole[..length]));
            let mut torn = whole.clone();
            torn[length..].fill(0);
            assert!(Marker::is_announcement(&torn));
        }
        for other in ["my notes", "engine", "clearlane-engine 1\nengine bolt\ngeneration 0\n!"] {
            assert!(!Marker::is_announcement(other.as_bytes()), "{other}");
        }
        assert!(!Marker::is_announcement(&[0; 4096]));
    }
}
