//! Compares generated text with the files in `tests/golden`.

use std::path::Path;
use std::{env, fs};

use roxmltree::Document;

/// Fails if the text differs from the golden file. A page or a picture must also be well-formed
/// XML. With `UPDATE_GOLDENFILES=1`, the function writes the file first.
pub(crate) fn compare(name: &str, text: &str) {
    if text.starts_with('<') {
        let xml = text.strip_prefix("<!doctype html>\n").unwrap_or(text);
        Document::parse(xml).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if env::var_os("UPDATE_GOLDENFILES").is_some() {
        fs::write(&path, text).expect("the directory exists");
    }
    let expected = fs::read_to_string(&path).expect("a golden file");
    assert!(text == expected, "{name} differs: UPDATE_GOLDENFILES=1, then read the difference");
}
