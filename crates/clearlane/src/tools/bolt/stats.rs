//! `bolt stats`: pages, records and bytes, of each bucket and of all.

use std::io::{self, Write};

use clearlane_engine::bolt_file::{BucketEntry, TreeStats};

use super::{Action, BoxError, FILE, FlagReader, Tool, bucket_name, open};

pub(crate) const TOOL: Tool = Tool {
    name: &["bolt", "stats"],
    about: "Count the pages, records and bytes of each bucket and of all",
    positional: &[FILE],
    words: None,
    flags: &[],
    action: Action::Print(stats),
};

fn stats(flags: &FlagReader, _: &[String], out: &mut dyn Write) -> Result<(), BoxError> {
    let file = open(flags)?;
    let survey = file.survey()?;
    let page_size = file.page_size() as u64;
    let names: Vec<String> = survey.buckets.iter().map(bucket_name).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    writeln!(
        out,
        "{:<width$} {:>9} {:>12} {:>5} {:>8} {:>8} {:>6} {:>6}",
        "BUCKET", "RECORDS", "BYTES", "DEPTH", "BRANCHES", "LEAVES", "OVRFLW", "USED"
    )?;
    for (bucket, name) in survey.buckets.iter().zip(&names) {
        let stats = &bucket.stats;
        let pages = stats.branch_pages + stats.leaf_pages;
        let overflow = stats.branch_overflow + stats.leaf_overflow;
        let used = stats.branch_used_bytes + stats.leaf_used_bytes;
        let used = match bucket.root {
            Some(_) => format!("{}%", percent(used, (pages + overflow) * page_size)),
            None => "inline".to_owned(),
        };
        writeln!(
            out,
            "{name:<width$} {:>9} {:>12} {:>5} {:>8} {:>8} {overflow:>6} {used:>6}",
            stats.records, stats.record_bytes, stats.depth, stats.branch_pages, stats.leaf_pages
        )?;
    }
    writeln!(out)?;
    let mut total = survey.total();
    // The tree of the buckets is none of them.
    let root = survey.buckets[0].stats;
    total.branch_pages -= root.branch_pages;
    total.branch_overflow -= root.branch_overflow;
    total.branch_used_bytes -= root.branch_used_bytes;
    total.leaf_pages -= root.leaf_pages;
    total.leaf_overflow -= root.leaf_overflow;
    total.leaf_used_bytes -= root.leaf_used_bytes;
    let top = survey.buckets.iter().filter(|bucket| bucket.path.len() == 1).count();
    total.depth = depth(&survey.buckets);
    // As bbolt counts, a bucket in a bucket is a record of it.
    total.records += total.buckets - root.buckets;
    print_total(out, &total, top, page_size)?;
    if survey.problems.is_empty() {
        return Ok(());
    }
    let found = "not all of it could be counted: see bolt check";
    Err(format!("{}: {found}", file.path().display()).into())
}

/// Of the deepest bucket, with those in it.
fn depth(buckets: &[BucketEntry]) -> usize {
    let mut deepest = 0;
    // The depths of the buckets from the outermost to the current one.
    let mut depths: Vec<usize> = Vec::new();
    for bucket in buckets.iter().skip(1) {
        depths.truncate(bucket.path.len() - 1);
        depths.push(bucket.stats.depth);
        deepest = deepest.max(depths.iter().sum());
    }
    deepest
}

/// In the words of the tool `bbolt`.
fn print_total(
    out: &mut dyn Write,
    total: &TreeStats,
    top: usize,
    page_size: u64,
) -> io::Result<()> {
    let branch_bytes = (total.branch_pages + total.branch_overflow) * page_size;
    let leaf_bytes = (total.leaf_pages + total.leaf_overflow) * page_size;
    let branch_used = percent(total.branch_used_bytes, branch_bytes);
    let leaf_used = percent(total.leaf_used_bytes, leaf_bytes);
    let inline_count = percent(total.inline_buckets, total.buckets);
    let inline_used = percent(total.inline_used_bytes, total.leaf_used_bytes);
    writeln!(out, "Aggregate statistics for {top} buckets\n")?;
    writeln!(out, "Page count statistics")?;
    writeln!(out, "\tNumber of logical branch pages: {}", total.branch_pages)?;
    writeln!(out, "\tNumber of physical branch overflow pages: {}", total.branch_overflow)?;
    writeln!(out, "\tNumber of logical leaf pages: {}", total.leaf_pages)?;
    writeln!(out, "\tNumber of physical leaf overflow pages: {}", total.leaf_overflow)?;
    writeln!(out, "Tree statistics")?;
    writeln!(out, "\tNumber of keys/value pairs: {}", total.records)?;
    writeln!(out, "\tNumber of levels in B+tree: {}", total.depth)?;
    writeln!(out, "Page size utilization")?;
    writeln!(out, "\tBytes allocated for physical branch pages: {branch_bytes}")?;
    let used = total.branch_used_bytes;
    writeln!(out, "\tBytes actually used for branch data: {used} ({branch_used}%)")?;
    writeln!(out, "\tBytes allocated for physical leaf pages: {leaf_bytes}")?;
    let used = total.leaf_used_bytes;
    writeln!(out, "\tBytes actually used for leaf data: {used} ({leaf_used}%)")?;
    writeln!(out, "Bucket statistics")?;
    writeln!(out, "\tTotal number of buckets: {}", total.buckets)?;
    let inline = total.inline_buckets;
    writeln!(out, "\tTotal number on inlined buckets: {inline} ({inline_count}%)")?;
    let used = total.inline_used_bytes;
    writeln!(out, "\tBytes used for inlined buckets: {used} ({inline_used}%)")
}

/// 0 of 0.
fn percent(part: u64, whole: u64) -> u64 {
    (part * 100).checked_div(whole).unwrap_or(0)
}
