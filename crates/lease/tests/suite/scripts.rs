//! Golden scripts for a lessor: one scenario per file.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use crate::support::TestLessor;
use clearlane_engine::KeyRange;
use clearlane_lease::{Config, Due, Renewal};
use clearlane_proto::etcdserverpb::LeaseCheckpoint;
use goldenscript::{Argument, Command, Context, Runner};

type Outcome = Result<String, Box<dyn Error>>;

fn word(argument: &Argument) -> &str {
    match argument {
        Argument::Positional(word) => word,
        other => panic!("no such argument: {other}"),
    }
}

struct Script {
    lessor: TestLessor,
}

impl Script {
    fn new() -> Script {
        let checkpoint_interval = Some(Duration::from_secs(300));
        let config = Config { checkpoint_interval, ..Config::new(Duration::from_secs(1)) };
        Script { lessor: TestLessor::new(config) }
    }

    fn put(&self, key: &str, lease: i64) {
        self.lessor.write(|txn| txn.put(key.as_bytes(), b"v", lease).unwrap());
    }

    fn delete(&self, key: &str) {
        let end = format!("{key}\0");
        let range = KeyRange::new(key.as_bytes(), end.as_bytes());
        self.lessor.write(|txn| assert!(txn.delete_range(range).unwrap() <= 1));
    }

    fn renew(&self, id: i64) -> String {
        match self.lessor.inner.renew(id, self.lessor.now) {
            Renewal::Renewed(ttl) => format!("for {ttl} s\n"),
            Renewal::NotFound => "gone\n".to_owned(),
            Renewal::NotLeading => "not leading\n".to_owned(),
            Renewal::CheckpointFirst(LeaseCheckpoint { id, remaining_ttl: left }) => {
                format!("first: checkpoint {id} {left}\n")
            }
        }
    }

    /// Prints the revocations and checkpoints that are due, repeatedly until nothing is due.
    /// Applies each revocation and checkpoint if `applies` is true.
    fn due(&self, applies: bool) -> String {
        let mut out = String::new();
        while self.lessor.inner.next_due().is_some_and(|next| next <= self.lessor.now) {
            let Due { revoke, checkpoints } = self.lessor.inner.due(self.lessor.now);
            for id in revoke {
                let _ = writeln!(out, "revoke {id}");
                if applies {
                    self.lessor.revoke(id).unwrap();
                }
            }
            for LeaseCheckpoint { id, remaining_ttl: left } in &checkpoints {
                let _ = writeln!(out, "checkpoint {id} {left}");
            }
            if applies {
                self.lessor.checkpoint(&checkpoints);
            }
        }
        out
    }

    fn show(&self) -> String {
        let mut out = String::new();
        for lease in self.lessor.inner.lease_states() {
            let left = self.lessor.inner.time_to_live(lease.id, self.lessor.now).unwrap().remaining;
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
        let lessor = &mut self.lessor;
        match command.name.as_str() {
            "lead" => lessor.inner.promote(lessor.now),
            "follow" => lessor.inner.demote(),
            "grant" => match lessor.grant(number(0)?, number(1)?) {
                Ok(ttl) => return Ok(format!("for {ttl} s\n")),
                Err(refused) => return Ok(format!("{refused}\n")),
            },
            "revoke" => match lessor.revoke(number(0)?) {
                Ok(revision) => return Ok(format!("rev={revision}\n")),
                Err(refused) => return Ok(format!("{refused}\n")),
            },
            "checkpoint" => {
                lessor.checkpoint(&[LeaseCheckpoint { id: number(0)?, remaining_ttl: number(1)? }]);
            }
            "wait" => lessor.now += Duration::try_from_secs_f64(words[0].parse()?)?,
            "commit" => lessor.store.commit()?,
            "crash" => lessor.crash(),
            "put" => self.put(words[0], number(1)?),
            "del" => self.delete(words[0]),
            "renew" => return Ok(self.renew(number(0)?)),
            "due" => return Ok(self.due(false)),
            "expire" => return Ok(self.due(true)),
            "leases" => return Ok(self.show()),
            "list" => return Ok(format!("{:?}\n", lessor.inner.list())),
            "keys" => return Ok(format!("{}\n", lessor.keys().join(" "))),
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
