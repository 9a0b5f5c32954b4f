//! Rungs 1 to 4 start no thread, read no clock and draw no random number.
//!
//! Commit, a step of compaction, lease expiry: each is a function that is called with the time. The
//! server calls it from its threads; the cluster simulation calls it in an order that depends on a
//! seed. With one clock read in between, a failure that was found once cannot be repeated.
//!
//! Exempt are tests, and rung 0, whose locks measure time. Above rung 4, the rule holds for the
//! parts that the simulation runs and for the simulation itself, but those may draw numbers from a
//! seed.

use crate::ladder::{self, CratePosition};
use crate::rust::lines_with;
use crate::{Repository, violation};

/// A pattern, and what it does.
const FORBIDDEN: [(&str, &str); 11] = [
    ("thread::spawn", "starts a thread"),
    ("thread::scope", "starts threads"),
    ("thread::Builder", "starts a thread"),
    ("thread::sleep", "waits for a clock"),
    ("Instant::now", "reads a clock"),
    ("SystemTime::now", "reads a clock"),
    ("quanta", "reads a clock"),
    ("getrandom", "draws random numbers"),
    ("rand::", "draws random numbers"),
    ("SystemRandom", "draws random numbers"),
    ("tokio", "brings a runtime with threads and timers"),
];

/// The trait of ring by which a caller supplies random bytes; by itself it draws none.
const SUPPLIED_RANDOM: &str = "ring::rand::SecureRandom";

/// What the simulation runs of the upper rungs, and the simulation. Its program may have threads:
/// each runs worlds of its own.
const SIMULATED_PATHS: [&str; 7] = [
    "crates/wal/src/wire/",
    "crates/raft/src/",
    "crates/server/src/replica/",
    "crates/server/src/raft_snapshot/",
    "crates/server/src/membership/",
    "crates/server/src/apply/",
    "crates/dst/src/",
];
const PROGRAMS: &str = "/src/bin/";

pub fn check(repository: &Repository) -> Vec<String> {
    let crates = ladder::crates(repository).into_iter();
    let on_rungs = crates.filter(|found| matches!(found.position, CratePosition::Rung(1..=4)));
    let sources = on_rungs.map(|found| (format!("{}/src/", found.directory), true));
    let simulated = SIMULATED_PATHS.map(|part| (part.to_owned(), false));
    let parts = sources.chain(simulated);
    parts.flat_map(|(part, forbids_rand)| check_part(repository, &part, forbids_rand)).collect()
}

fn check_part(repository: &Repository, start: &str, forbids_rand: bool) -> Vec<String> {
    if repository.product_files(start).next().is_none() {
        // A path that matches no file checks nothing.
        return vec![violation(start, 1, "no Rust file lies here; correct the list of paths")];
    }
    let mut violations = Vec::new();
    let files = repository.product_files(start);
    for (file, views) in files.filter(|(file, _)| !file.path.contains(PROGRAMS)) {
        let code = views.code_without_tests.replace(SUPPLIED_RANDOM, "");
        let forbidden = FORBIDDEN.iter().filter(|(word, _)| forbids_rand || *word != "rand::");
        for (word, what) in forbidden {
            violations.extend(lines_with(&code, word).map(|line| {
                let message = format!(
                    "`{word}` {what}; here the caller supplies threads, time and random numbers"
                );
                violation(&file.path, line, message)
            }));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(rung: i64, path: &str, text: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"a\"\nmetadata.clearlane.rung = {rung}\n");
        let repository = Repository::of([
            ("Cargo.toml", "[workspace]\nmembers = [\"crates/a\"]\n"),
            ("crates/a/Cargo.toml", &manifest),
            ("crates/a/src/lib.rs", "//! A.\n#[cfg(test)]\nmod for_tests;\n"),
            (path, text),
        ]);
        let mut violations = check(&repository);
        violations.retain(|violation| violation.starts_with("crates/a/"));
        violations
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
    fn random_bytes_may_be_supplied() {
        let told = |text: &str| messages(4, "crates/a/src/b.rs", text).len();
        assert_eq!(told("//! B.\nuse ring::rand::SecureRandom;\n"), 0);
        assert_eq!(told("//! B.\nuse ring::rand::{SecureRandom, generate};\n"), 1);
        assert_eq!(
            told("//! B.\nuse ring::rand::SecureRandom;\nlet x = SystemRandom::new();\n"),
            1
        );
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
        let told = |path: &str, text: &str| {
            let violations = check(&Repository::of([(path, text)]));
            violations.iter().filter(|violation| violation.starts_with(path)).count()
        };
        for part in SIMULATED_PATHS {
            assert_eq!(told(&format!("{part}b.rs"), clock), 1, "{part}");
        }
        assert_eq!(told("crates/dst/src/b.rs", "//! B.\nuse rand::Rng;\n"), 0);
        assert_eq!(told("crates/dst/src/bin/b.rs", clock), 0);
        assert_eq!(told("crates/server/src/node.rs", clock), 0);
        let without_files = check(&Repository::default());
        assert_eq!(without_files.len(), SIMULATED_PATHS.len());
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
}
