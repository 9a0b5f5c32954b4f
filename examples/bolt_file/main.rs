//! Shows a file of the engine `bolt`, byte by byte, and as a picture before and after a put.
//!
//! ```text
//! cargo run --release --example bolt_file -- /tmp
//! ```
//!
//! The example writes `bolt-before.svg` and `bolt-after.svg` into the given directory, and prints
//! the blocks of `docs/bolt.md`. That chapter explains the blocks. A test compares the output with
//! that chapter.

#![allow(clippy::print_stdout, reason = "an example prints its result")]

mod look;
mod story;
mod bytes;
mod list;
mod fill;
mod flips;
mod picture;
#[cfg(test)]
mod chapter;

use std::path::Path;

use story::{Moment, Outcome, Story};

fn main() -> Outcome<()> {
    let directory =
        std::env::args().nth(1).ok_or("the argument must be a directory for the pictures")?;
    let work = tempfile::tempdir()?;
    let story = story::tell(work.path())?;
    for (name, text) in texts(&story, work.path())? {
        println!("{name}\n\n{text}");
    }
    for (name, picture) in pictures(&story) {
        let path = Path::new(&directory).join(name);
        std::fs::write(&path, picture).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("wrote {}", path.display());
    }
    Ok(())
}

fn pictures(story: &Story) -> [(&'static str, String); 2] {
    let Story { empty, before, after, .. } = story;
    [
        (
            "bolt-before.svg",
            picture::draw(before, empty, "Twelve records: the file before the put"),
        ),
        ("bolt-after.svg", picture::draw(after, before, "After the put of 14_0, beside a reader")),
    ]
}

/// Returns all texts, each with its name in the chapter.
fn texts(story: &Story, work: &Path) -> Outcome<Vec<(&'static str, String)>> {
    let Story { before, after, later, compacted, .. } = story;
    let look = &before.look;
    let newest = look.newest();
    let key_leaf = |index: usize| look.leaves_of("key")[index].id;
    let bucket = |name: &str| {
        let mut elements = look.page(newest.root).elements.iter();
        elements.position(|element| element.key == name.as_bytes()).unwrap_or_default()
    };
    let branch = look.page(newest.root).elements[bucket("key")].root();
    let branch = branch.ok_or("bucket key is inline")?;
    let moments: Vec<&Moment> = [before, after].into_iter().chain(later).collect();
    let buckets = [bucket("key"), bucket("meta")];
    Ok(vec![
        ("pages", list::pages(before)),
        ("meta", bytes::meta(look)),
        ("leaf", bytes::page(look, key_leaf(1), &[0, 1, 9])),
        ("overflow", bytes::page(look, key_leaf(0), &[0, 1])),
        ("branch", bytes::page(look, branch, &[0, 1])),
        ("buckets", bytes::page(look, newest.root, &buckets)),
        ("checksums", bytes::table(look)),
        ("after", list::pages(after)),
        ("reader", list::grid(&moments)),
        ("compacted", list::grid(&[&later[2], compacted])),
        ("defragmented", list::pages_of(&story.defragmented)),
        ("fill", fill::tell(work)?),
        ("flips", flips::tell(look, work)?),
    ])
}
