//! A scenario: a workload of [`clearlane_loadgen`], and a machine.
//!
//! The load driver and the model read the same file. In both, requests are due at the same times.
//! Their sizes have the same mean, but the model has no keys. The driver ignores the table of the
//! machine, [`model`](crate::model).

use clearlane_contention::TaskLabel;
use clearlane_loadgen::Result;
use clearlane_loadgen::arrivals::Schedule;
use clearlane_loadgen::keys::{KeySpace, Sizes};
use clearlane_loadgen::workload::{Class as Load, Operation, Workload};
use toml::{Table, Value};

use crate::Rng;
use crate::knobs::wrong;
use crate::model::{Connect, Model};
use crate::recorder::Recorded;
use crate::requests::{Range, Request, Write};
use crate::spread::{P99_MAX, Spread};

/// Approximate size of a record without key and value.
const RECORD_REST_BYTES: u64 = 24;

#[derive(Clone, Debug)]
pub struct Scenario {
    pub workload: Workload,
    /// Number of cores of each machine. Clients share them unless they have their own machines.
    pub cores: usize,
    /// Determines all random numbers of a run: the times and sizes of requests, the times of syncs
    /// and messages, and others.
    pub seed: u64,
    pub recorded: Recorded,
    pub model: Model,
}

impl Scenario {
    /// Reads a scenario. The file has a workload, and may have a table `[model]`.
    pub fn parse(text: &str) -> Result<Scenario> {
        let mut scenario = Scenario {
            workload: Workload::parse(text)?,
            cores: 2,
            seed: 1,
            recorded: Recorded::Nothing,
            model: Model::default(),
        };
        let file: Table = text.parse().expect("it was read as a workload");
        match file.get("model") {
            None => {}
            Some(Value::Table(model)) => {
                model.iter().try_for_each(|(name, value)| scenario.set_model(name, value))?;
            }
            Some(_) => return Err(wrong("`model` must be a table, [model]")),
        }
        scenario.check()?;
        Ok(scenario)
    }

    /// Checks that the knobs fit together, and that the model can do everything in the workload.
    pub fn check(&self) -> Result<()> {
        let model = &self.model;
        for class in &self.workload.classes {
            let remedy = match class.operation {
                Operation::Watch { .. } => "use `watchers` of [model]",
                Operation::Lease { .. } => "the model has no leases",
                Operation::Authenticate => "use `auth.logins_per_s` of [model]",
                _ => continue,
            };
            let (name, operation) = (&class.name, class.operation.name());
            let what = format!("class \"{name}\": the model cannot send `{operation}` requests");
            return Err(wrong(format!("{what}; {remedy}")));
        }
        check_spread("sync_ms", model.sync)?;
        check_spread("commit_sync_ms", model.commit_sync)?;
        check_spread("round_trip_ms", model.round_trip)?;
        let count = model.members + model.learners;
        if model.auth.logins_per_s > 0.0 && !model.auth.enabled {
            return Err(wrong("`auth.logins_per_s`: logins need `auth.enabled = true`"));
        }
        for ((one, other), spread) in &model.round_trips {
            let name = format!("round_trips_ms.{one}-{other}");
            if *one == 0 || one >= other || *other > count {
                return Err(wrong(format!(
                    "`{name}` is not a pair of members 1 to {count}, the smaller one first"
                )));
            }
            check_spread(&name, *spread)?;
        }
        model.connect.iter().try_for_each(|(class, connect)| self.check_connect(class, *connect))
    }

    fn check_connect(&self, name: &str, connect: Connect) -> Result<()> {
        let Model { members, learners, .. } = self.model;
        let wrong = |why: String| Err(wrong(format!("`connect.{name}`: {why}")));
        let Some(class) = self.workload.classes.iter().find(|class| class.name == name) else {
            let classes = self.workload.classes.iter().map(|class| class.name.as_str());
            let classes = classes.collect::<Vec<_>>().join(", ");
            return wrong(format!("unknown class; known are {classes}"));
        };
        let Connect::Member(number) = connect else { return Ok(()) };
        if number > members + learners {
            return wrong(format!(
                "the cluster has only {members} members and {learners} learners"
            ));
        }
        let serves = matches!(class.operation, Operation::Range { serializable: true, .. });
        if number > members && !serves {
            let why = "the member is a learner, which serves only serializable ranges";
            return wrong(why.to_owned());
        }
        Ok(())
    }
}

fn check_spread(name: &str, spread: Option<Spread>) -> Result<()> {
    let Some(spread) = spread.filter(|spread| !spread.is_possible()) else { return Ok(()) };
    let ms = |ns: f64| ns / 1e6;
    let (mean, p99) = (ms(spread.mean_ns), ms(spread.p99_ns.unwrap_or_default()));
    Err(wrong(format!(
        "`{name}` has a mean of {mean} and a p99 of {p99}; p99 must be from the mean to {P99_MAX} times it"
    )))
}

#[derive(Debug)]
pub(crate) struct Class {
    pub(crate) actor: TaskLabel,
    pub(crate) schedule: Schedule,
    pub(crate) connect: Connect,
    operation: Operation,
    key_size: u64,
    stored: Sizes,
    sizes: Rng,
}

impl Class {
    pub(crate) fn new(scenario: &Scenario, load: &Load) -> Class {
        let Scenario { workload, seed, .. } = scenario;
        // As in the driver, a class has one generator for its times and another for the contents.
        let first = seed.wrapping_mul(1 << 20).wrapping_add(load.index * 2);
        Class {
            actor: TaskLabel::named(&load.name),
            connect: scenario.model.connects(&load.name),
            schedule: Schedule::new(load.spacing, load.rate, first),
            operation: load.operation,
            key_size: workload.space.key_size,
            stored: workload.space.value,
            sizes: Rng::new(first, 1),
        }
    }

    pub(crate) fn request(&mut self) -> Request {
        let mean = |sizes: Sizes| (sizes.min + sizes.max) / 2;
        match self.operation {
            Operation::Range { keys, limit, serializable } => {
                let sent = limit.map_or(keys, |limit| limit.min(keys));
                let record_bytes = self.record(mean(self.stored));
                Request::Range { range: Range { keys, sent, record_bytes }, serializable }
            }
            Operation::Put { value } => {
                let size = value.min + self.sizes.below(value.max - value.min + 1);
                Request::Write(Write { keys: 1, record_bytes: self.record(size) })
            }
            Operation::Count { keys, serializable } => {
                Request::Range { range: Range { keys, sent: 0, record_bytes: 0 }, serializable }
            }
            Operation::Watch { .. } | Operation::Lease { .. } | Operation::Authenticate => {
                unreachable!("a scenario with such a class is refused")
            }
            // The keys exist, so the transaction puts all of them.
            Operation::Txn { keys, value } => {
                Request::Write(Write { keys, record_bytes: self.record(mean(value)) })
            }
            Operation::Delete { keys } => {
                Request::Write(Write { keys, record_bytes: self.record(0) })
            }
        }
    }

    fn record(&self, value: u64) -> u64 {
        self.key_size + value + RECORD_REST_BYTES
    }
}

/// Returns the mean size of the records at the start.
pub(crate) fn mean_record_bytes(space: &KeySpace) -> u64 {
    space.key_size + (space.value.min + space.value.max) / 2 + RECORD_REST_BYTES
}
