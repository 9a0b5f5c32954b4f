//! A report as Markdown that is also readable as plain text.

use itertools::Itertools as _;

use super::Section;

/// Returns the report. A figure is replaced by its caption.
pub fn markdown(title: &str, sections: &[Section]) -> String {
    let parts = sections.iter().map(part).filter(|part| !part.is_empty());
    let title = format!("# {}", inline(title));
    [title].into_iter().chain(parts).map(|part| part + "\n").join("\n")
}

fn part(section: &Section) -> String {
    match section {
        Section::Heading(heading) => format!("## {}", inline(heading)),
        Section::Text(text) => inline(text),
        Section::Command(command) => fenced(command),
        Section::Table { columns, rows } => table(columns, rows),
        Section::Figure { caption, .. } if caption.is_empty() => String::new(),
        Section::Figure { caption, .. } => format!("Figure: {}", inline(caption)),
        Section::Link { href, text } => format!("[{}](<{href}>)", inline(text)),
    }
}

fn fenced(command: &str) -> String {
    let longest = command.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}sh\n{command}\n{fence}")
}

fn table(columns: &[String], rows: &[Vec<String>]) -> String {
    let line = |row: &[String]| {
        let cell = |column: usize| row.get(column).map_or(String::new(), |cell| inline(cell));
        let cells = (0..columns.len()).map(|column| cell(column).replace('|', "\\|"));
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let dashes = format!("|{}", "---|".repeat(columns.len()));
    [line(columns), dashes].into_iter().chain(rows.iter().map(|row| line(row))).join("\n")
}

/// Joins the lines of a text, and escapes tags.
fn inline(text: &str) -> String {
    text.split_whitespace().join(" ").replace('<', "\\<")
}
