//! Golden scripts over the stores: one scenario per file.
//!
//! Those in `tests/golden/store` run over every era with either index, and must print the same.
//! Two folders beside it have what the eras differ in: reads that stay open on one thread, and what
//! a crash leaves of a compaction that was only scheduled.
//!
//! To write the expectations anew: `UPDATE_GOLDENFILES=1 cargo test -p clearlane-mvcc --test
//! store`. Then read the difference.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::path::Path;

use clearlane_backend::Era;
use clearlane_mvcc::StoreParts;
use support::{StoreRunner, all_parts};

fn run(folder: &str, parts: impl IntoIterator<Item = StoreParts>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "the scripts are there");
    for parts in parts {
        for script in &scripts {
            let outcome = goldenscript::run(&mut StoreRunner::new(parts), script);
            outcome.unwrap_or_else(|error| panic!("{parts:?}, {}: {error}", script.display()));
        }
    }
}

#[test]
fn what_all_stores_have_in_common() {
    run("store", all_parts());
}

#[test]
fn what_only_the_default_era_has() {
    run("store_of_default_era", [StoreParts::from(Era::Clearlane)]);
}

#[test]
fn what_only_the_old_eras_have() {
    let is_old = |parts: &StoreParts| parts.era != Era::Clearlane;
    run("store_of_old_eras", all_parts().into_iter().filter(is_old));
}
