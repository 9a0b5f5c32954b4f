//! A pool of buffers for the engine's pages, shared by all threads.
//!
//! The engine `bolt` caches 64 MiB of pages by default, most of them in buffers of 4,112 bytes. One
//! thread may read a page, and another may evict it. With mimalloc, a freed buffer returns to the
//! thread that allocated it, and stays there until that thread allocates again. So while the read
//! pool reads the store, network threads would keep the memory of all pages that they read earlier.
//! mimalloc also rounds 4,112 bytes up to 5,120. In this pool any thread can reuse a buffer that
//! another thread has freed.
//!
//! * There are eight lists of free buffers, each with a lock. A thread takes a buffer from its own
//!   list or else from another list, and skips lists that are locked. If no buffer is found, it
//!   cuts a new one from a chunk.
//! * A thread that holds one of these locks takes no other lock, except mimalloc's when it
//!   allocates a chunk of 63 more buffers.
//! * Memory is never returned. The pool keeps about the largest number of buffers that were ever in
//!   use at the same time. If two stores were open for some time, this number includes the buffers
//!   of both.
//!
//! Figures are in `docs/decisions/clearlane-allocator.md`.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use mimalloc::MiMalloc;
use parking_lot::{Mutex, MutexGuard};

const BUFFER: Layout = words(clearlane_engine::PAGE_BUFFER_BYTES);
/// The number of buffers that fit into 256 KiB.
const CHUNK_BUFFERS: usize = (256 << 10) / BUFFER.size();
const CHUNK: Layout = words(CHUNK_BUFFERS * BUFFER.size());

const LISTS: usize = 8;
static POOL: [BufferList; LISTS] = [const { BufferList(Mutex::new(FreeBuffers::NONE)) }; LISTS];
static CHUNKS: AtomicUsize = AtomicUsize::new(0);
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN_LIST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// One list of free buffers, aligned so that lists do not share cache lines. `parking_lot`
/// allocates when a thread has to wait, but never a block of the size of a buffer. So a thread that
/// waits for a list does not call this pool again.
#[repr(align(128))]
struct BufferList(Mutex<FreeBuffers>);

struct FreeBuffers {
    /// The first buffer in the list of buffers that were given back. `None` if the list is empty.
    first: Option<NonNull<FreeBuffer>>,
    /// The unused rest of the current chunk, or `None` if there is no chunk. Its memory is not
    /// touched before it is needed.
    uncut: Option<NonNull<FreeBuffer>>,
    uncut_count: usize,
}

/// The first bytes of a buffer that was given back.
struct FreeBuffer {
    next: Option<NonNull<FreeBuffer>>,
}

// SAFETY: a free buffer belongs only to its list, whichever thread used it before.
unsafe impl Send for FreeBuffers {}

const fn words(size: usize) -> Layout {
    match Layout::from_size_align(size, align_of::<usize>()) {
        Ok(layout) => layout,
        Err(_) => panic!("it is smaller than the address space"),
    }
}

/// Returns true if memory of this layout belongs to the pool.
#[inline]
pub(super) fn is_for(layout: Layout) -> bool {
    layout.size() == BUFFER.size() && layout.align() <= BUFFER.align()
}

/// Returns a buffer, or null if the system has no memory left.
pub(super) fn take() -> *mut u8 {
    let own = own_list();
    let freed = unlocked_from(own).find_map(|mut list| list.pop());
    let buffer = freed.or_else(|| {
        let mut list = unlocked_or_own(own);
        list.pop().or_else(|| list.cut())
    });
    buffer.map_or(std::ptr::null_mut(), |buffer| buffer.cast().as_ptr())
}

/// Gives a buffer back to the pool. A null pointer is ignored.
///
/// # Safety
///
/// The buffer must have come from [`take`], and must not be used afterwards.
pub(super) unsafe fn give_back(buffer: *mut u8) {
    let Some(buffer) = NonNull::new(buffer.cast::<FreeBuffer>()) else { return };
    let mut list = unlocked_or_own(own_list());
    // SAFETY: the caller guarantees that nothing uses the buffer.
    unsafe { list.push(buffer) };
}

/// Returns the number of bytes that the pool has allocated from mimalloc. Returns 0 in a program
/// with another allocator.
pub fn chunk_bytes() -> usize {
    CHUNKS.load(Ordering::Relaxed) * CHUNK.size()
}

fn own_list() -> usize {
    OWN_LIST.with(|own| {
        own.get().unwrap_or_else(|| {
            let list = THREADS.fetch_add(1, Ordering::Relaxed) % LISTS;
            own.set(Some(list));
            list
        })
    })
}

/// Iterates over all lists, starting with `own`, and skips the lists that other threads have
/// locked.
fn unlocked_from(own: usize) -> impl Iterator<Item = MutexGuard<'static, FreeBuffers>> {
    (0..LISTS).filter_map(move |at| POOL[(own + at) % LISTS].0.try_lock())
}

/// Locks the first list that is not locked, starting with `own`. If all lists are locked, waits for
/// `own`.
fn unlocked_or_own(own: usize) -> MutexGuard<'static, FreeBuffers> {
    unlocked_from(own).next().unwrap_or_else(|| POOL[own].0.lock())
}

impl FreeBuffers {
    const NONE: FreeBuffers = FreeBuffers { first: None, uncut: None, uncut_count: 0 };

    fn pop(&mut self) -> Option<NonNull<FreeBuffer>> {
        let buffer = self.first?;
        // SAFETY: the buffer was given back, so it starts with the link to the next one, and
        // nothing else uses it.
        self.first = unsafe { buffer.read() }.next;
        Some(buffer)
    }

    /// Adds a buffer to the list.
    ///
    /// # Safety
    ///
    /// Nothing else may use the buffer.
    unsafe fn push(&mut self, buffer: NonNull<FreeBuffer>) {
        // SAFETY: a link is not larger than a buffer.
        unsafe { buffer.write(FreeBuffer { next: self.first }) };
        self.first = Some(buffer);
    }

    /// Cuts a new buffer from the chunk. If the chunk is used up, allocates a new chunk first.
    /// Returns `None` if the system has no memory left.
    fn cut(&mut self) -> Option<NonNull<FreeBuffer>> {
        if self.uncut_count == 0 {
            // SAFETY: the layout's size is not zero.
            self.uncut = NonNull::new(unsafe { MiMalloc.alloc(CHUNK) }.cast());
            self.uncut_count = self.uncut.map_or(0, |_| CHUNK_BUFFERS);
            CHUNKS.fetch_add(usize::from(self.uncut_count > 0), Ordering::Relaxed);
        }
        let buffer = self.uncut?;
        self.uncut_count -= 1;
        // SAFETY: the chunk has space for `uncut_count` more buffers, and the pointer after the
        // last one is never read. A buffer's size is a multiple of its alignment.
        self.uncut = Some(unsafe { buffer.byte_add(BUFFER.size()) });
        Some(buffer)
    }
}
