//! Memory for the buffers of the engine's pages, shared by all threads.
//!
//! `redb` keeps 64 MiB of pages in its cache, each in a buffer of 4,112 bytes. Any thread reads a
//! page, and any other puts it out. With mimalloc a freed buffer goes back to the thread that made
//! it, and waits there until that thread makes another one: while the threads of the read pool walk
//! over the store, those of the network keep the room of all pages that they have read before. It
//! also rounds 4,112 bytes up to 5,120. Here a freed buffer is the next one of any thread.
//!
//! Buffers are cut from chunks that stay: as many as there were at once, which the cache bounds.
//! One lock, held for a few instructions; no other is taken under it.
//! Figures are in `docs/decisions/clearlane-allocator.md`.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use mimalloc::MiMalloc;
use parking_lot::Mutex;

/// A page of 4,096 bytes as an `Arc<[u8]>`: its two counters come first.
const BUFFER: Layout = layout(4096 + 2 * size_of::<usize>());
const CHUNK_BUFFERS: usize = 64;
const CHUNK: Layout = layout(CHUNK_BUFFERS * BUFFER.size());

static POOL: Mutex<Pool> = Mutex::new(Pool { free: None, chunks: 0 });

/// What a free buffer begins with.
struct FreeBuffer {
    next: Option<NonNull<FreeBuffer>>,
}

struct Pool {
    free: Option<NonNull<FreeBuffer>>,
    chunks: usize,
}

// SAFETY: a free buffer belongs to the pool alone, whichever thread had it before.
unsafe impl Send for Pool {}

const fn layout(size: usize) -> Layout {
    match Layout::from_size_align(size, align_of::<usize>()) {
        Ok(layout) => layout,
        Err(_) => panic!("it is smaller than the address space"),
    }
}

/// Whether memory of this layout comes from here.
#[inline]
pub(super) fn is_for(layout: Layout) -> bool {
    layout.size() == BUFFER.size() && layout.align() <= BUFFER.align()
}

/// Null if the system has no memory left.
pub(super) fn take() -> *mut u8 {
    let mut pool = POOL.lock();
    if pool.free.is_none() {
        pool.add_chunk();
    }
    let Some(buffer) = pool.free else { return std::ptr::null_mut() };
    // SAFETY: what is in the list is a free buffer, which begins with the next one.
    pool.free = unsafe { buffer.read() }.next;
    buffer.cast().as_ptr()
}

/// # Safety
///
/// It came from [`take`], and is not used any more.
pub(super) unsafe fn give_back(buffer: *mut u8) {
    let Some(buffer) = NonNull::new(buffer.cast::<FreeBuffer>()) else { return };
    let mut pool = POOL.lock();
    // SAFETY: it is as large as a buffer, and its user has left it.
    unsafe { buffer.write(FreeBuffer { next: pool.free }) };
    pool.free = Some(buffer);
}

/// How many bytes have been taken from mimalloc.
pub fn chunk_bytes() -> usize {
    POOL.lock().chunks * CHUNK_BUFFERS * BUFFER.size()
}

impl Pool {
    fn add_chunk(&mut self) {
        // SAFETY: the layout's size is not zero.
        let Some(first) = NonNull::new(unsafe { MiMalloc.alloc(CHUNK) }) else { return };
        self.chunks += 1;
        for at in (0..CHUNK_BUFFERS).rev() {
            // SAFETY: the chunk has room for this many, is aligned as a buffer is, and a buffer's
            // size is a multiple of that. Nothing else has a part of it.
            unsafe {
                let buffer = first.add(at * BUFFER.size()).cast::<FreeBuffer>();
                buffer.write(FreeBuffer { next: self.free });
                self.free = Some(buffer);
            }
        }
    }
}
