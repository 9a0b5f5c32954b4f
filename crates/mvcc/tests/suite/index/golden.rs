//! Golden scripts for both tree indexes and the model.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use clearlane_engine::KeyRange;
use clearlane_mvcc::{RecordKind, Revision, Version};
use goldenscript::{Argument, Command, Context, Runner};

use crate::index::subject::{self, Record, TestedIndex, VersionsByKey};

struct Script {
    subject: Box<dyn TestedIndex>,
    records: Vec<Record>,
    main: i64,
}

/// The words of a command, and the numbers after `at=`, `limit=`, `runs=`.
struct Words<'c> {
    words: Vec<&'c str>,
    command: &'c Command,
}

impl<'c> Words<'c> {
    fn of(command: &'c Command) -> Words<'c> {
        let word = |argument: &'c Argument| match argument {
            Argument::Positional(word) => Some(word.as_str()),
            _ => None,
        };
        Words { words: command.args.iter().filter_map(word).collect(), command }
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Box<dyn Error>> {
        let number = self.command.args.iter().find_map(|argument| match argument {
            Argument::KeyValue(key, number) if key == name => Some(number.parse()),
            _ => None,
        });
        Ok(number.transpose()?)
    }

    /// Parses the range. Without words the range has all keys, and with only one word it has no
    /// end.
    fn range(&self) -> KeyRange<'c> {
        match self.words[..] {
            [] => KeyRange::ALL,
            [from] => KeyRange::starting_at(from.as_bytes()),
            [from, to, ..] => KeyRange::new(from.as_bytes(), to.as_bytes()),
        }
    }
}

fn line(key: &str, version: Version) -> String {
    let Version { modified, created, version, .. } = version;
    format!("{key} modified={modified} created={created} version={version}\n")
}

fn lines(found: VersionsByKey) -> String {
    found.into_iter().map(|(key, version)| line(&String::from_utf8_lossy(&key), version)).collect()
}

fn revisions(revisions: &[Revision]) -> String {
    let words: Vec<String> = revisions.iter().map(ToString::to_string).collect();
    format!("kept: {}\n", words.join(" "))
}

impl Script {
    /// Runs one transaction that puts or deletes each of these keys. Returns a line for each key.
    fn write(&mut self, mark: RecordKind, keys: &[&str]) -> String {
        self.main += 1;
        let mut out = String::new();
        let mut sub = 0;
        for key in keys {
            let revision = Revision::new(self.main, sub);
            let version = match mark {
                RecordKind::Put => Some(self.subject.put(key.as_bytes(), revision)),
                RecordKind::Tombstone
                    if self.subject.tombstone(key.as_bytes(), revision).is_none() =>
                {
                    let _ = writeln!(out, "{key} is absent");
                    continue;
                }
                RecordKind::Tombstone => None,
            };
            out +=
                &version.map_or_else(|| format!("{key} deleted at {revision}\n"), |v| line(key, v));
            self.records.push(Record { key: key.as_bytes().into(), revision, version });
            sub += 1;
        }
        out
    }

    fn compact(&mut self, at: i64) -> String {
        let kept = self.subject.compact(at, 2, &mut |_| {});
        let stays = |record: &Record| record.revision.main > at || kept.contains(&record.revision);
        self.records.retain(stays);
        revisions(&kept)
    }
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Result<String, Box<dyn Error>> {
        let words = Words::of(command);
        let at = words.number("at")?.unwrap_or(self.main);
        let snapshot = self.subject.snapshot();
        Ok(match command.name.as_str() {
            "put" => self.write(RecordKind::Put, &words.words),
            "delete" => self.write(RecordKind::Tombstone, &words.words),
            "get" => {
                let get = |key: &&str| match snapshot.get(key.as_bytes(), at) {
                    Some(version) => line(key, version),
                    None => format!("{key} is absent\n"),
                };
                words.words.iter().map(get).collect()
            }
            "walk" => lines(snapshot.walk(words.range(), at, usize::MAX)),
            "count" => format!("{}\n", snapshot.count(words.range(), at)),
            "page" => {
                let limit = words.number("limit")?.ok_or("page takes limit=N")?;
                let (found, count) = snapshot.page(words.range(), at, limit as u64);
                lines(found) + &format!("{count} in all\n")
            }
            "compact" => self.compact(at),
            "hash" => revisions(&snapshot.keep(at, 2)),
            "restore" => {
                let runs = words.number("runs")?.unwrap_or(1);
                self.subject = self.subject.rebuild(&self.records, runs as usize);
                String::new()
            }
            other => return Err(format!("no command {other:?}").into()),
        })
    }
}

#[test]
fn scripts_print_the_same_over_both_designs_and_the_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/index");
    let scripts: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    assert!(scripts.len() > 3, "the scripts are there");
    for script in scripts {
        for (name, subject) in subject::all() {
            let mut runner = Script { subject, records: Vec::new(), main: 1 };
            goldenscript::run(&mut runner, &script)
                .unwrap_or_else(|error| panic!("{} over {name}: {error}", script.display()));
        }
    }
}
