//! Golden scripts over clusters of `RaftNode`s: one scenario per file, in `tests/golden/node`.
//!
//! To regenerate the expected output, run
//! `UPDATE_GOLDENFILES=1 cargo test -p clearlane-raft --test suite node`. Then read the difference
//! line by line.

use std::path::Path;

use crate::cluster_support::script::ClusterRunner;

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
