//! The errors of the engines, grouped by who must act, and the names of the engines.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EngineKind {
    /// Copy-on-write B+trees in one file, in etcd's own format. This is the default.
    Bolt,
    /// A log-structured tree. `docs/decisions/engine-sled.md` lists the guarantees that it lacks.
    Sled,
    /// Stores no records on disk. It is for tests, and for measuring how much the disk costs.
    Memory,
}

impl EngineKind {
    pub const ALL: [EngineKind; 3] = [EngineKind::Bolt, EngineKind::Sled, EngineKind::Memory];

    /// Returns the name that is used on the command line and in the directory's marker.
    pub const fn name(self) -> &'static str {
        match self {
            EngineKind::Bolt => "bolt",
            EngineKind::Sled => "sled",
            EngineKind::Memory => "memory",
        }
    }

    /// Returns whether a commit survives a crash. If it does not, only the layer above can rebuild
    /// the store. The server does this from its write-ahead log while the log is complete: a member
    /// with the engine `memory` does not start again once its log has a snapshot record.
    pub const fn is_durable(self) -> bool {
        !matches!(self, EngineKind::Memory)
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<EngineKind> {
        let found = EngineKind::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| Error::UnknownEngine { name: name.to_owned() })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    // The operator must act.
    #[error("unknown engine \"{name}\": allowed are bolt, sled, memory")]
    UnknownEngine { name: String },
    /// The path belongs to something else: another program, another engine, or a newer version.
    /// `found` describes the difference.
    #[error("{path}: {found}; refusing to touch it")]
    Foreign { path: PathBuf, found: String },
    /// Another process, or another part of this process, has the store open.
    #[error("{path}: in use by another process or another part of this one")]
    Locked { path: PathBuf },
    #[error("{path}: {source}")]
    Path { path: PathBuf, source: io::Error },
    #[error("{path}: damaged: {detail}")]
    Corrupt { path: PathBuf, detail: String },

    // The caller must act.
    #[error("{path}: there is no page {page}: the file has {pages} pages")]
    NoPage { path: PathBuf, page: u64, pages: u64 },
    #[error("{path}: there is no bucket \"{name}\", but {found}")]
    NoBucket { path: PathBuf, name: String, found: String },
    #[error("a write transaction is already open")]
    WriterBusy,
    #[error("another defragmentation is in progress")]
    DefragmentBusy,
    #[error("a key of {bytes} bytes: 1 to 32768 are allowed")]
    KeySize { bytes: usize },
    #[error("a value of {bytes} bytes is too large")]
    ValueSize { bytes: usize },

    /// A page is not in memory. Occurs only inside [`try_read_cached`](crate::try_read_cached).
    #[error("a page is not in memory")]
    NotCached,

    // The process must stop if a write or a commit fails with one of these errors.
    /// An operation of the store failed. This error is also used if only a defragmentation or a
    /// stream fails and the store remains usable. The text then gives the reason.
    #[error("storage engine: {0}")]
    Storage(String),
    /// An earlier commit or the end of a defragmentation failed, or a write transaction panicked.
    /// So the state of the data on disk is unknown.
    #[error("an earlier commit failed; the store accepts no more writes")]
    Failed,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
        move |source| Error::Path { path: path.to_owned(), source }
    }

    pub(crate) fn corrupt(path: &Path, detail: impl Into<String>) -> Error {
        Error::Corrupt { path: path.to_owned(), detail: detail.into() }
    }
}

/// Joins the lines of an error message from another library into one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::{EngineKind, Error};

    #[test]
    fn names_are_read_back_and_others_refused() {
        for kind in EngineKind::ALL {
            assert_eq!(kind.name().parse::<EngineKind>().unwrap(), kind);
        }
        let error = "lmdb".parse::<EngineKind>().unwrap_err();
        assert!(matches!(error, Error::UnknownEngine { .. }));
        assert_eq!(error.to_string(), "unknown engine \"lmdb\": allowed are bolt, sled, memory");
    }
}
