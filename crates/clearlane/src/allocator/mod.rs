//! The memory allocator of the program: how long it keeps free memory, and whether it uses huge
//! pages.
//!
//! In an old era each response is one block of memory, which may be as large as 20 MB. By default,
//! mimalloc returns such a block to the system after 0.1 s. The next response would then get new
//! memory page by page, with one page fault for each page. So free memory of large blocks is kept
//! for a second, and in an old era for ten minutes; other free memory is kept for a tenth of that
//! time. If `MIMALLOC_PURGE_DELAY` is set, its value applies. Figures are in
//! `docs/decisions/clearlane-allocator.md`.
//!
//! If the system offers huge pages, the first allocations of each thread use some of them, and a
//! member with a small store takes a third more memory. So huge pages are disabled, except in an
//! old era, which uses them for its large responses.
//!
//! Only the program uses this allocator, not the library: a program that embeds a server keeps its
//! own allocator.

#![allow(unsafe_code, reason = "an allocator, and mimalloc's options have no safe function")]

mod page_pool;

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

pub use self::page_pool::chunk_bytes as page_pool_bytes;
use crate::profiling::heap;

/// The allocator: mimalloc, and a [pool](page_pool) for the pages of the engine.
#[derive(Debug)]
pub struct Allocator;

// SAFETY: the layout determines which of the two allocators owns a block, and both fulfil the
// contract.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let memory = match page_pool::is_for(layout) {
            true => page_pool::take(),
            // SAFETY: the caller fulfils the contract of `alloc`.
            false => unsafe { MiMalloc.alloc(layout) },
        };
        heap::allocated(memory, layout.size());
        memory
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let memory = if page_pool::is_for(layout) {
            let buffer = page_pool::take();
            if !buffer.is_null() {
                // SAFETY: the buffer is as large as the layout.
                unsafe { buffer.write_bytes(0, layout.size()) };
            }
            buffer
        } else {
            // SAFETY: the caller fulfils the contract of `alloc_zeroed`.
            unsafe { MiMalloc.alloc_zeroed(layout) }
        };
        heap::allocated(memory, layout.size());
        memory
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        heap::freed(memory);
        // SAFETY: the caller guarantees that the memory is from this allocator and has this layout.
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
        // SAFETY: the caller guarantees that the new size, rounded up, does not overflow.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        if !page_pool::is_for(layout) && !page_pool::is_for(new_layout) {
            heap::freed(memory);
            // SAFETY: the memory is from mimalloc, and the new block is also from mimalloc.
            let moved = unsafe { MiMalloc.realloc(memory, layout, new_size) };
            heap::allocated(moved, new_size);
            return moved;
        }
        // SAFETY: both blocks are at least as large as the copied bytes, and the old block is not
        // used afterwards.
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

/// How long free memory is kept, in milliseconds. Memory in large blocks is kept ten times as long.
const PURGE_DELAY_MS: std::ffi::c_long = 100;
/// How long free memory is kept in an old era, in milliseconds. It is kept longer than in the
/// default era, because an old era allocates each response as one block.
const OLD_ERA_PURGE_DELAY_MS: std::ffi::c_long = 60_000;
/// The number of `mi_option_purge_delay` in mimalloc 2. The crate `libmimalloc-sys` has no constant
/// for it.
const PURGE_DELAY_OPTION: libmimalloc_sys::mi_option_t = 15;
/// True if huge pages were enabled until [`configure`] disabled them.
static HUGE_PAGES_WERE_ON: AtomicBool = AtomicBool::new(false);

/// Configures the allocator. The program calls this once, at startup.
pub fn configure() {
    set_purge_delay_ms(PURGE_DELAY_MS);
    if !are_huge_pages_disabled() {
        HUGE_PAGES_WERE_ON.store(true, Ordering::Relaxed);
        disable_huge_pages(true);
    }
}

/// Changes the configuration for an old era. The program calls this at startup, after
/// [`configure`], if its member runs in an old era.
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

/// Disables or enables huge pages. An error is ignored, because it only costs memory.
fn disable_huge_pages(_disable: bool) {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(_disable);
}

fn set_purge_delay_ms(ms: std::ffi::c_long) {
    // SAFETY: the option exists and accepts any number. Threads that read it during the change get
    // the old value or the new one.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY_OPTION, ms) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn options_are_those_that_are_meant() {
        let had_huge_pages = !super::are_huge_pages_disabled();
        // SAFETY: the option exists, and the call only reads it.
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
