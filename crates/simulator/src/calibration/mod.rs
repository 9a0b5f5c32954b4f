//! What things cost on a machine: measured there, kept in a file.
//!
//! The real server is measured, in each era, with small loads that differ in one thing each; the
//! costs [follow](mod@derive) from processor time, from how long locks are held, and from the disk.
//! How long a read takes beside an expensive one is not among them: that is for the model to
//! predict, and for a [validation](crate::validation) to compare. See `docs/simulator.md`.
//!
//! ```toml
//! machine = "AMD EPYC, 2 cores, Linux 6.18"       # a note for the reader
//! ["3.2"]                                         # an era
//! request_ns = 41_000                             # all of `Costs`, by name
//! log_sync_ns = { mean = 600_000, p99 = 1_900_000 }
//! ```
//!
//! An era that is not in the file costs what the one before it does.

pub mod derive;
mod queue;
pub mod sleep;

use std::collections::BTreeMap;
use std::fmt;

use toml::{Table, Value};

use crate::costs::{CostField, Costs};
use crate::era::{Era, reads_in_pieces};
use crate::spread::Spread;

const SHIPPED: &str = include_str!("../../costs/epyc-2-cores.toml");

/// A member that is alone shows what a turn of raft costs a read only if it takes one: in 3.0 a
/// read goes through the log, and ours asks no member.
const HAS_TURNS: [Era; 4] = [Era::V3_1, Era::V3_2, Era::V3_4, Era::V3_5];

/// What is above or below it is no measured cost: a minute.
const MOST_NS: f64 = 60e9;

/// What things cost on a machine, in each era.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// Which one, in words.
    pub machine: String,
    /// What was measured; at least one.
    pub eras: BTreeMap<Era, Costs>,
}

impl Calibration {
    /// The one that comes with the program.
    ///
    /// # Panics
    ///
    /// Never: a test reads it.
    pub fn shipped() -> Calibration {
        Calibration::parse(SHIPPED).expect("a test reads it")
    }

    /// What things cost in an era.
    pub fn costs(&self, era: Era) -> Costs {
        let before = self.eras.range(..=era).next_back();
        let (_, costs) = before.or(self.eras.iter().next()).expect("there is one");
        costs.clone()
    }

    /// How threads wake for a write, what an entry of the log costs, and how log and backend are
    /// synced is the same in all eras. How an answer is sent and what a commit computes is the same
    /// in all but ours, which sends long answers while it reads, and puts into the file at the end
    /// what others put there as they apply. What has disturbed one era is left out by taking the
    /// middle of all that are alike.
    #[must_use]
    pub fn of_one_machine(mut self) -> Calibration {
        let every: &dyn Fn(Era) -> bool = &|_| true;
        let (of, turn) = (|by: &dyn Fn(&Costs) -> f64| self.middle(every, by), self.turn());
        let (log_sync, commit_sync) = (
            self.middle_spread(every, &|costs| costs.log_sync),
            self.middle_spread(every, &|costs| costs.commit_sync),
        );
        let write_awake_ns = of(&|costs| costs.write_awake_ns as f64) as u64;
        let write_wakeups_ns = of(&|costs| costs.write_wakeups_ns as f64) as u64;
        let committing = [false, true].map(|is_ours| self.committing(is_ours));
        let log_entry_ns = self.log_entry_ns(committing.map(|(_, commit_op_ns, _)| commit_op_ns));
        let log_byte_ns = of(&|costs| costs.log_byte_ns);
        let pool = self.pool();
        let sending = [false, true].map(|in_pieces| self.sending(in_pieces));
        for (era, costs) in &mut self.eras {
            *costs = Costs { log_sync, write_awake_ns, write_wakeups_ns, ..costs.clone() };
            let (commit_ns, commit_op_ns, commit_byte_ns) =
                committing[usize::from(*era == Era::Clearlane)];
            *costs =
                Costs { commit_sync, commit_ns, commit_op_ns, commit_byte_ns, ..costs.clone() };
            *costs = Costs { log_entry_ns, log_byte_ns, ..costs.clone() };
            if let Some((raft_turn_ns, round_wakeups_ns)) = turn {
                let raft_turn_ns = match HAS_TURNS.contains(era) {
                    true => costs.raft_turn_ns,
                    false => raft_turn_ns,
                };
                *costs = Costs { raft_turn_ns, round_wakeups_ns, ..costs.clone() };
            }
            if let Some((pool_ns, pool_wakeups_ns)) = pool {
                *costs = Costs { pool_ns, pool_wakeups_ns, ..costs.clone() };
            }
            let (each, sent_waits) = sending[usize::from(reads_in_pieces(*era))];
            let [sent_record, sent_byte_ns, received_byte_ns] = each;
            let sent_record_ns = sent_record as u64;
            *costs = Costs {
                sent_record_ns,
                sent_byte_ns,
                received_byte_ns,
                sent_waits,
                ..costs.clone()
            };
        }
        self
    }

    /// What a commit computes: at all, for an operation, and for a byte.
    fn committing(&self, ours: bool) -> (u64, u64, f64) {
        let is_one = |era: Era| (era == Era::Clearlane) == ours;
        let of = |by: &dyn Fn(&Costs) -> f64| self.middle(&is_one, by);
        (
            of(&|costs| costs.commit_ns as f64) as u64,
            of(&|costs| costs.commit_op_ns as f64) as u64,
            of(&|costs| costs.commit_byte_ns),
        )
    }

    /// What an entry of the log costs, if a commit takes so much for an operation: by the old eras,
    /// and by ours. What one era gives to the one it has taken from the other, and their sum is
    /// what was seen of a put.
    fn log_entry_ns(&self, commit_op_ns: [u64; 2]) -> u64 {
        let left = |(era, costs): (&Era, &Costs)| {
            let both = costs.log_entry_ns + costs.commit_op_ns;
            both.saturating_sub(commit_op_ns[usize::from(*era == Era::Clearlane)]) as f64
        };
        derive::middle(self.eras.iter().map(left).collect()) as u64
    }

    /// What sending costs, and how long one waits for it.
    fn sending(&self, in_pieces: bool) -> ([f64; 3], Spread) {
        let is_one = |era: Era| reads_in_pieces(era) == in_pieces;
        let of = |by: &dyn Fn(&Costs) -> f64| self.middle(&is_one, by);
        let each = [
            of(&|costs| costs.sent_record_ns as f64),
            of(&|costs| costs.sent_byte_ns),
            of(&|costs| costs.received_byte_ns),
        ];
        if in_pieces {
            return (each, self.middle_spread(&is_one, &|costs| costs.sent_waits));
        }
        // As of a put: what one era sends for less it has waited for, and the sum is what was seen
        // of a long answer.
        let [sent_record, sent_byte_ns, received_byte_ns] = each;
        let sent_record_ns = sent_record as u64;
        let waits = |of: fn(Spread) -> f64| {
            self.middle(&is_one, &|costs| {
                let sends =
                    Costs { sent_record_ns, sent_byte_ns, received_byte_ns, ..costs.clone() };
                let less_ns = derive::in_turn(costs) - derive::in_turn(&sends);
                of(costs.sent_waits) + less_ns / derive::LONG_MIB
            })
        };
        let median_ns = waits(|waits| waits.median_ns()).max(0.0);
        (each, Spread::around(median_ns, waits(|waits| waits.p99_ns.unwrap_or(waits.mean_ns))))
    }

    /// The middle of these eras.
    fn middle(&self, is_one: &dyn Fn(Era) -> bool, by: &dyn Fn(&Costs) -> f64) -> f64 {
        let these = self.eras.iter().filter(|(era, _)| is_one(**era));
        derive::middle(these.map(|(_, costs)| by(costs)).collect())
    }

    fn middle_spread(&self, is_one: &dyn Fn(Era) -> bool, of: &dyn Fn(&Costs) -> Spread) -> Spread {
        let p99 = |costs: &Costs| of(costs).p99_ns.unwrap_or(of(costs).mean_ns);
        let median = self.middle(is_one, &|costs| of(costs).median_ns());
        Spread::around(median, self.middle(is_one, &p99))
    }

    /// What a turn of raft costs a fresh read, in the middle of those eras that take one when they
    /// are alone.
    fn turn(&self) -> Option<(u64, u64)> {
        let is_one = |era: Era| HAS_TURNS.contains(&era);
        self.eras.keys().any(|era| is_one(*era)).then(|| {
            let of = |by: &dyn Fn(&Costs) -> f64| self.middle(&is_one, by) as u64;
            (of(&|costs| costs.raft_turn_ns as f64), of(&|costs| costs.round_wakeups_ns as f64))
        })
    }

    /// And a hand over to a thread of the pool, in those eras that hand over ten keys.
    fn pool(&self) -> Option<(u64, u64)> {
        let is_one = |era: Era| !reads_in_pieces(era);
        self.eras.keys().any(|era| is_one(*era)).then(|| {
            let of = |by: &dyn Fn(&Costs) -> f64| self.middle(&is_one, by) as u64;
            (of(&|costs| costs.pool_ns as f64), of(&|costs| costs.pool_wakeups_ns as f64))
        })
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// In one line: what is wrong, and what is allowed.
    pub fn parse(text: &str) -> Result<Calibration, String> {
        let file: Table = text
            .parse()
            .map_err(|error: toml::de::Error| format!("it is no TOML: {}", error.message()))?;
        let mut calibration = Calibration { machine: String::new(), eras: BTreeMap::new() };
        for (name, value) in &file {
            match (name.as_str(), value) {
                ("machine", Value::String(machine)) => calibration.machine = machine.clone(),
                ("machine", other) => {
                    return Err(format!("`machine` is {other}; it must be a text"));
                }
                (_, Value::Table(table)) => {
                    let era = name.parse::<Era>().map_err(|error| error.to_string())?;
                    let costs = costs(table).map_err(|error| format!("era {era}: {error}"))?;
                    calibration.eras.insert(era, costs);
                }
                _ => {
                    return Err(format!(
                        "unknown field `{name}`; there are `machine`, and a table for each era"
                    ));
                }
            }
        }
        match calibration.eras.is_empty() {
            true => Err("it has no era; there must be a table for at least one".to_owned()),
            false => Ok(calibration),
        }
    }
}

/// Strictly: what is missing would be a guess, and what is misspelt would be missing.
fn costs(table: &Table) -> Result<Costs, String> {
    let mut costs = Costs::BY_HAND;
    let places = costs.fields();
    let names = places.each_ref().map(|(name, _)| *name);
    if let Some(unknown) = table.keys().find(|key| !names.contains(&key.as_str())) {
        return Err(format!("unknown field `{unknown}`; there are {}", names.join(", ")));
    }
    for (name, place) in places {
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
            Err(format!("`impatience` is {share}; it is a share, from 0 to 1"))
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

/// One time, or a mean and a 99th percentile.
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
        false => Err(format!("`{name}` is {value}; p99 must be from the mean to 14.9 times it")),
    }
}

impl fmt::Display for Calibration {
    /// As a file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# What things cost, in nanoseconds: measured by `clearlane-sim calibrate`.")?;
        writeln!(f, "machine = {}", Value::String(self.machine.clone()))?;
        for (era, costs) in &self.eras {
            writeln!(f, "\n[\"{era}\"]")?;
            for (name, place) in costs.clone().fields() {
                match place {
                    CostField::Whole(whole) => writeln!(f, "{name} = {whole}")?,
                    CostField::Part(part) => writeln!(f, "{name} = {part:.4}")?,
                    CostField::Spread(Spread { mean_ns, p99_ns: None }) => {
                        writeln!(f, "{name} = {mean_ns:.0}")?;
                    }
                    CostField::Spread(Spread { mean_ns, p99_ns: Some(p99_ns) }) => {
                        // Rounded so that the one does not go too far from the other.
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

    fn file() -> Calibration {
        let costs = Costs { log_sync: Spread::around(5e5, 2e6), ..Costs::BY_HAND };
        // To the nanosecond, as in the file.
        let whole = |spread: &mut Spread| {
            spread.mean_ns = spread.mean_ns.ceil();
            spread.p99_ns = spread.p99_ns.map(f64::floor);
        };
        let mut costs = costs;
        whole(&mut costs.log_sync);
        let eras = [(Era::V3_2, Costs::BY_HAND), (Era::Clearlane, costs)];
        Calibration { machine: "a \"good\" one".to_owned(), eras: eras.into() }
    }

    #[test]
    fn what_is_written_is_read() {
        let file = file();
        assert_eq!(Calibration::parse(&file.to_string()), Ok(file));
    }

    #[test]
    fn an_era_that_was_not_measured_is_as_the_one_before() {
        let file = file();
        assert_eq!(file.costs(Era::V3_5), file.eras[&Era::V3_2]);
        assert_eq!(file.costs(Era::Clearlane), file.eras[&Era::Clearlane]);
        assert_eq!(file.costs(Era::V3_0), file.eras[&Era::V3_2], "before the first, the first");
    }

    #[test]
    fn what_has_disturbed_one_era_is_left_out() {
        let with = |ns| Costs {
            commit_sync: Spread::around(ns, 2.0 * ns),
            write_wakeups_ns: ns as u64,
            ..Costs::BY_HAND
        };
        let eras = [(Era::V3_2, with(9e9)), (Era::V3_4, with(2e5)), (Era::Clearlane, with(3e5))];
        let calibration =
            Calibration { machine: String::new(), eras: eras.into() }.of_one_machine();
        for costs in calibration.eras.values() {
            assert!((costs.commit_sync.median_ns() - 3e5).abs() < 1.0);
            assert_eq!(costs.write_wakeups_ns, 300_000);
        }
    }

    /// What a put costs is dealt out between the log and a commit, and each of these is what it is
    /// in the middle of those that are alike.
    #[test]
    fn commits_of_ours_are_its_own_and_a_put_costs_what_it_did() {
        let with = |commit_ns, commit_op_ns, both| Costs {
            commit_ns,
            commit_op_ns,
            commit_byte_ns: commit_op_ns as f64,
            log_entry_ns: both - commit_op_ns,
            log_byte_ns: commit_op_ns as f64,
            ..Costs::BY_HAND
        };
        let eras = [
            (Era::V3_1, with(100, 13, 100)),
            (Era::V3_2, with(900, 11, 90)),
            (Era::V3_4, with(200, 12, 95)),
            (Era::Clearlane, with(700, 62, 140)),
        ];
        let calibration =
            Calibration { machine: String::new(), eras: eras.into() }.of_one_machine();
        for (era, costs) in calibration.eras {
            let (commit_ns, commit_op_ns) =
                if era == Era::Clearlane { (700, 62) } else { (200, 12) };
            assert_eq!((costs.commit_ns, costs.commit_op_ns), (commit_ns, commit_op_ns), "{era}");
            assert_eq!(costs.commit_byte_ns, commit_op_ns as f64, "{era}");
            // By themselves they would say 87, 79, 83 and 78, of which 79 is the middle.
            assert_eq!(costs.log_entry_ns, 78, "{era}");
            assert_eq!(costs.log_byte_ns, 12.0, "{era}");
        }
    }

    /// Where what is computed for a long answer was seen as more, less was left for waiting.
    /// Together they take as long.
    #[test]
    fn a_long_answer_takes_what_it_took() {
        let with = |sent_byte_ns, waits_ns| Costs {
            sent_byte_ns,
            sent_waits: Spread::constant(waits_ns),
            ..Costs::BY_HAND
        };
        let eras = [
            (Era::V3_1, with(1.0, 500_000)),
            (Era::V3_2, with(1.4, 80_000)),
            (Era::V3_4, with(1.2, 310_000)),
            (Era::Clearlane, with(2.0, 7_000)),
        ];
        let calibration = Calibration { machine: String::new(), eras: eras.clone().into() };
        let calibration = calibration.of_one_machine();
        for (era, costs) in calibration.eras {
            let expected = if era == Era::Clearlane { (2.0, 7_000.0) } else { (1.2, 290_285.0) };
            let waits_ns = costs.sent_waits.median_ns();
            assert_eq!(costs.sent_byte_ns, expected.0, "{era}");
            // By themselves they would say 500, 80 and 310, of which 310 is the middle.
            assert!((waits_ns - expected.1).abs() < 100.0, "{era}: {waits_ns}");
        }
    }

    #[test]
    fn the_one_that_ships_has_every_era_and_a_name() {
        let shipped = Calibration::shipped();
        assert_eq!(shipped.eras.keys().copied().collect::<Vec<_>>(), Era::ALL);
        assert!(shipped.machine.contains(" cores, "), "{}", shipped.machine);
    }

    #[test]
    fn what_is_reckoned_by_hand_is_in_a_file_too() {
        let file = Calibration::parse(include_str!("../../costs/by-hand.toml"));
        assert_eq!(file.unwrap().costs(Era::Clearlane), Costs::BY_HAND);
    }

    #[test]
    fn what_is_wrong_is_told_in_one_line() {
        let text = file().to_string();
        let told = |text: String| Calibration::parse(&text).unwrap_err();
        let line = |from: &str, to: &str| told(text.replacen(from, to, 1));
        for (error, words) in [
            (told("machine = 3".to_owned()), "`machine` is 3; it must be a text"),
            (told("machine = \"m\"".to_owned()), "it has no era"),
            (told("[\"3.3\"]".to_owned()), "unknown era \"3.3\": allowed are"),
            (told("colour = 3".to_owned()), "unknown field `colour`"),
            (
                line("client_ns", "cleint_ns"),
                "era 3.2: unknown field `cleint_ns`; there are quantum_ns",
            ),
            (line("client_ns = 25000\n", ""), "era 3.2: `client_ns` is missing"),
            (line("25000", "-1"), "`client_ns` is -1; it must be a number from 0 to"),
            (line("25000", "nan"), "`client_ns` is nan"),
            (line("quantum_ns = 3000000", "quantum_ns = 0"), "at least 1"),
            (line("impatience = 0.0000", "impatience = 1.5"), "`impatience` is 1.5; it is a share"),
            (line("p99 = 2", "p99 = 200"), "p99 must be from the mean to 14.9 times it"),
            (line("p99", "p98"), "it must be a number, or { mean"),
        ] {
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }
}
