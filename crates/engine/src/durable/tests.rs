//! Tests, with the engine `bolt`, that a defragmentation cannot finish after one of its steps has
//! failed.

use super::DurableEngine;
use crate::bolt::BoltStore;
use crate::bucket::Bucket;
use crate::directory::Directory;
use crate::error::{EngineKind, Error};
use crate::interface::{Defragment, Engine};
use crate::options::Options;

fn put(engine: &dyn Engine, value: &[u8]) {
    let mut txn = engine.begin_write().unwrap();
    txn.put(Bucket::Key, b"a", value).unwrap();
    txn.commit().unwrap();
}

#[test]
fn a_copy_that_failed_to_carry_over_a_key_is_never_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let directory = Directory::claim(dir.path(), EngineKind::Bolt).unwrap();
    let options = Options { cache_bytes: 1 << 20, ..Options::default() };
    let engine = DurableEngine::<BoltStore>::open(directory, options).unwrap();
    put(&engine, b"old");
    let mut copy = engine.start_defragment().unwrap();
    while !copy.step(10).unwrap() {}
    put(&engine, b"new");
    // While another writer holds the copy's lock, a step fails. The step has already taken the
    // changed key, so the copy never gets the new value.
    let in_the_way = copy.target_lock.acquire().unwrap();
    assert!(copy.step(10).is_err());
    drop(in_the_way);
    assert!(matches!(copy.step(10), Err(Error::Storage(_))));
    assert!(matches!(Box::new(copy).finish(), Err(Error::Storage(_))));
    let found = engine.snapshot().unwrap().get(Bucket::Key, b"a").unwrap();
    assert_eq!(found.as_deref(), Some(&b"new"[..]));
    put(&engine, b"and writing goes on");
}
