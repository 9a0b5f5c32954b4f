//! `HashKV` against values that etcd 3.7.1 has answered, for the same history.
//!
//! The histories are golden scripts whose answers were not written by us: each `hash` line was
//! answered by etcd. So they must not be rewritten; a difference is a bug.

mod support;

use clearlane_backend::Era;
use std::path::Path;

use support::StoreRunner;

#[test]
fn the_hashes_are_those_of_etcd() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/hashkv/observed");
    assert!(std::env::var_os("UPDATE_GOLDENFILES").is_none(), "these answers are etcd's");
    for hashes_unopened in [false, true] {
        for era in Era::DISTINCT_STORES {
            let mut runner = StoreRunner::new(era);
            runner.hashes_unopened = hashes_unopened;
            let outcome = goldenscript::run(&mut runner, &script);
            outcome.unwrap_or_else(|error| panic!("{era:?}, {hashes_unopened}: {error}"));
        }
    }
}
