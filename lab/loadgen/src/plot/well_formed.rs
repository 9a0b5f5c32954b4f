//! Tests whether a picture or a page is well-formed XML.

use roxmltree::Document;

/// Fails if the text is not well-formed, with the first error that the parser finds.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let text = text.strip_prefix("<!doctype html>\n").unwrap_or(text);
    Document::parse(text).map(drop).map_err(|error| error.to_string())
}
