//! The program's allocator: the engine's pages lie in the pool, and memory moves in and out of it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use clearlane::allocator::{Allocator, page_pool_bytes};
use clearlane_engine::{Bucket, EngineKind, KeyRange, Options};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// What is allocated as a page is, an `Arc<[u8]>` of 4,096 bytes.
const BUFFER_BYTES: usize = 4096 + 2 * size_of::<usize>();
const CACHE_BYTES: usize = 4 << 20;

#[test]
fn the_pages_of_the_engine_come_from_the_pool_whichever_thread_reads() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: CACHE_BYTES, ..Options::default() };
    let engine = clearlane_engine::open(EngineKind::Redb, dir.path(), options).unwrap();
    let mut txn = engine.begin_write().unwrap();
    for number in 0..40_000_u32 {
        txn.put(Bucket::Key, &number.to_be_bytes(), &[7; 400]).unwrap();
    }
    txn.commit().unwrap();
    let before = page_pool_bytes();
    assert!(before > CACHE_BYTES / 2, "{before} bytes: redb's pages are not in the pool");
    for _ in 0..4 {
        let engine = Arc::clone(&engine);
        let read = thread::spawn(move || {
            let mut count = 0;
            let snapshot = engine.snapshot().unwrap();
            let visit = &mut |_: &[u8], value: &[u8]| {
                assert_eq!(value, [7; 400]);
                count += 1;
                ControlFlow::Continue(())
            };
            snapshot.scan(Bucket::Key, KeyRange::ALL, visit).unwrap();
            count
        });
        assert_eq!(read.join().unwrap(), 40_000);
    }
    let after = page_pool_bytes();
    assert!(after < 2 * CACHE_BYTES, "{after} bytes for a cache of {CACHE_BYTES}, {before} before");
}

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
    let threads: Vec<_> = (1..=4_u8)
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
