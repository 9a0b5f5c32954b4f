//! Reads that give up rather than wait for the disk.
//!
//! Inside [`try_read_cached`] a page that is not in memory is [`Error::NotCached`], which ends the
//! read as any error does; the outcome is [`NotCached`] even if a layer above hides the error. A
//! thread that can wait then reads all again. See `docs/decisions/engine-cold-reads.md`.
//!
//! Only [`mod@crate::bolt`] asks whether a page is in memory, and only on Linux; elsewhere all
//! reads wait. Linux may read ahead, or note the time of access, before it answers.

use std::cell::Cell;

use crate::error::Error;

/// What the reads of this thread do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// They wait for the disk.
    Waiting,
    CachedOnly,
    /// As `CachedOnly`, and one has found a page that is not in memory.
    Missed,
}

thread_local! {
    static MODE: Cell<Mode> = const { Cell::new(Mode::Waiting) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCached;

/// Runs `read`, all of whose reads must find what they want in memory.
///
/// It must only read: if it ends early, whatever it has changed stays as it is then.
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

/// The error of a read that found a page that is not in memory.
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
