//! Whose directory is this? The marker file, the lock, and the generations of a store.
//!
//! A store owns its directory. What lies in it is named by a small text file, the *marker*:
//!
//! ```text
//!   store/                         engine (the marker):
//!   ├── engine                       clearlane-engine 1
//!   └── data.7                       engine redb
//!                                    generation 7
//! ```
//!
//! The marker says which engine writes here, in which format version, and which *generation* of
//! the data is the store. A defragmentation builds the next generation beside the current one and
//! then replaces the marker, in one atomic rename: that instant is the switch. Killed before it,
//! the store is the old generation and the new one is a leftover; killed after it, the reverse.
//! Leftovers are removed when the store is opened.
//!
//! A new store is made the same way. `engine.new` announces it, `data.0` is built, and renaming
//! `engine.new` to `engine` makes it a store. A directory with an announcement and no marker is a
//! store whose making was interrupted; nothing was ever acknowledged in it, so it is made again.
//!
//! # Invariants
//!
//! * A directory that is refused is left exactly as it was found.
//! * The directory itself is locked (`flock`) from before the first look until the engine and all
//!   that came out of it are gone. The marker cannot carry the lock: it is replaced.
//! * A marker is complete or absent, for it comes into being by a rename.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{EngineKind, Error, Result};

const MARKER: &str = "engine";
const MARKER_NEW: &str = "engine.new";
const DATA_PREFIX: &str = "data.";
const FORMAT_NAME: &str = "clearlane-engine";
const FORMAT_VERSION: u64 = 1;

/// A directory that is locked and is ours, or may become ours.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    kind: EngineKind,
    /// What the marker says; [`NO_STORE`] before there is one.
    generation: AtomicU64,
    /// The number of the next attempt. None is used twice: an engine that was dropped may still
    /// be closing its files, and must not find those of another attempt under their names.
    next: AtomicU64,
    /// The open directory. It carries the lock and is what a rename is synced through.
    handle: File,
}

const NO_STORE: u64 = u64::MAX;

impl Directory {
    /// Locks the directory and finds out whether `kind` may use it. Creates it if its parent is
    /// there; writes nothing else.
    pub(crate) fn claim(path: &Path, kind: EngineKind) -> Result<Directory> {
        let at = |source| Error::Path { path: path.to_owned(), source };
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {}
            Ok(_) => return Err(foreign(path, "a file, not a directory".to_owned())),
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
                fs::create_dir(path).map_err(at)?;
            }
            Err(error) => return Err(at(error)),
        }
        let handle = File::open(path).map_err(at)?;
        match handle.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Locked { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => return Err(at(error)),
        }
        let generation = inspect(path, kind)?;
        require_writable(path)?;
        let next = AtomicU64::new(generation.map_or(0, |generation| generation + 1));
        let generation = AtomicU64::new(generation.unwrap_or(NO_STORE));
        Ok(Directory {
            shared: Arc::new(Shared { path: path.to_owned(), kind, generation, next, handle }),
        })
    }

    /// The generation that is the store, if there is a store.
    pub(crate) fn current(&self) -> Option<u64> {
        let generation = self.shared.generation.load(Ordering::Acquire);
        (generation != NO_STORE).then_some(generation)
    }

    /// Where a generation's data is.
    pub(crate) fn data(&self, generation: u64) -> PathBuf {
        self.file(&format!("{DATA_PREFIX}{generation}"))
    }

    /// The number of a generation to be made. Whatever an interrupted attempt left in its place is
    /// removed.
    pub(crate) fn prepare_next(&self) -> Result<u64> {
        if self.current().is_none() {
            self.write_announcement(0)?;
        }
        let generation = self.shared.next.fetch_add(1, Ordering::AcqRel);
        remove_data(&self.data(generation))?;
        Ok(generation)
    }

    /// Writes down that a generation is about to be the store. Its data must be synced by now.
    pub(crate) fn announce(&self, generation: u64) -> Result<()> {
        self.sync()?;
        self.write_announcement(generation)
    }

    /// Makes the announced generation the store. If this fails, the marker may name either.
    pub(crate) fn switch(&self, generation: u64) -> Result<()> {
        let (from, to) = (self.file(MARKER_NEW), self.file(MARKER));
        fs::rename(&from, &to).map_err(|source| Error::Path { path: to, source })?;
        self.shared.generation.store(generation, Ordering::Release);
        self.sync()
    }

    /// Removes what interrupted attempts left behind. Called when the store was opened well.
    pub(crate) fn remove_leftovers(&self) -> Result<()> {
        let current = self.current().map(|generation| self.data(generation));
        for name in names(&self.shared.path)? {
            let path = self.file(&name);
            let old_data = name.starts_with(DATA_PREFIX) && Some(&path) != current.as_ref();
            if old_data || name == MARKER_NEW {
                remove_data(&path)?;
            }
        }
        Ok(())
    }

    /// Makes the directory a store without data, if it is none.
    pub(crate) fn settle(&self) -> Result<()> {
        if self.current().is_none() {
            let generation = self.prepare_next()?;
            self.announce(generation)?;
            self.switch(generation)?;
        }
        self.remove_leftovers()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.shared.path.join(name)
    }

    fn write_announcement(&self, generation: u64) -> Result<()> {
        let path = self.file(MARKER_NEW);
        let text = Marker { kind: self.shared.kind, generation }.to_text();
        let write = || {
            fs::write(&path, text)?;
            File::open(&path)?.sync_all()
        };
        write().map_err(|source| Error::Path { path: path.clone(), source })?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        let path = &self.shared.path;
        self.shared.handle.sync_all().map_err(|source| Error::Path { path: path.clone(), source })
    }
}

/// What the marker says.
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
        let damaged = || Error::Corrupt {
            path: path.to_owned(),
            detail: "not a marker of a storage engine".to_owned(),
        };
        let mut lines = text.lines();
        let mut field = |name: &str| {
            let line = lines.next()?;
            line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned)
        };
        let version: u64 = field(FORMAT_NAME).and_then(|v| v.parse().ok()).ok_or_else(damaged)?;
        if version > FORMAT_VERSION {
            let known = format!("format version {version}, but this program knows up to");
            return Err(foreign(path, format!("{known} {FORMAT_VERSION}")));
        }
        let kind = field("engine").and_then(|kind| kind.parse().ok()).ok_or_else(damaged)?;
        let generation =
            field("generation").and_then(|number| number.parse().ok()).ok_or_else(damaged)?;
        Ok(Marker { kind, generation })
    }
}

/// The store's generation, `None` where a store may be made, or why neither is so.
fn inspect(path: &Path, kind: EngineKind) -> Result<Option<u64>> {
    let names = names(path)?;
    if names.iter().any(|name| name == MARKER) {
        let marker_path = path.join(MARKER);
        let bytes = fs::read(&marker_path)
            .map_err(|source| Error::Path { path: marker_path.clone(), source })?;
        let marker = Marker::parse(&marker_path, &String::from_utf8_lossy(&bytes))?;
        if marker.kind != kind {
            let found = format!("belongs to engine {}, not {kind}", marker.kind);
            return Err(foreign(path, found));
        }
        return Ok(Some(marker.generation));
    }
    // Only what an interrupted making can have left may lie here.
    let announced = names.iter().any(|name| name == MARKER_NEW);
    let stranger =
        names.iter().find(|name| !(announced && (*name == MARKER_NEW || *name == "data.0")));
    match stranger {
        Some(name) => Err(foreign(path, format!("not empty (\"{name}\") and not a store"))),
        None => Ok(None),
    }
}

/// Refuses a directory in which nothing can be made, before the engine stumbles over it.
fn require_writable(path: &Path) -> Result<()> {
    let read_only = fs::metadata(path).map(|found| found.permissions().readonly());
    match read_only {
        Ok(false) => Ok(()),
        Ok(true) => {
            let source = io::ErrorKind::PermissionDenied.into();
            Err(Error::Path { path: path.to_owned(), source })
        }
        Err(source) => Err(Error::Path { path: path.to_owned(), source }),
    }
}

fn names(path: &Path) -> Result<Vec<String>> {
    let list = || -> io::Result<Vec<String>> {
        let entries = fs::read_dir(path)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    list().map_err(|source| Error::Path { path: path.to_owned(), source })
}

/// Removes one generation, which is a file for one engine and a directory for another.
pub(crate) fn remove_data(path: &Path) -> Result<()> {
    let removed = match fs::metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::Path { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}

fn foreign(path: &Path, found: String) -> Error {
    Error::Foreign { path: path.to_owned(), found }
}
