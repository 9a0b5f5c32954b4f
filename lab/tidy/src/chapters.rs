//! The map of the code, and the chapters that follow a request, name only existing code.
//!
//! * In `ARCHITECTURE.md`, each row of "Where things live" names a crate, and between backticks the
//!   files and folders below its `src`. They must exist.
//! * In a chapter that follows a request, each row of the table of steps has the number of a step,
//!   its functions, and the file that contains them. Each step of the chapter has a row.
//!   `tests/step-tables` compares the order of the rows with a run.
//! * Any name between backticks in such a chapter is a word of the code or the name of a lock.

use crate::rust::contains_word;
use crate::{File, Repository, violation};

const MAP: &str = "ARCHITECTURE.md";
const CHAPTERS: [&str; 3] = ["docs/read-path.md", "docs/write-path.md", "docs/watch.md"];

pub fn check(repository: &Repository) -> Vec<String> {
    let missing = |path: &&str| repository.file(path).is_none();
    let missing = [MAP].into_iter().chain(CHAPTERS).filter(missing);
    let message = "the page is missing; correct the list of pages";
    let mut violations: Vec<_> = missing.map(|path| violation(path, 1, message)).collect();
    violations.extend(repository.file(MAP).iter().flat_map(|map| check_map(repository, map)));
    for chapter in CHAPTERS.iter().filter_map(|path| repository.file(path)) {
        violations.extend(check_steps(repository, chapter));
        violations.extend(check_names(repository, chapter));
    }
    violations
}

/// Returns the parts of `text` between backticks.
pub(crate) fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn check_map(repository: &Repository, map: &File) -> Vec<String> {
    let lines = map.text.lines().zip(1..);
    let section = lines.skip_while(|(line, _)| *line != "## Where things live").skip(1);
    let section = section.take_while(|(line, _)| !line.starts_with("## "));
    let (mut named, mut violations) = (0, Vec::new());
    for (row, at) in section.filter(|(row, _)| row.starts_with("| `")) {
        let mut quoted = quoted(row);
        let name = quoted.next().unwrap_or_default();
        let roof = ["crates", "clients", "lab"];
        let roof = roof.iter().find(|roof| repository.has(&format!("{roof}/{name}/Cargo.toml")));
        let source = format!("{}/{name}/src", roof.unwrap_or(&"crates"));
        for word in quoted.filter(|word| word.ends_with(".rs") || word.ends_with('/')) {
            named += 1;
            let path = format!("{source}/{}", word.trim_end_matches('/'));
            if !repository.has(&path) {
                violations.push(violation(MAP, at, format!("nothing lies at {path}")));
            }
        }
    }
    if named == 0 {
        violations.push(violation(MAP, 1, "no row of `Where things live` was found"));
    }
    violations
}

fn check_steps(repository: &Repository, chapter: &File) -> Vec<String> {
    let number = |line: &str, end| line.split_once(end)?.0.trim().parse::<usize>().ok();
    let mut violations = Vec::new();
    let mut tell = |line, message| violations.push(violation(&chapter.path, line, message));
    let mut in_table = Vec::new();
    for (row, at) in chapter.text.lines().zip(1..).filter(|(line, _)| line.starts_with("| ")) {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        // A step may name another one that it follows: `12, after 9`.
        let step = cells[0].trim().parse().ok().or_else(|| number(cells[0], ", after "));
        let Some(step) = step else { continue };
        in_table.push(step);
        let (functions, path, text) = match cells[..] {
            [_, functions, file, waits] => (functions, quoted(file).next(), waits),
            [_, _thread, function, _only, text] => (function, linked(function), text),
            _ => {
                let message = "a row is `step, functions, file, may wait for`, or `step, thread, \
                               linked function, only, what it does`";
                tell(at, message.to_owned());
                continue;
            }
        };
        let path = path.unwrap_or_default();
        let code = repository.file(path).and_then(|file| file.rust.as_ref());
        let code = code.map_or("", |views| &views.code_without_tests);
        if quoted(functions).next().is_none() || text.trim().is_empty() {
            tell(at, "the row has no function, or its last cell is empty".to_owned());
        }
        for name in quoted(functions) {
            let name = name.rsplit("::").next().unwrap_or(name);
            if !code.lines().any(|line| contains_word(line, &format!("fn {name}"))) {
                tell(at, format!("`{path}` has no function `{name}`"));
            }
        }
    }
    for (line, at) in chapter.text.lines().zip(1..) {
        if let Some(step) = number(line, ".").filter(|step| !in_table.contains(step)) {
            tell(at, format!("step {step} has no row in the table"));
        }
    }
    violations
}

/// Returns the path of the file to which a cell links, from the root of the repository.
fn linked(cell: &str) -> Option<&str> {
    cell.split_once("](../")?.1.split_once(')').map(|(path, _)| path)
}

/// Returns whether `name` looks like a name or a path in the code, such as `x::put`. Flags, file
/// names and expressions do not look like this.
fn is_path(name: &str) -> bool {
    name.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | ':'))
}

fn check_names(repository: &Repository, chapter: &File) -> Vec<String> {
    let mut violations = Vec::new();
    for (line, at) in chapter.text.lines().zip(1..).filter(|(line, _)| !line.starts_with("```")) {
        for name in quoted(line).filter(|name| is_path(name)) {
            let word = name.rsplit("::").next().unwrap_or(name);
            let mut files = repository.product_files("crates/");
            let lock = format!("\"{word}\"");
            if !files.any(|(file, views)| {
                contains_word(&views.code_without_tests, word) || file.text.contains(&lock)
            }) {
                let message = format!("no code has the name `{name}`");
                violations.push(violation(&chapter.path, at, message));
            }
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(map: &str, chapter: &str) -> Vec<String> {
        let repository = Repository::of([
            (MAP, map),
            (CHAPTERS[0], chapter),
            (CHAPTERS[1], ""),
            (CHAPTERS[2], ""),
            ("crates/x/src/a.rs", "//! A, not `fn gone()`.\npub(crate) fn put(a: Kept) {}\n"),
        ]);
        check(&repository)
    }

    const GOOD_MAP: &str = "## Where things live\n| `x` | first `a.rs` |\n";
    const STEPS: &str = "1. `Kept` comes, and `x::put`.\n\n\
                         | step | function | file | may wait for |\n\
                         | 1 | `put` | `crates/x/src/a.rs` | nothing |\n";
    const LINKED: &str = "| step | thread | function | only | what it does |\n\
                          | 1, after 1 | net | [`x::put`](../crates/x/src/a.rs) | | puts |\n";

    #[test]
    fn good_pages_pass() {
        assert_eq!(messages(GOOD_MAP, STEPS), [""; 0]);
        assert_eq!(messages(GOOD_MAP, LINKED), [""; 0]);
    }

    #[test]
    fn what_is_not_there_is_told() {
        let told = messages("## Where things live\n| `x` | `b.rs`, `a/` |\n", STEPS);
        assert_eq!(told[0], "ARCHITECTURE.md:2: nothing lies at crates/x/src/b.rs");
        assert_eq!(told.len(), 2);
        assert_eq!(messages("", STEPS).len(), 1);
        for (good, bad, line) in [
            ("| `put`", "| `gone`", 4),
            ("src/a.rs", "src/b.rs", 4),
            ("| nothing ", "| ", 4),
            ("| nothing ", "", 4),
            ("1. ", "2. ", 1),
            ("x::put", "x::puts", 1),
        ] {
            let told = messages(GOOD_MAP, &STEPS.replace(good, bad));
            assert!(told[0].starts_with(&format!("docs/read-path.md:{line}: ")), "{bad}: {told:?}");
        }
        for (good, bad) in
            [("x::put", "put_all"), ("../crates", "crates"), ("puts", ""), ("net |", "")]
        {
            let told = messages(GOOD_MAP, &LINKED.replace(good, bad));
            assert!(told[0].starts_with("docs/read-path.md:2: "), "{bad}: {told:?}");
        }
        assert_eq!(check(&Repository::default()).len(), 4);
    }
}
