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

pub use mimalloc::MiMalloc as Allocator;

/// In milliseconds, for what a thread has; ten times as long for what is in large pieces.
const PURGE_DELAY_MS: std::ffi::c_long = 100;
/// In an old era, where an answer is made as a whole.
const OLD_ERA_PURGE_DELAY_MS: std::ffi::c_long = 60_000;
/// `mi_option_purge_delay` of version 2, which the crate leaves out of its list.
const PURGE_DELAY_OPTION: libmimalloc_sys::mi_option_t = 15;

/// Called once, at the start.
pub fn configure() {
    set_purge_delay_ms(PURGE_DELAY_MS);
    disable_huge_pages(true);
}

/// Called once the era is known to be an old one.
pub(crate) fn configure_old_era() {
    set_purge_delay_ms(OLD_ERA_PURGE_DELAY_MS);
    disable_huge_pages(false);
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
    fn it_is_the_option_that_is_meant() {
        // SAFETY: as above.
        let now = || unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY_OPTION) };
        if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
            assert_eq!(now(), 10, "mimalloc's own");
            super::configure();
            assert_eq!(now(), super::PURGE_DELAY_MS);
            super::configure_old_era();
            assert_eq!(now(), super::OLD_ERA_PURGE_DELAY_MS);
        }
    }
}
