//! The shape of a Rust file.
//!
//! * It begins with a doc, `//!`, of at most 15 lines: what it is for. The story is in `docs/`.
//! * It has at most 800 lines, tests apart. (Functions: clippy counts those.)
//! * Its comments have at most 100 characters a line. (Code: rustfmt breaks those lines.)
//! * `unsafe` is allowed in [three files](UNSAFE_FILES). The lint can be switched off anywhere.

use crate::rust::{SourceViews, lines_with};
use crate::{File, Repository, violation};

const HEAD_LINES_MAX: usize = 15;
const FILE_LINES_MAX: usize = 800;
const LINE_CHARS_MAX: usize = 100;

/// Where the lint that denies `unsafe` may be switched off.
const UNSAFE_FILES: [&str; 3] = [
    "crates/net/src/sched/linux.rs",
    "crates/clearlane/src/allocator/mod.rs",
    "crates/clearlane/src/allocator/page_pool.rs",
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

/// Whether the whole file is a test: in a directory `tests`, or `tests.rs` beside what it tests.
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
        assert_eq!(messages("crates/a/src/b.rs", &"//! What for.\n".repeat(15)), [""; 0]);
        for text in ["", "// What for.\n", "\n//! What for.\n", "//!\n//! What for.\n"] {
            assert!(
                messages("benches/b.rs", text)[0].starts_with("benches/b.rs:1: the first line")
            );
        }
        assert!(messages("benches/b.rs", &"//! What for.\n".repeat(16))[0].contains("of 16 lines"));
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
