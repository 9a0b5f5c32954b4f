//! The map of the code names what exists.
//!
//! A row of "Where things live" in `ARCHITECTURE.md` has a crate, and between backticks files and
//! folders below its `src`.

use crate::{File, Repository, Violation};

const MAP: &str = "ARCHITECTURE.md";

/// The rule of this module.
pub fn check(repository: &Repository) -> Vec<Violation> {
    let Some(map) = repository.file(MAP) else {
        return vec![Violation::new(MAP, 1, "the map of the code is missing")];
    };
    check_map(repository, map)
}

fn check_map(repository: &Repository, map: &File) -> Vec<Violation> {
    let lines = map.text.lines().zip(1..);
    let section = lines.skip_while(|(line, _)| *line != "## Where things live").skip(1);
    let section = section.take_while(|(line, _)| !line.starts_with("## "));
    let (mut named, mut violations) = (0, Vec::new());
    for (row, at) in section.filter(|(row, _)| row.starts_with("| `")) {
        let mut quoted = row.split('`').skip(1).step_by(2);
        let source = format!("crates/{}/src", quoted.next().unwrap_or_default());
        for word in quoted.filter(|word| word.ends_with(".rs") || word.ends_with('/')) {
            named += 1;
            let path = format!("{source}/{}", word.trim_end_matches('/'));
            if !repository.has(&path) {
                violations.push(Violation::new(MAP, at, format!("nothing lies at {path}")));
            }
        }
    }
    if named == 0 {
        violations.push(Violation::new(MAP, 1, "no row of `Where things live` was found"));
    }
    violations
}
