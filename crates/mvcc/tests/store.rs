//! Golden scripts over the store: one scenario per file, in `tests/golden/store`.
//!
//! To write the expectations anew: `UPDATE_GOLDENFILES=1 cargo test -p clearlane-mvcc --test store`.
//! Then read the difference.

mod support;

use std::path::Path;

use support::StoreRunner;

#[test]
fn scripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store");
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() > 3, "the scripts are there");
    for script in scripts {
        let outcome = goldenscript::run(&mut StoreRunner::new(), &script);
        outcome.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}
