//! The costs of a machine, in a file.
//!
//! ```toml
//! machine = "AMD EPYC, 2 cores, Linux 6.18"       # a note for the reader
//! ["3.2"]                                         # an era
//! request_ns = 41_000                             # and each other field of `Costs`, by name
//! log_sync_ns = { mean = 600_000, p99 = 1_900_000 }
//! ```
//!
//! An era that is not in the file has the costs of the closest era before it. If there is none, it
//! has the costs of the first era in the file. The program includes a file that was measured on one
//! machine. `clearlane-sim measure` writes a file for the machine on which it runs.

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use crate::costs::{CostField, Costs};
use crate::era::Era;
use crate::spread::{P99_MAX, Spread};

const SHIPPED: &str = include_str!("../costs/epyc-2-cores.toml");

/// One minute. A larger cost is rejected as a mistake in the file.
const MOST_NS: f64 = 60e9;

#[derive(Clone, Debug, PartialEq)]
pub struct CostFile {
    /// A description of the machine. `validate` warns if it runs on a different machine.
    pub machine: String,
    /// The costs of each era. There is at least one era.
    pub eras: BTreeMap<Era, Costs>,
}

impl CostFile {
    /// Returns the costs that are included in the program.
    ///
    /// # Panics
    ///
    /// Never panics, because a test reads the included file.
    pub fn shipped() -> CostFile {
        CostFile::parse(SHIPPED).expect("a test reads it")
    }

    /// Returns the costs of the era. If it was not measured, returns the costs of the closest era
    /// before it, or else of the first era in the file.
    pub fn costs(&self, era: Era) -> Costs {
        let before = self.eras.range(..=era).next_back();
        let (_, costs) = before.or(self.eras.iter().next()).expect("there is one");
        costs.clone()
    }

    /// # Errors
    ///
    /// The error is one line. It names the mistake and the allowed values.
    pub fn parse(text: &str) -> Result<CostFile, String> {
        let tables: Table = text
            .parse()
            .map_err(|error: toml::de::Error| format!("not TOML: {}", error.message()))?;
        let mut file = CostFile { machine: String::new(), eras: BTreeMap::new() };
        for (name, value) in &tables {
            match (name.as_str(), value) {
                ("machine", Value::String(machine)) => file.machine = machine.clone(),
                ("machine", other) => {
                    return Err(format!("`machine` is {other}; it must be a string"));
                }
                (_, Value::Table(table)) => {
                    let era = name.parse::<Era>().map_err(|error| error.to_string())?;
                    let costs = costs(table).map_err(|error| format!("era {era}: {error}"))?;
                    file.eras.insert(era, costs);
                }
                _ => {
                    return Err(format!(
                        "unknown field `{name}`; known are `machine`, and a table for each era"
                    ));
                }
            }
        }
        match file.eras.is_empty() {
            true => Err("there is no era; at least one table of an era is needed".to_owned()),
            false => Ok(file),
        }
    }
}

impl Costs {
    /// Returns round numbers for examples that are calculated by hand.
    ///
    /// # Panics
    ///
    /// Never panics, because tests call this function.
    pub fn by_hand() -> Costs {
        let file = CostFile::parse(include_str!("../costs/by-hand.toml"));
        file.expect("tests call it").costs(Era::V3_2)
    }
}

/// Reads the costs of an era. Missing and unknown names are errors.
fn costs(table: &Table) -> Result<Costs, String> {
    let mut costs = Costs::default();
    let places = costs.fields();
    let names: Vec<&str> = places.iter().map(|(name, ..)| *name).collect();
    if let Some(unknown) = table.keys().find(|key| !names.contains(&key.as_str())) {
        return Err(format!("unknown field `{unknown}`; known are {}", names.join(", ")));
    }
    for (name, _, place) in places {
        let value = table.get(name).ok_or_else(|| format!("`{name}` is missing"))?;
        match place {
            CostField::Whole(whole) => *whole = number(name, value)? as u64,
            CostField::Part(part) => *part = number(name, value)?,
            CostField::Spread(spread) => *spread = a_spread(name, value)?,
        }
    }
    let Costs { quantum_ns, impatience, .. } = costs;
    match (quantum_ns, impatience) {
        (0, _) => Err("`quantum_ns` is 0; it must be at least 1".to_owned()),
        (_, share) if share > 1.0 => {
            Err(format!("`impatience` is {share}; it must be from 0 to 1"))
        }
        _ => Ok(costs),
    }
}

fn number(name: &str, value: &Value) -> Result<f64, String> {
    let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
    number.filter(|ns| (0.0..=MOST_NS).contains(ns)).ok_or_else(|| {
        format!("`{name}` is {value}; it must be a number from 0 to {MOST_NS}, in nanoseconds")
    })
}

/// Reads a number, or a table with a mean and a 99th percentile.
fn a_spread(name: &str, value: &Value) -> Result<Spread, String> {
    let Value::Table(table) = value else {
        return Ok(Spread { mean_ns: number(name, value)?, p99_ns: None });
    };
    let wrong =
        || format!("`{name}` is {value}; it must be a number, or {{ mean = ..., p99 = ... }}");
    let (Some(mean), Some(p99), 2) = (table.get("mean"), table.get("p99"), table.len()) else {
        return Err(wrong());
    };
    let spread = Spread { mean_ns: number(name, mean)?, p99_ns: Some(number(name, p99)?) };
    match spread.is_possible() {
        true => Ok(spread),
        false => {
            Err(format!("`{name}` is {value}; p99 must be from the mean to {P99_MAX} times it"))
        }
    }
}

impl fmt::Display for CostFile {
    /// Writes the costs in the file's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Costs in nanoseconds, as `clearlane-sim measure` has measured them.")?;
        writeln!(f, "machine = {}", Value::String(self.machine.clone()))?;
        for (era, costs) in &self.eras {
            writeln!(f, "\n[\"{era}\"]")?;
            for (name, _, place) in costs.clone().fields() {
                match place {
                    CostField::Whole(whole) => writeln!(f, "{name} = {whole}")?,
                    CostField::Part(part) => writeln!(f, "{name} = {part:.4}")?,
                    CostField::Spread(Spread { mean_ns, p99_ns: None }) => {
                        writeln!(f, "{name} = {mean_ns:.0}")?;
                    }
                    CostField::Spread(Spread { mean_ns, p99_ns: Some(p99_ns) }) => {
                        // The mean is rounded up and p99 is rounded down, so that their ratio does
                        // not exceed its limit.
                        let (mean, p99) = (mean_ns.ceil(), p99_ns.floor().max(mean_ns.ceil()));
                        writeln!(f, "{name} = {{ mean = {mean}, p99 = {p99} }}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> CostFile {
        let log_sync = Spread { mean_ns: 6e5, p99_ns: Some(2e6) };
        let costs = Costs { log_sync, ..Costs::by_hand() };
        let eras = [(Era::V3_2, Costs::by_hand()), (Era::Clearlane, costs)];
        CostFile { machine: "a \"good\" one".to_owned(), eras: eras.into() }
    }

    #[test]
    fn what_is_written_is_read() {
        let file = file();
        assert_eq!(CostFile::parse(&file.to_string()), Ok(file));
    }

    #[test]
    fn an_era_that_was_not_measured_is_as_the_one_before() {
        let file = file();
        assert_eq!(file.costs(Era::V3_5), file.eras[&Era::V3_2]);
        assert_eq!(file.costs(Era::Clearlane), file.eras[&Era::Clearlane]);
        assert_eq!(file.costs(Era::V3_0), file.eras[&Era::V3_2], "before the first, the first");
    }

    #[test]
    fn the_one_that_ships_has_every_era_and_a_name() {
        let shipped = CostFile::shipped();
        assert_eq!(shipped.eras.keys().copied().collect::<Vec<_>>(), Era::ALL);
        assert!(shipped.machine.contains(" cores, "), "{}", shipped.machine);
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line() {
        let text = file().to_string();
        let told = |text: String| CostFile::parse(&text).unwrap_err();
        let line = |from: &str, to: &str| told(text.replacen(from, to, 1));
        for (error, words) in [
            (told("machine = 3".to_owned()), "`machine` is 3; it must be a string"),
            (told("machine = \"m\"".to_owned()), "there is no era"),
            (told("[\"3.9\"]".to_owned()), "unknown era \"3.9\": allowed are"),
            (told("colour = 3".to_owned()), "unknown field `colour`"),
            (
                line("client_ns", "cleint_ns"),
                "era 3.2: unknown field `cleint_ns`; known are quantum_ns",
            ),
            (line("client_ns = 25000\n", ""), "era 3.2: `client_ns` is missing"),
            (line("25000", "-1"), "`client_ns` is -1; it must be a number from 0 to"),
            (line("25000", "nan"), "`client_ns` is nan"),
            (line("quantum_ns = 3000000", "quantum_ns = 0"), "at least 1"),
            (
                line("impatience = 0.0000", "impatience = 1.5"),
                "`impatience` is 1.5; it must be from 0",
            ),
            (line("p99 = 2", "p99 = 200"), "p99 must be from the mean to 14.9 times it"),
            (line("p99", "p98"), "it must be a number, or { mean"),
        ] {
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }
}
