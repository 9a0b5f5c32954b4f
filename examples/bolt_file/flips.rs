//! Changes some bits of a file, and shows what opening the file reports.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::look::{Look, data_file};
use crate::story::{Outcome, open};

/// Makes each change separately, on a copy of `look`'s file in the directory `dir`. Returns the
/// reports.
pub(crate) fn tell(look: &Look, dir: &Path) -> Outcome<String> {
    let meta = look.newest();
    let at = |page: u64, byte: u64| (page * look.page_size() + byte) as usize;
    let leaf = look.leaves_of("key").last().copied().expect("a leaf").id;
    // The last free page is used here, because the first one still has the root of the previous
    // state.
    let free = (2..meta.high_water).rfind(|id| !look.is_used(*id)).expect("a free page");
    let place = meta.place;
    let cases = [
        ("a bit of a value", leaf, vec![at(leaf, 4_000)]),
        ("a bit of a page id", leaf, vec![at(leaf, 0)]),
        ("a bit of the meta", place, vec![at(place, 32)]),
        ("a bit of the trailer", place, vec![at(place, 600)]),
        ("a bit of both", place, vec![at(place, 32), at(place, 600)]),
        ("a bit of the checksums", look.table_page(), vec![at(look.table_page(), 24)]),
        ("a bit of a free page", free, vec![at(free, 100)]),
    ];
    let mut lines = String::new();
    for (what, page, flipped) in cases {
        let _ = writeln!(lines, "  {what}, page {page}");
        for said in outcome(look.bytes(), &flipped, dir)? {
            let _ = writeln!(lines, "      {said}");
        }
    }
    Ok(lines)
}

fn outcome(bytes: &[u8], flipped: &[usize], dir: &Path) -> Outcome<Vec<String>> {
    let store = dir.join("flipped");
    drop(open(&store)?);
    let file = data_file(&store)?;
    let mut damaged = bytes.to_vec();
    flipped.iter().for_each(|at| damaged[*at] ^= 1);
    fs::write(&file, damaged)?;
    let said = match open(&store) {
        Ok(engine) => {
            let notes = engine.opening_notes();
            let silent = notes.is_empty().then(|| "nothing is said".to_owned());
            notes.into_iter().map(|note| format!("opened: {}", note.text())).chain(silent).collect()
        }
        Err(error) => {
            let line = error.to_string();
            vec![format!("refused: {}", line.replace(&format!("{}/", store.display()), ""))]
        }
    };
    fs::remove_dir_all(&store)?;
    Ok(said)
}
