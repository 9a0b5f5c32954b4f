//! Reads that give up instead of waiting for the disk.
//!
//! Inside [`try_read_cached`], a read fails with [`Error::NotCached`] if it needs a page that is
//! not in memory. Then [`try_read_cached`] returns [`NotCached`], even if a layer in between has
//! hidden the error. The caller repeats all its reads on a thread that may wait. See
//! `docs/decisions/engine-cold-reads.md`.
//!
//! Only [`mod@crate::bolt`] checks whether a page is in memory, and only on Linux. Everywhere else
//! all reads wait for the disk. During such a check, Linux may read further pages ahead or update
//! the file's access time.

use std::cell::Cell;

use crate::error::Error;

/// Determines whether the reads of a thread may wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Reads wait for the disk.
    Waiting,
    CachedOnly,
    /// Like `CachedOnly`, after a read has found that a page is not in memory.
    Missed,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Waiting) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCached;

/// Runs `read`, and fails if one of its reads needs a page that is not in memory.
///
/// `read` must not change anything: if it ended early, its changes would remain half done.
pub fn try_read_cached<T>(read: impl FnOnce() -> T) -> Result<T, NotCached> {
    let _until_here = CachedOnlyScope::start();
    let outcome = read();
    match MODE.get() {
        Mode::Missed => Err(NotCached),
        Mode::Waiting | Mode::CachedOnly => Ok(outcome),
    }
}

pub(crate) fn is_cached_only() -> bool {
    MODE.get() != Mode::Waiting
}

/// Records that a page is not in memory, and returns the error for it.
pub(crate) fn not_cached() -> Error {
    MODE.set(Mode::Missed);
    Error::NotCached
}

struct CachedOnlyScope {
    previous: Mode,
}

impl CachedOnlyScope {
    fn start() -> CachedOnlyScope {
        CachedOnlyScope { previous: MODE.replace(Mode::CachedOnly) }
    }
}

impl Drop for CachedOnlyScope {
    fn drop(&mut self) {
        MODE.set(self.previous);
    }
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod cold_files;

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;

    #[test]
    fn a_miss_ends_its_own_scope_and_no_other() {
        let read = |is_cold: bool| {
            try_read_cached(|| {
                let inner = try_read_cached(|| if is_cold { Err(not_cached()) } else { Ok(1) });
                assert!(is_cached_only(), "the outer one goes on");
                inner.map(|found| found.unwrap())
            })
        };
        assert_eq!(read(false), Ok(Ok(1)));
        assert_eq!(read(true), Ok(Err(NotCached)));
        assert!(!is_cached_only());
    }

    #[test]
    fn an_error_that_is_hidden_is_still_a_miss() {
        assert_eq!(try_read_cached(|| Err::<u8, _>(not_cached()).ok()), Err(NotCached));
        assert_eq!(try_read_cached(|| None::<u8>), Ok(None));
    }

    #[test]
    fn a_panic_ends_the_scope() {
        let failed = panic::catch_unwind(|| try_read_cached(|| panic::resume_unwind(Box::new(7))));
        let payload: Box<dyn std::any::Any + Send> = match failed {
            Ok(Ok(())) | Ok(Err(NotCached)) => panic!("it was swallowed"),
            Err(payload) => payload,
        };
        assert_eq!(payload.downcast_ref(), Some(&7));
        assert!(!is_cached_only());
    }
}
