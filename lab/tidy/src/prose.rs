//! Comments are in plain English.
//!
//! Some habits make a reader parse a sentence twice. A file in `crates/` may have at most two
//! sentences with such a habit. If it has more, the rule reports each of these sentences:
//!
//! | habit | example | better |
//! |---|---|---|
//! | no subject | "Of the segments, the first." | "The first segment." |
//! | a pronoun with a clause | "the lock and that of the index" | "the lock and the index's lock" |
//! | a clause as a noun | "syncs what was written" | "syncs the written records" |
//!
//! Code in backquotes, blocks of code and questions are ignored.

use crate::rust::contains_word;
use crate::{File, Repository, violation};

/// Maximum number of sentences with a habit in the comments of one file.
const HABITS_MAX: usize = 2;

/// A sentence that starts with one of these words rarely has a subject.
const STARTS: [&str; 4] = ["Of ", "Up to which ", "Behind ", "Beside "];

const PRONOUNS: [&str; 7] =
    ["that of", "those of", "those that", "those which", "those who", "the one that", "of which"];

/// After "what", one of these verbs makes a clause that is used as a noun.
const VERBS: [&str; 9] = ["is", "was", "are", "were", "has", "had", "have", "comes", "remains"];

/// After one of these words, "what is" starts an indirect question, which is allowed.
const ASKING: [&str; 5] = ["know", "knows", "see", "decides", "explains"];

pub fn check(repository: &Repository) -> Vec<String> {
    let files = repository.rust_files().map(|(file, _)| file);
    files.filter(|file| file.path.starts_with("crates/")).flat_map(check_file).collect()
}

fn check_file(file: &File) -> Vec<String> {
    let habits: Vec<_> = paragraphs(&file.text)
        .into_iter()
        .flat_map(|(line, text)| {
            let sentences = text.split_inclusive(['.', '?', ':']);
            let habits = sentences.filter_map(|sentence| habit(sentence.trim()));
            habits.map(|habit| violation(&file.path, line, habit)).collect::<Vec<_>>()
        })
        .collect();
    if habits.len() > HABITS_MAX { habits } else { Vec::new() }
}

/// Returns the paragraphs of all comments, each with the number of its first line. Code in
/// backquotes is replaced by `X`.
fn paragraphs(text: &str) -> Vec<(usize, String)> {
    let mut paragraphs: Vec<(usize, String)> = Vec::new();
    let (mut is_code, mut is_open) = (false, false);
    for (line, at) in text.lines().zip(1..) {
        let line = line.trim_start();
        let words = line.strip_prefix("//").map(|rest| rest.trim_start_matches(['/', '!']).trim());
        let words = words.unwrap_or_default();
        if words.starts_with("```") {
            is_code = !is_code;
        }
        if is_code || words.is_empty() || words.starts_with(['`', '|', '#']) && words.len() < 4 {
            is_open = false;
        } else if is_open && let Some((_, paragraph)) = paragraphs.last_mut() {
            *paragraph += " ";
            *paragraph += words;
        } else {
            paragraphs.push((at, words.to_owned()));
            is_open = true;
        }
    }
    paragraphs.into_iter().map(|(line, text)| (line, without_code(&text))).collect()
}

fn without_code(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(number, part)| if number % 2 == 0 { part } else { "X" }).collect()
}

/// Returns a description of the first habit in a sentence, or `None` if the sentence has no habit.
fn habit(sentence: &str) -> Option<String> {
    if sentence.ends_with('?') {
        return None;
    }
    if let Some(start) = STARTS.iter().find(|start| sentence.starts_with(**start)) {
        return Some(format!("a sentence starts with \"{}\" and has no subject", start.trim()));
    }
    if let Some(words) = PRONOUNS.iter().find(|words| contains_word(sentence, words)) {
        return Some(format!("\"{words}\" in place of a noun"));
    }
    let words: Vec<_> = sentence.split_whitespace().collect();
    let clause = words.windows(3).find(|words| {
        words[1] == "what" && VERBS.contains(&words[2]) && !ASKING.contains(&words[0])
    })?;
    Some(format!("\"{} {}\" in place of a noun", clause[1], clause[2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(comment: &str) -> Vec<String> {
        check(&Repository::of([("crates/a/src/b.rs", &*format!("//! A file.\n\n{comment}"))]))
    }

    #[test]
    fn a_file_may_have_a_few_habits() {
        let odd = "// It syncs what was written and\n// that of others.\n\n";
        assert_eq!(messages(&odd.repeat(2)), [""; 0]);
        assert_eq!(messages(&odd.repeat(3)).len(), 3);
        assert_eq!(
            messages(&odd.repeat(3))[0],
            "crates/a/src/b.rs:3: \"that of\" in place of a noun"
        );
    }

    #[test]
    fn each_habit_is_found() {
        for (comment, found) in [
            ("Of two, the larger.", "a sentence starts with \"Of\" and has no subject"),
            ("The lock and that of the index.", "\"that of\" in place of a noun"),
            ("It skips those that wait.", "\"those that\" in place of a noun"),
            ("It syncs what was written.", "\"what was\" in place of a noun"),
        ] {
            assert_eq!(habit(comment).as_deref(), Some(found));
        }
        for plain in [
            "Returns the offset of the record.",
            "Who knows what is written?",
            "The caller does not know what is written.",
            "Offsets count from the start.",
        ] {
            assert_eq!(habit(plain), None, "{plain}");
        }
    }

    #[test]
    fn code_does_not_count() {
        let quoted = "// Prints `what is` and `that of`.\n\n";
        let block = "/// ```text\n/// It is what was written.\n/// ```\n";
        assert_eq!(messages(&[quoted, block].concat().repeat(5)), [""; 0]);
    }
}
