//! A bound on what is read ahead of clients that have not taken it yet.
//!
//! A small chunk of a long answer costs as much to hand over as a large one: two threads are woken.
//! But it lies in memory until its client takes it. So all answers share 16 MiB: one with a permit
//! reads a large chunk, or the whole rest if that is not more; one without reads a small chunk.
//!
//! * Clients that do not take their answers slow down the others, but take no more memory than that
//!   and two small chunks each, of at least one record.
//! * An answer of up to a megabyte is read at once: its view is not kept until the client has taken
//!   it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const CAPACITY_BYTES: u64 = 16 << 20;
/// A chunk with a permit; the small one below is a chunk without.
const LARGE_CHUNK_BYTES: u64 = 1 << 20;
const SMALL_CHUNK_BYTES: u64 = 64 << 10;

#[derive(Debug, Default)]
pub struct ResponseMemory {
    used: AtomicU64,
}

/// Capacity for a large chunk until it is dropped, or none.
#[derive(Debug)]
pub struct ResponseMemoryPermit {
    memory: Arc<ResponseMemory>,
    permitted: u64,
}

impl ResponseMemoryPermit {
    /// `left` is what remains to be sent of the answer.
    pub fn acquire(memory: &Arc<ResponseMemory>, left: u64) -> ResponseMemoryPermit {
        let wanted = left.min(LARGE_CHUNK_BYTES);
        let more = |taken| (taken + wanted <= CAPACITY_BYTES).then_some(taken + wanted);
        let is_there = memory.used.fetch_update(Relaxed, Relaxed, more).is_ok();
        ResponseMemoryPermit {
            memory: Arc::clone(memory),
            permitted: if is_there { wanted } else { 0 },
        }
    }

    pub fn chunk_bytes(&self) -> usize {
        self.permitted.max(SMALL_CHUNK_BYTES) as usize
    }
}

impl Drop for ResponseMemoryPermit {
    fn drop(&mut self) {
        self.memory.used.fetch_sub(self.permitted, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_and_given_back() {
        let memory = Arc::new(ResponseMemory::default());
        let bytes = |place: &ResponseMemoryPermit| place.chunk_bytes() as u64;
        let mut places: Vec<ResponseMemoryPermit> =
            (0..16).map(|_| ResponseMemoryPermit::acquire(&memory, u64::MAX)).collect();
        assert!(places.iter().all(|place| bytes(place) == LARGE_CHUNK_BYTES));
        assert_eq!(bytes(&ResponseMemoryPermit::acquire(&memory, u64::MAX)), SMALL_CHUNK_BYTES);
        places.truncate(15);
        let some = ResponseMemoryPermit::acquire(&memory, 3 << 18);
        assert_eq!(
            [bytes(&some), bytes(&ResponseMemoryPermit::acquire(&memory, 2 << 18))],
            [3 << 18, SMALL_CHUNK_BYTES]
        );
        drop((places, some));
        assert_eq!(memory.used.load(Relaxed), 0);
    }
}
