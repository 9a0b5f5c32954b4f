//! A table of outcomes as text. Cells are short names, and a legend below the table explains them.
//!
//! A cell is `ok`, optionally with a fact about the reply after a colon, or the name of an error.
//! The common errors have their own names. Other errors are `e1`, `e2` and so on.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The names of common errors.
const NAMES: [(&str, &str); 9] = [
    ("empty", "InvalidArgument: etcdserver: user name is empty"),
    ("token", "Unauthenticated: etcdserver: invalid auth token"),
    ("denied", "PermissionDenied: etcdserver: permission denied"),
    ("old", "InvalidArgument: etcdserver: revision of auth store is old"),
    ("u-empty", "Unknown: etcdserver: user name is empty"),
    ("u-token", "Unknown: etcdserver: invalid auth token"),
    ("u-denied", "Unknown: etcdserver: permission denied"),
    ("waits", "no answer"),
    ("ended", "the stream ends without a message"),
];

#[derive(Debug, Default)]
pub(crate) struct Table {
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<String>)>,
}

impl Table {
    pub(crate) fn new<'a>(columns: impl IntoIterator<Item = &'a str>) -> Table {
        Table { columns: columns.into_iter().map(str::to_owned).collect(), rows: Vec::new() }
    }

    pub(crate) fn push(&mut self, row: impl Into<String>, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len());
        self.rows.push((row.into(), cells));
    }

    pub(crate) fn to_text(&self) -> String {
        let mut legend: Vec<(String, String)> = Vec::new();
        let mut lines = vec![(String::new(), self.columns.clone())];
        for (row, cells) in &self.rows {
            let cells = cells.iter().map(|cell| short(cell, &mut legend)).collect();
            lines.push((row.clone(), cells));
        }
        let first = lines.iter().map(|(row, _)| row.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|at| lines.iter().map(|(_, cells)| cells[at].len()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for (row, cells) in lines {
            let mut line = format!("{row:first$} |");
            for (cell, width) in cells.iter().zip(&widths) {
                let _ = write!(line, " {cell:width$}");
            }
            text += line.trim_end();
            text.push('\n');
        }
        text.push('\n');
        for (name, outcome) in legend {
            let _ = writeln!(text, "{name} = {outcome}");
        }
        text
    }

    pub(crate) fn parse(text: &str) -> Table {
        let text = text.lines().filter(|line| !line.starts_with('#'));
        let text: String = text.map(|line| format!("{line}\n")).collect();
        let (rows, legend) = text.trim_start().split_once("\n\n").unwrap();
        let legend: BTreeMap<&str, &str> =
            legend.lines().filter_map(|line| line.split_once(" = ")).collect();
        let mut rows = rows.lines().map(|line| {
            let (row, cells) = line.split_once('|').unwrap();
            (row.trim(), cells.split_whitespace())
        });
        let (_, columns) = rows.next().unwrap();
        let mut table = Table::new(columns);
        for (row, cells) in rows {
            let long = |cell| legend.get(cell).copied().unwrap_or(cell).to_owned();
            table.push(row, cells.map(long).collect());
        }
        table
    }

    /// Returns one line for each cell that differs from `wanted`, and for each row that exists in
    /// only one table.
    pub(crate) fn differences(&self, wanted: &Table) -> Vec<String> {
        let ours: BTreeMap<_, _> = self.rows.iter().map(|(row, cells)| (row, cells)).collect();
        let mut found = Vec::new();
        for (row, wanted_cells) in &wanted.rows {
            let Some(cells) = ours.get(row) else {
                found.push(format!("{row}: is in the file, and not asked"));
                continue;
            };
            for (at, (got, expected)) in cells.iter().zip(wanted_cells).enumerate() {
                if got != expected {
                    let column = &wanted.columns[at];
                    found.push(format!("{row} as {column}: etcd {expected:?}, ours {got:?}"));
                }
            }
        }
        for (row, _) in &self.rows {
            if !wanted.rows.iter().any(|(wanted, _)| wanted == row) {
                found.push(format!("{row}: is not in the file"));
            }
        }
        found
    }
}

fn short(cell: &str, legend: &mut Vec<(String, String)>) -> String {
    if !cell.contains(' ') {
        return cell.to_owned();
    }
    if let Some((name, _)) = legend.iter().find(|(_, outcome)| outcome == cell) {
        return name.clone();
    }
    let numbered = || {
        let count = legend.iter().filter(|(name, _)| !NAMES.iter().any(|(own, _)| own == name));
        format!("e{}", count.count() + 1)
    };
    let own = NAMES.iter().find(|(_, outcome)| *outcome == cell);
    let name = own.map_or_else(numbered, |(name, _)| (*name).to_owned());
    legend.push((name.clone(), cell.to_owned()));
    name
}
