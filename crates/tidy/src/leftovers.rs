//! Nothing unfinished, and nothing switched off in silence.
//!
//! * No note to finish something later, and no macro that panics because it was not finished. What
//!   is not done is said in a doc, as a limit, or is an issue.
//! * A lint is switched off with a `reason = "..."`, a test is skipped with `#[ignore = "..."]`. A
//!   reader that meets an exception wants to know whether it still holds.
//! * `unsafe` is allowed in [two files](UNSAFE_FILES), for each of which a decision was written.

use crate::rust::{self, attributes, contains_word, line_of};
use crate::{File, Repository, Violation};

/// Notes to self, in code and in comments and in any other text.
const NOTES: [&str; 3] = ["TODO", "FIXME", "XXX"];

/// Macros that stand for code to come.
const MACROS: [&str; 2] = ["todo!", "unimplemented!"];

/// Where the lint that denies `unsafe` may be switched off.
pub const UNSAFE_FILES: [&str; 2] =
    ["crates/net/src/sched/linux.rs", "crates/clearlane/src/allocator.rs"];

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in repository.files().filter(|file| file.path != "Cargo.lock") {
        match &file.rust {
            Some(views) => {
                violations.extend(find_words(file, &views.without_strings, &NOTES));
                violations.extend(find_words(file, &views.code, &MACROS));
                violations.extend(silenced_lints(file, views));
            }
            None => violations.extend(find_words(file, &file.text, &NOTES)),
        }
    }
    violations
}

fn find_words(file: &File, text: &str, words: &[&str]) -> Vec<Violation> {
    let lines = text.lines().zip(1..);
    let found = lines.filter_map(|(line, at)| {
        let word = words.iter().find(|word| contains_word(line, word))?;
        let message = format!("`{word}`; finish it, or say as a limit what is missing");
        Some(Violation::new(&file.path, at, message))
    });
    found.collect()
}

fn silenced_lints(file: &File, views: &rust::SourceViews) -> Vec<Violation> {
    let found = attributes(&views.code).filter_map(|(at, attribute)| {
        let message = silenced_message(attribute, UNSAFE_FILES.contains(&&*file.path))?;
        Some(Violation::new(&file.path, line_of(&views.code, at), message))
    });
    found.collect()
}

fn silenced_message(attribute: &str, may_be_unsafe: bool) -> Option<&'static str> {
    let says = |word| contains_word(attribute, word);
    if says("unsafe_code") && !may_be_unsafe {
        Some("`unsafe` is allowed in two files only, or there must be another decision")
    } else if (says("allow(") || says("expect(")) && !says("reason") {
        Some("a lint is switched off without `reason = \"...\"`")
    } else if says("ignore") && !attribute.contains("ignore =") && !says("derive") {
        Some("a test is skipped without a reason; write #[ignore = \"...\"]")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Repository::of([(path, text)])).iter().map(ToString::to_string).collect()
    }

    fn messages_of_rust(text: &str) -> Vec<String> {
        messages("crates/a/src/b.rs", text)
    }

    #[test]
    fn notes_are_told_in_comments_code_and_other_text() {
        for note in NOTES {
            let told_of_comment = messages_of_rust(&format!("//! B.\n// {note}: more\n"));
            assert!(told_of_comment[0].starts_with(&format!("crates/a/src/b.rs:2: `{note}`")));
            assert_eq!(messages("docs/a.md", &format!("# A\n\n{note}\n")).len(), 1);
            assert_eq!(messages(".ci/run", &format!("# {note}\n")).len(), 1);
            assert_eq!(messages_of_rust(&format!("//! B.\nlet a = \"{note}\";\n")), [""; 0]);
            assert_eq!(messages_of_rust(&format!("//! B{note}.\n")), [""; 0]);
        }
    }

    #[test]
    fn macros_for_later_are_told_in_code() {
        for name in MACROS {
            assert_eq!(messages_of_rust(&format!("//! B.\nfn f() {{ {name}() }}\n")).len(), 1);
            assert_eq!(messages_of_rust(&format!("//! B, without `{name}`.\n")), [""; 0]);
        }
    }

    #[test]
    fn unsafe_code_has_its_places() {
        let text = "//! B.\n#![allow(unsafe_code, reason = \"it is quick\")]\n";
        assert!(messages_of_rust(text)[0].contains("`unsafe` is allowed in"));
        for file in UNSAFE_FILES {
            assert_eq!(messages(file, text), [""; 0]);
        }
    }

    #[test]
    fn lints_are_switched_off_with_a_reason() {
        for bad in [
            "#[allow(dead_code)]",
            "#![allow(\n    dead_code,\n    missing_docs\n)]",
            "#[expect(clippy::too_many_lines)]",
            "#[cfg_attr(test, allow(dead_code))]",
        ] {
            let told = messages_of_rust(&format!("//! B.\n{bad}\nfn f() {{}}\n"));
            assert!(told[0].starts_with("crates/a/src/b.rs:2: a lint"), "{bad}");
        }
        assert_eq!(messages_of_rust("#[allow(dead_code, reason = \"a\")]\nfn f() {}\n"), [""; 0]);
        assert_eq!(messages_of_rust("x.expect(\"a\")[0];\n// #[allow(dead_code)]\n"), [""; 0]);
    }

    #[test]
    fn tests_are_skipped_with_a_reason() {
        let told = messages_of_rust("#[test]\n#[ignore]\nfn f() {}\n");
        assert!(told[0].starts_with("crates/a/src/b.rs:2: a test"));
        assert_eq!(messages_of_rust("#[test]\n#[ignore = \"slow\"]\nfn f() {}\n"), [""; 0]);
    }
}
