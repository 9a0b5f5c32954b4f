//! Tests that the engine's pages are in the allocator's pool, and that the pool stays smaller than
//! two page caches. The test has its own process, because other tests would also take buffers from
//! the pool.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;

use clearlane::allocator::{Allocator, page_pool_bytes};
use clearlane_engine::{Bucket, EngineKind, KeyRange, Options};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const CACHE_BYTES: usize = 4 << 20;

#[test]
fn the_pages_of_the_engine_come_from_the_pool_whichever_thread_reads() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { cache_bytes: CACHE_BYTES, ..Options::default() };
    let engine = clearlane_engine::open(EngineKind::Bolt, dir.path(), options).unwrap();
    // Each commit is small, because a commit has all its pages in memory at once.
    for first in (0..40_000_u32).step_by(1_000) {
        let mut txn = engine.begin_write().unwrap();
        for number in first..first + 1_000 {
            txn.put(Bucket::Key, &number.to_be_bytes(), &[7; 400]).unwrap();
        }
        txn.commit().unwrap();
    }
    let before = page_pool_bytes();
    assert!(before > CACHE_BYTES / 2, "{before} bytes: the engine's pages are not in the pool");
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
