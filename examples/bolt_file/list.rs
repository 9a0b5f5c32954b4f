//! Describes the pages of a file as text: with one line for each page, or one letter for each page.

use std::fmt::Write as _;

use crate::look::{Kind, Look, PageLook, revision};
use crate::story::{Moment, Use};

/// Returns the kind of a page, and a description of its contents.
pub(crate) fn words(look: &Look, id: u64) -> (String, String) {
    if let Some(meta) = look.metas().iter().find(|meta| meta.place == id) {
        let newest = if meta == look.newest() { "  ◀── newest" } else { "" };
        let roots = format!("root ▶ {}, checksums ▶ {}", meta.root, meta.table_root);
        let says = format!("txid {}: {roots}, high-water {}{newest}", meta.txid, meta.high_water);
        return ("meta".to_owned(), says);
    }
    let page = look.page(id);
    match &page.kind {
        Kind::Overflow(of) => ("overflow".to_owned(), format!("of page {of}")),
        Kind::Table => ("checksums".to_owned(), format!("of the pages up to {}", id - 1)),
        Kind::TableRoot => ("checksums".to_owned(), format!("root ▶ {}", look.table_page())),
        Kind::Free => ("free".to_owned(), String::new()),
        Kind::Leaf if page.tree.is_empty() => ("buckets".to_owned(), buckets(page)),
        Kind::Leaf => (format!("leaf of {}", page.tree), keys(page)),
        Kind::Branch => (format!("branch of {}", page.tree), children(page).join("   ")),
    }
}

fn text_of(key: &[u8]) -> String {
    revision(key).map_or_else(
        || String::from_utf8_lossy(key).into_owned(),
        |(main, sub)| format!("{main}_{sub}"),
    )
}

/// Returns the first and the last key of a page.
pub(crate) fn keys(page: &PageLook) -> String {
    let names: Vec<String> = page.elements.iter().map(|element| text_of(&element.key)).collect();
    match &names[..] {
        [] => String::new(),
        [only] => only.clone(),
        [first, last] => format!("{first}, {last}"),
        [first, .., last] => format!("{first} … {last}"),
    }
}

pub(crate) fn children(page: &PageLook) -> Vec<String> {
    let child = |element: &crate::look::Element| {
        element.child.map(|child| format!("{} ▶ {child}", text_of(&element.key)))
    };
    page.elements.iter().filter_map(child).collect()
}

/// Returns the buckets that are not inline, and the number of inline buckets.
fn buckets(page: &PageLook) -> String {
    let (inline, stored): (Vec<_>, Vec<_>) =
        page.elements.iter().partition(|element| element.is_inline());
    let stored = stored.iter().filter_map(|element| {
        element.root().map(|root| format!("{} ▶ {root}", text_of(&element.key)))
    });
    stored.chain([format!("{} inline", inline.len())]).collect::<Vec<_>>().join(", ")
}

/// Returns the role of a page at this moment, or an empty string if the last commit left it
/// unchanged.
fn use_in_words(moment: &Moment, id: u64) -> String {
    match moment.uses[id as usize] {
        Use::Written => format!("written by {}", moment.txid()),
        Use::Unchanged => String::new(),
        Use::Kept => format!("kept for the reader of {}", moment.reader.unwrap_or_default()),
        Use::Before => format!("of the state of {}", moment.txid() - 1),
        Use::Free => "free".to_owned(),
    }
}

/// Returns one line for each page, with its role.
pub(crate) fn pages(moment: &Moment) -> String {
    let mut lines = String::new();
    for id in 0..moment.look.newest().high_water {
        let (kind, says) = words(&moment.look, id);
        let (kind, says) = if kind == "free" { (String::new(), says) } else { (kind, says) };
        let is_meta = id < 2;
        let used = if is_meta { String::new() } else { use_in_words(moment, id) };
        let line = match is_meta {
            true => format!("  page {id:>2}  {kind:<13}  {says}"),
            false => format!("  page {id:>2}  {kind:<13}  {says:<30}  {used}"),
        };
        let _ = writeln!(lines, "{}", line.trim_end());
    }
    lines
}

/// Returns one line for each page of a file, without the roles.
pub(crate) fn pages_of(look: &Look) -> String {
    let mut lines = String::new();
    for id in 0..look.newest().high_water {
        let (kind, says) = words(look, id);
        let _ = writeln!(lines, "{}", format!("  page {id:>2}  {kind:<13}  {says}").trim_end());
    }
    lines
}

/// Returns a row for each moment, with a column for each page, and a legend.
pub(crate) fn grid(moments: &[&Moment]) -> String {
    let last = moments.iter().map(|moment| moment.uses.len()).max().unwrap_or(0);
    let head: String = (0..last).map(|id| format!("{id:>3}")).collect();
    let mut lines = format!("  {:<32}{head}\n", "");
    for moment in moments {
        let newest = moment.look.newest().place as usize;
        let letter = |(id, used): (usize, &Use)| match used {
            _ if id == newest => 'M',
            _ if id < 2 => 'm',
            Use::Written => 'W',
            Use::Unchanged => 'u',
            Use::Kept => 'R',
            Use::Before => 'b',
            Use::Free => '·',
        };
        let letters = moment.uses.iter().enumerate().map(letter);
        let row: String = letters.map(|letter| format!("  {letter}")).collect();
        let _ = writeln!(lines, "  {}  {:<29}{row}", moment.txid(), moment.what);
    }
    lines
        + "\n  M  the newest meta page   m  the other one   W  written by this commit   u  in use\n  \
             R  only the reader needs it   b  only the state before needs it   ·  free\n"
}
