//! Reads that give up rather than wait for the disk.
//!
//! # The problem
//!
//! A thread that answers many clients reads small things itself: they are in memory, and handing them to another thread would
//! take longer than reading them. Now and then one is not in memory. The disk has it, in a tenth of a millisecond, or,
//! if another sync keeps it busy, in a hundred. The one client must wait for that. The others need not, and do,
//! because it is their thread, too: the expensive read again, and it was of one key.
//!
//! # The idea
//!
//! ```text
//!   thread of many    without_waiting(read) ── page ── page ── not in memory ──▶ Cold
//!                                                                                  │
//!   thread of few                                                     read ── page ── page ── ··disk·· ── page
//! ```
//!
//! A read inside [`try_read_cached`] is as any other, until it needs a page that is not in memory. There it ends, and
//! [`NotCached`] comes back. What it had found so far is dropped; a thread that can wait reads it all again.
//!
//! # How a read ends in its middle
//!
//! By unwinding, as a panic does, but nothing is printed and nothing has failed. An error would not do: redb takes
//! every error of its file for the end of the store, and answers nothing from then on. A thread that reads a snapshot
//! there holds no lock when it comes to the file, and changes nothing but caches, so nothing is left half done. A
//! thread that *writes* holds locks. So a read that may be the last to let go of an old store must do that outside:
//! redb tidies up when it closes.
//!
//! # Limits
//!
//! Only [`redb`](mod@crate::redb) asks, and only Linux answers. Elsewhere all reads wait, as they always did. And what
//! Linux does before it answers is out of our hands: it starts to read ahead, and may note the time of the access.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};

thread_local! {
    static IS_CACHED_ONLY: Cell<bool> = const { Cell::new(false) };
}

/// Something that was to be read is not in memory.
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
    outcome.or_else(|payload| match payload.is::<NotCached>() {
        true => Err(NotCached),
        false => panic::resume_unwind(payload),
    })
}

/// Whether this thread is inside [`try_read_cached`].
pub(crate) fn is_cached_only() -> bool {
    IS_CACHED_ONLY.get()
}

/// Ends what runs inside [`try_read_cached`].
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
