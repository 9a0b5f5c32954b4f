//! The settings of a run, from the environment and from criterion's arguments.

use std::fmt;
use std::time::Duration;

use clearlane_backend::Era;
use clearlane_engine::EngineKind;

use crate::group_name;
use crate::load::{Class, Load};

/// The settings of one run. They are read from these environment variables: `CLEARLANE_ERAS` (such
/// as `3.2,clearlane`), `CLEARLANE_ENGINE` (default: `bolt`), `CLEARLANE_REPETITIONS` (default: 5),
/// `CLEARLANE_WINDOW_MS` (default: 1600), `CLEARLANE_READ_MS` (default: 30), and
/// `CLEARLANE_READ_RECORDS`, which sets the number of records of an expensive read instead of its
/// time. With `CLEARLANE_TIMELINES=1`, each era's first window with the expensive read is recorded
/// into `timeline-ERA.jsonl` next to the summary, for `clearlane-sim show`. The latencies of a
/// recorded window are a little higher.
#[derive(Debug)]
pub(crate) struct BenchConfig {
    pub(crate) eras: Vec<Era>,
    pub(crate) engine: EngineKind,
    pub(crate) repetitions: usize,
    pub(crate) window: Duration,
    /// Number of records in the store before the first window.
    pub(crate) records: u64,
    pub(crate) expensive_read: ExpensiveRead,
    /// If true, a timeline is recorded of each era's first window with the expensive read.
    pub(crate) timelines: bool,
    /// If true, the run only checks that everything works (`--test`).
    pub(crate) quick: bool,
    /// If true, the command line has options of criterion, so criterion also makes its report.
    pub(crate) for_criterion: bool,
    filter: Option<String>,
    list: bool,
}

impl BenchConfig {
    /// Reads the settings. An error names the wrong value and the allowed values.
    pub(crate) fn read() -> Result<BenchConfig, String> {
        let arguments: Vec<String> =
            std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
        let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
        let quick = has("--test");
        let eras = match variable("CLEARLANE_ERAS") {
            Some(names) => names.split(',').map(parse_era).collect::<Result<_, _>>()?,
            None => Era::DISTINCT_STORES.to_vec(),
        };
        let engine = variable("CLEARLANE_ENGINE").unwrap_or_else(|| "bolt".to_owned());
        let window = number("CLEARLANE_WINDOW_MS", if quick { 40 } else { 1_600 })?;
        Ok(BenchConfig {
            eras,
            engine: engine.parse().map_err(|error: clearlane_engine::Error| error.to_string())?,
            repetitions: number("CLEARLANE_REPETITIONS", if quick { 1 } else { 5 })? as usize,
            window: Duration::from_millis(window),
            records: if quick { 1_000 } else { 40_000 },
            expensive_read: ExpensiveRead::read(quick)?,
            timelines: number("CLEARLANE_TIMELINES", u64::from(quick))? > 0,
            quick,
            for_criterion: arguments.iter().any(|word| word.starts_with('-') && word != "--bench"),
            filter: filter_of(&arguments),
            list: has("--list"),
        })
    }

    /// Returns whether criterion's options select something that this bench measures.
    pub(crate) fn is_selected(&self) -> bool {
        let groups =
            || Class::ALL.iter().flat_map(|class| Load::ALL.map(|load| group_name(*class, load)));
        let names =
            || groups().flat_map(|group| self.eras.iter().map(move |d| format!("{group}/{d}")));
        let asked = self.filter.as_deref().is_none_or(|filter| names().any(|n| n.contains(filter)));
        asked && !self.list
    }
}

/// The size of an expensive read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ExpensiveRead {
    /// The read has as many records as an idle store of the era can return in this time. A faster
    /// engine reads more records, so each engine's read holds its lock for the same time.
    Takes(Duration),
    Records(u64),
}

/// Default duration of an expensive read, in milliseconds. etcd 3.2.32 on two cores holds `readTx`
/// for about this time to read 20,000 records of 1 KiB.
const READ_MS: u64 = 30;

impl ExpensiveRead {
    fn read(quick: bool) -> Result<ExpensiveRead, String> {
        let takes = Duration::from_millis(number("CLEARLANE_READ_MS", READ_MS)?);
        let is_fixed = quick || variable("CLEARLANE_READ_RECORDS").is_some();
        let records = number("CLEARLANE_READ_RECORDS", 500)?;
        Ok(if is_fixed { ExpensiveRead::Records(records) } else { ExpensiveRead::Takes(takes) })
    }
}

impl fmt::Display for ExpensiveRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExpensiveRead::Takes(time) => write!(f, "for {} ms", time.as_millis()),
            ExpensiveRead::Records(records) => write!(f, "{records} records"),
        }
    }
}

/// Criterion's flags that have no value. After any other flag, the next word is its value.
const FLAGS: [&str; 9] = [
    "--bench",
    "--test",
    "--list",
    "--quiet",
    "--verbose",
    "--noplot",
    "--discard-baseline",
    "--quick",
    "--exact",
];

/// Returns criterion's filter: the first argument that is neither a flag nor the value of a flag.
/// `None` if there is no filter.
fn filter_of(arguments: &[String]) -> Option<String> {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if !word.starts_with('-') {
            return Some(word.clone());
        }
        if !FLAGS.contains(&word.as_str()) && !word.contains('=') && word != "-n" {
            words.next();
        }
    }
    None
}

fn variable(name: &str) -> Option<String> {
    let text = std::env::var_os(name)?.to_string_lossy().into_owned();
    Some(text).filter(|text| !text.is_empty())
}

fn parse_era(name: &str) -> Result<Era, String> {
    name.trim().parse().map_err(|error: clearlane_backend::Error| error.to_string())
}

fn number(name: &str, default: u64) -> Result<u64, String> {
    let Some(text) = variable(name) else { return Ok(default) };
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("{name}={text}: a whole number above 0 is expected")),
    }
}
