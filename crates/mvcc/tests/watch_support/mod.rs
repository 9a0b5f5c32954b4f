//! A runner for golden scripts for watching. Examples of commands: `stream s`, `put a 1`,
//! `s: watch a c start=2`, `s: take`.
//!
//! Until a script runs `hold`, each command ends by delivering everything and syncing all watchers.
//! After `hold`, the script must do this with `publish`, `deliver` and `catch_up`. (In the old eras
//! `publish` does nothing: the end of a write transaction notifies the synced watchers.)
//!
//! `s: take` shows each response. `s: tally` takes the responses that are available, and `s: drain`
//! takes responses until no more arrive. For the events of a watcher, `tally` and `drain` print
//! only their number, and the first and last revision.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_backend::Era;
use clearlane_backend::{Config, PreCommit};
use clearlane_contention::Registry;
use clearlane_engine::{KeyRange, MemoryEngine};
use clearlane_mvcc::watch::{
    CurrentWatchableStore, Event, INVALID_WATCH_ID, Response, ResponseKind, WakeSet, WatchConfig,
    WatchId, WatchRequest, WatchStream, WatchableStore, WatchedKeys,
};
use clearlane_mvcc::{Change, Changes, StoreConfig, WatchableKv, open};
use goldenscript::{Argument, Command, Context, Runner};

type Outcome = Result<String, Box<dyn Error>>;

pub(crate) struct WatchRunner {
    era: Era,
    locks: Registry,
    store: Arc<dyn WatchableKv<()>>,
    watchable_store: Arc<dyn WatchableStore>,
    streams: BTreeMap<String, WatchStream>,
    /// Changes that have been written but not published. Empty unless the script holds publishing.
    unpublished: Vec<(i64, Changes)>,
    is_publishing_held: bool,
}

/// Checks that no lock is held when a thread is woken. (A script runs on one thread, so any held
/// lock belongs to the thread that wakes.)
fn unlocked(locks: &Registry) -> impl Fn() + Send + Sync + 'static {
    let locks = locks.clone();
    move || assert_eq!(locks.holding(), [], "held while a thread is woken")
}

impl WatchRunner {
    pub(crate) fn new(era: Era) -> WatchRunner {
        WatchRunner::with(era, WatchConfig::default())
    }

    fn with(era: Era, config: WatchConfig) -> WatchRunner {
        let locks = Registry::new();
        let of_backend = Config { locks: locks.clone(), ..Config::default() };
        let engine = Arc::new(MemoryEngine::new());
        let store_config = StoreConfig::new(engine, of_backend, PreCommit::none(), ());
        let store: Arc<dyn WatchableKv<()>> =
            Arc::from(open(era, store_config).expect("an empty engine opens").0);
        let wake = unlocked(&locks);
        let watchable =
            Arc::clone(&store).open_watchable_store(config, &locks, Box::new(move |_| wake()));
        let (streams, unpublished) = (BTreeMap::new(), Vec::new());
        WatchRunner {
            era,
            locks,
            store,
            watchable_store: watchable,
            streams,
            unpublished,
            is_publishing_held: false,
        }
    }

    /// Makes 1,100 puts for a client that reads nothing. Returns the number of responses that are
    /// then in its channel.
    pub(crate) fn responses_of_a_full_channel(mut self) -> usize {
        let stream = WatchStream::open(
            CurrentWatchableStore::of(Arc::clone(&self.watchable_store)),
            WakeSet::new(|| {}),
        );
        stream.watch(WatchRequest::new(WatchedKeys::From(Bytes::new())));
        self.puts("a", 1100).expect("nothing is in its way");
        stream.take_responses(usize::MAX).unwrap().len()
    }

    fn txn(&mut self, operations: &[Vec<&str>]) -> Outcome {
        let mut txn = self.store.begin_write()?;
        for operation in operations {
            match operation[..] {
                ["put", key, value] => txn.put(key.as_bytes(), value.as_bytes(), 0)?,
                ["del", key] => {
                    let end = [key.as_bytes(), b"\0"].concat();
                    txn.delete_range(KeyRange::new(key.as_bytes(), &end)).map(drop)?;
                }
                ["del", from, end] => {
                    txn.delete_range(KeyRange::new(from.as_bytes(), end.as_bytes())).map(drop)?;
                }
                _ => return Err(format!("no operation {operation:?}").into()),
            }
        }
        let ended = txn.end(())?;
        self.unpublished.push((ended.revision, ended.changes));
        if !self.is_publishing_held {
            self.publish();
        }
        Ok(format!("rev={}\n", ended.revision))
    }

    /// Puts one key several times, each in a transaction. Returns the last revision.
    fn puts(&mut self, key: &str, count: u64) -> Outcome {
        let mut last = String::new();
        for number in 1..=count {
            last = self.txn(&[vec!["put", key, &number.to_string()]])?;
        }
        Ok(last)
    }

    fn publish(&mut self) {
        for (revision, changes) in self.unpublished.drain(..) {
            self.watchable_store.publish_all(vec![(revision, changes)]);
        }
    }

    fn settle(&self) -> Outcome {
        while self.watchable_store.deliver()? {}
        while self.watchable_store.sync_watchers()? {}
        Ok(String::new())
    }

    fn compact(&mut self, at: i64) -> Outcome {
        let (mut job, ended) = self.store.compact(at, ())?;
        drop(ended);
        while !self.store.compact_step(&mut job, 100)? {}
        Ok(String::new())
    }

    fn drain(&self, stream: &WatchStream) -> Outcome {
        let mut all = Vec::new();
        loop {
            let taken = stream.take_responses(usize::MAX).unwrap();
            if taken.is_empty() {
                return tally(&all);
            }
            all.extend(taken);
            self.settle()?;
        }
    }

    fn stream(&mut self, name: &str, command: &Command) -> Outcome {
        let stream = self.streams.get(name).ok_or("no such stream")?;
        match command.name.as_str() {
            "watch" => stream.watch(request(command)?),
            "cancel" => stream.cancel(words(command)[0].parse()?),
            "progress" => stream.request_progress(),
            "interval" => stream.notify_progress(),
            "close" => drop(self.streams.remove(name)),
            "take" => {
                let bytes = words(command).first().map_or(Ok(usize::MAX), |max| max.parse())?;
                return Ok(stream.take_responses(bytes).unwrap().iter().map(show).collect());
            }
            "tally" => return tally(&stream.take_responses(usize::MAX).unwrap()),
            "drain" => return self.drain(stream),
            other => return Err(format!("no command {other:?} of a stream").into()),
        }
        Ok(String::new())
    }
}

fn words(command: &Command) -> Vec<&str> {
    let positional = command.args.iter().filter_map(|argument| match argument {
        Argument::Positional(word) => Some(word.as_str()),
        _ => None,
    });
    positional.collect()
}

fn option(command: &Command, name: &str) -> Result<Option<i64>, Box<dyn Error>> {
    let found = command.args.iter().find_map(|argument| match argument {
        Argument::KeyValue(key, value) if key == name => Some(value.parse()),
        _ => None,
    });
    Ok(found.transpose()?)
}

/// Parses a request: `a` is a single key, `a c` a range, `a -` all keys from `a` on. Without words,
/// the request is for all keys.
fn request(command: &Command) -> Result<WatchRequest, Box<dyn Error>> {
    let words = words(command);
    let bytes = |word: &str| Bytes::copy_from_slice(word.as_bytes());
    let flags = ["previous", "no_put", "no_delete", "notify", "fragment", "refused"];
    let (flagged, keys): (Vec<&str>, Vec<&str>) =
        words.into_iter().partition(|word| flags.contains(word));
    let keys = match keys[..] {
        [] => WatchedKeys::From(bytes("")),
        [key] => WatchedKeys::Single(bytes(key)),
        [from, "-"] => WatchedKeys::From(bytes(from)),
        [from, end, ..] => WatchedKeys::Range(bytes(from), bytes(end)),
    };
    let has = |flag: &str| flagged.contains(&flag);
    Ok(WatchRequest {
        keys,
        start_revision: option(command, "start")?.unwrap_or(0),
        id: option(command, "id")?.unwrap_or(0),
        no_put: has("no_put"),
        no_delete: has("no_delete"),
        prev_kv: has("previous"),
        progress_notify: has("notify"),
        fragment: has("fragment"),
        is_refused: has("refused"),
    })
}

fn show(response: &Response) -> String {
    let Response { id, revision, kind: says } = response;
    let mut out = format!("{id} ");
    match says {
        ResponseKind::Created => out += "created",
        ResponseKind::Rejected(refusal) => out += &format!("refused: {refusal}"),
        ResponseKind::Canceled => out += "canceled",
        ResponseKind::Compacted(compacted) => out += &format!("compacted={compacted}"),
        ResponseKind::Progress => out += "progress",
        ResponseKind::Events { events, fragment } => {
            out += if *fragment { "events (may be cut)" } else { "events" };
            let _ = writeln!(out, " rev={revision}");
            events.iter().for_each(|event| out += &show_event(event));
            return out;
        }
    }
    out + &format!(" rev={revision}\n")
}

/// Shows responses. Consecutive events of a watcher are shown as one line, unless another response
/// for this watcher arrives between them. Fails if the revisions of a watcher's events are not in
/// ascending order.
fn tally(responses: &[Response]) -> Outcome {
    let mut out = String::new();
    let mut untold: BTreeMap<WatchId, Vec<i64>> = BTreeMap::new();
    for response in responses {
        let ResponseKind::Events { events, .. } = &response.kind else {
            if response.id == INVALID_WATCH_ID {
                out += &show_revisions(&std::mem::take(&mut untold));
            } else {
                out += &show_revisions(&untold.remove_entry(&response.id).into_iter().collect());
            }
            out += &show(response);
            continue;
        };
        let revisions = untold.entry(response.id).or_default();
        for event in events.iter() {
            let (Change::Put(record) | Change::Delete(record)) = &event.change;
            if revisions.last().is_some_and(|last| *last >= record.mod_revision) {
                return Err(format!("{} comes after {revisions:?}", show(response)).into());
            }
            revisions.push(record.mod_revision);
        }
    }
    Ok(out + &show_revisions(&untold))
}

fn show_revisions(untold: &BTreeMap<WatchId, Vec<i64>>) -> String {
    let line = |(id, revisions): (&WatchId, &Vec<i64>)| {
        let (first, last) = (revisions[0], revisions[revisions.len() - 1]);
        format!("{id} events: {}, of revisions {first} to {last}\n", revisions.len())
    };
    untold.iter().map(line).collect()
}

fn show_event(event: &Event) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut out = match &event.change {
        Change::Put(kv) => format!(
            "  put {}={} create={} mod={} version={}",
            text(&kv.key),
            text(&kv.value),
            kv.create_revision,
            kv.mod_revision,
            kv.version
        ),
        Change::Delete(kv) => format!("  delete {} mod={}", text(&kv.key), kv.mod_revision),
    };
    if let Some(kv) = &event.prev_kv {
        let _ = write!(out, " previous={} mod={}", text(&kv.value), kv.mod_revision);
    }
    out + "\n"
}

impl Runner for WatchRunner {
    type Command = Command;

    fn run(&mut self, command: &Command, context: &Context) -> Outcome {
        if let Some(name) = &context.prefix {
            return self.stream(name, command);
        }
        let words = words(command);
        match command.name.as_str() {
            // Creates a new store with the given limits.
            "bounds" => {
                let bound =
                    |name| Ok::<_, Box<dyn Error>>(option(command, name)?.map(|b| b as usize));
                let usual = WatchConfig::default();
                let config = WatchConfig {
                    stream_bytes_max: bound("stream")?.unwrap_or(usual.stream_bytes_max),
                    queue_bytes_max: bound("queue")?.unwrap_or(usual.queue_bytes_max),
                    sync_step_records: bound("records")?.unwrap_or(usual.sync_step_records),
                    sync_step_bytes: bound("bytes")?.unwrap_or(usual.sync_step_bytes),
                };
                *self = WatchRunner::with(self.era, config);
                Ok(String::new())
            }
            "stream" => {
                let stream = WatchStream::open(
                    CurrentWatchableStore::of(Arc::clone(&self.watchable_store)),
                    WakeSet::new(unlocked(&self.locks)),
                );
                self.streams.insert(words[0].to_owned(), stream);
                Ok(String::new())
            }
            "put" | "del" => self.txn(&[[&[command.name.as_str()][..], &words].concat()]),
            "puts" => self.puts(words[0], words[1].parse()?),
            "txn" => {
                let split = |operation| str::split_whitespace(operation).collect();
                let operations: Vec<Vec<&str>> = words.iter().copied().map(split).collect();
                self.txn(&operations)
            }
            "compact" => self.compact(words[0].parse()?),
            "hold" => {
                self.is_publishing_held = true;
                Ok(String::new())
            }
            "publish" => {
                self.publish();
                Ok(String::new())
            }
            "deliver" => Ok(format!("more={}\n", self.watchable_store.deliver()?)),
            "catch_up" => Ok(format!("more={}\n", self.watchable_store.sync_watchers()?)),
            "settle" => self.settle(),
            "metrics" => Ok(format!("{:?}\n", self.watchable_store.metrics())),
            other => Err(format!("no command {other:?}").into()),
        }
    }

    fn end_command(&mut self, _: &Command, _: &Context) -> Outcome {
        if self.is_publishing_held { Ok(String::new()) } else { self.settle() }
    }
}
