//! Limits the memory for records that are read before their clients receive them.
//!
//! A small chunk of a long response costs as much to deliver as a large one: two threads are woken.
//! But a chunk is in memory until its client takes it. So all large chunks together are limited to
//! 16 MiB. A *permit* reserves a part of this memory for one chunk. A response with a permit reads
//! a large chunk, or all its remaining records if they are smaller. A response without a permit
//! reads a small chunk.
//!
//! * Clients that do not take their responses slow down other clients, but the memory stays
//!   limited: all responses together use at most 16 MiB, and each response at most two small chunks
//!   in addition. A record that is larger than a small chunk is a separate chunk.
//! * With a permit, a response of up to a megabyte is read in one chunk. So its read transaction
//!   does not stay open until the client has taken the response.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

const CAPACITY_BYTES: u64 = 16 << 20;
/// Maximum number of bytes of a chunk that is read with a permit. A longer record is a separate
/// chunk.
const LARGE_CHUNK_BYTES: u64 = 1 << 20;
/// Maximum number of bytes of a chunk that is read without a permit. A longer record is a separate
/// chunk.
const SMALL_CHUNK_BYTES: u64 = 64 << 10;

#[derive(Debug, Default)]
pub struct ResponseMemory {
    used: AtomicU64,
}

/// The capacity for the next chunk of a response, which is held until this value is dropped. If no
/// capacity was free, the permitted number of bytes is 0, and the response reads a small chunk.
#[derive(Debug)]
pub struct ResponseMemoryPermit {
    memory: Arc<ResponseMemory>,
    permitted: u64,
}

impl ResponseMemoryPermit {
    /// Acquires capacity for the next chunk, if enough is free. `left` is the number of bytes of
    /// the response that are still to be sent.
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
