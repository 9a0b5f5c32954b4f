//! Experiments that others have published about etcd, each repeated with one command.
//!
//! ```text
//!   one file each: setting, phases ──▶ Measurements ──▶ Findings ──▶ Output: page, text, JSON
//!         │                                              checks of the published direction
//!         └── servers::Cluster, load, closed_loop
//! ```
//!
//! Servers take turns, round by round, each started anew with empty data; a figure is the median of
//! its rounds. [`run`] fails if a check does.

mod arguments;
mod beside;
mod big_reads;
mod charts;
mod check;
mod closed_loop;
mod clusters;
mod consistency;
mod context;
mod expensive;
mod failover;
mod findings;
mod history;
mod learner;
mod load;
mod logins;
mod machine;
mod measurements;
mod number;
mod output;
mod pages;
mod rates;
mod redis;
mod resp;

use clap::ValueEnum;

pub use self::arguments::{ExperimentArguments, Scale, Selection};
pub use self::check::{Check, Verdict};
pub use self::context::Context;
pub use self::findings::{Findings, Outcome};
pub use self::machine::Machine;
pub use self::measurements::Measurements;

use self::findings::Conditions;
use self::machine::Ticks;
use self::output::Output;
use crate::stop::Stop;
use crate::{Error, Result, page};

const STARTS_ITS_SERVERS: &str = "skipped: it starts its servers itself, and does not use those of \
    --endpoints; name an era or --etcd BINARY";

/// The first line of a doc is shown by `clearlane-load experiment list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Experiment {
    /// one expensive read a second beside cheap ones and puts, in every era (the Alibaba test)
    ExpensiveReads,
    /// a read of all keys each second beside small ones and puts (etcd #9384)
    SmallBesideBig,
    /// long reads, many short ones and puts of 10 KB at once (etcd #10523)
    TripleLoad,
    /// what a linearizable read costs more than a serializable one, with three members
    SerializableVsLinearizable,
    /// how many reads a server answers beside 0 to 3,000 writes per second
    ReadsUnderWrites,
    /// puts of 256 bytes to 1 MiB, and the small reads beside them
    LargeValues,
    /// how many puts share a sync of the log as clients become more
    WriteBatching,
    /// the count of a prefix and its first page, as keys become more
    CountAndPage,
    /// puts beside a watcher that is far behind (etcd #22264)
    LaggingWatcher,
    /// reads and puts while what was overwritten is removed
    CompactionUnderLoad,
    /// reads and puts while the store is rewritten
    DefragUnderLoad,
    /// reads and puts beside snapshots: those of the applier, and those that are sent
    SnapshotUnderLoad,
    /// puts and reads with one, three and five members
    Members,
    /// puts and reads with 0.1 to 20 ms between members
    RoundTrip,
    /// a member is killed under load: how long nothing is served, and what is lost
    Failover,
    /// logins beside reads and puts: passwords checked inside the lock of the batch, and outside
    Authenticate,
    /// expensive reads at the leader, and at a learner
    Learner,
    /// put, get and notification against Redis
    Redis,
}

impl Experiment {
    pub fn all() -> &'static [Experiment] {
        Experiment::value_variants()
    }

    /// As in the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// What is measured.
    pub fn about(self) -> String {
        let help = self.to_possible_value().and_then(|value| value.get_help().cloned());
        help.unwrap_or_default().to_string()
    }

    /// With flags, or several: a cluster that is given does not do.
    fn starts_its_servers(self) -> bool {
        matches!(
            self,
            Experiment::CompactionUnderLoad
                | Experiment::DefragUnderLoad
                | Experiment::SnapshotUnderLoad
                | Experiment::Members
                | Experiment::RoundTrip
                | Experiment::Failover
                | Experiment::Authenticate
                | Experiment::Learner
        )
    }

    pub async fn measure(self, context: &Context) -> Result<Outcome> {
        if self.starts_its_servers() && context.has_only_given() {
            return Ok(Outcome::Skipped(STARTS_ITS_SERVERS.to_owned()));
        }
        let findings = match self {
            Experiment::ExpensiveReads => big_reads::expensive_reads(context).await,
            Experiment::SmallBesideBig => big_reads::small_beside_big(context).await,
            Experiment::TripleLoad => big_reads::triple_load(context).await,
            Experiment::SerializableVsLinearizable => {
                consistency::serializable_vs_linearizable(context).await
            }
            Experiment::ReadsUnderWrites => rates::reads_under_writes(context).await,
            Experiment::LargeValues => rates::large_values(context).await,
            Experiment::WriteBatching => rates::write_batching(context).await,
            Experiment::CountAndPage => pages::count_and_page(context).await,
            Experiment::LaggingWatcher => history::lagging_watcher(context).await,
            Experiment::CompactionUnderLoad => history::compaction_under_load(context).await,
            Experiment::DefragUnderLoad => history::defrag_under_load(context).await,
            Experiment::SnapshotUnderLoad => history::snapshot_under_load(context).await,
            Experiment::Members => clusters::members(context).await,
            Experiment::RoundTrip => clusters::round_trip(context).await,
            Experiment::Failover => failover::failover(context).await,
            Experiment::Authenticate => logins::authenticate(context).await,
            Experiment::Learner => learner::learner(context).await,
            Experiment::Redis => return redis::redis(context).await,
        };
        Ok(Outcome::Found(Box::new(findings?)))
    }
}

/// Measures, and writes the reports. `tell` is given lines of progress, `print` what a terminal
/// shows of each report. An error at the end if a check fails, or an experiment could not be made;
/// the others are made all the same.
pub async fn run(
    arguments: &ExperimentArguments,
    tell: impl Fn(&str) + 'static,
    stop: Stop,
    print: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let experiments = match arguments.selection {
        Selection::List => {
            let each = Experiment::all().iter();
            let mut lines =
                each.map(|experiment| format!("{:27} {}", experiment.name(), experiment.about()));
            return lines.try_for_each(|line| print(&line));
        }
        Selection::All => Experiment::all().to_vec(),
        Selection::One(experiment) => vec![experiment],
    };
    let context = Context::new(arguments, tell, stop).await?;
    let mut runner = Runner {
        arguments,
        output: Output::new(&arguments.out)?,
        machine: Machine::of_this_system(),
        versions: context.versions()?,
        context,
    };
    let mut wrong = Vec::new();
    for experiment in experiments {
        if !runner.run(experiment, print).await? {
            wrong.push(experiment.name());
        }
        if runner.context.stop.is_set() {
            let what = "interrupted; the reports of what has ended are there";
            return Err(Error::Local(what.to_owned()));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join(", ");
    Err(Error::Server(format!("not in the published direction, or not made: {wrong}")))
}

struct Runner<'a> {
    arguments: &'a ExperimentArguments,
    context: Context,
    output: Output,
    machine: Machine,
    versions: Vec<(String, String)>,
}

impl Runner<'_> {
    /// Returns whether all is right: an experiment that is skipped is.
    async fn run(
        &mut self,
        experiment: Experiment,
        print: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<bool> {
        let name = experiment.name();
        self.context.tell(&format!("{name}: {}", experiment.about()));
        let before = Ticks::now();
        let findings = match experiment.measure(&self.context).await {
            Ok(Outcome::Found(findings)) => findings,
            Ok(Outcome::Skipped(reason)) => {
                self.output.add_skipped(experiment, &reason)?;
                print(&format!("{name}: {reason}\n"))?;
                return Ok(true);
            }
            Err(error) => {
                self.output.add_skipped(experiment, &format!("could not be made: {error}"))?;
                print(&format!("{name}: COULD NOT BE MADE: {error}\n"))?;
                return Ok(false);
            }
        };
        let command = self.arguments.command(&name);
        let conditions = Conditions {
            name: &name,
            command: &command,
            scale: self.context.scale.name(),
            rounds: self.context.rounds,
            seed: self.context.seed,
            machine: &self.machine,
            withheld_percent: Ticks::now().withheld_percent_since(before),
            versions: &self.versions,
        };
        let path = self.output.report(&findings, &conditions)?;
        print(&shown_at_terminal(&findings, &path.display().to_string()))?;
        Ok(findings.verdict() != Verdict::Fails)
    }
}

fn shown_at_terminal(findings: &Findings, path: &str) -> String {
    let tables = page::markdown(findings.title(), &findings.tables());
    let warnings = findings.measured().warnings().iter().map(|text| format!("warning: {text}\n"));
    let checks = findings.checks().iter().map(|check| format!("{}\n", check.line()));
    let lines = warnings.chain(checks).collect::<String>();
    format!("{tables}\n{lines}{}\n{path}\n", findings.verdict().sentence())
}
