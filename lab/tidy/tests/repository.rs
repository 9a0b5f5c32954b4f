//! The rules, applied to this repository. Every violation is printed.

use std::path::Path;

use clearlane_tidy::{RULES, Repository};

#[test]
fn every_rule_holds() {
    // The path is read when the test runs. Two checkouts that share a target directory also share
    // this program, so a path from the build could name the other checkout.
    let tidy = std::env::var("CARGO_MANIFEST_DIR").expect("cargo tells where the crate is");
    let repository = Repository::load(&Path::new(&tidy).join("../.."));
    let repository = repository.expect("the repository can be read");
    assert!(repository.rust_files().count() > 20, "this is not the repository");
    let violations = RULES.iter().flat_map(|rule| rule(&repository));
    let lines: Vec<_> = violations.map(|violation| format!("  {violation}\n")).collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.concat());
}
