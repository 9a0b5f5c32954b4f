//! Compares `HashKV` with values that etcd 3.7.1 returned for the same history.
//!
//! The history is a golden script. The result of each `hash` line was recorded from etcd. So the
//! script must not be rewritten; a difference is a bug.

use clearlane_backend::Era;
use std::path::Path;

use crate::support::StoreRunner;

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
