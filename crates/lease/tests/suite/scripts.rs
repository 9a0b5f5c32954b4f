//! Golden scripts over a lessor: one scenario per file.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clearlane_engine::KeyRange;
use clearlane_lease::{Config, Due, Renewal};
use clearlane_proto::etcdserverpb::LeaseCheckpoint;
use goldenscript::{Argument, Command, Context, Runner};
use support::TestLessor;

type Outcome = Result<String, Box<dyn Error>>;

fn word(argument: &Argument) -> &str {
    match argument {
        Argument::Positional(word) => word,
        other => panic!("no such argument: {other}"),
    }
}

struct Script {
    lab: TestLessor,
}

impl Script {
    fn new() -> Script {
        let checkpoint_interval = Some(Duration::from_secs(300));
        let config = Config { checkpoint_interval, ..Config::new(Duration::from_secs(1)) };
        Script { lab: TestLessor::new(config) }
    }

    fn put(&self, key: &str, lease: i64) {
        self.lab.write(|txn| txn.put(key.as_bytes(), b"v", lease).unwrap());
    }

    fn delete(&self, key: &str) {
        let end = format!("{key}\0");
        let range = KeyRange::new(key.as_bytes(), end.as_bytes());
        self.lab.write(|txn| assert!(txn.delete_range(range).unwrap() <= 1));
    }

    fn renew(&self, id: i64) -> String {
        match self.lab.lessor.renew(id, self.lab.now) {
            Renewal::Renewed(ttl) => format!("for {ttl} s\n"),
            Renewal::NotFound => "gone\n".to_owned(),
            Renewal::NotLeading => "not leading\n".to_owned(),
            Renewal::CheckpointFirst(LeaseCheckpoint { id, remaining_ttl: left }) => {
                format!("first: checkpoint {id} {left}\n")
            }
        }
    }

    /// What is due now and at once after that, until nothing is; each is applied as it comes, if it
    /// is to be.
    fn due(&self, applies: bool) -> String {
        let mut out = String::new();
        while self.lab.lessor.next_due().is_some_and(|next| next <= self.lab.now) {
            let Due { revoke, checkpoints } = self.lab.lessor.due(self.lab.now);
            for id in revoke {
                let _ = writeln!(out, "revoke {id}");
                if applies {
                    self.lab.revoke(id).unwrap();
                }
            }
            for LeaseCheckpoint { id, remaining_ttl: left } in &checkpoints {
                let _ = writeln!(out, "checkpoint {id} {left}");
            }
            if applies {
                self.lab.checkpoint(&checkpoints);
            }
        }
        out
    }

    fn show(&self) -> String {
        let mut out = String::new();
        for lease in self.lab.lessor.lease_states() {
            let left = self.lab.lessor.time_to_live(lease.id, self.lab.now).unwrap().remaining;
            let keys: Vec<_> =
                lease.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            let _ = write!(out, "{}: granted {}", lease.id, lease.ttl);
            if lease.remaining_ttl > 0 {
                let _ = write!(out, ", checkpoint {}", lease.remaining_ttl);
            }
            let left = left.map_or("unknown".to_owned(), |left| left.to_string());
            let _ = writeln!(out, ", left {left}, keys [{}]", keys.join(" "));
        }
        out
    }
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _context: &Context) -> Outcome {
        let words: Vec<&str> = command.args.iter().map(word).collect();
        let number = |at: usize| words.get(at).map_or(Ok(0), |text| text.parse::<i64>());
        let lab = &mut self.lab;
        match command.name.as_str() {
            "lead" => lab.lessor.promote(lab.now),
            "follow" => lab.lessor.demote(),
            "grant" => match lab.grant(number(0)?, number(1)?) {
                Ok(ttl) => return Ok(format!("for {ttl} s\n")),
                Err(refused) => return Ok(format!("{refused}\n")),
            },
            "revoke" => match lab.revoke(number(0)?) {
                Ok(revision) => return Ok(format!("rev={revision}\n")),
                Err(refused) => return Ok(format!("{refused}\n")),
            },
            "checkpoint" => {
                lab.checkpoint(&[LeaseCheckpoint { id: number(0)?, remaining_ttl: number(1)? }]);
            }
            "wait" => lab.now += Duration::try_from_secs_f64(words[0].parse()?)?,
            "commit" => lab.store.commit()?,
            "crash" => lab.crash(),
            "put" => self.put(words[0], number(1)?),
            "del" => self.delete(words[0]),
            "renew" => return Ok(self.renew(number(0)?)),
            "due" => return Ok(self.due(false)),
            "expire" => return Ok(self.due(true)),
            "leases" => return Ok(self.show()),
            "list" => return Ok(format!("{:?}\n", lab.lessor.list())),
            "keys" => return Ok(format!("{}\n", lab.keys().join(" "))),
            name => return Err(format!("no such command: {name}").into()),
        }
        Ok(String::new())
    }
}

#[test]
fn every_script_prints_what_it_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "the scripts are there");
    for script in &scripts {
        let outcome = goldenscript::run(&mut Script::new(), script);
        outcome.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}
