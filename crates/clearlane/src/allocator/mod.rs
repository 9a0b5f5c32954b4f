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

#![allow(unsafe_code, reason = "an allocator, and mimalloc's options have no safe function")]

mod page_pool;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

pub use self::page_pool::chunk_bytes as page_pool_bytes;

/// mimalloc, and a [pool](page_pool) for the pages of the engine.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: a layout says which of the two its memory is from, and both keep to the contract.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if page_pool::is_for(layout) {
            return page_pool::take();
        }
        // SAFETY: what the caller promises.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if page_pool::is_for(layout) {
            let buffer = page_pool::take();
            if !buffer.is_null() {
                // SAFETY: it is as large as the layout.
                unsafe { buffer.write_bytes(0, layout.size()) };
            }
            return buffer;
        }
        // SAFETY: what the caller promises.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: what the caller promises: it is from here, and of this layout.
        unsafe {
            if page_pool::is_for(layout) {
                page_pool::give_back(memory);
            } else {
                MiMalloc.dealloc(memory, layout);
            }
        }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: what the caller promises: the new size, rounded up, is no overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if !page_pool::is_for(layout) && !page_pool::is_for(new_layout) {
            // SAFETY: it is from mimalloc, and stays there.
            return unsafe { MiMalloc.realloc(memory, layout, new_size) };
        }
        // SAFETY: both are as large as what is copied, and the old one is not used any more.
        unsafe {
            let moved = self.alloc(new_layout);
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(memory, layout.size().min(new_size));
                self.dealloc(memory, layout);
            }
            moved
        }
    }
}

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
