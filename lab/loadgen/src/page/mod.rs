//! A report as one page of HTML, or as Markdown.
//!
//! The page needs no network and no script. It follows the light or dark scheme of the reader's
//! screen, and the width of the window. A table or plot that is wider than the window scrolls
//! separately.

mod markdown;
mod report_page;

use std::collections::BTreeSet;
use std::iter;

use itertools::Itertools as _;

pub use markdown::markdown;
pub use report_page::{ClassSummary, NamedFigure, RunSummary, run_figures, run_page};

use crate::plot::escaped;

/// Maximum number of headings of a page without a table of contents.
const HEADINGS_WITHOUT_LINKS_MAX: usize = 2;

#[derive(Clone, Debug)]
pub enum Section {
    Heading(String),
    /// A paragraph.
    Text(String),
    /// A command to type in a shell.
    Command(String),
    Table {
        columns: Vec<String>,
        rows: Vec<Vec<String>>,
    },
    /// A picture. `svg` is inserted without changes.
    Figure {
        svg: String,
        caption: String,
    },
    Link {
        href: String,
        text: String,
    },
}

/// Returns the page. Escapes all texts except the `svg` of figures.
pub fn html(title: &str, sections: &[Section]) -> String {
    let mut headings = Headings::default();
    let is_figure = |section: &Section| matches!(section, Section::Figure { .. });
    // Consecutive figures are placed next to each other if the window is wide enough.
    let groups = sections.chunk_by(|one, next| is_figure(one) && is_figure(next));
    let groups = groups.map(|group| {
        let parts: String = group.iter().map(|section| part(section, &mut headings)).collect();
        match group {
            [Section::Figure { .. }, ..] => format!("<div class=\"figures\">\n{parts}</div>\n"),
            _ => parts,
        }
    });
    let body: String = groups.collect();
    format!(
        include_str!("page.html"),
        title = escaped(title),
        style = include_str!("style.css"),
        contents = headings.contents(),
        body = body
    )
}

/// The headings of a page so far.
#[derive(Default)]
struct Headings {
    used_ids: BTreeSet<String>,
    /// A link to each heading. The contents and the heading itself both use it.
    links: Vec<String>,
}

impl Headings {
    fn push(&mut self, heading: &str) -> String {
        let id = unused_name(&mut self.used_ids, heading);
        let link = format!("<a href=\"#{id}\">{}</a>", escaped(heading));
        let element = format!("<h2 id=\"{id}\">{link}</h2>\n");
        self.links.push(link);
        element
    }

    fn contents(&self) -> String {
        if self.links.len() <= HEADINGS_WITHOUT_LINKS_MAX {
            return String::new();
        }
        format!("<nav>\n{}\n</nav>\n", self.links.join("\n"))
    }
}

/// Returns the words of a text in lower case, for an anchor or a file name. If that name is used
/// already, a number is added.
fn unused_name(used: &mut BTreeSet<String>, text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let words = words.map(str::to_lowercase).join("-");
    let name = if words.is_empty() { "section".to_owned() } else { words };
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let mut names = iter::once(name.clone()).chain(numbered);
    names.find(|name| used.insert(name.clone())).expect("the numbers do not end")
}

fn part(section: &Section, headings: &mut Headings) -> String {
    match section {
        Section::Heading(heading) => headings.push(heading),
        Section::Text(text) => format!("<p>{}</p>\n", escaped(text)),
        Section::Command(command) => format!("<pre><code>{}</code></pre>\n", escaped(command)),
        Section::Table { columns, rows } => table(columns, rows),
        Section::Figure { svg, caption } => {
            let caption = match escaped(caption) {
                none if none.is_empty() => none,
                caption => format!("<figcaption>{caption}</figcaption>\n"),
            };
            format!("<figure>\n<div class=\"wide\">\n{svg}</div>\n{caption}</figure>\n")
        }
        Section::Link { href, text } => {
            format!("<p><a href=\"{}\">{}</a></p>\n", escaped(href), escaped(text))
        }
    }
}

/// Returns a table. Columns of numbers are aligned to the right.
fn table(columns: &[String], rows: &[Vec<String>]) -> String {
    fn cell(row: &[String], column: usize) -> &str {
        row.get(column).map_or("", String::as_str)
    }
    let class = |column| {
        let is_number = rows.iter().all(|row| is_number(cell(row, column)));
        if is_number { " class=\"number\"" } else { "" }
    };
    let classes: Vec<&str> = (0..columns.len()).map(class).collect();
    let line = |element: &str, row: &[String]| {
        let cells = classes.iter().enumerate().map(|(column, class)| {
            format!("<{element}{class}>{}</{element}>", escaped(cell(row, column)))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let (head, body) = (line("th", columns), rows.iter().map(|row| line("td", row)));
    let body: String = body.collect();
    format!(
        "<div class=\"wide\">\n<table>\n<thead>\n{head}</thead>\n<tbody>\n{body}</tbody>\n</table>\n\
         </div>\n"
    )
}

/// Returns true if a cell starts with a number or is empty. A cell `-`, which replaces a missing
/// number, is also treated as a number.
fn is_number(cell: &str) -> bool {
    let digits = cell.trim_start_matches(['+', '-', '.']);
    digits.is_empty() || digits.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    fn sections() -> Vec<Section> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let heading = |text: &str| Section::Heading(text.to_owned());
        let figure = |caption: &str| {
            let svg = "<svg><g/></svg>\n".to_owned();
            Section::Figure { svg, caption: caption.to_owned() }
        };
        vec![
            heading("Expensive reads, beside cheap ones"),
            Section::Text("p99 < 10 ms & no *errors*".to_owned()),
            Section::Command("clearlane-load run a.toml > \"a.txt\"; echo ```".to_owned()),
            Section::Table {
                columns: texts(&["era", "p99, ms", "error"]),
                rows: vec![texts(&["3.2", "12.5", "a | b"]), texts(&["clearlane", "-"])],
            },
            figure("One <plot>"),
            figure(""),
            // The same anchor would have two meanings, so it gets a number.
            heading("Expensive reads: beside cheap ones"),
            heading("?"),
            Section::Link { href: "a\"b.html".to_owned(), text: "The <report>".to_owned() },
        ]
    }

    #[test]
    fn sections_are_shown_as_html_and_as_markdown() {
        golden::compare("sections.html", &html("A & <b>", &sections()));
        golden::compare("sections-as-markdown.txt", &markdown("A <b>", &sections()));
        assert!(!html("A", &sections()[..3]).contains("<nav>"), "one heading needs no contents");
    }
}
