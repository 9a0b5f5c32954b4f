//! Keys in text form.

use std::fmt::Write as _;

use clearlane_mvcc::{RecordKind, RevisionKey};

/// The names of the formats of [`encode`].
pub(super) const NAMES: &[&str] = &["auto", "revision"];

/// Returns a key as text. `format` is one of [`NAMES`]:
///
/// * `auto`: unchanged if it is printable, otherwise in hex.
/// * `revision`: a key of etcd's bucket `key` as `main_sub`, with a `t` at the end if it is a
///   tombstone. Any other key has the form of `auto`.
pub(super) fn encode(key: &[u8], format: &str) -> String {
    let revision = if format == "revision" { revision(key) } else { None };
    revision.unwrap_or_else(|| text_or_hex(key))
}

pub(super) fn text_or_hex(bytes: &[u8]) -> String {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(is_printable));
    text.map_or_else(|| hex(bytes), str::to_owned)
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

fn is_printable(c: char) -> bool {
    // `escape_debug` leaves a combining character unchanged only if it follows another character.
    // So the text starts with a letter.
    let mut escaped = ['a', c].into_iter().collect::<String>();
    escaped = escaped.escape_debug().collect();
    matches!(c, '"' | '\'' | '\\') || escaped.chars().count() == 2
}

#[cfg(test)]
mod tests {
    use clearlane_mvcc::Revision;

    use super::encode;

    #[test]
    fn what_can_be_printed_is_and_the_rest_is_in_hex() {
        for printed in ["a b", "größe", "日本", "e\u{301}", "\u{301}", "\"'\\", ""] {
            assert_eq!(encode(printed.as_bytes(), "auto"), printed);
        }
        let not = ["a\n", "\u{a0}", "\u{200b}", "\x7f"];
        let hex = ["610a", "c2a0", "e2808b", "7f"];
        assert_eq!(not.map(|not| encode(not.as_bytes(), "auto")), hex);
        assert_eq!(encode(b"\xff", "auto"), "ff");
    }

    #[test]
    fn keys_of_revisions_are_shown_as_revisions() {
        let revision = Revision::new(12, 3);
        assert_eq!(encode(&revision.put_key(), "revision"), "12_3");
        assert_eq!(encode(&revision.tombstone_key(), "revision"), "12_3t");
        assert_eq!(encode(b"lease", "revision"), "lease");
    }
}
