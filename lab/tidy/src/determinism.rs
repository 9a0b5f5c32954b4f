//! The crates from `engine` to `replica`, and the simulation `dst`, forbid threads, clocks and
//! random numbers. All these crates except `engine` and `wal` also forbid files.
//!
//! In these crates a commit, a step of a compaction and the expiry of a lease are functions, and
//! the caller passes the time. The server calls them from its threads. The cluster simulation calls
//! them in an order that depends on a seed. If one of these functions read a clock, a failure of
//! the simulation could not be repeated.
//!
//! Clippy checks the calls, with the lists in `clippy.toml`, in each crate whose `lib.rs` requests
//! this check. The rule reports a crate that does not request the check. It also rejects the
//! library tokio, which has threads and timers.

use crate::ladder::{self, CratePosition};
use crate::{Repository, violation};

const DENIES: &str =
    "#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]";
const SIMULATION: &str = "lab/dst";
/// The rungs from `engine` to `replica`.
const RUNGS: std::ops::RangeInclusive<i64> = 1..=7;

pub fn check(repository: &Repository) -> Vec<String> {
    let mut violations = Vec::new();
    for found in ladder::crates(repository) {
        let is_on_rungs =
            matches!(found.position, CratePosition::Rung(rung) if RUNGS.contains(&rung));
        if !is_on_rungs && found.directory != SIMULATION {
            continue;
        }
        let root = format!("{}/src/lib.rs", found.directory);
        let asks = repository.file(&root).is_some_and(|file| file.text.contains(DENIES));
        if !asks {
            let message = format!("a deterministic crate has the line `{DENIES}`");
            violations.push(violation(&root, 1, message));
        }
        if found.uses("tokio") {
            let manifest = format!("{}/Cargo.toml", found.directory);
            let message = "a deterministic crate does not use tokio, which has threads and timers";
            violations.push(violation(&manifest, 1, message));
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rung: i64, root: &str, dependencies: &str) -> Vec<String> {
        let manifest = format!(
            "[package]\nname = \"a\"\nmetadata.clearlane.rung = {rung}\n[dependencies]\n{dependencies}"
        );
        check(&Repository::of([
            ("Cargo.toml", "[workspace]\nmembers = [\"crates/a\"]\n"),
            ("crates/a/Cargo.toml", &manifest),
            ("crates/a/src/lib.rs", root),
        ]))
    }

    #[test]
    fn a_deterministic_crate_asks_for_the_lists() {
        let with = format!("//! A.\n\n{DENIES}\n");
        for (rung, count) in [(0, 0), (1, 1), (7, 1), (8, 0)] {
            assert_eq!(found(rung, "//! A.\n", "").len(), count, "rung {rung}");
            assert_eq!(found(rung, &with, ""), [""; 0], "rung {rung}");
            assert_eq!(found(rung, &with, "tokio = \"1\"\n").len(), count, "rung {rung}");
        }
    }
}
