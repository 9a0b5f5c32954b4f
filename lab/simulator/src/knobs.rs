//! All settings of a scenario, by name. Examples are `model.cores` and `cheap.rate`.
//!
//! The table `[model]` of a file is read by setting one knob after the other. So a knob on a
//! command line has the same meaning, limits and errors as in a file. Each knob has one value, so a
//! distribution has several knobs:
//!
//! ```text
//!   model.sync_ms = 2           the same each time
//!   model.sync_ms.mean = 2      changes the mean and keeps the percentile
//!   model.sync_ms.p99 = 9
//! ```
//!
//! Knobs that contradict each other are an error when the scenario is checked, not when a knob is
//! set.

use std::ops::RangeInclusive;

use clearlane_loadgen::{Error, Result};
use toml::{Table, Value};

use crate::model::Connect;
use crate::scenario::Scenario;
use crate::spread::Spread;

/// One hour: the upper limit of all times that are given in milliseconds.
const HOUR_MS: f64 = 3_600_000.0;

const MEMBERS_MAX: u64 = 9;

const BILLION: u64 = 1_000_000_000;

/// The name and the meaning of each field of `[model]`.
pub const KNOBS: [(&str, &str); 24] = [
    ("cores", "number of cores of each machine"),
    ("commit_interval_ms", "time between two commits of the backend"),
    ("batch_limit", "number of pending operations at which the backend commits at once"),
    ("apply_gap_max", "puts are rejected while more entries are committed and not applied"),
    ("sync_ms", "time of a sync of the log"),
    ("commit_sync_ms", "time of a sync of the backend"),
    ("members", "number of voting members"),
    ("learners", "number of learners, which keep the log and do not vote"),
    ("round_trip_ms", "round trip between any two members"),
    ("round_trips_ms", "round trip between two members, as in round_trips_ms.1-3"),
    ("clients", "members to which clients connect: \"leader\" or \"spread\""),
    ("connect", "member to which a class connects, as in connect.cheap"),
    ("client_round_trip_ms", "round trip between a client and its member"),
    ("clients_apart", "if true, clients have their own machines"),
    ("snapshot_count", "number of entries between two snapshots of the apply loop"),
    ("watchers.synced", "number of watchers that are notified of each write"),
    ("watchers.lagging", "number of watchers that start at an old revision"),
    ("watchers.behind", "number of revisions by which they lag"),
    ("watchers.every_s", "time after which the next lagging watchers start; 0: only once"),
    ("compaction.every_s", "time between two compactions; 0: no compactions"),
    ("auth.enabled", "if true, each request checks a permission"),
    ("auth.logins_per_s", "number of logins with a password"),
    ("auth.bcrypt_ms", "processor time of a password check"),
    ("auth.inside_lock", "if true, a password check holds a lock; overrides the era"),
];

/// The value that a file or a user sets for a knob.
#[derive(Clone, Copy)]
struct KnobValue<'v> {
    /// The name in error messages.
    name: &'v str,
    /// The part after the knob's name, such as `mean` in `sync_ms.mean`. It may be empty.
    part: &'v str,
    value: &'v Value,
}

impl Scenario {
    /// Sets `model.FIELD`, `keys.FIELD`, `CLASS.FIELD`, `seconds` or `seed`. The value has the
    /// syntax of the file, but a string needs no quotation marks.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let as_text = || Value::String(value.to_owned());
        let table = format!("value = {value}").parse::<Table>().ok();
        // A value such as "1\nother = 2" is read as two entries. It is then treated as text.
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

    /// Sets a field of the table `[model]`.
    pub(crate) fn set_model(&mut self, name: &str, value: &Value) -> Result<()> {
        if let Value::Table(parts) = value {
            let mut parts = parts.iter();
            return parts.try_for_each(|(part, v)| self.set_model(&format!("{name}.{part}"), v));
        }
        let is = |knob: &&str| {
            let part = name.strip_prefix(*knob);
            part.is_some_and(|part| part.is_empty() || part.starts_with('.'))
        };
        // The longest match, because a knob's name may start with the name of another knob.
        let known = KNOBS.into_iter().map(|(knob, _)| knob).filter(is).max_by_key(|it| it.len());
        let knob = known.ok_or_else(|| unknown(name))?;
        let part = name[knob.len()..].trim_start_matches('.');
        self.set_knob(knob, &KnobValue { name, part, value })
    }

    fn set_knob(&mut self, knob: &str, given: &KnobValue<'_>) -> Result<()> {
        const WORDS: &[(&str, Connect)] =
            &[("leader", Connect::Leader), ("spread", Connect::Spread)];
        let Scenario { cores, model, .. } = self;
        let (watchers, auth) = (&mut model.watchers, &mut model.auth);
        match knob {
            "cores" => *cores = given.whole(1..=1024)? as usize,
            "commit_interval_ms" => model.commit_interval_ns = given.ns(0.1..=HOUR_MS)?,
            "batch_limit" => model.batch_limit = given.whole(1..=BILLION)?,
            "apply_gap_max" => model.apply_gap_max = given.whole(1..=BILLION)?,
            "sync_ms" => given.spread(&mut model.sync)?,
            "commit_sync_ms" => given.spread(&mut model.commit_sync)?,
            "members" => model.members = given.whole(1..=MEMBERS_MAX)? as usize,
            "learners" => model.learners = given.whole(0..=MEMBERS_MAX)? as usize,
            "round_trip_ms" => given.spread(&mut model.round_trip)?,
            "round_trips_ms" => {
                let (pair, part) = given.part.split_once('.').unwrap_or((given.part, ""));
                let numbers = pair.split_once('-').map(|(one, other)| (one.parse(), other.parse()));
                let Some((Ok(one), Ok(other))) = numbers else { return Err(unknown(given.name)) };
                let spread = model.round_trips.entry((one, other)).or_default();
                KnobValue { part, ..*given }.spread(spread)?;
            }
            "clients" => {
                given.whole_of_it()?;
                model.clients = given.one_of(WORDS)?;
            }
            "connect" => {
                let number = KnobValue { part: "", ..*given };
                let connect = match given.value {
                    Value::String(_) => given.one_of(WORDS)?,
                    _ => Connect::Member(number.whole(1..=2 * MEMBERS_MAX)? as usize),
                };
                model.connect.insert(given.part.to_owned(), connect);
            }
            "client_round_trip_ms" => model.client_round_trip_ns = given.ns(0.0..=HOUR_MS)?,
            "clients_apart" => model.clients_apart = given.truth()?,
            "snapshot_count" => model.snapshot_count = Some(given.whole(0..=BILLION)?),
            "watchers.synced" => watchers.synced = given.whole(0..=1_000_000)?,
            "watchers.lagging" => watchers.lagging = given.whole(0..=100_000)?,
            "watchers.behind" => watchers.behind = given.whole(0..=BILLION)?,
            "watchers.every_s" => watchers.every_ns = given.seconds()?,
            "compaction.every_s" => model.compaction_every_ns = given.seconds()?,
            "auth.enabled" => auth.enabled = given.truth()?,
            "auth.logins_per_s" => {
                given.whole_of_it()?;
                auth.logins_per_s = given.number(0.0..=1e6)?;
            }
            "auth.bcrypt_ms" => auth.bcrypt_ns = given.ns(0.0..=HOUR_MS)?,
            "auth.inside_lock" => auth.inside_lock = Some(given.truth()?),
            other => unreachable!("{other} is in the table"),
        }
        Ok(())
    }
}

fn unknown(name: &str) -> Error {
    let names = KNOBS.map(|(name, _)| name).join(", ");
    Error::Workload(format!("[model]: unknown field `{name}`; known are {names}"))
}

pub(crate) fn wrong(what: impl std::fmt::Display) -> Error {
    Error::Workload(format!("[model]: {what}"))
}

impl KnobValue<'_> {
    fn wrong(&self, must: &str) -> Error {
        wrong(format!("`{}` is {}; it must be {must}", self.name, self.value))
    }

    /// Fails if the knob has a part after its name.
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

    /// Returns the knob's value, converted from milliseconds to nanoseconds.
    fn ns(&self, bounds: RangeInclusive<f64>) -> Result<u64> {
        self.whole_of_it()?;
        Ok((self.number(bounds)? * 1e6) as u64)
    }

    /// Returns the knob's value, an interval, converted from seconds to nanoseconds. [`KNOBS`]
    /// explains what the value 0 means.
    fn seconds(&self) -> Result<u64> {
        self.whole_of_it()?;
        match self.number(0.0..=86_400.0)? {
            seconds if seconds > 0.0 && seconds < 0.1 => Err(self.wrong("0 or at least 0.1")),
            seconds => Ok((seconds * 1e9) as u64),
        }
    }

    /// Sets one constant time, or one of the two figures of a distribution.
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
