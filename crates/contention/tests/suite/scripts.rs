//! Runs the scripts of `tests/scripts` on a real lock with threads, and on the rules without a
//! lock.
//!
//! `UPDATE_GOLDENFILES=1 cargo test -p clearlane-contention --test suite scripts` rewrites the
//! expected output. Read the difference before keeping it.

use std::path::PathBuf;

use crate::script::{Script, Stage};
use crate::script_stages::{rules::RulesStage, threads::ThreadStage};

#[test]
fn on_real_threads() {
    run_all(ThreadStage::new);
}

#[test]
fn on_the_bare_rules() {
    run_all(RulesStage::default);
}

fn run_all<S: Stage>(new_stage: impl Fn() -> S) {
    let scripts = scripts();
    assert!(!scripts.is_empty(), "no scripts found");
    for path in scripts {
        goldenscript::run(&mut Script(new_stage()), &path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

fn scripts() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.expect("it can be listed").path()).collect();
    paths.sort();
    paths
}
