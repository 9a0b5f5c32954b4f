//! The rules, held against this repository. Each prints every place where it is broken.

use std::path::Path;
use std::sync::LazyLock;

use clearlane_tidy::{RULES, Repository, Rule};

static REPOSITORY: LazyLock<Repository> = LazyLock::new(|| {
    // Asked when the test runs: two checkouts that share a target directory share this program,
    // too.
    let tidy = std::env::var("CARGO_MANIFEST_DIR").expect("cargo tells where the crate is");
    Repository::load(&Path::new(&tidy).join("../..")).expect("the repository can be read")
});

fn hold(rule: Rule) {
    let violations = rule(&REPOSITORY);
    let lines: Vec<_> = violations.iter().map(|violation| format!("  {violation}\n")).collect();
    assert!(lines.is_empty(), "{} violations:\n{}", lines.len(), lines.concat());
}

/// One test for each rule, so that one broken rule does not hide another.
macro_rules! rules {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                hold(clearlane_tidy::$name::check);
            }
        )*

        #[test]
        fn every_rule_has_a_test() {
            assert_eq!(RULES.map(|(name, _)| name), [$(stringify!($name)),*]);
        }
    };
}

rules! { ladder manifests determinism sources leftovers links indexes layout }

#[test]
fn the_repository_was_found() {
    assert!(REPOSITORY.file("Cargo.toml").is_some());
    assert!(REPOSITORY.rust_files().count() > 20);
}

/// A path that matches no file checks nothing.
#[test]
fn each_listed_path_has_files() {
    let paths: Vec<&str> = REPOSITORY.rust_files().map(|(file, _)| file.path.as_str()).collect();
    let listed = clearlane_tidy::determinism::SIMULATED_PATHS;
    let listed = listed.iter().chain(&clearlane_tidy::leftovers::UNSAFE_FILES);
    let missing: Vec<_> =
        listed.filter(|listed| !paths.iter().any(|path| path.starts_with(**listed))).collect();
    assert!(missing.is_empty(), "no file at {missing:?}");
}

/// The rows of "Where things live": a crate, and what is named between backticks as a file or folder of it.
#[test]
fn the_map_names_files_that_exist() {
    let map = &REPOSITORY.file("ARCHITECTURE.md").expect("it is the map").text;
    let section = map.split("## ").find(|section| section.starts_with("Where things live"));
    let mut named = Vec::new();
    for row in section.expect("the section is there").lines().filter(|row| row.starts_with("| `")) {
        let mut quoted = row.split('`').skip(1).step_by(2);
        let krate = quoted.next().expect("a row begins with its crate");
        let paths = quoted.filter(|word| word.ends_with(".rs") || word.ends_with('/'));
        named
            .extend(paths.map(|path| format!("crates/{krate}/src/{}", path.trim_end_matches('/'))));
    }
    assert!(named.len() > 80, "{} paths", named.len());
    named.retain(|path| !REPOSITORY.has(path));
    assert!(named.is_empty(), "nothing lies at {named:?}");
}
