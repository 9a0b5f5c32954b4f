//! Rungs 1 to 4 start no thread, read no clock and draw no random number.
//!
//! Commit, a step of compaction, lease expiry: each is a function that is called, and is told what
//! time it is. The server calls it from its threads; the cluster simulation calls it in an order
//! that a seed decides, and can repeat. One clock read in between, and a failure that was found
//! once cannot be repeated.
//!
//! Tests are free: the rule looks at `src` without what exists in tests only. So is rung 0, whose
//! locks measure time for a living. Of what is above rung 4, the rule holds for the parts that the
//! simulation runs and for the simulation itself, but those may draw numbers from a seed.

use crate::manifests::{self, Crate, CratePosition};
use crate::rust::lines_with;
use crate::{Repository, Violation};

/// What must not be written, and what it does.
const FORBIDDEN: [(&str, &str); 9] = [
    ("thread::spawn", "starts a thread"),
    ("thread::scope", "starts threads"),
    ("thread::Builder", "starts a thread"),
    ("thread::sleep", "waits for a clock"),
    ("Instant::now", "reads a clock"),
    ("SystemTime::now", "reads a clock"),
    ("quanta", "reads a clock"),
    ("rand::", "draws random numbers"),
    ("tokio", "brings a runtime with threads and timers"),
];

/// Packages that are for tests only on these rungs.
const FORBIDDEN_PACKAGES: [&str; 4] = ["tokio", "rand", "quanta", "getrandom"];

/// What the simulation runs of the upper rungs, and the simulation. Its program may have threads:
/// each runs worlds of its own.
pub const SIMULATED_PATHS: [&str; 7] = [
    "crates/wal/src/wire/",
    "crates/raft/src/",
    "crates/server/src/replica/",
    "crates/server/src/raft_snapshot/",
    "crates/server/src/membership/",
    "crates/server/src/apply/",
    "crates/dst/src/",
];
const PROGRAMS: &str = "/src/bin/";

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let (crates, _) = manifests::crates(repository);
    let deterministic = |found: &&Crate| matches!(found.position, Some(CratePosition::Rung(1..=4)));
    let mut violations = Vec::new();
    for found in crates.iter().filter(deterministic) {
        violations.extend(dependencies(found));
        let source = format!("{}/src/", found.directory);
        violations.extend(code(repository, &source, "on rungs 1 to 4", |_| true));
    }
    for part in SIMULATED_PATHS {
        let is_seeded = |word: &str| word != "rand::";
        violations.extend(code(repository, part, "in what is simulated", is_seeded));
    }
    violations
}

fn dependencies(found: &Crate) -> Vec<Violation> {
    let tables = found.dependencies.iter().filter(|dependency| dependency.table == "dependencies");
    let forbidden =
        tables.filter(|dependency| FORBIDDEN_PACKAGES.contains(&dependency.name.as_str()));
    let violation = |dependency| {
        let message = "rungs 1 to 4 have no threads, no clock and no random numbers of their own; \
                       only [dev-dependencies] may list this";
        found.violation_at(dependency, message.to_owned())
    };
    forbidden.map(violation).collect()
}

fn code(
    repository: &Repository,
    source: &str,
    place: &str,
    is_forbidden: impl Fn(&str) -> bool,
) -> Vec<Violation> {
    let tests = test_files(repository, source);
    let mut violations = Vec::new();
    for (file, views) in repository.rust_files() {
        let is_test = || tests.iter().any(|test| file.path.starts_with(test));
        let is_program = file.path.contains(PROGRAMS);
        if !file.path.starts_with(source) || is_program || is_test() {
            continue;
        }
        for (word, what) in FORBIDDEN.into_iter().filter(|(word, _)| is_forbidden(word)) {
            violations.extend(lines_with(&views.code_without_tests, word).map(|line| {
                let message = format!(
                    "`{word}` {what}; {place} the caller supplies threads, time and \
                     random numbers"
                );
                Violation::new(&file.path, line, message)
            }));
        }
    }
    violations
}

/// How the paths of modules begin that exist in tests only.
fn test_files(repository: &Repository, source: &str) -> Vec<String> {
    let mut starts = Vec::new();
    for (file, views) in repository.rust_files().filter(|(file, _)| file.path.starts_with(source)) {
        let stem = file.path.trim_end_matches(".rs");
        let directory = match stem.rsplit_once('/') {
            Some((directory, "lib" | "main" | "mod")) => directory,
            _ => stem,
        };
        for module in &views.test_modules {
            starts.push(format!("{directory}/{module}.rs"));
            starts.push(format!("{directory}/{module}/"));
        }
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "[workspace]\nmembers = [\"crates/a\"]\n";

    fn manifest(rung: i64, rest: &str) -> String {
        format!("[package]\nname = \"clearlane-a\"\nmetadata.clearlane.rung = {rung}\n{rest}")
    }

    fn messages(rung: i64, path: &str, text: &str) -> Vec<String> {
        let repository = Repository::of([
            ("Cargo.toml", ROOT),
            ("crates/a/Cargo.toml", &manifest(rung, "")),
            ("crates/a/src/lib.rs", "//! A.\n#[cfg(test)]\nmod for_tests;\n"),
            (path, text),
        ]);
        check(&repository).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_word_is_told_with_its_line() {
        for (word, what) in FORBIDDEN {
            let told = messages(1, "crates/a/src/b.rs", &format!("//! B.\nlet x = {word}(x);\n"));
            assert!(told[0].starts_with("crates/a/src/b.rs:2: "), "{told:?}");
            assert!(told[0].contains(word) && told[0].contains(what), "{told:?}");
        }
    }

    #[test]
    fn the_rule_ends_with_the_rungs() {
        let text = "//! B.\nlet x = Instant::now();\n";
        for (rung, violations) in [(0, 0), (1, 1), (4, 1), (5, 0)] {
            assert_eq!(messages(rung, "crates/a/src/b.rs", text).len(), violations, "rung {rung}");
        }
    }

    #[test]
    fn what_is_simulated_keeps_the_rule_but_may_have_a_seed() {
        let clock = "//! B.\nlet x = Instant::now();\n";
        for part in SIMULATED_PATHS {
            assert_eq!(messages(7, &format!("{part}b.rs"), clock).len(), 1, "{part}");
        }
        assert_eq!(messages(7, "crates/dst/src/b.rs", "//! B.\nuse rand::Rng;\n"), [""; 0]);
        assert_eq!(messages(7, "crates/dst/src/bin/b.rs", clock), [""; 0]);
        assert_eq!(messages(7, "crates/server/src/node.rs", clock), [""; 0]);
    }

    #[test]
    fn tests_and_comments_are_free() {
        let text = "//! No tokio.\n#[cfg(test)]\nmod tests { fn f() { Instant::now(); } }\n";
        assert_eq!(messages(1, "crates/a/src/b.rs", text), [""; 0]);
        let text = "//! T.\nlet x = Instant::now();\n";
        assert_eq!(messages(1, "crates/a/tests/t.rs", text), [""; 0]);
        assert_eq!(messages(1, "crates/a/src/for_tests.rs", text), [""; 0]);
        assert_eq!(messages(1, "crates/a/src/for_tests/b.rs", text), [""; 0]);
        assert_eq!(messages(1, "crates/a/src/for_tests_not.rs", text).len(), 1);
    }

    #[test]
    fn dependencies_are_for_tests_only() {
        for (table, violations) in [("dependencies", 1), ("dev-dependencies", 0)] {
            let manifest = manifest(2, &format!("[{table}]\nrand = {{ workspace = true }}\n"));
            let repository =
                Repository::of([("Cargo.toml", ROOT), ("crates/a/Cargo.toml", &manifest)]);
            assert_eq!(check(&repository).len(), violations, "{table}");
        }
    }
}
