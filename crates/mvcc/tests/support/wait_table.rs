//! Builds the table in `docs/appendix-locks.md` that shows, for each era, which locks operations
//! wait for while another operation is paused. The golden files of this crate and of the backend
//! have the data.

use std::fs;
use std::path::Path;

use clearlane_backend::Era;

use crate::{Operation, Situation, updates_files};

const BEGIN: &str = "<!-- eras: begin -->\n";
const END: &str = "<!-- eras: end -->";
/// Situations that only the backend's table has. Each pair has the words after "beside" in the
/// title of the situation, and the words that the appendix uses.
const OF_THE_BACKEND: [(&str, &str); 2] =
    [("a commit that syncs", "a commit, in its sync"), ("a rewrite", "a defragmentation")];

/// A row of the table. For each era it has the locks that the operations wait for. The list of an
/// era is empty if nothing waits.
struct Row {
    paused: &'static str,
    waits: String,
    locks: Vec<Vec<String>>,
}

/// Fails if the appendix has a different table. If `UPDATE_GOLDENFILES=1` is set, writes the table
/// instead.
pub(crate) fn check(golden: &str, situations: &[Situation]) {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let appendix = top.join("docs/appendix-locks.md");
    let of_backend = fs::read_to_string(top.join("crates/backend/tests/golden/blocking")).unwrap();
    let mut rows = store_rows(golden, situations);
    rows.extend(backend_rows(&of_backend));
    let table = markdown(&joined(rows));
    let text = fs::read_to_string(&appendix).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the appendix has the first mark");
    let (found, behind) = rest.split_once(END).expect("the appendix has the second mark");
    if updates_files() {
        fs::write(&appendix, [before, BEGIN, &table, END, behind].concat()).unwrap();
    } else {
        assert!(found == table, "docs/appendix-locks.md should have this table:\n{table}");
    }
}

fn store_rows(golden: &str, situations: &[Situation]) -> Vec<Row> {
    let lines = golden.lines().skip(1);
    assert_eq!(lines.clone().count(), situations.len());
    let mut rows = Vec::new();
    for (line, Situation { title, operations }) in lines.zip(situations) {
        let (found, locks) = parse(line);
        assert_eq!(found, *title);
        if let Some(waits) = waiter(operations) {
            rows.push(Row { paused: holder(operations[0]), waits: waits.to_owned(), locks });
        }
    }
    rows
}

fn backend_rows(golden: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    for (title, locks) in golden.lines().skip(1).map(parse) {
        let Some((waits, beside)) = title.split_once(" beside ") else { continue };
        let found = OF_THE_BACKEND.iter().find(|(name, _)| *name == beside);
        if let Some((_, paused)) = found {
            let waits = match waits {
                "commit" | "remove" => "a commit or compaction".to_owned(),
                other => format!("a {other}"),
            };
            rows.push(Row { paused, waits, locks });
        }
    }
    rows
}

/// Parses a line of a golden file: its title, and the locks that each era waits for.
fn parse(line: &str) -> (&str, Vec<Vec<String>>) {
    let mut cells = line.split(" | ").map(str::trim);
    let title = cells.next().expect("a line has a title");
    let locks = cells.map(|cell| match cell.strip_prefix("waits for ") {
        Some(words) => vec![format!("`{}`", words.split(',').next().unwrap_or(words))],
        None => {
            assert_eq!(cell, "goes on");
            Vec::new()
        }
    });
    (title, locks.collect())
}

fn holder(operation: Operation) -> &'static str {
    match operation {
        Operation::ExpensiveRead => "an open read",
        Operation::Hash => "a hash of all records",
        Operation::OpenWrite => "an open write",
        Operation::EndingWrite => "the end of a write that commits",
        Operation::Syncing => "a commit, in its sync",
        Operation::Scheduling => "a compaction being scheduled",
        Operation::CatchingUp => "a step for unsynced watchers",
        other => panic!("{other:?} is not paused"),
    }
}

/// Returns the appendix's name for the last operation, or `None` if the appendix omits it. All
/// operations of watchers are omitted.
fn waiter(operations: &[Operation]) -> Option<&'static str> {
    use Operation::*;
    Some(match *operations {
        [_, Put, CheapRead | AnotherPut | Tick] => "the next request after that put",
        [_, Commit | Compact, _] => "the next request after that commit or compaction",
        [_, CheapRead | Hash] => "a read",
        [_, Put] => "a put",
        [_, Tick | Commit | Compact | CompactionJob] => "a commit or compaction",
        _ => return None,
    })
}

/// Joins rows that have the same first two columns. Then drops rows where no operation waits, and
/// joins rows that differ only in the operations that wait.
fn joined(rows: Vec<Row>) -> Vec<Row> {
    let mut by_waiter: Vec<Row> = Vec::new();
    for row in rows {
        let same = |other: &&mut Row| (other.paused, &other.waits) == (row.paused, &row.waits);
        match by_waiter.iter_mut().find(same) {
            Some(other) => {
                for (locks, mut more) in other.locks.iter_mut().zip(row.locks) {
                    more.retain(|lock| !locks.contains(lock));
                    locks.extend(more);
                }
            }
            None => by_waiter.push(row),
        }
    }
    let order: Vec<_> = by_waiter.iter().map(|row| row.paused).collect();
    by_waiter.sort_by_key(|row| order.iter().position(|holder| *holder == row.paused));
    let mut joined: Vec<Row> = Vec::new();
    for row in by_waiter.into_iter().filter(|row| row.locks.iter().any(|locks| !locks.is_empty())) {
        let same = |other: &&mut Row| (other.paused, &other.locks) == (row.paused, &row.locks);
        match joined.iter_mut().find(same) {
            Some(other) => other.waits = format!("{}, {}", other.waits, row.waits),
            None => joined.push(row),
        }
    }
    joined
}

/// Formats the table. Neighbouring eras share a column if they have the same locks in every row.
fn markdown(rows: &[Row]) -> String {
    let column = |at: usize| rows.iter().map(move |row| &row.locks[at]);
    let mut columns: Vec<(String, usize)> = Vec::new();
    for (at, era) in Era::DISTINCT_STORES.into_iter().enumerate() {
        let name = if era == Era::V3_1 { "3.0, 3.1".to_owned() } else { era.to_string() };
        match columns.last_mut() {
            Some((names, before)) if column(*before).eq(column(at)) => {
                *names = format!("{names}, {name}");
            }
            _ => columns.push((name, at)),
        }
    }
    let names: String = columns.iter().map(|(names, _)| format!(" {names} |")).collect();
    let rule = "---|".repeat(columns.len());
    let mut table = format!("| while there is | this waits |{names}\n|---|---|{rule}\n");
    let mut before = "";
    for row in rows {
        let paused = if row.paused == before { "" } else { row.paused };
        before = row.paused;
        table += &format!("| {paused} | {} |", row.waits);
        for (_, at) in &columns {
            let locks = row.locks[*at].join(", ");
            table += &format!(" {} |", if locks.is_empty() { "-" } else { &locks });
        }
        table += "\n";
    }
    table
}
