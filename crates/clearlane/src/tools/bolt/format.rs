//! Keys and values as text, in the formats of the tool `bbolt`.

use std::fmt::Write as _;

use clearlane_mvcc::{RecordKind, RevisionKey};
use sha2::{Digest as _, Sha256};

use crate::config::table::{Flag, flag};
use crate::config::value::ValueKind::OneOf;

/// Those of [`encode`].
pub(super) const NAMES: &[&str] =
    &["auto", "ascii-encoded", "hex", "bytes", "redacted", "revision"];

pub(super) const fn format_flag(name: &'static str) -> Flag {
    flag(name, OneOf(NAMES), "auto")
}

/// `format` is one of [`NAMES`]:
///
/// * `auto`: as it is if it can be printed, and in hex if not.
/// * `ascii-encoded`: between quotes, as Go writes a string.
/// * `bytes`: as it is.
/// * `redacted`: its length and its sum.
/// * `revision`: a key of etcd's bucket `key` as `main_sub`, with a `t` behind that of a tombstone;
///   others as `auto`.
pub(super) fn encode(bytes: &[u8], format: &str) -> Vec<u8> {
    match format {
        "ascii-encoded" => quoted(bytes).into_bytes(),
        "hex" => hex(bytes).into_bytes(),
        "bytes" => bytes.to_vec(),
        "redacted" => {
            let sum = hex(&Sha256::digest(bytes));
            format!("<redacted len:{} sha256:{sum}>", bytes.len()).into_bytes()
        }
        "revision" => revision(bytes).unwrap_or_else(|| text_or_hex(bytes)).into_bytes(),
        _ => text_or_hex(bytes).into_bytes(),
    }
}

/// A key on a page: between quotes if it can be printed.
pub(super) fn quoted_or_hex(key: &[u8]) -> String {
    if printable(key).is_some() { quoted(key) } else { hex(key) }
}

pub(super) fn text_or_hex(bytes: &[u8]) -> String {
    printable(bytes).map_or_else(|| hex(bytes), str::to_owned)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn revision(key: &[u8]) -> Option<String> {
    let (revision, kind) = RevisionKey::decode(key).ok()?;
    let mark = if kind == RecordKind::Tombstone { "t" } else { "" };
    Some(format!("{}_{}{mark}", revision.main, revision.sub))
}

fn printable(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_printable))
}

fn is_printable(c: char) -> bool {
    // Behind a letter, since one that joins the character before is printed with that.
    let mut escaped = ['a', c].into_iter().collect::<String>();
    escaped = escaped.escape_debug().collect();
    matches!(c, '"' | '\'' | '\\') || escaped.chars().count() == 2
}

/// In the syntax of Go.
fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            push_escaped(&mut text, c);
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text.push('"');
    text
}

fn push_escaped(text: &mut String, c: char) {
    let short = match c {
        '\x07' => 'a',
        '\x08' => 'b',
        '\x0c' => 'f',
        '\n' => 'n',
        '\r' => 'r',
        '\t' => 't',
        '\x0b' => 'v',
        '"' | '\\' => c,
        _ => {
            let code = u32::from(c);
            let _ = match code {
                _ if is_printable(c) => write!(text, "{c}"),
                0..=0x7f => write!(text, "\\x{code:02x}"),
                0x80..=0xffff => write!(text, "\\u{code:04x}"),
                _ => write!(text, "\\U{code:08x}"),
            };
            return;
        }
    };
    text.push('\\');
    text.push(short);
}

#[cfg(test)]
mod tests {
    use clearlane_mvcc::Revision;

    use super::encode;

    fn text(bytes: &[u8], format: &str) -> String {
        String::from_utf8(encode(bytes, format)).unwrap()
    }

    #[test]
    fn what_can_be_printed_is_and_the_rest_is_in_hex() {
        for printed in ["a b", "größe", "日本", "e\u{301}", "\u{301}", "\"'\\", ""] {
            assert_eq!(text(printed.as_bytes(), "auto"), printed);
        }
        let not = ["a\n", "\u{a0}", "\u{200b}", "\x7f"];
        let hex = ["610a", "c2a0", "e2808b", "7f"];
        assert_eq!(not.map(|not| text(not.as_bytes(), "auto")), hex);
        assert_eq!(text(b"\xff", "auto"), "ff");
        assert_eq!(text(b"ab", "hex"), "6162");
        assert_eq!(encode(b"a\xff\n", "bytes"), b"a\xff\n");
    }

    #[test]
    fn quoted_text_is_that_of_go() {
        let quoted = |bytes: &[u8]| text(bytes, "ascii-encoded");
        let given = b"a\"\\\x00\x07\n\x7f\xff\xc3";
        assert_eq!(quoted(given), r#""a\"\\\x00\a\n\x7f\xff\xc3""#);
        let given = "ü\u{a0}\u{e000}\u{f0000}";
        assert_eq!(quoted(given.as_bytes()), r#""ü\u00a0\ue000\U000f0000""#);
    }

    #[test]
    fn what_is_redacted_has_its_length_and_its_sum() {
        let sum = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb";
        assert_eq!(text(b"a", "redacted"), format!("<redacted len:1 sha256:{sum}>"));
    }

    #[test]
    fn keys_of_revisions_are_shown_as_revisions() {
        let revision = Revision::new(12, 3);
        assert_eq!(text(&revision.put_key(), "revision"), "12_3");
        assert_eq!(text(&revision.tombstone_key(), "revision"), "12_3t");
        assert_eq!(text(b"lease", "revision"), "lease");
    }
}
