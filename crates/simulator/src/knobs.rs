//! All settings of a scenario, by name: `model.cores`, `cheap.rate`.
//!
//! A file is read by setting one knob after the other, so a knob on a command line has the same
//! meaning, bounds and errors. A knob has one value, so a distribution has several knobs:
//!
//! ```text
//!   model.sync_ms = 2           the same each time
//!   model.sync_ms.mean = 2      on average, and the percentile stays
//!   model.sync_ms.p99 = 9
//! ```
//!
//! Knobs that contradict each other are an error when the scenario is run, not when one is set.

use std::ops::RangeInclusive;

use clearlane_loadgen::{Error, Result};
use toml::{Table, Value};

use crate::model::Connect;
use crate::scenario::Scenario;
use crate::spread::Spread;

#[derive(Clone, Copy, Debug)]
pub struct Knob {
    pub name: &'static str,
    pub about: &'static str,
    turn: fn(&mut Scenario, &KnobValue<'_>) -> Result<()>,
}

const fn knob(
    name: &'static str,
    about: &'static str,
    turn: fn(&mut Scenario, &KnobValue<'_>) -> Result<()>,
) -> Knob {
    Knob { name, about, turn }
}

/// An hour, the upper bound of all times.
const HOUR_MS: f64 = 3_600_000.0;

const MEMBERS_MAX: u64 = 9;

pub const KNOBS: &[Knob] = &[
    knob("cores", "cores of each machine", |scenario, given| {
        given.whole(1..=1024).map(|value| scenario.cores = value as usize)
    }),
    knob("commit_interval_ms", "between two commits of the backend", |scenario, given| {
        given.ns(0.1..=HOUR_MS).map(|value| scenario.model.commit_interval_ns = value)
    }),
    knob("batch_limit", "so many pending operations are committed at once", |scenario, given| {
        given.whole(1..=1_000_000_000).map(|value| scenario.model.batch_limit = value)
    }),
    knob("apply_gap_max", "puts are refused at such a gap", |scenario, given| {
        given.whole(1..=1_000_000_000).map(|value| scenario.model.apply_gap_max = value)
    }),
    knob("sync_ms", "a sync of the log", |scenario, given| given.spread(&mut scenario.model.sync)),
    knob("commit_sync_ms", "a sync of the backend", |scenario, given| {
        given.spread(&mut scenario.model.commit_sync)
    }),
    knob("members", "members that vote", |scenario, given| {
        given.whole(1..=MEMBERS_MAX).map(|value| scenario.model.members = value as usize)
    }),
    knob("learners", "members that keep the log and do not vote", |scenario, given| {
        given.whole(0..=MEMBERS_MAX).map(|value| scenario.model.learners = value as usize)
    }),
    knob("round_trip_ms", "between any two members", |scenario, given| {
        given.spread(&mut scenario.model.round_trip)
    }),
    knob("round_trips_ms", "between two members, as in round_trips_ms.1-3", |scenario, given| {
        let (pair, part) = given.part.split_once('.').unwrap_or((given.part, ""));
        let numbers = pair.split_once('-').map(|(one, other)| (one.parse(), other.parse()));
        let Some((Ok(one), Ok(other))) = numbers else { return Err(unknown(given.name)) };
        let spread = scenario.model.round_trips.entry((one, other)).or_default();
        KnobValue { part, ..*given }.spread(spread)
    }),
    knob("clients", "where they go: \"leader\" or \"spread\"", |scenario, given| {
        given.whole_of_it()?;
        scenario.model.clients =
            given.one_of(&[("leader", Connect::Leader), ("spread", Connect::Spread)])?;
        Ok(())
    }),
    knob("connect", "where a class goes, as in connect.cheap", |scenario, given| {
        let words = [("leader", Connect::Leader), ("spread", Connect::Spread)];
        let connect = match given.value {
            Value::String(_) => given.one_of(&words)?,
            _ => Connect::Member(
                KnobValue { part: "", ..*given }.whole(1..=2 * MEMBERS_MAX)? as usize
            ),
        };
        scenario.model.connect.insert(given.part.to_owned(), connect);
        Ok(())
    }),
    knob("client_round_trip_ms", "between a client and its member", |scenario, given| {
        given.ns(0.0..=HOUR_MS).map(|value| scenario.model.client_round_trip_ns = value)
    }),
    knob("clients_apart", "clients have machines of their own", |scenario, given| {
        given.truth().map(|value| scenario.model.clients_apart = value)
    }),
    knob("snapshot_count", "entries between two snapshots of the applier", |scenario, given| {
        given.whole(0..=1_000_000_000).map(|value| scenario.model.snapshot_count = Some(value))
    }),
    knob("watchers.synced", "watchers that are notified of each write", |scenario, given| {
        given.whole(0..=1_000_000).map(|value| scenario.model.watchers.synced = value)
    }),
    knob("watchers.lagging", "so many begin behind", |scenario, given| {
        given.whole(0..=100_000).map(|value| scenario.model.watchers.lagging = value)
    }),
    knob("watchers.behind", "by so many revisions", |scenario, given| {
        given.whole(0..=1_000_000_000).map(|value| scenario.model.watchers.behind = value)
    }),
    knob("watchers.every_s", "each time that so much has passed, or once", |scenario, given| {
        given.seconds(&mut scenario.model.watchers.every_ns)
    }),
    knob("compaction.every_s", "between two compactions; 0 is never", |scenario, given| {
        given.seconds(&mut scenario.model.compaction_every_ns)
    }),
    knob("auth.enabled", "each request asks whether it may", |scenario, given| {
        given.truth().map(|value| scenario.model.auth.enabled = value)
    }),
    knob("auth.logins_per_s", "logins with a password", |scenario, given| {
        given.whole_of_it()?;
        scenario.model.auth.logins_per_s = given.number(0.0..=1e6)?;
        Ok(())
    }),
    knob("auth.bcrypt_ms", "to check one", |scenario, given| {
        given.ns(0.0..=HOUR_MS).map(|value| scenario.model.auth.bcrypt_ns = value)
    }),
    knob("auth.inside_lock", "under a lock, whatever the era does", |scenario, given| {
        given.truth().map(|value| scenario.model.auth.inside_lock = Some(value))
    }),
];

#[derive(Clone, Copy)]
struct KnobValue<'v> {
    /// Name in error messages.
    name: &'v str,
    /// What follows the knob's name, such as `mean` in `sync_ms.mean`; or empty.
    part: &'v str,
    value: &'v Value,
}

impl Scenario {
    /// Sets `model.FIELD`, `keys.FIELD`, `CLASS.FIELD`, `seconds` or `seed`. The value has the
    /// syntax of the file; a string needs no quotation marks.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let as_text = || Value::String(value.to_owned());
        let table = format!("value = {value}").parse::<Table>().ok();
        // Refuses a value such as "1\nother = 2".
        let table = table.filter(|table| table.len() == 1);
        let value = table.and_then(|mut table| table.remove("value")).unwrap_or_else(as_text);
        match name.strip_prefix("model.") {
            Some(field) => self.set_model(field, &value),
            None if name == "seed" => {
                let given = KnobValue { name, part: "", value: &value };
                self.seed = given.whole(0..=i64::MAX as u64)?;
                Ok(())
            }
            None => self.workload.set(name, value),
        }
    }

    /// Sets all fields of the table `[model]`.
    pub(crate) fn set_all(&mut self, model: &Table) -> Result<()> {
        model.iter().try_for_each(|(name, value)| self.set_model(name, value))
    }

    fn set_model(&mut self, name: &str, value: &Value) -> Result<()> {
        if let Value::Table(parts) = value {
            let mut parts = parts.iter();
            return parts.try_for_each(|(part, v)| self.set_model(&format!("{name}.{part}"), v));
        }
        let is = |knob: &&Knob| {
            let part = name.strip_prefix(knob.name);
            part.is_some_and(|part| part.is_empty() || part.starts_with('.'))
        };
        // The longest match: `sync_ms` is not `sync`.
        let known = KNOBS.iter().filter(is).max_by_key(|knob| knob.name.len());
        let knob = known.ok_or_else(|| unknown(name))?;
        let part = name[knob.name.len()..].trim_start_matches('.');
        (knob.turn)(self, &KnobValue { name, part, value })
    }
}

fn unknown(name: &str) -> Error {
    let names = KNOBS.iter().map(|knob| knob.name).collect::<Vec<_>>().join(", ");
    Error::Workload(format!("[model]: unknown field `{name}`; there are {names}"))
}

pub(crate) fn wrong(what: impl std::fmt::Display) -> Error {
    Error::Workload(format!("[model]: {what}"))
}

impl KnobValue<'_> {
    fn wrong(&self, must: &str) -> Error {
        wrong(format!("`{}` is {}; it must be {must}", self.name, self.value))
    }

    /// Refuses a part.
    fn whole_of_it(&self) -> Result<()> {
        if self.part.is_empty() { Ok(()) } else { Err(unknown(self.name)) }
    }

    fn whole(&self, bounds: RangeInclusive<u64>) -> Result<u64> {
        self.whole_of_it()?;
        // An integer may be written as 2.0.
        let float = self.value.as_float().filter(|float| float.fract() == 0.0 && *float >= 0.0);
        let whole = self.value.as_integer().and_then(|number| u64::try_from(number).ok());
        let number = whole.or(float.map(|float| float as u64));
        number.filter(|number| bounds.contains(number)).ok_or_else(|| {
            self.wrong(&format!("a whole number from {} to {}", bounds.start(), bounds.end()))
        })
    }

    fn number(&self, bounds: RangeInclusive<f64>) -> Result<f64> {
        let whole = self.value.as_integer().map(|whole| whole as f64);
        let number = self.value.as_float().or(whole).filter(|number| bounds.contains(number));
        number.ok_or_else(|| {
            self.wrong(&format!("a number from {} to {}", bounds.start(), bounds.end()))
        })
    }

    fn one_of<T: Copy>(&self, words: &[(&str, T)]) -> Result<T> {
        let word = words.iter().find(|(word, _)| Some(*word) == self.value.as_str());
        let allowed = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        word.map(|(_, meaning)| *meaning).ok_or_else(|| self.wrong(&allowed()))
    }

    fn truth(&self) -> Result<bool> {
        self.whole_of_it()?;
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    /// From milliseconds.
    fn ns(&self, bounds: RangeInclusive<f64>) -> Result<u64> {
        self.whole_of_it()?;
        Ok((self.number(bounds)? * 1e6) as u64)
    }

    /// An interval in seconds; 0 means never.
    fn seconds(&self, every_ns: &mut u64) -> Result<()> {
        self.whole_of_it()?;
        let seconds = self.number(0.0..=86_400.0)?;
        if seconds > 0.0 && seconds < 0.1 {
            return Err(self.wrong("0 or at least 0.1"));
        }
        *every_ns = (seconds * 1e9) as u64;
        Ok(())
    }

    /// One constant time, or one of the two figures of a distribution.
    fn spread(&self, spread: &mut Option<Spread>) -> Result<()> {
        let ns = self.number(0.0..=HOUR_MS)? * 1e6;
        let so_far = spread.unwrap_or(Spread { mean_ns: ns, p99_ns: None });
        *spread = Some(match self.part {
            "" => Spread { mean_ns: ns, p99_ns: None },
            "mean" => Spread { mean_ns: ns, ..so_far },
            "p99" => Spread { p99_ns: Some(ns), ..so_far },
            _ => return Err(unknown(self.name)),
        });
        Ok(())
    }
}
