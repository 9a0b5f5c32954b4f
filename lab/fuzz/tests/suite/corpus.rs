//! Passes each input of the corpus to its target, without the instrumentation of the fuzzer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clearlane_fuzz::targets::{self, messages};
use prost_reflect::DescriptorPool;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_target_has_a_file_and_a_corpus() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/targets");
    let files =
        names(&sources).into_iter().filter_map(|name| Some(name.strip_suffix(".rs")?.to_owned()));
    let files: BTreeSet<String> = files.filter(|name| name != "mod").collect();
    let listed: BTreeSet<String> = targets::ALL.map(|(name, _)| name.to_owned()).into();
    assert_eq!(files, listed);
    assert_eq!(names(&corpus()), listed);
}

#[test]
fn no_input_of_the_corpus_makes_its_target_panic() {
    for (name, target) in targets::ALL {
        target(&[]);
        let dir = corpus().join(name);
        for input in names(&dir) {
            // The test harness shows this line if the target panics.
            println!("{name}: {input}");
            target(&fs::read(dir.join(input)).unwrap());
        }
    }
}

#[test]
fn every_message_that_an_rpc_takes_is_in_the_list() {
    let pool = DescriptorPool::decode(clearlane_proto::DESCRIPTORS).unwrap();
    let taken = pool.services().flat_map(|service| {
        let methods: Vec<_> = service.methods().collect();
        methods.into_iter().map(|method| method.input().name().to_owned())
    });
    let lower = |name: String| name.to_lowercase();
    let listed: BTreeSet<String> =
        messages::MESSAGES.map(|(name, _)| lower(name.to_owned())).into();
    let missing: Vec<String> = taken.map(lower).filter(|name| !listed.contains(name)).collect();
    assert_eq!(missing, [""; 0]);
}
