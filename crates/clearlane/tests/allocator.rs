//! Tests of the program's allocator. It keeps a pool of blocks that have exactly the size of a page
//! buffer. An allocation of this size takes a block from the pool, and freeing the block returns
//! it. The tests allocate, resize and free such blocks, on one thread and on several.

use std::sync::mpsc;
use std::thread;

use clearlane::allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Number of bytes that are allocated for a page: an `Arc<[u8]>` of 4,096 bytes, with its two
/// reference counts.
const BUFFER_BYTES: usize = 4096 + 2 * size_of::<usize>();

#[test]
fn a_vector_that_grows_through_the_size_of_a_page_keeps_what_it_has() {
    let mut bytes: Vec<u8> = Vec::new();
    for len in [1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 3 * BUFFER_BYTES] {
        bytes.reserve_exact(len - bytes.len());
        bytes.extend((bytes.len()..len).map(|at| at as u8));
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8), "{len} bytes");
    }
    for len in [BUFFER_BYTES + 1, BUFFER_BYTES, BUFFER_BYTES - 1, 1] {
        bytes.truncate(len);
        bytes.shrink_to_fit();
        assert!(bytes.iter().enumerate().all(|(at, byte)| *byte == at as u8), "{len} bytes");
    }
}

#[test]
fn zeroed_memory_is_zero_though_it_was_used_before() {
    let used: Vec<Vec<u8>> = (0..200).map(|_| vec![0xff; BUFFER_BYTES]).collect();
    drop(used);
    for _ in 0..200 {
        assert!(vec![0_u8; BUFFER_BYTES].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn buffers_of_several_threads_are_not_the_same() {
    let threads: Vec<_> = (1..=12_u8)
        .map(|mark| {
            thread::spawn(move || {
                for _ in 0..200 {
                    let mine: Vec<Vec<u8>> = (0..100).map(|_| vec![mark; BUFFER_BYTES]).collect();
                    assert!(mine.iter().flatten().all(|byte| *byte == mark));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_buffer_may_be_freed_on_another_thread() {
    let (send, receive) = mpsc::sync_channel::<Vec<u8>>(100);
    let reader = thread::spawn(move || {
        receive.iter().enumerate().all(|(at, buffer)| buffer.iter().all(|byte| *byte == at as u8))
    });
    (0..10_000).for_each(|at| send.send(vec![at as u8; BUFFER_BYTES]).unwrap());
    drop(send);
    assert!(reader.join().unwrap());
}
