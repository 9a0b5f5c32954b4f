//! `--timeout`: waits until another program has closed a store's file.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::BoxError;
use crate::config::arguments::FlagReader;
use crate::config::table::{Flag, flag};
use crate::config::value::{self, ValueKind};

pub(super) const TIMEOUT: Flag = flag("timeout", ValueKind::Duration, "0s").help(
    "Time to wait until another program has closed the file (0: fail at once; in etcdutl: wait \
     without limit).",
);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// Waits until the file is not locked, or until the time limit. The lock is not kept. The caller's
/// later attempt to open the file reports a file that is still locked, locked again, or unreadable.
pub(super) fn wait_until_unlocked(
    flags: &FlagReader,
    file: &Path,
    access: Access,
) -> Result<(), BoxError> {
    let text = flags.text("timeout");
    let limit = value::time(text).ok_or_else(|| {
        format!("invalid value \"{text}\" for flag -timeout: it must not be below 0")
    })?;
    let begin = Instant::now();
    while is_locked(file, access) && begin.elapsed() < limit {
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn is_locked(path: &Path, access: Access) -> bool {
    // Opening a named pipe would block.
    if !fs::metadata(path).is_ok_and(|found| found.is_file()) {
        return false;
    }
    let Ok(file) = File::open(path) else { return false };
    let tried = match access {
        Access::Read => file.try_lock_shared(),
        Access::Write => file.try_lock(),
    };
    matches!(tried, Err(TryLockError::WouldBlock))
}
