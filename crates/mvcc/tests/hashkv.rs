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
    for era in Era::DISTINCT_STORES {
        let outcome = goldenscript::run(&mut StoreRunner::new(era), &script);
        outcome.unwrap_or_else(|error| panic!("{era:?}: {error}"));
    }
}
