//! Lists the bytes of a page as text: the offset of each field, its bytes in hex, and its meaning.
//!
//! The meaning of a field comes from the engine's module `inspect`. The example checks that the
//! bytes have this meaning, except for checksums.

use std::fmt::Write as _;

use clearlane_engine::bolt::inspect::{BucketValue, LeafItem};

use crate::look::{Element, Kind, Look, PageLook, revision};

const ELEMENT_BYTES: u64 = 16;
/// Maximum number of bytes in a line.
const LINE_BYTES: usize = 8;
/// The offset of the trailer in a meta page.
const TRAILER: u64 = 512;

struct Dump<'f> {
    file: &'f [u8],
    at: u64,
    lines: String,
}

impl<'f> Dump<'f> {
    fn new(look: &'f Look, page: u64) -> Dump<'f> {
        let at = page * look.page_size();
        Dump { file: look.bytes(), at, lines: String::new() }
    }

    /// Adds a line for a little-endian number, which must be `expected`.
    fn number(&mut self, name: &str, width: usize, expected: u64, note: &str) {
        let bytes = self.take(width);
        let found = bytes.iter().rev().fold(0, |number, byte| (number << 8) | u64::from(*byte));
        assert_eq!(found, expected, "{name} at {:#x}", self.at - width as u64);
        self.line(width, name, &format!("{found}{note}"));
    }

    /// Adds a line for bytes, which must be `expected`. Only the first eight are shown.
    fn bytes(&mut self, name: &str, expected: &[u8], meaning: &str) {
        let found = self.take(expected.len());
        assert_eq!(found, expected, "{name} at {:#x}", self.at - expected.len() as u64);
        self.line(expected.len(), name, meaning);
    }

    /// Adds a line for bytes that are not compared with anything, such as a checksum.
    fn sum(&mut self, name: &str, width: usize, meaning: &str) {
        self.take(width);
        self.line(width, name, meaning);
    }

    fn take(&mut self, width: usize) -> &'f [u8] {
        let from = self.at as usize;
        self.at += width as u64;
        &self.file[from..from + width]
    }

    /// Adds a line for the last `width` bytes before the current offset.
    fn line(&mut self, width: usize, name: &str, meaning: &str) {
        let from = self.at as usize - width;
        let shown = &self.file[from..from + width.min(LINE_BYTES)];
        let mut hex: Vec<String> = shown.iter().map(|byte| format!("{byte:02x}")).collect();
        if width > LINE_BYTES {
            hex.push("…".to_owned());
        }
        let line = format!("  {from:#06x}  {:<25}  {name:<14}  {meaning}", hex.join(" "));
        let _ = writeln!(self.lines, "{}", line.trim_end());
    }

    fn zeros_to(&mut self, end: u64, what: &str) {
        let (from, zeros) = (self.at, self.take((end - self.at) as usize));
        assert!(zeros.iter().all(|byte| *byte == 0), "from {from:#x} to {end:#x}");
        let _ = writeln!(self.lines, "  {from:#06x}  {:<25}  {what}", "00 …");
    }

    /// Continues at the offset `at`. Adds a line with `what` in place of the skipped bytes.
    fn skip_to(&mut self, at: u64, what: &str) {
        assert!(at >= self.at);
        let line = format!("  {:<6}  {:<25}  {what}", "…", "");
        let _ = writeln!(self.lines, "{}", line.trim_end());
        self.at = at;
    }

    fn remark(&mut self, what: &str) {
        let _ = writeln!(self.lines, "  {what}");
    }

    fn header(&mut self, id: u64, flags: (u64, &str), count: u64, overflow: u64) {
        self.number("page id", 8, id, "");
        self.number("flags", 2, flags.0, &format!(": {}", flags.1));
        self.number("count", 2, count, "");
        self.number("overflow", 4, overflow, "");
    }
}

/// Returns the lines for the newest meta page, up to the end of its trailer.
pub(crate) fn meta(look: &Look) -> String {
    let meta = look.newest();
    let mut dump = Dump::new(look, meta.place);
    let start = dump.at;
    dump.header(meta.place, (4, "a meta page"), 0, 0);
    let copied = dump.at;
    dump.bytes("magic", &0xED0C_DAED_u32.to_le_bytes(), "0xed0cdaed");
    dump.number("version", 4, 2, "");
    dump.number("page size", 4, look.page_size(), "");
    dump.number("flags", 4, 0, "");
    dump.number("root page", 8, meta.root, ": the tree of the buckets");
    dump.number("sequence", 8, 0, "");
    dump.bytes("freelist page", &[0xff; 8], "all ones: there is none");
    dump.number("high-water", 8, meta.high_water, ": the first page that was never used");
    dump.number("txid", 8, meta.txid, "");
    dump.sum("sum", 8, "FNV-1a of the 56 bytes before it");
    let copy = &look.bytes()[copied as usize..dump.at as usize];
    dump.zeros_to(start + TRAILER, "zeros, to the next sector");
    dump.bytes("magic", b"clearln\x01", "of our trailer: \"clearln\", 1");
    dump.bytes("copy", copy, &format!("the 64 bytes from {copied:#06x} once more"));
    dump.number("table's root", 8, meta.table_root, "");
    dump.number("table's pages", 4, 1, "");
    dump.sum("its sum", 4, &format!("crc32c of page {}", meta.table_root));
    dump.sum("sum", 4, "crc32c of the 88 bytes before it");
    dump.lines
}

/// Returns the offsets of the keys of all elements, relative to the start of the page.
fn places(page: &PageLook) -> Vec<u64> {
    let mut place = ELEMENT_BYTES * (1 + page.elements.len() as u64);
    let next = |element: &Element| {
        let own = place;
        place += (element.key.len() + element.value.len()) as u64;
        own
    };
    page.elements.iter().map(next).collect()
}

/// Returns the lines for the header of a page, and for the elements in `shown` with their keys and
/// values.
pub(crate) fn page(look: &Look, id: u64, shown: &[usize]) -> String {
    let page = look.page(id);
    let (places, start) = (places(page), id * look.page_size());
    let mut dump = Dump::new(look, id);
    let flags = if page.is_leaf() { (2, "a leaf") } else { (1, "a branch") };
    dump.header(id, flags, page.elements.len() as u64, page.overflow);
    for (index, element) in page.elements.iter().enumerate() {
        let at = start + ELEMENT_BYTES * (1 + index as u64);
        if !shown.contains(&index) {
            continue;
        }
        if at > dump.at {
            dump.skip_to(at, "further elements");
        }
        let place = start + places[index];
        let here = format!(": {at:#06x} + {} = {place:#06x}", place - at);
        match element.child {
            None => {
                let flags = if element.bucket.is_some() { (1, ": a bucket") } else { (0, "") };
                dump.number(&format!("{index}: flags"), 4, flags.0, flags.1);
                dump.number("   position", 4, place - at, &here);
                dump.number("   key size", 4, element.key.len() as u64, "");
                dump.number("   value size", 4, element.value.len() as u64, "");
            }
            Some(child) => {
                dump.number(&format!("{index}: position"), 4, place - at, &here);
                dump.number("   key size", 4, element.key.len() as u64, "");
                dump.number("   child page", 8, child, "");
            }
        }
    }
    for index in shown.iter().copied() {
        let place = start + places[index];
        if place > dump.at {
            dump.skip_to(place, "");
        }
        data(&mut dump, index, &page.elements[index]);
    }
    let (data_end, end) = (dump.at, start + look.page_size() * (1 + page.overflow));
    if places.len() == shown.last().map_or(0, |last| last + 1) && data_end < end {
        dump.zeros_to(end, &format!("zeros, to the end of the page at {end:#06x}"));
    }
    dump.lines
}

fn data(dump: &mut Dump<'_>, index: usize, element: &Element) {
    match revision(&element.key) {
        Some((main, sub)) => {
            dump.bytes(&format!("{index}: key"), &main.to_be_bytes(), &format!("main {main}"));
            dump.bytes("", b"_", "_");
            dump.bytes("", &sub.to_be_bytes(), &format!("sub {sub}, so this is {main}_{sub}"));
        }
        None => {
            let name = String::from_utf8_lossy(&element.key);
            dump.bytes(&format!("{index}: key"), &element.key, &name);
        }
    }
    if let Some(found) = &element.bucket {
        return bucket(dump, found);
    }
    if element.child.is_none() {
        value(dump, &element.value);
    }
}

fn value(dump: &mut Dump<'_>, value: &[u8]) {
    let page = dump.file.len().min(4096) as u64;
    let (end, next) = (dump.at + value.len() as u64, dump.at.next_multiple_of(page));
    let start: String = value.iter().take(LINE_BYTES).map(|byte| *byte as char).collect();
    let meaning = format!("\"{start}…\", {} bytes up to {end:#06x}", value.len());
    if next >= end {
        return dump.bytes("   value", value, &meaning);
    }
    let (here, behind) = value.split_at((next - dump.at) as usize);
    dump.bytes("   value", here, &meaning);
    dump.remark(&format!("{:33}here begins page {}, without a header", "", next / page));
    dump.bytes("", behind, "and the value goes on");
}

/// Adds the lines for the value of a bucket: the root page of its tree, or the inline page if it
/// has no tree.
fn bucket(dump: &mut Dump<'_>, bucket: &BucketValue) {
    let note = if bucket.root.is_some() { "" } else { ": inline, its page follows" };
    dump.number("   root page", 8, bucket.root.unwrap_or(0), note);
    dump.number("   sequence", 8, bucket.sequence, "");
    if bucket.root.is_some() {
        return;
    }
    dump.header(0, (2, "a leaf"), bucket.records.len() as u64, 0);
    // The inline bucket in this example has one record.
    for LeafItem { key, value, .. } in &bucket.records {
        dump.number("0: flags", 4, 0, "");
        dump.number("   position", 4, ELEMENT_BYTES, "");
        dump.number("   key size", 4, key.len() as u64, "");
        dump.number("   value size", 4, value.len() as u64, "");
        dump.bytes("0: key", key, &String::from_utf8_lossy(key));
        let number = u64::from_be_bytes(value[..].try_into().expect("a number"));
        dump.bytes("   value", value, &format!("{number}, big endian"));
    }
}

/// Returns the lines for the root of the checksum table, and for the table's page.
pub(crate) fn table(look: &Look) -> String {
    let meta = look.newest();
    let table = look.table_page();
    let mut dump = Dump::new(look, meta.table_root);
    dump.header(meta.table_root, (0x40, "of the checksums, 0x40"), 0, 0);
    dump.number("table page", 8, table, "");
    dump.sum("its sum", 4, &format!("crc32c of page {table}"));
    dump.lines.push('\n');
    let at = table * look.page_size();
    dump.at = at;
    dump.header(table, (0x40, "of the checksums, 0x40"), 0, 0);
    for id in 0..table {
        let page = look.page(id);
        let meaning = match page.kind {
            Kind::Overflow(of) => format!("in the sum of page {of}: means nothing"),
            Kind::Leaf | Kind::Branch if page.overflow > 0 => "with its overflow".to_owned(),
            Kind::Leaf | Kind::Branch => String::new(),
            _ => "no tree leads there: means nothing".to_owned(),
        };
        dump.sum(&format!("sum of page {id}"), 4, &meaning);
    }
    dump.zeros_to(at + look.page_size(), "no further page has a sum yet");
    dump.lines
}
