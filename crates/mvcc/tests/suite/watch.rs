//! Golden scripts for watching: one scenario per file.
//!
//! The scripts in `tests/golden/watch` run in every era and must print the same. Two folders next
//! to it have scripts for the intended differences:
//!
//! | | default era | old eras, as in etcd |
//! |---|---|---|
//! | events are delivered | after the write's response | before the write ends |
//! | a channel is full at | a number of bytes | 1,024 responses up to 3.2, then 128 |
//! | a watcher of a full channel | is unsynced, keeps a revision | is a victim, keeps its events |
//! | a sync step reads | a limited number of records and bytes | all since the oldest missed one |
//! | the previous record is fetched | with the event | when the response is sent |

use std::path::Path;

use crate::watch_support::WatchRunner;
use clearlane_backend::Era;

fn run(folder: &str, era: impl IntoIterator<Item = Era>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "the scripts are there");
    for era in era {
        for script in &scripts {
            let outcome = goldenscript::run(&mut WatchRunner::new(era), script);
            outcome.unwrap_or_else(|error| panic!("{era:?}, {}: {error}", script.display()));
        }
    }
}

fn is_old(era: &Era) -> bool {
    *era != Era::Clearlane
}

#[test]
fn what_all_watchable_stores_have_in_common() {
    run("watch", Era::DISTINCT_STORES);
}

#[test]
fn what_only_the_default_era_does() {
    run("watch_of_default_era", Era::DISTINCT_STORES.into_iter().filter(|era| !is_old(era)));
}

#[test]
fn what_only_the_old_eras_do() {
    run("watch_of_old_eras", Era::DISTINCT_STORES.into_iter().filter(is_old));
}

#[test]
fn a_channel_of_the_old_eras_is_bounded_by_responses() {
    for era in Era::DISTINCT_STORES.into_iter().filter(is_old) {
        let expected = if era <= Era::V3_2 { 1024 } else { 128 };
        assert_eq!(WatchRunner::new(era).responses_of_a_full_channel(), expected, "{era:?}");
    }
}
