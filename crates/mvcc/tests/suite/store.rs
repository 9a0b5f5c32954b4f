//! Golden scripts for the stores: one scenario per file.
//!
//! The scripts in `tests/golden/store` run in every era and must print the same. Two folders next
//! to it have scripts for the differences between the eras. Only in the default era can one thread
//! keep reads open and run every other command. The state after a crash differs if a compaction was
//! scheduled just before.

use std::path::Path;

use crate::support::StoreRunner;
use clearlane_backend::Era;

fn run(folder: &str, era: impl IntoIterator<Item = Era>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "the scripts are there");
    for era in era {
        for script in &scripts {
            let outcome = goldenscript::run(&mut StoreRunner::new(era), script);
            outcome.unwrap_or_else(|error| panic!("{era:?}, {}: {error}", script.display()));
        }
    }
}

#[test]
fn what_all_stores_have_in_common() {
    run("store", Era::DISTINCT_STORES);
}

#[test]
fn what_only_the_default_era_has() {
    run("store_of_default_era", [Era::Clearlane]);
}

#[test]
fn what_only_the_old_eras_have() {
    let is_old = |era: &Era| *era != Era::Clearlane;
    run("store_of_old_eras", Era::DISTINCT_STORES.into_iter().filter(is_old));
}
