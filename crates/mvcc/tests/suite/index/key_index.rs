//! Tests the history of one key: golden scripts that run on the real history and on the model, and
//! a comparison of the two.

use std::error::Error;
use std::path::Path;

use clearlane_mvcc::{EncodedLen, KeyIndex, Revision, Version};
use goldenscript::{Command, Context, Runner};
use proptest::prelude::*;

use crate::index::plain::PlainHistory;

/// The history of a key: the real one or the model. `Real(None)` is a history before the first put,
/// or after a compaction has removed it.
#[derive(Clone, Debug)]
enum TestedKey {
    Real(Option<KeyIndex>),
    Plain(PlainHistory),
}

impl TestedKey {
    fn put(&mut self, revision: Revision) -> Version {
        match self {
            TestedKey::Real(Some(history)) => history.put(revision, EncodedLen::UNKNOWN),
            TestedKey::Real(none) => {
                none.insert(KeyIndex::new(revision, EncodedLen::UNKNOWN)).current().unwrap()
            }
            TestedKey::Plain(history) => history.put(revision),
        }
    }

    fn tombstone(&mut self, revision: Revision) -> Option<Version> {
        match self {
            TestedKey::Real(history) => history.as_mut()?.tombstone(revision),
            TestedKey::Plain(history) => history.tombstone(revision),
        }
    }

    fn at(&self, at: i64) -> Option<Version> {
        match self {
            TestedKey::Real(history) => history.as_ref()?.at(at),
            TestedKey::Plain(history) => history.at(at),
        }
    }

    fn kept(&self, at: i64) -> [Option<Revision>; 2] {
        match self {
            TestedKey::Real(None) => [None, None],
            TestedKey::Real(Some(history)) => {
                [history.kept_by_compaction(at), history.kept_by_hash(at)]
            }
            TestedKey::Plain(history) => [history.kept_by_compaction(at), history.kept_by_hash(at)],
        }
    }

    fn compact(&mut self, at: i64) {
        match self {
            TestedKey::Real(real) => {
                let Some(history) = real else { return };
                let (before, shortened) = (history.to_string(), history.is_shortened_by(at));
                let is_left = history.compact(at);
                assert_eq!(shortened, !is_left || before != history.to_string());
                if !is_left {
                    *real = None;
                }
            }
            TestedKey::Plain(history) => drop(history.compact(at)),
        }
    }

    fn show(&self) -> String {
        match self {
            TestedKey::Real(history) => history.as_ref().map_or(String::new(), ToString::to_string),
            TestedKey::Plain(history) => history.show(),
        }
    }
}

fn describe(version: Option<Version>) -> String {
    version.map_or("absent".to_owned(), |found| {
        let Version { modified, created, version, .. } = found;
        format!("modified={modified} created={created} version={version}")
    })
}

impl Runner for TestedKey {
    type Command = Command;

    /// Runs `put 4`, `put 4.1`, `delete 6`, `get 5 7`, `compact 3` or `hash 3`. After a put, delete
    /// or compaction, prints the history.
    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let mut out = String::new();
        let arguments: Vec<String> = command.args.iter().map(ToString::to_string).collect();
        for argument in &arguments {
            let (main, sub) = argument.split_once('.').unwrap_or((argument, "0"));
            let revision = Revision::new(main.parse()?, sub.parse()?);
            match command.name.as_str() {
                "put" => drop(self.put(revision)),
                "delete" if self.tombstone(revision).is_none() => {
                    out.push_str("nothing to delete\n")
                }
                "delete" => {}
                "get" => out += &format!("at {main}: {}\n", describe(self.at(revision.main))),
                "compact" => self.compact(revision.main),
                "hash" => {
                    let kept = self.kept(revision.main)[1];
                    out += &format!("at {main}: {}\n", kept.map_or("-".into(), |k| k.to_string()));
                }
                other => return Err(format!("no command {other:?}").into()),
            }
            if !["get", "hash"].contains(&command.name.as_str()) {
                out += &format!("{} {argument}: {}\n", command.name, self.show());
            }
        }
        Ok(out)
    }
}

#[test]
fn scripts_print_the_same_over_the_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/key_index");
    let scripts: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(scripts.len() > 3, "the scripts are there");
    for script in scripts {
        for key in [TestedKey::Real(None), TestedKey::Plain(PlainHistory::default())] {
            goldenscript::run(&mut key.clone(), &script)
                .unwrap_or_else(|error| panic!("{} over {key:?}: {error}", script.display()));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Put,
    Tombstone,
    Pass,
    /// Compacts at this number of revisions before the newest.
    Compact(i64),
    /// Clones the history, as a snapshot of the index does. The clone shares the chunks.
    Snapshot,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => Just(Step::Put),
        1 => Just(Step::Tombstone),
        1 => Just(Step::Pass),
        1 => (0..200_i64).prop_map(Step::Compact),
        2 => Just(Step::Snapshot),
    ]
}

/// Checks that the history and the model return the same results for every revision from
/// `compacted` on.
fn compare(real: &TestedKey, plain: &TestedKey, compacted: i64, newest: i64) {
    assert_eq!(real.show(), plain.show());
    for at in compacted..=newest + 1 {
        assert_eq!(real.at(at), plain.at(at), "at {at} of {}", plain.show());
        assert_eq!(real.kept(at), plain.kept(at), "kept at {at} of {}", plain.show());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

    #[test]
    fn a_history_does_as_the_model_does(steps in prop::collection::vec(step(), 1..600)) {
        let (mut real, mut plain) = (TestedKey::Real(None), TestedKey::Plain(PlainHistory::default()));
        let (mut newest, mut compacted) = (1, 0);
        let mut snapshots = Vec::new();
        for step in steps {
            newest += 1;
            let revision = Revision::new(newest, newest % 3);
            match step {
                Step::Put => prop_assert_eq!(real.put(revision), plain.put(revision)),
                Step::Tombstone => {
                    prop_assert_eq!(real.tombstone(revision), plain.tombstone(revision));
                }
                Step::Pass => {}
                Step::Compact(back) => {
                    compacted = compacted.max(newest - back);
                    real.compact(compacted);
                    plain.compact(compacted);
                }
                Step::Snapshot => {
                    snapshots.push((real.clone(), plain.clone(), compacted, newest));
                }
            }
        }
        compare(&real, &plain, compacted, newest);
        for (real, plain, compacted, newest) in snapshots.iter().step_by(10) {
            compare(real, plain, *compacted, *newest);
        }
    }

    #[test]
    fn what_is_too_big_for_the_short_form_comes_back(
        main in prop_oneof![1..i64::MAX / 4, (1_i64 << 48) - 9..(1_i64 << 48) + 9],
        sub in prop_oneof![0..3_i64, 0xff_fffe..0x100_0002_i64, Just(i64::from(u32::MAX))],
        version in prop_oneof![1..3_i64, (1_i64 << 32) - 2..(1_i64 << 32) + 2],
        back in 0..5_i64,
    ) {
        let created = (main - back).max(0);
        let payload = EncodedLen::of(7);
        let first = Version { modified: Revision::new(main, sub), created, version, encoded_len: payload };
        let mut history = KeyIndex::from_version(first);
        prop_assert_eq!(history.current(), Some(first));
        let second = Version {
            modified: Revision::new(main + 1, sub),
            version: version + 1,
            encoded_len: EncodedLen::of(8),
            ..first
        };
        prop_assert_eq!(history.put(second.modified, second.encoded_len), second);
        let unknown = |version| Version { encoded_len: EncodedLen::UNKNOWN, ..version };
        prop_assert_eq!(history.at(main).map(unknown), Some(unknown(first)));
        prop_assert_eq!(history.at(main + 1), Some(second));
    }

    /// The payload length of the newest version is known if it is below 16 MiB, because the newest
    /// version is read most often. The length of an older version may be unknown, but never wrong.
    #[test]
    fn a_payload_is_right_or_unknown(
        steps in prop::collection::vec((0..10_u8, 0..6_i64), 1..200),
    ) {
        let payload = |main: i64| EncodedLen::of(1000 + main as usize);
        let (mut history, mut compacted) = (KeyIndex::new(Revision::new(1, 0), payload(1)), 0);
        for (main, (step, back)) in (2..).zip(&steps) {
            let revision = Revision::new(main, 0);
            match step {
                0..6 => prop_assert_eq!(history.put(revision, payload(main)).encoded_len, payload(main)),
                6..8 => drop(history.tombstone(revision)),
                _ => {
                    compacted = compacted.max(main - back);
                    if !history.compact(compacted) {
                        history = KeyIndex::new(revision, payload(main));
                    }
                }
            }
            if let Some(newest) = history.current() {
                prop_assert_eq!(newest.encoded_len, payload(newest.modified.main));
            }
            for version in (compacted..main).filter_map(|at| history.at(at)) {
                let is_known = version.encoded_len == payload(version.modified.main);
                prop_assert!(is_known || version.encoded_len == EncodedLen::UNKNOWN, "{:?}", version);
            }
        }
    }
}
