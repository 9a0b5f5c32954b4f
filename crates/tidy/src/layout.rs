//! What lies at the top level, and that nothing speaks of a developer's machine.
//!
//! The top level is the first thing that a visitor sees. It holds what this module lists, and a new
//! entry is a decision. And no file may hold an absolute path of the machine on which it was
//! written: it would be wrong on every other.

use crate::{Repository, Violation};

/// What may lie at the top level.
const TOP_LEVEL: [&str; 18] = [
    ".ci",
    ".gitignore",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "benches",
    "clippy.toml",
    "crates",
    "docs",
    "examples",
    "proto",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "target",
    "tests",
];

/// Directories in which people keep their work. Without the slashes, so that this file is clean.
const HOME_DIRECTORIES: [&str; 4] = ["work", "root", "home", "Users"];

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let mut violations = top_level(repository);
    violations.extend(machine_paths(repository));
    violations
}

fn top_level(repository: &Repository) -> Vec<Violation> {
    let strangers = repository.names_in("").filter(|name| !TOP_LEVEL.contains(name));
    let message = format!("does not belong to the top level, which holds {}", TOP_LEVEL.join(", "));
    strangers.map(|name| Violation::new(name, 1, message.clone())).collect()
}

fn machine_paths(repository: &Repository) -> Vec<Violation> {
    let homes = HOME_DIRECTORIES.map(|name| format!("/{name}/"));
    let mut violations = Vec::new();
    for file in repository.files() {
        for (line, at) in file.text.lines().zip(1..) {
            if let Some(home) = homes.iter().find(|home| starts_a_path(line, home)) {
                let message = format!("`{home}` is a path of one machine; write a relative one");
                violations.push(Violation::new(&file.path, at, message));
            }
        }
    }
    violations
}

/// Whether `home` stands in the line as the beginning of a path, not as a part of a longer one.
fn starts_a_path(line: &str, home: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "._-~}".contains(c);
    line.match_indices(home).any(|(at, _)| !line[..at].ends_with(continues))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Repository::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn strangers_at_the_top_are_told() {
        assert!(messages("notes.md", "")[0].starts_with("notes.md:1: does not belong"));
        assert!(messages("src/lib.rs", "")[0].starts_with("src:1: does not belong"));
        assert_eq!(messages("docs/notes.md", ""), [""; 0]);
    }

    #[test]
    fn machine_paths_are_told_in_any_text() {
        for name in HOME_DIRECTORIES {
            let text = format!("# A\n\nSee `/{name}/x`.\n");
            assert!(messages("docs/a.md", &text)[0].starts_with("docs/a.md:3: "));
            let text = format!("//! A.\nlet a = \"file:///{name}/x\";\n");
            assert!(messages("crates/a/src/b.rs", &text)[0].starts_with("crates/a/src/b.rs:2: "));
            assert_eq!(messages("docs/a.md", &format!("crates/{name}/x and ./{name}/x")), [""; 0]);
        }
    }
}
