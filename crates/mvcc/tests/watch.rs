//! Golden scripts over watching: one scenario per file, in `tests/golden/watch`.
//!
//! To write the expectations anew: `UPDATE_GOLDENFILES=1 cargo test -p clearlane-mvcc --test watch`.
//! Then read the difference.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod watch_support;

use std::path::Path;

use watch_support::WatchRunner;

#[test]
fn scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/watch");
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() > 3, "the scripts are there");
    for script in scripts {
        let outcome = goldenscript::run(&mut WatchRunner::new(), &script);
        outcome.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}
