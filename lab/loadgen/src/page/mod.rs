//! A report as one page of HTML, or as Markdown.
//!
//! The page needs no network and no script. It follows the ground that the reader's screen has,
//! and the width of the window: what is wider, a table or a plot, scrolls by itself.

mod markdown;
mod report_page;
mod saved_run;

use std::collections::BTreeSet;

use itertools::Itertools as _;

pub use markdown::markdown;
pub use report_page::{ClassSummary, NamedFigure, RunSummary, run_figures, run_page};

use crate::plot::escaped;

const STYLE: &str = include_str!("style.css");
/// A page with more headings begins with links to them.
const HEADINGS_WITHOUT_LINKS_MAX: usize = 2;

#[derive(Clone, Debug)]
pub enum Section {
    Heading(String),
    /// A paragraph.
    Text(String),
    /// What to type in a shell.
    Command(String),
    Table {
        columns: Vec<String>,
        rows: Vec<Vec<String>>,
    },
    /// `svg` is inserted as it is.
    Figure {
        svg: String,
        caption: String,
    },
    Link {
        href: String,
        text: String,
    },
}

/// All but the `svg` of figures is escaped.
pub fn html(title: &str, sections: &[Section]) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <meta name=\"color-scheme\" content=\"light dark\"/>\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    let anchors = anchors(sections);
    push_contents(&mut page, &anchors);
    let mut anchors = anchors.into_iter();
    // Neighbouring figures stand beside each other if the window is wide enough.
    let is_figure = |section: &&Section| matches!(section, Section::Figure { .. });
    for (are_figures, sections) in &sections.iter().chunk_by(is_figure) {
        let parts = sections.map(|section| match section {
            Section::Heading(_) => {
                anchors.next().map(|anchor| anchor.heading()).unwrap_or_default()
            }
            _ => part(section),
        });
        let parts = parts.collect::<String>();
        page +=
            &if are_figures { format!("<div class=\"figures\">\n{parts}</div>\n") } else { parts };
    }
    page + "</body>\n</html>\n"
}

struct Anchor<'a> {
    id: String,
    heading: &'a str,
}

impl Anchor<'_> {
    fn heading(&self) -> String {
        let Anchor { id, heading } = self;
        format!("<h2 id=\"{id}\"><a href=\"#{id}\">{}</a></h2>\n", escaped(heading))
    }
}

/// One for each heading, all different.
fn anchors(sections: &[Section]) -> Vec<Anchor<'_>> {
    let mut used = BTreeSet::new();
    let headings = sections.iter().filter_map(|section| match section {
        Section::Heading(heading) => Some(heading),
        _ => None,
    });
    let mut anchors = Vec::new();
    for heading in headings {
        let id = unused_name(&mut used, heading);
        anchors.push(Anchor { id, heading });
    }
    anchors
}

/// The words of a text in lower case, for an anchor or a file. With a number if it is used already.
fn unused_name(used: &mut BTreeSet<String>, text: &str) -> String {
    let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    let mut name = words.map(str::to_lowercase).join("-");
    if name.is_empty() {
        name.push_str("section");
    }
    let first = name.clone();
    let mut number = 2;
    while !used.insert(name.clone()) {
        name = format!("{first}-{number}");
        number += 1;
    }
    name
}

fn push_contents(page: &mut String, anchors: &[Anchor<'_>]) {
    if anchors.len() <= HEADINGS_WITHOUT_LINKS_MAX {
        return;
    }
    let link =
        |Anchor { id, heading }: &Anchor<'_>| format!("<a href=\"#{id}\">{}</a>", escaped(heading));
    *page += &format!("<nav>\n{}\n</nav>\n", anchors.iter().map(link).join("\n"));
}

fn part(section: &Section) -> String {
    match section {
        Section::Heading(heading) => format!("<h2>{}</h2>\n", escaped(heading)),
        Section::Text(text) => format!("<p>{}</p>\n", escaped(text)),
        Section::Command(command) => {
            format!("<pre><code>{}</code></pre>\n", escaped(command))
        }
        Section::Table { columns, rows } => table(columns, rows),
        Section::Figure { svg, caption } => {
            let caption = if caption.is_empty() {
                String::new()
            } else {
                format!("<figcaption>{}</figcaption>\n", escaped(caption))
            };
            format!("<figure>\n<div class=\"wide\">\n{svg}</div>\n{caption}</figure>\n")
        }
        Section::Link { href, text } => {
            format!("<p><a href=\"{}\">{}</a></p>\n", escaped(href), escaped(text))
        }
    }
}

/// Columns of numbers are set to the right.
fn table(columns: &[String], rows: &[Vec<String>]) -> String {
    let cell = |row: &[String], column: usize| row.get(column).cloned().unwrap_or_default();
    let classes: Vec<&str> = (0..columns.len())
        .map(|column| {
            let is_number = rows.iter().all(|row| is_number(&cell(row, column)));
            if is_number { " class=\"number\"" } else { "" }
        })
        .collect();
    let line = |element: &str, row: &[String]| {
        let cells = classes.iter().enumerate().map(|(column, class)| {
            format!("<{element}{class}>{}</{element}>", escaped(&cell(row, column)))
        });
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let body: String = rows.iter().map(|row| line("td", row)).collect();
    format!(
        "<div class=\"wide\">\n<table>\n<thead>\n{}</thead>\n<tbody>\n{body}</tbody>\n</table>\n\
         </div>\n",
        line("th", columns)
    )
}

/// Whether a cell begins with a number, or has none of it: `-`.
fn is_number(cell: &str) -> bool {
    let digits = cell.trim_start_matches(['+', '-', '.']);
    digits.is_empty() || digits.starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::well_formed;

    pub(super) fn sections() -> Vec<Section> {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        vec![
            Section::Heading("Expensive reads, beside cheap ones".to_owned()),
            Section::Text("p99 < 10 ms & no *errors*".to_owned()),
            Section::Command("clearlane-load run a.toml > \"a.txt\"".to_owned()),
            Section::Table {
                columns: texts(&["era", "p99, ms", "error"]),
                rows: vec![texts(&["3.2", "12.5", "a | b"]), texts(&["clearlane", "-"])],
            },
            Section::Figure {
                svg: "<svg><g/></svg>\n".to_owned(),
                caption: "One <plot>".to_owned(),
            },
            Section::Figure { svg: "<svg></svg>\n".to_owned(), caption: String::new() },
            Section::Heading("Expensive reads: beside cheap ones".to_owned()),
            Section::Heading("?".to_owned()),
            Section::Link { href: "a\"b.html".to_owned(), text: "The <report>".to_owned() },
        ]
    }

    #[test]
    fn a_page_is_well_formed_and_escapes_all_texts() {
        let page = html("A & <b>", &sections());
        assert_eq!(well_formed::check(&page), Ok(()));
        for expected in [
            "<title>A &amp; &lt;b&gt;</title>",
            "<p>p99 &lt; 10 ms &amp; no *errors*</p>",
            "<code>clearlane-load run a.toml &gt; &quot;a.txt&quot;</code>",
            "<figcaption>One &lt;plot&gt;</figcaption>",
            "<a href=\"a&quot;b.html\">The &lt;report&gt;</a>",
        ] {
            assert!(page.contains(expected), "{expected}: {page}");
        }
        assert_eq!(page.matches("<div class=\"figures\">").count(), 1);
        assert!(!page.contains("http"), "{page}");
        assert_eq!(well_formed::check(&html("", &[])), Ok(()));
    }

    #[test]
    fn headings_have_anchors_of_their_own() {
        let page = html("A", &sections());
        for id in
            ["expensive-reads-beside-cheap-ones", "expensive-reads-beside-cheap-ones-2", "section"]
        {
            assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
            assert_eq!(page.matches(&format!("href=\"#{id}\"")).count(), 2, "{id}");
        }
        assert!(!html("A", &sections()[..3]).contains("<nav>"));
    }

    #[test]
    fn columns_of_numbers_are_set_to_the_right() {
        let page = html("A", &sections());
        assert!(
            page.contains("<th>era</th><th class=\"number\">p99, ms</th><th>error</th>"),
            "{page}"
        );
        let row = "<td>clearlane</td><td class=\"number\">-</td><td></td>";
        assert!(page.contains(row), "{page}");
    }
}
