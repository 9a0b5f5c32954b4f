//! What the process sets for itself before it opens its data: how many files may be open, which
//! rights new files have, and whether a crash writes memory to disk.
//!
//! A connection is a file. With none left, a new segment of the log could not be opened, and a
//! member stops when its log fails. So connections get all but [some](RESERVED_FILES).

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// For the log, the store, members' connections, timers and sockets of the system.
const RESERVED_FILES: u64 = 256;

/// The default of `--max-connections`. Raises the limit of open files.
pub(crate) fn connections_max() -> usize {
    let allowed = raise_open_files().unwrap_or(u64::MAX);
    let connections = allowed.saturating_sub(RESERVED_FILES).max(allowed / 2);
    usize::try_from(connections).unwrap_or(usize::MAX)
}

/// As far as the system lets each process go, as Go does for etcd: the lower limit is meant for
/// programs that cannot have more. Returns it, or `None` if there is none.
fn raise_open_files() -> Option<u64> {
    let limits = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limits.maximum, maximum: limits.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limits.maximum,
        Err(_) => limits.current,
    }
}

/// New files are for this user alone, and so are new directories and sockets.
pub(crate) fn keep_files_private() {
    umask(Mode::RWXG | Mode::RWXO);
}

/// Without core files, keys and passwords do not reach a disk that way.
///
/// The limit is one byte: no file is that small, and Linux pipes a core of a process with that
/// limit to no program either, which it does with a limit of zero.
pub(crate) fn prevent_core_files() {
    let none = Rlimit { current: Some(1), maximum: Some(1) };
    if setrlimit(Resource::Core, none).is_err() {
        // The limit is lower already.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}
