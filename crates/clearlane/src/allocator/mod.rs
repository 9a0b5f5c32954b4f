//! What a program that serves allocates with, how long it keeps what is free, and in which pages.
//!
//! An answer of an old era is one piece of 20 MB. mimalloc gives such memory back after a tenth of
//! a second, and the next answer gets it anew, page by page, each with a fault. So what is free
//! stays for a second, in an old era for minutes. If `MIMALLOC_PURGE_DELAY` is set, its value
//! holds. Figures are in `docs/decisions/clearlane-allocator.md`.
//!
//! Where the system gives huge pages, the first allocations of each thread take some of them, and a
//! small store a third more memory. An old era keeps them, for its large answers.
//!
//! The library does not choose: a program that has a server in it keeps its allocator.

#![allow(unsafe_code, reason = "mimalloc's options have no safe function")]

use std::sync::atomic::{AtomicBool, Ordering};

pub use mimalloc::MiMalloc as Allocator;

/// In milliseconds, for what a thread has; ten times as long for what is in large pieces.
const PURGE_DELAY_MS: std::ffi::c_long = 100;
/// In an old era, where an answer is made as a whole.
const OLD_ERA_PURGE_DELAY_MS: std::ffi::c_long = 60_000;
/// `mi_option_purge_delay` of version 2, which the crate leaves out of its list.
const PURGE_DELAY_OPTION: libmimalloc_sys::mi_option_t = 15;
/// Whether [`configure`] has switched them off, and not what started the program.
static HUGE_PAGES_WERE_ON: AtomicBool = AtomicBool::new(false);

/// Called once, at the start.
pub fn configure() {
    set_purge_delay_ms(PURGE_DELAY_MS);
    if !are_huge_pages_disabled() {
        HUGE_PAGES_WERE_ON.store(true, Ordering::Relaxed);
        disable_huge_pages(true);
    }
}

/// Called once the era is known to be an old one.
pub(crate) fn configure_old_era() {
    set_purge_delay_ms(OLD_ERA_PURGE_DELAY_MS);
    if HUGE_PAGES_WERE_ON.load(Ordering::Relaxed) {
        disable_huge_pages(false);
    }
}

fn are_huge_pages_disabled() -> bool {
    #[cfg(target_os = "linux")]
    return rustix::thread::transparent_huge_pages_are_disabled().unwrap_or(true);
    #[cfg(not(target_os = "linux"))]
    true
}

/// If the system refuses, memory is all that it costs.
fn disable_huge_pages(_disable: bool) {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(_disable);
}

fn set_purge_delay_ms(ms: std::ffi::c_long) {
    // SAFETY: the option is there, and any number is one of its values. Threads that read it
    // meanwhile find the old one or the new one.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY_OPTION, ms) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn options_are_those_that_are_meant() {
        let had_huge_pages = !super::are_huge_pages_disabled();
        // SAFETY: as above.
        let now = || unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY_OPTION) };
        let is_own_delay = std::env::var_os("MIMALLOC_PURGE_DELAY").is_none();
        assert!(!is_own_delay || now() == 10, "mimalloc's own");
        super::configure();
        assert!(!is_own_delay || now() == super::PURGE_DELAY_MS);
        assert!(super::are_huge_pages_disabled());
        super::configure_old_era();
        assert!(!is_own_delay || now() == super::OLD_ERA_PURGE_DELAY_MS);
        assert_eq!(super::are_huge_pages_disabled(), !had_huge_pages);
    }
}
