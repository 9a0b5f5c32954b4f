//! `bolt keys`: lists the keys of a bucket.

use std::io::{self, Write};
use std::ops::ControlFlow;

use super::format::{NAMES, encode};
use super::{Action, BoxError, FILE, FlagReader, Tool, open};
use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::{OneOf, Text};

pub(crate) const TOOL: Tool = Tool {
    name: &["bolt", "keys"],
    about: "List the keys of a bucket, or the buckets",
    positional: &[FILE],
    words: Some(&BUCKETS),
    flags: &[flag("format", OneOf(NAMES), "auto")
        .short("f")
        .help("Format of keys; revision is that of etcd's bucket key: main_sub.")],
    action: Action::Print(keys),
};

const BUCKETS: Flag = flag("BUCKET", Text, "").help(
    "Name of the bucket, after the names of the buckets that contain it. Without a name: lists \
         the buckets.",
);

fn keys(flags: &FlagReader, buckets: &[String], out: &mut dyn Write) -> Result<(), BoxError> {
    let file = open(flags)?;
    let path: Vec<&[u8]> = buckets.iter().map(String::as_bytes).collect();
    let format = flags.text("format");
    let mut printed: io::Result<()> = Ok(());
    let scanned = file.scan(&path, &mut |record| {
        let line = encode(&record.key, format) + "\n";
        printed = out.write_all(line.as_bytes());
        if printed.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    printed?;
    Ok(scanned?)
}
