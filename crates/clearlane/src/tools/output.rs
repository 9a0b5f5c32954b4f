//! The output formats, as in etcdutl.

use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::OneOf;

pub(super) const FORMAT: Flag =
    flag("write-out", OneOf(&["simple", "json", "table", "fields"]), "simple")
        .short("w")
        .help("Format of the output.");

/// The flag for a tool that prints only one line. etcdutl has this flag for each of its commands,
/// so such a tool accepts the flag and ignores it.
pub(super) const NO_FORMAT: Flag =
    flag("write-out", OneOf(&["simple", "json", "table", "fields", "protobuf"]), "simple")
        .short("w")
        .ignored("Format of the output.", "one line is printed, whatever the format");

/// Returns a table with a head and one row.
pub(super) fn table<const N: usize>(heads: [&str; N], texts: &[String; N]) -> String {
    let widths: Vec<usize> =
        heads.iter().zip(texts).map(|(head, text)| head.len().max(text.len())).collect();
    let rule = |left: &str, middle: &str, right: &str| {
        let lines: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}\n", lines.join(middle))
    };
    let row = |cells: Vec<String>| format!("│ {} │\n", cells.join(" │ "));
    let centred = |(head, width): (&&str, &usize)| format!("{head:^width$}");
    let right = |(text, width): (&String, &usize)| format!("{text:>width$}");
    let head = row(heads.iter().zip(&widths).map(centred).collect());
    let body = row(texts.iter().zip(&widths).map(right).collect());
    let (top, between, bottom) = (rule("┌", "┬", "┐"), rule("├", "┼", "┤"), rule("└", "┴", "┘"));
    format!("{top}{head}{between}{body}{bottom}")
}
