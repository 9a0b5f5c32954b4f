//! Checks the chapter `docs/bolt.md`. The tests compare its blocks and pictures with the output of
//! this example, and assert its statements about page numbers.
//!
//! If the output was changed on purpose, `UPDATE_GOLDENFILES=1 cargo test -p clearlane-examples
//! --example bolt_file` writes the new blocks and pictures. Then review the difference.

use std::path::{Path, PathBuf};

use crate::story::{Moment, Story, Use};
use crate::{pictures, story, texts};

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Checks that the text of the file is `made`. If `UPDATE_GOLDENFILES` is set, writes the file
/// first.
fn compare(path: &Path, made: &str) {
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::write(path, made).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    let different = found.lines().zip(made.lines()).find(|(found, made)| found != made);
    assert!(found == made, "{} differs: {different:?}", path.display());
}

fn story_of_file() -> (tempfile::TempDir, Story) {
    let work = tempfile::tempdir().unwrap();
    let story = story::tell(work.path()).unwrap();
    (work, story)
}

#[test]
fn the_blocks_of_the_chapter_are_what_the_file_has() {
    let (work, story) = story_of_file();
    let path = docs().join("bolt.md");
    let mut chapter = std::fs::read_to_string(&path).unwrap();
    let texts = texts(&story, work.path()).unwrap();
    for (name, text) in &texts {
        let mark = format!("<!-- bolt_file: {name} -->\n\n```text\n");
        let (before, rest) = chapter.split_once(&mark).unwrap_or_else(|| panic!("no {mark}"));
        let (_, behind) = rest.split_once("```\n").unwrap();
        chapter = [before, &mark, text.trim_start_matches('\n'), "```\n", behind].concat();
    }
    assert_eq!(chapter.matches("<!-- bolt_file: ").count(), texts.len(), "a mark is unknown");
    compare(&path, &chapter);
}

#[test]
fn the_pictures_are_those_of_the_file() {
    let (_work, story) = story_of_file();
    for (name, picture) in pictures(&story) {
        compare(&docs().join("images").join(name), &picture);
    }
}

/// Checks the chapter's description of the put, step by step.
#[test]
fn the_put_writes_and_frees_the_pages_that_are_told() {
    let (_work, story) = story_of_file();
    let Story { before, after, .. } = &story;
    let with = |moment: &Moment, of: Use| -> Vec<usize> {
        let uses = moment.uses.iter().enumerate().filter(|(_, found)| **found == of);
        uses.map(|(id, _)| id).collect()
    };
    assert_eq!(with(before, Use::Before), [3]);
    assert_eq!(with(before, Use::Free), [4, 5]);
    assert_eq!((before.look.newest().root, after.look.newest().root), (9, 12));
    assert_eq!(with(after, Use::Written), [0, 3, 4, 5, 12, 13, 14]);
    assert_eq!(with(after, Use::Unchanged), [1, 6, 7]);
    assert_eq!(with(after, Use::Free), [10, 11]);
    let records = |id| after.look.page(id).elements.len();
    assert_eq!([3, 4, 5].map(records), [9, 2, 3]);
}

/// Checks the chapter's statements about two groups of pages. Pages 2, 8 and 9 are kept while the
/// reader's snapshot is open. Page 5 is written again during this time, because the snapshot does
/// not use it.
#[test]
fn pages_of_a_reader_are_used_again_when_it_is_gone() {
    let (_work, story) = story_of_file();
    let Story { before, after, later: [second, third, fourth], .. } = &story;
    assert_eq!([4, 5, 6, 7], [after, second, third, fourth].map(Moment::txid));
    for id in [2, 8, 9] {
        assert!(before.look.is_in_tree(id) && !after.look.is_in_tree(id), "page {id}");
        for moment in [after, second, third] {
            assert_eq!(moment.uses[id as usize], Use::Kept, "page {id} at {}", moment.txid());
            assert_eq!(moment.look.page_bytes(id), before.look.page_bytes(id), "page {id}");
        }
        assert_ne!(fourth.uses[id as usize], Use::Kept, "page {id}");
    }
    assert_eq!(fourth.uses[2], Use::Written, "the next commit takes it");
    let of_5 = [after, second, third].map(|moment| moment.uses[5]);
    assert_eq!(of_5, [Use::Written, Use::Before, Use::Written], "although the reader is there");
}

#[test]
fn a_defragmentation_leaves_out_what_is_of_no_use() {
    let (_work, story) = story_of_file();
    let Story { compacted, defragmented, .. } = &story;
    let in_use = |used: &&Use| matches!(used, Use::Written | Use::Unchanged);
    assert_eq!((compacted.uses.len(), compacted.uses.iter().filter(in_use).count()), (18, 6));
    assert_eq!(defragmented.newest().high_water, 9);
    assert_eq!(defragmented.leaves_of("key")[0].elements.len(), 4);
}
