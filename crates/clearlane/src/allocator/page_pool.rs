//! Memory for the buffers of the engine's pages, shared by all threads.
//!
//! `bolt` keeps 64 MiB of pages in its cache, most of them in buffers of 4,112 bytes. Any thread
//! reads a page, and any other puts it out. With mimalloc a freed buffer goes back to the thread
//! that made it, and waits there until that thread makes another one: while the threads of the read
//! pool walk over the store, those of the network keep the room of all pages that they have read
//! before. It also rounds 4,112 bytes up to 5,120. Here any thread takes what any other has freed.
//!
//! * Eight lists of free buffers, each with a lock. A thread begins at its own, passes over those
//!   that are locked, and makes a buffer when all others have none.
//! * Under a lock is no other, but mimalloc's when 63 more buffers are wanted.
//! * Memory stays: about as many buffers as there were at once, with two stores open those of both.
//!
//! Figures are in `docs/decisions/clearlane-allocator.md`.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

use mimalloc::MiMalloc;
use parking_lot::{Mutex, MutexGuard};

const BUFFER: Layout = words(clearlane_engine::PAGE_BUFFER_BYTES);
/// As many as fit into 256 KiB.
const CHUNK_BUFFERS: usize = (256 << 10) / BUFFER.size();
const CHUNK: Layout = words(CHUNK_BUFFERS * BUFFER.size());

const LISTS: usize = 8;
static POOL: [BufferList; LISTS] = [const { BufferList(Mutex::new(FreeBuffers::NONE)) }; LISTS];
static CHUNKS: AtomicUsize = AtomicUsize::new(0);
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static OWN_LIST: Cell<Option<usize>> = const { Cell::new(None) };
}

/// On cache lines of its own. `parking_lot` allocates where a thread has to wait, but nothing of
/// the size of a buffer.
#[repr(align(128))]
struct BufferList(Mutex<FreeBuffers>);

struct FreeBuffers {
    /// Those that were given back.
    first: Option<NonNull<FreeBuffer>>,
    /// What is left of a chunk, which is not touched before it is needed.
    uncut: Option<NonNull<FreeBuffer>>,
    uncut_count: usize,
}

/// What a buffer that was given back begins with.
struct FreeBuffer {
    next: Option<NonNull<FreeBuffer>>,
}

// SAFETY: a free buffer belongs to its list alone, whichever thread had it before.
unsafe impl Send for FreeBuffers {}

const fn words(size: usize) -> Layout {
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
    let own = own_list();
    let freed = unlocked_from(own).find_map(|mut list| list.pop());
    let buffer = freed.or_else(|| {
        let mut list = unlocked_or_own(own);
        list.pop().or_else(|| list.cut())
    });
    buffer.map_or(std::ptr::null_mut(), |buffer| buffer.cast().as_ptr())
}

/// # Safety
///
/// It came from [`take`], and is not used any more.
pub(super) unsafe fn give_back(buffer: *mut u8) {
    let Some(buffer) = NonNull::new(buffer.cast::<FreeBuffer>()) else { return };
    let mut list = unlocked_or_own(own_list());
    // SAFETY: what the caller promises.
    unsafe { list.push(buffer) };
}

/// What the pool has of mimalloc; nothing in a program with another allocator.
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

/// The lists from this one on, but those that another thread has locked.
fn unlocked_from(own: usize) -> impl Iterator<Item = MutexGuard<'static, FreeBuffers>> {
    (0..LISTS).filter_map(move |at| POOL[(own + at) % LISTS].0.try_lock())
}

/// Waits only if all are locked.
fn unlocked_or_own(own: usize) -> MutexGuard<'static, FreeBuffers> {
    unlocked_from(own).next().unwrap_or_else(|| POOL[own].0.lock())
}

impl FreeBuffers {
    const NONE: FreeBuffers = FreeBuffers { first: None, uncut: None, uncut_count: 0 };

    fn pop(&mut self) -> Option<NonNull<FreeBuffer>> {
        let buffer = self.first?;
        // SAFETY: it was given back, so it begins with the next one, and it is used by nothing.
        self.first = unsafe { buffer.read() }.next;
        Some(buffer)
    }

    /// # Safety
    ///
    /// It is a buffer that nothing uses.
    unsafe fn push(&mut self, buffer: NonNull<FreeBuffer>) {
        // SAFETY: it is as large as a buffer.
        unsafe { buffer.write(FreeBuffer { next: self.first }) };
        self.first = Some(buffer);
    }

    /// One that was not used before.
    fn cut(&mut self) -> Option<NonNull<FreeBuffer>> {
        if self.uncut_count == 0 {
            // SAFETY: the layout's size is not zero.
            self.uncut = NonNull::new(unsafe { MiMalloc.alloc(CHUNK) }.cast());
            self.uncut_count = self.uncut.map_or(0, |_| CHUNK_BUFFERS);
            CHUNKS.fetch_add(usize::from(self.uncut_count > 0), Ordering::Relaxed);
        }
        let buffer = self.uncut?;
        self.uncut_count -= 1;
        // SAFETY: the chunk has room for as many as are counted; behind the last one nothing is
        // read. A buffer's size is a multiple of its alignment.
        self.uncut = Some(unsafe { buffer.byte_add(BUFFER.size()) });
        Some(buffer)
    }
}
