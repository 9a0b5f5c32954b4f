//! The shape of a Rust file.
//!
//! * Its first line is a doc, `//!`: a file that cannot say in a sentence what it is for is two
//!   files, or none.
//! * It has at most 800 lines, tests apart. Question it at 500. (Functions: clippy counts those.)
//! * No drawer for leftovers: a module called `util` has no question that it answers, and every
//!   crate ends up depending on it.

use crate::rust::contains_word;
use crate::{File, Repository, Violation, rust};

/// Lines of a file, tests apart.
const LINES_MAX: usize = 800;

/// Names that say nothing.
const VAGUE_NAMES: [&str; 5] = ["common", "util", "utils", "helpers", "misc"];

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (file, views) in repository.rust_files() {
        violations.extend(first_line(file));
        violations.extend(length(file, views));
        violations.extend(vague_name_in_path(file));
        violations.extend(vague_names_in_code(file, views));
    }
    violations
}

fn first_line(file: &File) -> Option<Violation> {
    let doc = file.text.lines().next().and_then(|line| line.strip_prefix("//!"));
    match doc.map(str::trim) {
        Some("Placeholder.") => Some(Violation::new(
            &file.path,
            1,
            "a placeholder; write what the file is for, or remove it",
        )),
        Some(text) if !text.is_empty() => None,
        _ => {
            let message = "the first line is no doc; start with `//!` and what the file is for";
            Some(Violation::new(&file.path, 1, message))
        }
    }
}

fn length(file: &File, views: &rust::SourceViews) -> Option<Violation> {
    if is_test(&file.path) {
        return None;
    }
    let lines = file.text.lines().count() - views.lines_in_tests;
    (lines > LINES_MAX).then(|| {
        let message = format!("{lines} lines without tests; {LINES_MAX} are the most, split it");
        Violation::new(&file.path, LINES_MAX, message)
    })
}

/// Whether the whole file is a test: in a directory `tests`, or `tests.rs` beside what it tests.
fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.split('/').any(|part| part == "tests")
}

fn vague_name_in_path(file: &File) -> Option<Violation> {
    let parts = file.path.trim_end_matches(".rs").split('/');
    let part = parts.into_iter().find(|part| VAGUE_NAMES.contains(part))?;
    let message =
        format!("`{part}` does not say what is inside; name it for the question it answers");
    Some(Violation::new(&file.path, 1, message))
}

fn vague_names_in_code(file: &File, views: &rust::SourceViews) -> Vec<Violation> {
    let is_drawer = |line: &str| {
        let inline = |name: &&str| contains_word(line, &format!("mod {name}"));
        VAGUE_NAMES.into_iter().find(inline)
    };
    let lines = views.code.lines().zip(1..);
    lines
        .filter_map(|(line, at)| {
            let message = format!(
                "`mod {}` does not say what is inside; name it for the question it answers",
                is_drawer(line)?
            );
            Some(Violation::new(&file.path, at, message))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Repository::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_with_a_doc_passes() {
        assert_eq!(messages("crates/a/src/b.rs", "//! What for.\n\nfn f() {}\n"), [""; 0]);
    }

    #[test]
    fn a_missing_doc_is_told_everywhere() {
        for path in
            ["crates/a/src/b.rs", "crates/a/build.rs", "crates/a/tests/t.rs", "benches/b.rs"]
        {
            for text in ["", "// What for.\n", "\n//! What for.\n", "//!\n//! What for.\n"] {
                assert!(messages(path, text)[0].starts_with(&format!("{path}:1: the first line")));
            }
        }
        assert!(messages("examples/e.rs", "//! Placeholder.\n")[0].contains("placeholder"));
    }

    #[test]
    fn a_long_file_is_told_and_tests_are_not_counted() {
        let long = format!("//! What for.\n{}", "f();\n".repeat(800));
        assert!(
            messages("crates/a/src/b.rs", &long)[0].starts_with("crates/a/src/b.rs:800: 801 lines")
        );
        assert_eq!(messages("crates/a/src/b/tests.rs", &long), [""; 0]);
        assert_eq!(messages("crates/a/tests/t.rs", &long), [""; 0]);
        let half = "f();\n".repeat(500);
        let tests = format!("//! What for.\n{half}#[cfg(test)]\nmod tests {{\n{half}}}\n");
        assert_eq!(messages("crates/a/src/b.rs", &tests), [""; 0]);
    }

    #[test]
    fn drawers_are_told() {
        assert!(messages("crates/util/src/b.rs", "//! B.\n")[0].contains("`util`"));
        assert!(messages("crates/a/tests/common/mod.rs", "//! B.\n")[0].contains("`common`"));
        assert!(messages("crates/a/src/utils.rs", "//! B.\n")[0].contains("`utils`"));
        let told = messages("crates/a/src/b.rs", "//! B.\n// mod util\npub mod util {}\n");
        assert_eq!(told.len(), 1);
        assert!(told[0].starts_with("crates/a/src/b.rs:3: "));
    }
}
