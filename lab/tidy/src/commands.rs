//! Commands in Markdown are in fences that CI runs or checks.
//!
//! `docs/tools/commands` handles the fences whose info string starts with the word `sh`. It runs
//! their commands, unless a second word, `elsewhere` or `host`, marks commands that can only be
//! checked. In any other fence, a line must not start like a command. Doc comments in Rust files
//! are not checked: their commands may be in any fence.

use crate::{Repository, violation};

const PROGRAMS: [&str; 10] = [
    "$",
    "cargo",
    "clearlane",
    "clearlane-load",
    "clearlane-sim",
    "curl",
    "docker",
    "etcdctl",
    "etcdutl",
    "kubectl",
];
const DIRECTORIES: [&str; 6] = ["./", ".ci/", "benches/", "deploy/", "docs/tools/", "tests/"];

pub fn check(repository: &Repository) -> Vec<String> {
    let pages = repository.files().filter(|file| file.path.ends_with(".md"));
    pages
        .flat_map(|page| {
            let escaped = other_fences(&page.text).filter(|(line, _)| is_command(line));
            escaped.map(|(line, at)| {
                let message =
                    format!("`{}` is not run; put it into a fence with `sh`", line.trim());
                violation(&page.path, at, message)
            })
        })
        .collect()
}

/// Returns the lines of all fences that CI neither runs nor checks, with their line numbers.
fn other_fences(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let mut info: Option<&str> = None;
    text.lines().zip(1..).filter(move |(line, _)| {
        match (line.trim_start().strip_prefix("```"), info) {
            (Some(begun), None) => info = Some(begun.trim_start_matches('`').trim()),
            (Some(_), Some(_)) => info = None,
            (None, Some(info)) => return info.split_whitespace().next() != Some("sh"),
            (None, None) => {}
        }
        false
    })
}

fn is_command(line: &str) -> bool {
    let is_assignment = |word: &&str| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
    };
    let first = line.split_whitespace().find(|word| !is_assignment(word)).unwrap_or_default();
    PROGRAMS.contains(&first) || DIRECTORIES.iter().any(|start| first.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Repository::of([(path, text)]))
    }

    #[test]
    fn commands_in_fences_with_sh_pass() {
        let good = [
            "```sh\ncargo test\n```",
            "```sh background\nclearlane --era 3.2\n```",
            "- a list\n\n  ```sh host\n  kubectl get pods\n  ```",
            "cargo test\n\n```sh\n.ci/run\n```\netcdctl get a\n",
        ];
        for text in good {
            assert_eq!(messages("docs/a.md", text), [""; 0], "{text}");
        }
    }

    #[test]
    fn what_is_no_command_passes() {
        let good = [
            "era clearlane\n  cheap 0.35",
            "cargos",
            "clearlane::run()",
            "docker:\n  - cargo test",
            "a=1 b",
            "",
        ];
        for line in good {
            assert_eq!(messages("docs/a.md", &format!("```text\n{line}\n```")), [""; 0], "{line}");
        }
    }

    #[test]
    fn commands_in_other_fences_are_told_with_their_line() {
        let bad = [
            "cargo bench --bench wal",
            "clearlane --era 3.2",
            "clearlane-load fill a.toml",
            "clearlane-sim list",
            "etcdctl put a 1",
            "etcdutl snapshot restore a",
            "curl localhost:2379/health",
            "docker compose up",
            "kubectl apply -f a.yaml",
            "./configure",
            ".ci/run",
            "benches/eras/run 6",
            "tests/etcd-suites/run",
            "$ anything",
            "CLEARLANE_SEED=3 cargo test",
            "  WHO=etcd ROUNDS=1 benches/eras/run",
        ];
        for line in bad {
            for info in ["", "text", "console", "shell", "bash"] {
                let told = messages("docs/a.md", &format!("# A\n\n```{info}\nb\n{line}\n```\n"));
                assert_eq!(told.len(), 1, "{info}: {line}");
                assert!(told[0].starts_with("docs/a.md:5: "), "{told:?}");
                assert!(told[0].contains(line.trim()), "{told:?}");
            }
        }
    }

    #[test]
    fn a_fence_without_sh_behind_one_with_it_is_checked() {
        let text = "```sh\ncargo run\n```\n\n```text\nit printed this\ncargo run\n```\n";
        assert_eq!(messages("README.md", text).len(), 1);
    }

    #[test]
    fn docs_in_code_are_free() {
        let text = "//! A.\n//!\n//! ```text\n//! cargo bench --bench wal\n//! ```\n";
        assert_eq!(messages("benches/a.rs", text), [""; 0]);
    }
}
