//! Golden scripts over ReadIndex queues: one scenario per file, in `tests/golden/read_index`.
//!
//! A script starts with a mode, such as `mode read-index`. Ids start at 1. For example, `answer 2
//! index=7` answers the attempt that was printed as `ask 2`. Readers that the command `confirm`
//! adds need only a confirmation. `poll`, and each command for an event or the time, polls the
//! queue and prints the actions. `read`, `confirm`, `cancel`, `churn`, `next` and `figures` do not
//! poll.
//!
//! To regenerate the expected output, run
//! `UPDATE_GOLDENFILES=1 cargo test -p clearlane-raft --test suite read_index_golden`. Then read
//! the difference.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use clearlane_raft::read_index::{
    ReadIndexAction, ReadIndexConfig, ReadIndexQueue, ReadMode, ReadNeed, RequestIdGenerator,
};
use goldenscript::{Argument, Command, Runner};

type Outcome = Result<String, Box<dyn Error>>;

/// The queue under test. It belongs to member 1.
struct TestQueue {
    queue: ReadIndexQueue<u64>,
    ids: RequestIdGenerator,
    now: Duration,
}

impl TestQueue {
    fn open(mode: ReadMode, config: ReadIndexConfig) -> TestQueue {
        TestQueue {
            queue: ReadIndexQueue::new(mode, config),
            ids: RequestIdGenerator::new(0, 0),
            now: Duration::ZERO,
        }
    }

    fn poll(&mut self) -> String {
        let actions = self.queue.poll(self.now, &mut self.ids);
        actions.iter().map(|action| format!("{}\n", show(action))).collect()
    }

    fn read(&mut self, readers: &[u64], need: ReadNeed) -> String {
        let mut out = String::new();
        for reader in readers {
            if let Err(error) = self.queue.enqueue(*reader, need) {
                let _ = writeln!(out, "{reader}: {error}");
            }
        }
        out
    }

    fn cancel(&mut self, readers: &[u64]) -> String {
        let gone = readers.iter().filter(|reader| !self.queue.cancel(**reader));
        gone.map(|reader| format!("{reader} was not waiting\n")).collect()
    }

    /// Adds a reader and cancels it, `times` times.
    fn churn(&mut self, times: u64) -> String {
        for reader in 1_000_000..1_000_000 + times {
            assert_eq!(self.queue.enqueue(reader, ReadNeed::Applied), Ok(()));
            assert!(self.queue.cancel(reader));
        }
        String::new()
    }
}

fn show(action: &ReadIndexAction<u64>) -> String {
    let names = |readers: &[u64]| {
        let names: Vec<String> = readers.iter().map(ToString::to_string).collect();
        names.join(" ")
    };
    match action {
        ReadIndexAction::RequestReadIndex { context, attempt: 1 } => format!("ask {context}"),
        ReadIndexAction::RequestReadIndex { context, attempt } => {
            format!("ask {context}, attempt {attempt}")
        }
        ReadIndexAction::Propose { context, reader } => format!("propose {context} for {reader}"),
        ReadIndexAction::Release { index, readers } => format!("go {} at {index}", names(readers)),
        ReadIndexAction::Fail { error, readers } => format!("fail {}: {error}", names(readers)),
    }
}

fn numbers(command: &Command) -> Result<Vec<u64>, Box<dyn Error>> {
    let words = command.args.iter().filter_map(|argument| match argument {
        Argument::Positional(word) => Some(word.parse()),
        _ => None,
    });
    Ok(words.collect::<Result<_, _>>()?)
}

fn option<N: FromStr>(command: &Command, name: &str) -> Result<N, Box<dyn Error>>
where
    N::Err: Error + 'static,
{
    let mut found = command.args.iter().filter_map(|argument| match argument {
        Argument::KeyValue(key, value) if key == name => Some(value.parse()),
        _ => None,
    });
    Ok(found.next().ok_or_else(|| format!("{name}=... is missing"))??)
}

fn word(command: &Command) -> Result<&str, Box<dyn Error>> {
    match command.args.first() {
        Some(Argument::Positional(word)) => Ok(word),
        _ => Err("a word is missing".into()),
    }
}

/// Parses a time such as `7s` or `500ms`.
fn duration(text: &str) -> Result<Duration, Box<dyn Error>> {
    match text.strip_suffix("ms") {
        Some(number) => Ok(Duration::from_millis(number.parse()?)),
        None => Ok(Duration::from_secs(text.strip_suffix('s').ok_or("no unit")?.parse()?)),
    }
}

fn open(command: &Command) -> Result<TestQueue, Box<dyn Error>> {
    let name = word(command)?;
    let mode = ReadMode::ALL.into_iter().find(|mode| mode.name() == name).ok_or("no such mode")?;
    let config = ReadIndexConfig::new(1);
    let readers_max = option(command, "max").unwrap_or(config.readers_max);
    Ok(TestQueue::open(mode, ReadIndexConfig { readers_max, ..config }))
}

impl Runner for TestQueue {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &goldenscript::Context) -> Outcome {
        let index = || option(command, "index");
        let out = match command.name.as_str() {
            "mode" => {
                *self = open(command)?;
                String::new()
            }
            "read" => self.read(&numbers(command)?, ReadNeed::Applied),
            "confirm" => self.read(&numbers(command)?, ReadNeed::Confirmed),
            "cancel" => self.cancel(&numbers(command)?),
            "churn" => self.churn(numbers(command)?[0]),
            "poll" => self.poll(),
            "tick" => {
                self.now += duration(word(command)?)?;
                self.poll()
            }
            "clock" => {
                self.now = duration(word(command)?)?;
                self.poll()
            }
            "answer" => {
                self.queue.on_answer(numbers(command)?[0], index()?);
                self.poll()
            }
            "leader" => {
                self.queue.on_leader(Some(numbers(command)?[0]), option(command, "term")?);
                self.poll()
            }
            "no_leader" => {
                self.queue.on_leader(None, option(command, "term")?);
                self.poll()
            }
            "transfer" => {
                self.queue.on_transfer_started();
                self.poll()
            }
            "first_commit" => {
                self.queue.on_first_commit();
                self.poll()
            }
            "committed" => {
                self.queue.on_committed(numbers(command)?[0]);
                self.poll()
            }
            "applied" => {
                self.queue.on_applied(numbers(command)?[0]);
                self.poll()
            }
            "next" => format!("{:?}\n", self.queue.next_poll()),
            "figures" => format!("{:?}\n", self.queue.metrics()),
            other => return Err(format!("no command {other:?}").into()),
        };
        Ok(out)
    }
}

fn run(folder: &str, scripts_min: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/read_index").join(folder);
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() >= scripts_min, "the scripts are there");
    for script in scripts {
        let mut barrier = TestQueue::open(ReadMode::Serializable, ReadIndexConfig::new(1));
        let outcome = goldenscript::run(&mut barrier, &script);
        outcome.unwrap_or_else(|error| panic!("{}: {error}", script.display()));
    }
}

#[test]
fn scripts_of_read_index() {
    run("read_index", 6);
}

#[test]
fn scripts_of_lease() {
    run("lease", 3);
}

#[test]
fn scripts_of_log_and_serializable() {
    run("others", 2);
}
