//! The shape of a Rust file.
//!
//! * It starts with a doc comment, `//!`, of at most 60 lines, which explains the module.
//! * It has at most 800 lines without its tests. (Clippy limits the length of functions.)
//! * A line of a comment has at most 100 characters. (Rustfmt breaks longer lines of code.)
//! * `unsafe` is allowed in [five files](UNSAFE_FILES). No other file may switch off the lint that
//!   denies it.

use crate::rust::{SourceViews, lines_with};
use crate::{File, Repository, violation};

const HEAD_LINES_MAX: usize = 60;
const FILE_LINES_MAX: usize = 800;
const LINE_CHARS_MAX: usize = 100;

/// The files in which the lint against `unsafe` may be switched off.
const UNSAFE_FILES: [&str; 5] = [
    "crates/net/src/sched/linux.rs",
    "crates/clearlane/src/allocator/mod.rs",
    "crates/clearlane/src/allocator/page_pool.rs",
    "crates/clearlane/src/profiling/cpu.rs",
    "crates/clearlane/src/profiling/stack.rs",
];

pub fn check(repository: &Repository) -> Vec<String> {
    let files = repository.rust_files();
    files.flat_map(|(file, views)| check_file(file, views)).collect()
}

fn check_file(file: &File, views: &SourceViews) -> Vec<String> {
    let mut violations = Vec::new();
    let mut tell = |line, message| violations.push(violation(&file.path, line, message));
    let head = file.text.lines().take_while(|line| line.starts_with("//!"));
    if head.clone().next().is_none_or(|line| line.trim() == "//!") {
        tell(1, "the first line is no doc; start with `//!` and what the file is for".to_owned());
    }
    let head = head.count();
    if head > HEAD_LINES_MAX {
        tell(head, format!("a head of {head} lines; {HEAD_LINES_MAX} are the most"));
    }
    let lines = file.text.lines().count() - views.lines_in_tests;
    if lines > FILE_LINES_MAX && !is_test(&file.path) {
        tell(FILE_LINES_MAX, format!("{lines} lines without tests; {FILE_LINES_MAX} are the most"));
    }
    for (line, at) in file.text.lines().zip(1..) {
        let characters = line.chars().count();
        if characters > LINE_CHARS_MAX && line.trim_start().starts_with("//") {
            tell(at, format!("{characters} characters; {LINE_CHARS_MAX} are the most"));
        }
    }
    if !UNSAFE_FILES.contains(&file.path.as_str()) {
        for at in lines_with(&views.code, "unsafe_code") {
            tell(at, format!("`unsafe` is allowed only in {}", UNSAFE_FILES.join(", ")));
        }
    }
    violations
}

/// Returns whether the whole file is a test: a file in a directory `tests`, or a file `tests.rs`
/// next to the tested module.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Repository::of([(path, text)]))
    }

    #[test]
    fn a_head_is_there_and_short() {
        assert_eq!(messages("crates/a/src/b.rs", &"//! What for.\n".repeat(60)), [""; 0]);
        for text in ["", "// What for.\n", "\n//! What for.\n", "//!\n//! What for.\n"] {
            assert!(
                messages("benches/b.rs", text)[0].starts_with("benches/b.rs:1: the first line")
            );
        }
        assert!(messages("benches/b.rs", &"//! What for.\n".repeat(61))[0].contains("of 61 lines"));
    }

    #[test]
    fn long_files_and_long_lines_are_told() {
        let long = format!("//! What for.\n{}", "f();\n".repeat(800));
        assert!(messages("a/b.rs", &long)[0].starts_with("a/b.rs:800: 801 lines"));
        assert_eq!(messages("crates/a/src/b/tests.rs", &long), [""; 0]);
        assert_eq!(messages("crates/a/tests/t.rs", &long), [""; 0]);
        let half = "f();\n".repeat(500);
        let tests = format!("//! What for.\n{half}#[cfg(test)]\nmod tests {{\n{half}}}\n");
        assert_eq!(messages("crates/a/src/b.rs", &tests), [""; 0]);
        let wide = format!("//! B.\n    // {}\n", "ä".repeat(94));
        assert!(messages("a/b.rs", &wide)[0].starts_with("a/b.rs:2: 101 characters"));
    }

    #[test]
    fn unsafe_code_has_its_places() {
        let text = "//! B.\n#![allow(unsafe_code, reason = \"it is quick\")]\n";
        assert!(messages("a/b.rs", text)[0].starts_with("a/b.rs:2: `unsafe` is allowed only in"));
        for file in UNSAFE_FILES {
            assert_eq!(messages(file, text), [""; 0]);
        }
    }
}
