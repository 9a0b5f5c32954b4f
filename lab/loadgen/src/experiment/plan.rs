//! The plan of an experiment, as data in `plans.toml`: its servers and loads, and the tables, plots
//! and checks of its report.
//!
//! ```text
//!   plans.toml ──▶ Plan ──▶ servers, phases or loops ──▶ measured by phases, curve
//!                   │  ╰──▶ tables, plots, checks ─────▶ drawn by report
//!                   ╰─ sizes of a scale ──▶ Values: the texts that replace `{NAME}`
//! ```

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::Deserialize;
use toml::{Table, Value};

use super::arguments::Scale;
use crate::workload::Workload;
use crate::{Error, Result};

#[derive(Debug, Deserialize)]
pub(super) struct Plans {
    /// Pieces: texts that several plans use, by name.
    pieces: BTreeMap<String, String>,
    #[serde(flatten)]
    plans: BTreeMap<String, Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Plan {
    /// The eras of our server, in the order of tables.
    pub(super) servers: Scaled<Vec<String>>,
    /// The code that measures, for an experiment that is neither phases nor loops.
    pub(super) own_code: Option<OwnCode>,
    /// If true, the servers need flags or several members. Then a given cluster cannot be used.
    pub(super) starts_its_servers: bool,
    /// If true, the routes to one member are compared: direct, and through each proxy. The member
    /// has the first era.
    pub(super) has_proxies: bool,
    sizes: BTreeMap<String, Scaled<Value>>,
    /// If true, the size of the expensive read is measured first.
    pub(super) has_expensive_read: bool,
    /// Number of members. The default is one.
    pub(super) members: Option<String>,
    /// The round-trip time between members in milliseconds, which proxies add. If `None`, there
    /// are no proxies.
    pub(super) round_trip_ms: Option<String>,
    /// If true, a learner joins the members.
    pub(super) has_learner: bool,
    /// If true, authentication is enabled, and requests have a user.
    pub(super) has_users: bool,
    /// Pieces whose keys are put before anything is measured.
    pub(super) fill: Vec<String>,
    /// If true, the keys of the piece `data` are put again and again after the fill. `{revisions}`
    /// is the total number of these puts.
    pub(super) has_history: bool,
    /// Pieces of a workload: its keys, and its classes.
    pub(super) load: Vec<String>,
    /// The phases. The workload runs in each phase as an open loop.
    pub(super) phases: Vec<PhasePlan>,
    /// The points of a curve. If `None`, there is no curve.
    pub(super) points: Option<Points>,
    /// Closed loops. At each point they run one after the other.
    pub(super) loops: Vec<LoopPlan>,
    /// An open loop that runs at the same time as a closed loop, except at the point 0.
    pub(super) open_loop: Option<LoopPlan>,
    /// The report's description of the setting. Each text is a paragraph.
    pub(super) setting: Vec<String>,
    pub(super) shown: Vec<Shown>,
    pub(super) checks: Vec<CheckPlan>,
    /// A second plan for the same experiment. It is measured after this one, at full scale only.
    pub(super) then: Option<Table>,
    /// If this plan is the field `then` of another plan, the prefix of the names of its figures.
    pub(super) prefix: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum OwnCode {
    Failover,
    Pages,
    ProxyReads,
    ProxyWatchers,
    Redis,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Scaled<T> {
    ByScale { small: T, full: T },
    Same(T),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct PhasePlan {
    /// The prefix of the names of the figures of this phase.
    pub(super) name: String,
    /// The classes of the workload whose requests are sent. If empty, the requests of all classes
    /// are sent.
    pub(super) classes: Vec<String>,
    /// Flags of the servers. Consecutive phases with the same flags share their servers.
    pub(super) flags: Vec<String>,
    /// Requests that are repeated during this phase.
    pub(super) others: Option<OthersPlan>,
    /// A request that is sent once in this phase.
    pub(super) once: Option<Once>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OthersPlan {
    /// The prefix of the names of the figures of these requests.
    pub(super) figure: String,
    pub(super) call: OtherCall,
    /// Number of clients. The default is one.
    pub(super) clients: Option<String>,
    /// Time before the first request, in milliseconds.
    #[serde(default)]
    pub(super) delay_ms: u64,
    /// Time between a response and the next request, in milliseconds.
    #[serde(default)]
    pub(super) pause_ms: u64,
    #[serde(default)]
    pub(super) is_at_learner: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OtherCall {
    /// A serializable read of all keys of the piece `data`.
    Range,
    /// A snapshot that is sent to a client.
    Snapshot,
    /// A watch of all events of the history.
    Watch,
    /// A login with a password.
    Login,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Once {
    /// A compaction of all overwritten records, in the index and on the disk.
    Compact,
    Defragment,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Points {
    /// The name by which texts refer to the current point, as in `{NAME}`.
    pub(super) name: String,
    pub(super) at: Scaled<Vec<f64>>,
    /// If true, each point has its own servers.
    #[serde(default)]
    pub(super) has_own_servers: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct LoopPlan {
    /// The prefix of the names of the figures of this loop.
    pub(super) figure: String,
    /// The class of the workload that a closed loop sends. For an open loop, the class that is
    /// reported.
    pub(super) class: String,
    /// Number of clients of a closed loop.
    pub(super) clients: String,
    /// If true, the clients are spread over the members. Otherwise all clients use the leader.
    pub(super) is_spread: bool,
    /// The workload of an open loop.
    pub(super) load: Vec<String>,
}

/// A heading, a figure, and possibly a second figure. The first figure is divided by the second.
pub(super) type Column = Vec<String>;

/// A table or a plot. The text of an axis is its label. If the scale is logarithmic, the text
/// starts with `log `.
#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
pub(super) enum Shown {
    /// Compares two phases of the plan: `calm`, with cheap requests only, and `beside`, with
    /// something expensive at the same time. Shows a table and a plot of each class. `quantile` is
    /// `p99`, or `max` for an event that happens once in a phase.
    Beside {
        classes: Vec<String>,
        quantile: String,
        /// If true, each class also has a plot of its percentiles.
        #[serde(default)]
        has_percentiles: bool,
        /// Further columns.
        columns: Vec<Column>,
    },
    /// A table with a row for each server, or for each point of a curve. `by` is the heading of the
    /// points.
    Table { columns: Vec<Column>, by: Option<String> },
    /// Bars, with a group for each server. A bar has a label and a figure.
    Bars {
        title: String,
        y: String,
        #[serde(default)]
        higher_is_better: bool,
        bars: Vec<(String, String)>,
    },
    /// Lines, one for each server.
    Lines {
        title: String,
        x: String,
        y: String,
        #[serde(default)]
        higher_is_better: bool,
        figure: String,
    },
}

/// A check of a figure, or of a quotient of figures, with its bounds.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckPlan {
    pub(super) claim: String,
    pub(super) servers: Vec<String>,
    pub(super) figures: Vec<String>,
    pub(super) at_least: Option<f64>,
    pub(super) at_most: Option<f64>,
    /// If true, the check is a bar: a goal of this project. If the goal is not reached, nothing
    /// fails.
    #[serde(default)]
    pub(super) is_bar: bool,
}

/// The texts that replace `{NAME}` in the texts of a plan. A value may contain names that are set
/// later.
#[derive(Clone, Debug, Default)]
pub(super) struct Values(Vec<(String, String)>);

impl Plans {
    pub(super) fn read() -> Plans {
        toml::from_str(include_str!("plans.toml")).expect("a test reads the same text")
    }

    pub(super) fn plan(&self, experiment: &str) -> Plan {
        self.whole(&self.plans[experiment])
    }

    /// Returns a plan with all its fields. If the plan has a field `like`, the fields that it does
    /// not set are copied from the plan that `like` names.
    pub(super) fn whole(&self, own: &Table) -> Plan {
        let mut own = own.clone();
        let like = own.remove("like");
        let mut whole = like.map_or_else(Table::new, |name| {
            self.plans[name.as_str().expect("a test reads the same text")].clone()
        });
        for (field, value) in own {
            match (whole.get_mut(&field), value) {
                (Some(Value::Table(sizes)), Value::Table(own)) => sizes.extend(own),
                (_, value) => _ = whole.insert(field, value),
            }
        }
        whole.try_into().expect("a test reads the same text")
    }

    /// Returns the pieces, the sizes at this scale, and the first and last point of a curve.
    pub(super) fn values(&self, plan: &Plan, scale: Scale) -> Values {
        let mut values = Values::default();
        self.pieces.iter().for_each(|(name, text)| values.set(name, text));
        for (name, size) in &plan.sizes {
            match size.at(scale) {
                Value::String(text) => values.set(name, text),
                number => values.set(name, number),
            }
        }
        let points = plan.points.as_ref().map(|points| &points.at.at(scale)[..]);
        if let Some([first, .., last]) = points {
            values.set("first", first);
            values.set("last", last);
        }
        values
    }
}

impl<T> Scaled<T> {
    pub(super) fn at(&self, scale: Scale) -> &T {
        match (self, scale) {
            (Scaled::ByScale { small, .. }, Scale::Small) => small,
            (Scaled::ByScale { full, .. }, Scale::Full) => full,
            (Scaled::Same(value), _) => value,
        }
    }
}

impl<T: Default> Default for Scaled<T> {
    fn default() -> Scaled<T> {
        Scaled::Same(T::default())
    }
}

impl Values {
    pub(super) fn set(&mut self, name: &str, value: impl ToString) {
        self.0.retain(|(known, _)| known != name);
        self.0.push((name.to_owned(), value.to_string()));
    }

    pub(super) fn with(&self, name: &str, value: impl ToString) -> Values {
        let mut values = self.clone();
        values.set(name, value);
        values
    }

    pub(super) fn text(&self, text: &str) -> String {
        let named = |text: String, (name, value): &(String, String)| {
            text.replace(&format!("{{{name}}}"), value)
        };
        self.0.iter().fold(text.to_owned(), named)
    }

    /// Replaces the names in `text`, and parses the result as a number.
    pub(super) fn number<T: FromStr>(&self, text: &str) -> Result<T> {
        let number = self.text(text);
        let wrong = |_| Error::Workload(format!("`{number}` is not a number of the expected type"));
        number.parse().map_err(wrong)
    }

    /// Parses the value of this name.
    pub(super) fn get<T: FromStr>(&self, name: &str) -> Result<T> {
        self.number(&format!("{{{name}}}"))
    }

    /// Returns a workload with the keys of the first piece and the classes of the others.
    pub(super) fn workload(&self, pieces: &[impl AsRef<str>]) -> Result<Workload> {
        let mut pieces = pieces.iter().map(|piece| format!("{{{}}}", piece.as_ref()));
        let keys = pieces.next().unwrap_or_default();
        let classes = pieces.collect::<Vec<_>>().join(", ");
        let text = format!("seconds = {{seconds}}\n{keys}\nclass = [{classes}]");
        Workload::parse(&self.text(&text))
    }

    /// Returns a workload with the keys of a piece and a class of puts. Most callers use only its
    /// keys. A history is written with the puts.
    pub(super) fn keys_of(&self, piece: &str) -> Result<Workload> {
        self.workload(&[piece, "single_put"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Experiment;

    /// Checks that every text has values for all its names, and that every workload is valid.
    fn check_plan(plans: &Plans, plan: &Plan, scale: Scale) {
        let mut values = plans.values(plan, scale);
        ["server", "label", "reason", "values", "syncs"]
            .iter()
            .for_each(|name| values.set(name, 1));
        ["keys", "count"].iter().for_each(|name| values.set(name, 50_000));
        plan.points.iter().for_each(|points| values.set(&points.name, points.at.at(scale)[1]));
        let text = values.text(&format!("{plan:?}"));
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        for behind in text.split('{').skip(1) {
            assert!(!behind.trim_start_matches(is_name).starts_with('}'), "{behind}");
        }
        for piece in &plan.fill {
            assert!(values.keys_of(piece).is_ok(), "{piece}");
        }
        let looped = plan.loops.iter().map(|looped| (&plan.load, &looped.class));
        let open = plan.open_loop.iter().map(|open| (&open.load, &open.class));
        let phases = plan.phases.iter().flat_map(|phase| &phase.classes);
        for (load, class) in looped.chain(open).chain(phases.map(|class| (&plan.load, class))) {
            let (workload, class) =
                (values.workload(load).expect("it is right"), values.text(class));
            assert!(workload.classes.iter().any(|known| known.name == class), "{class}");
        }
    }

    #[test]
    fn each_experiment_has_a_plan_without_gaps() {
        let plans = Plans::read();
        assert_eq!(plans.plans.len(), Experiment::all().len());
        for experiment in Experiment::all() {
            for scale in [Scale::Small, Scale::Full] {
                let plan = plans.plan(&experiment.name);
                check_plan(&plans, &plan, scale);
                plan.then.iter().for_each(|then| check_plan(&plans, &plans.whole(then), scale));
            }
        }
    }
}
