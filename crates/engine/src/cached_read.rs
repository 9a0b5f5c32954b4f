//! Reads that give up rather than wait for the disk.
//!
//! Inside [`try_read_cached`] a read ends at the first page that is not in memory, with
//! [`NotCached`], and a thread that can wait reads all again. See
//! `docs/decisions/engine-cold-reads.md`.
//!
//! The read ends by unwinding, because redb takes every error of its file for the end of the store.
//! A thread that reads a snapshot holds no lock of redb when it comes to the file. A thread that
//! writes does, and redb tidies up when it closes: so a read that may be the last to let go of an
//! old store must do that outside.
//!
//! Only [`redb`](mod@crate::redb) and [`mod@crate::bolt`] ask whether a page is in memory, and only
//! on Linux; elsewhere all reads wait. Linux may read ahead, or note the time of access, before it
//! answers.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static IS_CACHED_ONLY: Cell<bool> = const { Cell::new(false) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotCached;

/// Runs `read` as long as all that it reads is in memory.
///
/// It must only read: if it ends early, whatever it has changed stays as it is then.
pub fn try_read_cached<T>(read: impl FnOnce() -> T) -> Result<T, NotCached> {
    let outcome = {
        let _until_here = CachedOnlyScope::start();
        panic::catch_unwind(AssertUnwindSafe(read))
    };
    outcome.or_else(|payload| {
        if payload.is::<NotCached>() { Err(NotCached) } else { panic::resume_unwind(payload) }
    })
}

pub(crate) fn is_cached_only() -> bool {
    IS_CACHED_ONLY.get()
}

/// By unwinding to [`try_read_cached`].
pub(crate) fn abort_not_cached() -> ! {
    panic::resume_unwind(Box::new(NotCached))
}

struct CachedOnlyScope {
    previous: bool,
}

impl CachedOnlyScope {
    fn start() -> CachedOnlyScope {
        CachedOnlyScope { previous: IS_CACHED_ONLY.replace(true) }
    }
}

impl Drop for CachedOnlyScope {
    fn drop(&mut self) {
        IS_CACHED_ONLY.set(self.previous);
    }
}

#[cfg(all(test, target_os = "linux"))]
pub(crate) mod cold_files;

#[cfg(test)]
mod tests {
    use std::panic;

    use super::*;

    #[test]
    fn who_gives_up_gives_up_all_and_no_more() {
        let read = |is_cold: bool| {
            try_read_cached(|| {
                assert!(is_cached_only());
                let inner = try_read_cached(|| if is_cold { abort_not_cached() } else { 1 });
                assert!(is_cached_only(), "the outer one goes on");
                inner
            })
        };
        assert_eq!(read(false), Ok(Ok(1)));
        assert_eq!(read(true), Ok(Err(NotCached)));
        assert_eq!(try_read_cached(|| -> u8 { abort_not_cached() }), Err(NotCached));
        assert!(!is_cached_only());
    }

    #[test]
    fn a_panic_stays_one() {
        let failed =
            panic::catch_unwind(|| try_read_cached(|| panic::resume_unwind(Box::new(7_u8))));
        let payload: Box<dyn std::any::Any + Send> = match failed {
            Ok(Ok(())) | Ok(Err(NotCached)) => panic!("it was swallowed"),
            Err(payload) => payload,
        };
        assert_eq!(payload.downcast_ref(), Some(&7_u8));
        assert!(!is_cached_only());
    }
}
