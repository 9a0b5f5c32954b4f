//! `bolt pages`: prints a table of the pages.

use std::collections::BTreeMap;
use std::io::Write;

use super::{Action, BoxError, FILE, FlagReader, Tool, bucket_name, open};
use clearlane_engine::bolt_file::{PageEntry, PageKind, Survey};

pub(crate) const TOOL: Tool = Tool {
    name: &["bolt", "pages"],
    about: "List the pages of a file: type, number of items, overflow, use, bucket",
    positional: &[FILE],
    words: None,
    flags: &[],
    action: Action::Print(pages),
};

fn pages(flags: &FlagReader, _: &[String], out: &mut dyn Write) -> Result<(), BoxError> {
    let file = open(flags)?;
    let survey = file.survey()?;
    let mut problems: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for problem in &survey.problems {
        if let Some(page) = problem.page {
            problems.entry(page).or_default().push(&problem.reason);
        }
    }
    writeln!(
        out,
        "{:<8} {:<14} {:<6} {:<6} {:<5} BUCKET",
        "ID", "TYPE", "ITEMS", "OVRFLW", "USED"
    )?;
    writeln!(out, "======== ============== ====== ====== ===== ======")?;
    for page in &survey.pages {
        let row = row(page, &survey, file.page_size());
        let problem = problems.get(&page.id).map(|reasons| format!("({})", reasons.join("; ")));
        let row = [row, problem.unwrap_or_default()].join(" ");
        writeln!(out, "{}", row.trim_end())?;
    }
    Ok(())
}

fn row(page: &PageEntry, survey: &Survey, page_size: usize) -> String {
    let PageEntry { id, count, overflow, used_bytes, .. } = *page;
    let kind = page.kind.name();
    if page.kind == PageKind::Free {
        return format!("{id:<8} {kind}");
    }
    let bucket = page.bucket.map(|bucket| bucket_name(&survey.buckets[bucket]));
    let bucket = bucket.unwrap_or_default();
    let overflow_text = if overflow == 0 { String::new() } else { overflow.to_string() };
    let used = used_bytes * 100 / ((1 + overflow) * page_size as u64);
    let used = format!("{used}%");
    format!("{id:<8} {kind:<14} {count:<6} {overflow_text:<6} {used:<5} {bucket}")
}
