//! Golden scripts over clusters of drivers: one scenario per file, in `tests/golden/node`.
//!
//! To write the expectations anew: `UPDATE_GOLDENFILES=1 cargo test -p clearlane-raft --test
//! node`. Then read the difference, line by line.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod cluster_support;

use std::path::Path;

use cluster_support::script::ClusterRunner;

#[test]
fn scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/node");
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() > 15, "the scripts are there");
    for script in scripts {
        let outcome = goldenscript::run(&mut ClusterRunner::new(), &script);
        outcome.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}
