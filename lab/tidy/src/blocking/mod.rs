//! `docs/appendix-locks.md` lists each lock, queue and thread of the product.
//!
//! The rule checks that no item is missing, and that the appendix names only existing code:
//!
//! * The first column of a table has a link for each [item](items) of a crate on the ladder. The
//!   link has the item's name and leads to its file.
//! * A name between backticks in a link to a Rust file is in that file. In the column `tests` it is
//!   the name of a test, elsewhere the name of an item or another word of the code.
//! * Each row has a link. If the table has a column `tests`, the row's last cell has a link or the
//!   words "no test".

mod items;

use std::collections::BTreeSet;

use crate::chapters::quoted;
use crate::ladder::{self, CratePosition};
use crate::links::resolve;
use crate::rust::contains_word;
use crate::{File, Repository, violation};

const APPENDIX: &str = "docs/appendix-locks.md";
/// The lines around the table that a test of `mvcc` generates. The rows of that table are not
/// checked.
const ERAS: [&str; 2] = ["<!-- eras: begin -->", "<!-- eras: end -->"];

pub fn check(repository: &Repository) -> Vec<String> {
    let Some(appendix) = repository.file(APPENDIX) else {
        return vec![violation(APPENDIX, 1, "the appendix is missing; correct its path")];
    };
    let (rows, mut violations) = (rows(appendix), Vec::new());
    let mut listed = BTreeSet::new();
    for row in &rows {
        listed.extend(links(&row.cells[0]));
        violations.extend(check_row(repository, row));
    }
    for (file, name, line) in product_items(repository) {
        if !listed.contains(&(file.path.clone(), name.clone())) {
            let message =
                format!("`{name}` may hold up a request, and {APPENDIX} has no row for it");
            violations.push(violation(&file.path, line, message));
        }
    }
    violations
}

/// A row of a table of the appendix.
struct Row {
    line: usize,
    cells: Vec<String>,
    has_tests: bool,
}

fn rows(appendix: &File) -> Vec<Row> {
    let (mut rows, mut has_tests, mut is_made) = (Vec::new(), false, false);
    let mut before = "";
    for (text, line) in appendix.text.lines().zip(1..) {
        is_made = (is_made || text == ERAS[0]) && text != ERAS[1];
        let cells = || text.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned());
        if text.starts_with('|') && !before.starts_with('|') {
            has_tests = cells().last().is_some_and(|last| last == "tests" || last == "test");
        } else if text.starts_with("| ") && !is_made {
            rows.push(Row { line, cells: cells().collect(), has_tests });
        }
        before = text;
    }
    rows
}

/// Returns the names between backticks in links to Rust files, each with the path of its file.
fn links(cell: &str) -> Vec<(String, String)> {
    let mut links = Vec::new();
    for (text, rest) in cell.split('[').filter_map(|part| part.split_once("](")) {
        let path = rest.split([')', '#']).next().and_then(|target| resolve(APPENDIX, target));
        if let Some(path) = path.filter(|path| path.ends_with(".rs")) {
            links.extend(quoted(text).map(|name| (path.clone(), name.to_owned())));
        }
    }
    links
}

fn check_row(repository: &Repository, row: &Row) -> Vec<String> {
    let mut violations = Vec::new();
    let mut tell = |message: String| violations.push(violation(APPENDIX, row.line, message));
    if row.cells.iter().all(|cell| links(cell).is_empty()) {
        tell("a row links to what it is about".to_owned());
    }
    let (last, others) = row.cells.split_last().expect("a row has a cell");
    if row.has_tests && links(last).is_empty() && !last.starts_with("no test") {
        tell("the last column names a test, or says \"no test\"".to_owned());
    }
    let tests = if row.has_tests { links(last) } else { Vec::new() };
    for (path, name) in tests {
        let code = repository.file(&path).and_then(|file| file.rust.as_ref());
        let function = format!("fn {name}");
        if !code.is_some_and(|views| views.code.lines().any(|line| contains_word(line, &function)))
        {
            tell(format!("`{path}` has no test `{name}`"));
        }
    }
    let others = if row.has_tests { others } else { &row.cells };
    for (path, name) in others.iter().flat_map(|cell| links(cell)) {
        if !repository.file(&path).is_some_and(|file| names(file, &name)) {
            tell(format!("`{path}` has no `{name}`"));
        }
    }
    violations
}

/// Returns whether `name` is the name of an item of the file, or a word of its code.
fn names(file: &File, name: &str) -> bool {
    let Some(views) = &file.rust else { return false };
    let is_word = views.code_without_tests.lines().any(|line| contains_word(line, name));
    is_word || items::items(file, views).iter().any(|item| item.name == name)
}

fn product_items(repository: &Repository) -> Vec<(&File, String, usize)> {
    let crates = ladder::crates(repository).into_iter();
    let product = crates.filter(|found| matches!(found.position, CratePosition::Rung(_)));
    let mut found = Vec::new();
    for directory in product.map(|product| format!("{}/src/", product.directory)) {
        for (file, views) in repository.product_files(&directory) {
            let items = items::items(file, views).into_iter();
            found.extend(items.map(|item| (file, item.name.clone(), item.line(views))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = r##"//! A.
use clearlane_contention::{Mutex, Registry};
struct Store {
    index: Mutex<u8>,
    ready: parking_lot::Mutex<Vec<u8>>,
    arrived: Condvar,
    permits: Arc<Semaphore>,
}
struct Jobs { new: VecDeque<u8> }
struct RaftLoopQueue;
fn run(registry: &Registry, lock: &parking_lot::Mutex<u8>) -> Store {
    let (to_wal, work) = mpsc::channel(4);
    let (stop, stopped) = watch::channel(false);
    thread::Builder::new().name(format!("net-{number}")).spawn(work);
    spawn("apply", work);
    spawn_blocking(work);
    let text: VecDeque<u8> = VecDeque::new();
    Store { index: Mutex::new(registry, "store", 0), arrived: Condvar::new() }
}
#[cfg(test)]
mod tests { static LOCK: parking_lot::Mutex<u8> = spawn("test", 1); }
"##;
    const ITEMS: [&str; 10] = [
        "store",
        "ready",
        "arrived",
        "permits",
        "Jobs",
        "RaftLoopQueue",
        "to_wal",
        "net-N",
        "apply",
        "spawn_blocking",
    ];
    const MANIFEST: &str = "[package]\nname = \"a\"\nmetadata.clearlane.rung = 0\n";
    const TESTS: &str = "//! T.\n#[test]\nfn it_waits() {}\n";

    fn page(names: &[&str]) -> String {
        let row = |name: &&str| {
            let test = "[`it_waits`](../crates/a/tests/t.rs)";
            format!("| [`{name}`](../crates/a/src/b.rs) | all | {test} |\n")
        };
        let rows: String = names.iter().map(row).collect();
        format!("# Blocking\n\n| lock | held | tests |\n|---|---|---|\n{rows}")
    }

    fn messages(page: &str) -> Vec<String> {
        check(&Repository::of([
            ("Cargo.toml", "[workspace]\nmembers = [\"crates/a\"]\n"),
            ("crates/a/Cargo.toml", MANIFEST),
            ("crates/a/src/b.rs", SOURCE),
            ("crates/a/tests/t.rs", TESTS),
            (APPENDIX, page),
        ]))
    }

    #[test]
    fn a_page_with_all_passes() {
        assert_eq!(messages(&page(&ITEMS)), [""; 0]);
    }

    #[test]
    fn each_item_that_is_left_out_is_told_with_its_line() {
        let lines = [18, 5, 6, 7, 9, 10, 12, 14, 15, 16];
        for (left_out, line) in ITEMS.iter().zip(lines) {
            let others: Vec<_> = ITEMS.into_iter().filter(|item| item != left_out).collect();
            let told = messages(&page(&others));
            let start = format!("crates/a/src/b.rs:{line}: `{left_out}` may hold up");
            assert!(told.len() == 1 && told[0].starts_with(&start), "{told:?}");
        }
    }

    #[test]
    fn what_does_not_exist_is_told() {
        let good = page(&ITEMS);
        for (bad, words) in [
            (good.replace("`it_waits`", "`it_hastes`"), "has no test `it_hastes`"),
            (good.clone() + "| [`gone`](../crates/a/src/b.rs) | all | no test |\n", "no `gone`"),
            (good.clone() + "| [`Store`](../crates/a/src/c.rs) | all | no test |\n", "no `Store`"),
            (good.clone() + "| [`Store`](../crates/a/src/b.rs) | all | yes |\n", "names a test"),
            (good.clone() + "| store | all | no test |\n", "a row links"),
        ] {
            let told = messages(&bad);
            assert!(!told.is_empty() && told.iter().all(|told| told.contains(words)), "{told:?}");
        }
        assert_eq!(check(&Repository::default()).len(), 1);
    }

    #[test]
    fn the_table_that_a_test_makes_is_left_alone() {
        let made = format!("{}\n| while | 3.0 |\n|---|---|\n| a | b |\n{}\n", ERAS[0], ERAS[1]);
        assert_eq!(messages(&(page(&ITEMS) + "\n" + &made)), [""; 0]);
    }
}
