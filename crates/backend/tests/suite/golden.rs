//! Golden scripts: the five eras with different stores and the plain model must print the same
//! text.
//!
//! The scripts in `tests/golden/sequential` run one operation after the other, over the five eras
//! and the model. The scripts in `tests/golden/open_readers` keep readers open during writes. In
//! eras 3.1 and 3.2 these writes would wait for the readers, so the scripts run over the other
//! three eras and the model.

use crate::support;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::model::{Map, Model};
use crate::support::words::{self, Outcome};
use crate::support::{Entry, memory_engine};
use bytes::Bytes;
use clearlane_backend::{Backend, Config, Era, ReadTx};
use clearlane_engine::Engine;
use clearlane_engine::stream::Importer;
use goldenscript::{Argument, Command, Context, Runner};

#[derive(Clone)]
enum TestedBackend {
    OfEra(Era, Arc<dyn Engine>),
    Model(Arc<Mutex<Map>>),
}

impl TestedBackend {
    fn all() -> Vec<TestedBackend> {
        let eras = Era::DISTINCT_STORES.map(|era| TestedBackend::OfEra(era, memory_engine()));
        eras.into_iter().chain([TestedBackend::Model(Arc::default())]).collect()
    }

    fn allows_open_readers(&self) -> bool {
        !matches!(self, TestedBackend::OfEra(Era::V3_1 | Era::V3_2, _))
    }

    fn name(&self) -> &'static str {
        match self {
            TestedBackend::OfEra(era, _) => era.name(),
            TestedBackend::Model(_) => "model",
        }
    }

    fn open(&self, config: Config) -> Box<dyn Backend<Entry>> {
        match self {
            TestedBackend::OfEra(era, engine) => support::open(*era, Arc::clone(engine), config),
            TestedBackend::Model(durable) => Box::new(Model::open(Arc::clone(durable), config)),
        }
    }
}

/// Returns the arguments of a command as they were typed. The parser of golden scripts splits `a=1`
/// into a key and a value, but here `a=1` is one word.
fn typed(command: &Command) -> Vec<String> {
    let word = |argument: &Argument| match argument {
        Argument::KeyValue(key, value) => format!("{key}={value}"),
        Argument::Positional(word) => word.clone(),
        other => panic!("no such argument: {other}"),
    };
    command.args.iter().map(word).collect()
}

fn millis(text: &str) -> Result<Duration, Box<dyn Error>> {
    Ok(Duration::from_millis(text.trim_end_matches("ms").parse()?))
}

/// Runs a command that needs no open reader.
fn run_on(backend: &dyn Backend<Entry>, entry: &mut Entry, command: &Command) -> Outcome {
    let typed = typed(command);
    let words: Vec<&str> = typed.iter().map(String::as_str).collect();
    match command.name.as_str() {
        "put" | "delete" => {
            *entry += 1;
            let mut tx = backend.begin_write()?;
            let outcome = words::write(&mut *tx, &command.name, &words);
            drop(tx.end(*entry)?);
            outcome
        }
        "txn" => {
            *entry += 1;
            let mut tx = backend.begin_write()?;
            let mut out = String::new();
            for operation in &words {
                let parts: Vec<&str> = operation.split_whitespace().collect();
                out += &words::write(&mut *tx, parts[0], &parts[1..])?;
            }
            drop(tx.end(*entry)?);
            Ok(out)
        }
        "entry" => {
            *entry += 1;
            drop(backend.begin_write()?.end(*entry)?);
            Ok(String::new())
        }
        "abandon" => {
            drop(backend.begin_write()?);
            Ok(String::new())
        }
        "get" | "range" => words::read(&*backend.begin_read(), &command.name, &words),
        "commit" => backend.commit().map(|()| String::new()).map_err(Into::into),
        "tick" => Ok(format!("committed: {}", backend.commit_if_due(millis(&typed[0])?)?)),
        "remove" => {
            let records: Vec<Bytes> = typed.into_iter().map(Bytes::from).collect();
            backend.remove(&records).map(|()| String::new()).map_err(Into::into)
        }
        "defragment" => backend.defragment().map(|()| String::new()).map_err(Into::into),
        "sizes" => {
            let sizes = backend.sizes()?;
            Ok(format!("in_use={} pending_ops={}", sizes.in_use, sizes.pending_ops))
        }
        "copy" => copy(backend, &words),
        other => Err(format!("no command {other:?}").into()),
    }
}

/// Copies the store into a new engine and reads the copy.
fn copy(backend: &dyn Backend<Entry>, words: &[&str]) -> Outcome {
    let engine = memory_engine();
    let mut importer = Importer::new(Arc::clone(&engine))?;
    let mut exporter = backend.snapshot()?;
    while let Some(chunk) = exporter.next_chunk()? {
        importer.feed(&chunk)?;
    }
    importer.finish()?;
    let copied = support::open(Era::Clearlane, engine, Config::default());
    words::read(&*copied.begin_read(), "range", words)
}

/// Runs one operation after the other. `crash` drops the backend without a commit and opens it
/// again. `limit` does the same, with a new batch limit.
struct Sequential {
    tested: TestedBackend,
    config: Config,
    backend: Option<Box<dyn Backend<Entry>>>,
    entry: Entry,
}

impl Sequential {
    fn new(tested: TestedBackend) -> Sequential {
        let config = Config::default();
        let backend = Some(tested.open(config.clone()));
        Sequential { tested, config, backend, entry: 0 }
    }

    fn reopen(&mut self) -> Outcome {
        self.backend = None;
        self.backend = Some(self.tested.open(self.config.clone()));
        Ok(String::new())
    }
}

impl Runner for Sequential {
    type Command = Command;

    fn run(&mut self, command: &Command, _context: &Context) -> Outcome {
        match command.name.as_str() {
            "crash" => self.reopen(),
            "limit" => {
                self.config.batch_limit = typed(command)[0].parse()?;
                self.reopen()
            }
            _ => {
                let backend = self.backend.as_deref().expect("open between commands");
                run_on(backend, &mut self.entry, command)
            }
        }
    }
}

/// Runs commands while readers stay open, for example `r1: open`, `r1: get key 1`, `r1: close`.
struct OpenReaders {
    backend: &'static dyn Backend<Entry>,
    readers: BTreeMap<String, Box<dyn ReadTx + 'static>>,
    entry: Entry,
}

impl OpenReaders {
    /// Opens the backend and leaks it, because readers of some eras borrow it. A test may leak
    /// memory.
    fn new(tested: &TestedBackend) -> OpenReaders {
        let backend = Box::leak(tested.open(Config::default()));
        OpenReaders { backend, readers: BTreeMap::new(), entry: 0 }
    }
}

impl Runner for OpenReaders {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Outcome {
        let Some(name) = &context.prefix else {
            return run_on(self.backend, &mut self.entry, command);
        };
        match command.name.as_str() {
            "open" => drop(self.readers.insert(name.clone(), self.backend.begin_read())),
            "close" => drop(self.readers.remove(name).ok_or("not open")?),
            read => {
                let reader = self.readers.get(name).ok_or("not open")?;
                let typed = typed(command);
                let words: Vec<&str> = typed.iter().map(String::as_str).collect();
                return words::read(&**reader, read, &words);
            }
        }
        Ok(String::new())
    }
}

fn run_all<R: Runner>(
    folder: &str,
    all_tested: &[TestedBackend],
    runner: impl Fn(&TestedBackend) -> R,
) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(folder);
    let mut scripts: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    scripts.sort();
    assert!(scripts.len() > 3, "the scripts are there");
    for script in scripts {
        for tested in all_tested {
            let outcome = goldenscript::run(&mut runner(tested), &script);
            outcome.unwrap_or_else(|error| {
                panic!("{} over {}: {error}", script.display(), tested.name())
            });
        }
    }
}

#[test]
fn sequential_scripts_print_the_same_over_all_eras_and_the_model() {
    for tested in TestedBackend::all() {
        run_all("sequential", &[tested], |tested| {
            // Each script starts on a new engine.
            let fresh = match tested {
                TestedBackend::OfEra(era, _) => TestedBackend::OfEra(*era, memory_engine()),
                TestedBackend::Model(_) => TestedBackend::Model(Arc::default()),
            };
            Sequential::new(fresh)
        });
    }
}

#[test]
fn scripts_with_open_readers_print_the_same_where_readers_may_stay_open() {
    let mut all_tested = TestedBackend::all();
    all_tested.retain(TestedBackend::allows_open_readers);
    assert_eq!(all_tested.len(), 4);
    for tested in all_tested {
        run_all("open_readers", &[tested], |tested| {
            let fresh = match tested {
                TestedBackend::OfEra(era, _) => TestedBackend::OfEra(*era, memory_engine()),
                TestedBackend::Model(_) => TestedBackend::Model(Arc::default()),
            };
            OpenReaders::new(&fresh)
        });
    }
}
