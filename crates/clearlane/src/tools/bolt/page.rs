//! `bolt page`: pages with what is on them, also damaged ones.

use std::io::{self, Write};

use clearlane_engine::bolt_file::{
    BoltFile, BranchItem, BucketValue, LeafItem, MetaPage, NO_FREELIST, PageBody, PageKind,
    PageView,
};

use super::format::{encode, format_flag, quoted_or_hex};
use super::{Action, BoxError, FILE, FlagReader, Tool, bucket_name, open};
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::{Count, Switch};

pub(crate) const TOOL: Tool = Tool {
    name: &["bolt", "page"],
    about: "Show pages with what is on them, as far as they can be read",
    positional: &[FILE],
    words: Some(&IDS),
    flags: &[
        flag("all", Switch, "false").help("Show all pages."),
        format_flag("format-key").help("Format of keys; revision is that of etcd's bucket key."),
        format_flag("format-value").help("Format of values."),
    ],
    action: Action::Print(page),
};

const IDS: Flag = flag("ID", Count, "").help("Ids of pages.");

const SEPARATOR: &str = "===============================================";

/// How keys and values are printed.
struct Formats<'f> {
    key: &'f str,
    value: &'f str,
}

fn page(flags: &FlagReader, ids: &[String], out: &mut dyn Write) -> Result<(), BoxError> {
    let is_all = flags.switch("all");
    if is_all != ids.is_empty() {
        return Err("bolt page takes the ids of pages, or --all".into());
    }
    let file = open(flags)?;
    let formats = Formats { key: flags.text("format-key"), value: flags.text("format-value") };
    let ids = ids.iter().map(|id| crate::config::value::count(id).expect("it was checked"));
    let mut failed = None;
    for (index, id) in ids.enumerate() {
        if index > 0 {
            writeln!(out, "{SEPARATOR}")?;
        }
        match file.page(id) {
            Ok(page) => print(out, &file, &page, &formats)?,
            // The others are shown.
            Err(error) => {
                writeln!(out, "Page ID:    {id}\nProblem:    {error}")?;
                failed = Some(error);
            }
        }
    }
    if is_all {
        print_all(out, &file, &formats)?;
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Each page, and what it is used for.
fn print_all(out: &mut dyn Write, file: &BoltFile, formats: &Formats<'_>) -> Result<(), BoxError> {
    // Without a meta page it is not known which page begins where.
    let Ok(survey) = file.survey() else {
        return print_one_by_one(out, file, formats);
    };
    for entry in &survey.pages {
        if entry.id > 0 {
            writeln!(out, "{SEPARATOR}")?;
        }
        print(out, file, &file.page(entry.id)?, formats)?;
        match entry.bucket.map(|bucket| &survey.buckets[bucket]) {
            Some(bucket) => writeln!(out, "\nOf bucket:  {}", bucket_name(bucket))?,
            None if entry.kind == PageKind::Free => writeln!(out, "\nFree:       yes")?,
            None => {}
        }
    }
    Ok(())
}

fn print_one_by_one(
    out: &mut dyn Write,
    file: &BoltFile,
    formats: &Formats<'_>,
) -> Result<(), BoxError> {
    for id in 0..file.pages() {
        if id > 0 {
            writeln!(out, "{SEPARATOR}")?;
        }
        print(out, file, &file.page(id)?, formats)?;
    }
    Ok(())
}

fn print(
    out: &mut dyn Write,
    file: &BoltFile,
    page: &PageView,
    formats: &Formats<'_>,
) -> io::Result<()> {
    writeln!(out, "Page ID:    {}", page.id)?;
    writeln!(out, "Page Type:  {}", page.kind.name())?;
    writeln!(out, "Total Size: {} bytes", page.bytes.len())?;
    writeln!(out, "Overflow pages: {}", page.overflow)?;
    for problem in &page.problems {
        writeln!(out, "Problem:    {problem}")?;
    }
    match &page.body {
        PageBody::Meta(meta) => print_meta(out, file, page.id, meta.as_ref().ok()),
        PageBody::Branch(items) => print_branch(out, page, items, formats),
        PageBody::Leaf(items) => print_leaf(out, page, items, formats),
        PageBody::Freelist(ids) => {
            writeln!(out, "Item Count: {}\n", ids.len())?;
            ids.iter().try_for_each(|id| writeln!(out, "{id}"))
        }
        PageBody::ChecksumRoot(pages) => {
            writeln!(out, "Item Count: {}\n", pages.len())?;
            pages.iter().try_for_each(|(id, sum)| writeln!(out, "<pgid={id}> crc32c {sum:08x}"))
        }
        PageBody::ChecksumTable { first, sums } => print_sums(out, file, *first, sums),
        PageBody::Unknown => Ok(()),
    }
}

fn print_meta(
    out: &mut dyn Write,
    file: &BoltFile,
    id: u64,
    meta: Option<&MetaPage>,
) -> io::Result<()> {
    let Some(MetaPage { meta, table, .. }) = meta else { return Ok(()) };
    writeln!(out, "Version:    2")?;
    writeln!(out, "Page Size:  {} bytes", meta.page_size)?;
    writeln!(out, "Root:       <pgid={}>", meta.root)?;
    match meta.freelist {
        NO_FREELIST => writeln!(out, "Freelist:   none")?,
        freelist => writeln!(out, "Freelist:   <pgid={freelist}>")?,
    }
    writeln!(out, "HWM:        <pgid={}>", meta.high_water)?;
    writeln!(out, "Txn ID:     {}", meta.txid)?;
    match table {
        None => writeln!(out, "Checksums:  none")?,
        Some(table) => writeln!(out, "Checksums:  <pgid={}>", table.page)?,
    }
    let is_newest = file.newest().is_ok_and(|newest| newest.meta.txid % 2 == id);
    writeln!(out, "Newest:     {}", if is_newest { "yes" } else { "no" })
}

fn print_branch(
    out: &mut dyn Write,
    page: &PageView,
    items: &[(usize, BranchItem)],
    formats: &Formats<'_>,
) -> io::Result<()> {
    writeln!(out, "Item Count: {}\n", page.count)?;
    for (_, item) in items {
        out.write_all(&key(&item.key, formats))?;
        writeln!(out, ": <pgid={}>", item.child)?;
    }
    Ok(())
}

fn print_leaf(
    out: &mut dyn Write,
    page: &PageView,
    items: &[(usize, LeafItem)],
    formats: &Formats<'_>,
) -> io::Result<()> {
    writeln!(out, "Item Count: {}\n", page.count)?;
    for (_, item) in items {
        print_record(out, "", item, formats)?;
        let inline = item.bucket.iter().flat_map(|bucket| &bucket.records);
        inline.into_iter().try_for_each(|record| print_record(out, "    ", record, formats))?;
    }
    Ok(())
}

fn print_record(
    out: &mut dyn Write,
    indent: &str,
    item: &LeafItem,
    formats: &Formats<'_>,
) -> io::Result<()> {
    write!(out, "{indent}")?;
    out.write_all(&key(&item.key, formats))?;
    write!(out, ": ")?;
    match &item.bucket {
        Some(BucketValue { root, sequence, .. }) => {
            writeln!(out, "<pgid={},seq={sequence}>", root.unwrap_or(0))
        }
        None => {
            out.write_all(&encode(&item.value, formats.value))?;
            writeln!(out)
        }
    }
}

fn key(key: &[u8], formats: &Formats<'_>) -> Vec<u8> {
    match formats.key {
        "auto" => quoted_or_hex(key).into_bytes(),
        format => encode(key, format),
    }
}

fn print_sums(
    out: &mut dyn Write,
    file: &BoltFile,
    first: Option<u64>,
    sums: &[u32],
) -> io::Result<()> {
    let Some(first) = first else {
        return writeln!(out, "Of a table that does not count any more.");
    };
    let count = file.pages().saturating_sub(first).min(sums.len() as u64) as usize;
    writeln!(out, "Item Count: {count}\n")?;
    let sums = sums[..count].iter().zip(first..);
    sums.into_iter().try_for_each(|(sum, id)| writeln!(out, "<pgid={id}> crc32c {sum:08x}"))
}
