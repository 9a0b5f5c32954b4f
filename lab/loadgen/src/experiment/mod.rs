//! Experiments about etcd that others have published. A single command repeats an experiment.
//!
//! ```text
//!   plans.toml ──▶ Plan ──▶ phases, curve ──▶ Measurements ──▶ Findings ──▶ Output
//!                             │                tables, plots, checks of the published direction
//!                             └── servers::Cluster, load, closed_loop
//! ```
//!
//! An experiment is a plan in `plans.toml`. Its name and the texts of its report are in
//! `stories.toml`. Some experiments measure with their own code, in the modules `failover`,
//! `pages`, `proxy_reads`, `proxy_watchers` and `redis`.
//!
//! The servers take turns in rounds. A server that an experiment starts has empty data at the start
//! of each round. A figure is the median of its rounds. [`run`] fails if a check fails.

mod arguments;
mod check;
mod context;
mod curve;
mod expensive;
mod failover;
mod findings;
mod load;
mod machine;
mod measurements;
mod number;
mod output;
mod pages;
mod phases;
mod plan;
mod proxy_reads;
mod proxy_watchers;
mod redis;
mod report;
mod resp;
mod stories;
mod turn;

pub use self::arguments::{ExperimentArguments, Scale, Selection};
pub use self::check::{Check, Verdict};
pub use self::context::Context;
pub use self::findings::{Findings, Outcome};
pub use self::machine::Machine;
pub use self::measurements::Measurements;
pub(crate) use self::measurements::median;
pub use self::stories::Experiment;

use self::context::{STARTS_ITS_SERVERS, Subject};
use self::expensive::size_expensive_read;
use self::findings::Conditions;
use self::machine::Ticks;
use self::output::Output;
use self::plan::{OwnCode, Plan, Plans};
use self::turn::Turn;
use crate::named::Named as _;
use crate::stop::Stop;
use crate::{Error, Result, page};

impl Experiment {
    pub async fn measure(&self, context: &Context) -> Result<Outcome> {
        let plans = Plans::read();
        let plan = plans.plan(&self.name);
        if plan.starts_its_servers && context.has_only_given() {
            return Ok(Outcome::Skipped(STARTS_ITS_SERVERS.to_owned()));
        }
        if plan.own_code == Some(OwnCode::Redis) && context.redis.is_none() {
            return Ok(Outcome::Skipped(redis::SKIPPED.to_owned()));
        }
        let mut findings = measure_plan(context, &plans, &plan).await?;
        if let (Scale::Full, Some(then)) = (context.scale, &plan.then) {
            let then = plans.whole(then);
            findings.append(measure_plan(context, &plans, &then).await?, &then.prefix);
        }
        Ok(Outcome::Found(Box::new(findings)))
    }
}

async fn measure_plan(context: &Context, plans: &Plans, plan: &Plan) -> Result<Findings> {
    let mut values = plans.values(plan, context.scale);
    if plan.has_expensive_read {
        size_expensive_read(context, &mut values).await?;
    }
    let redis = context.redis.as_ref().filter(|_| plan.own_code == Some(OwnCode::Redis));
    if let Some(address) = redis {
        values.set("syncs", redis::syncs(address).await?);
    }
    let eras = plan.servers.at(context.scale);
    let subjects = match plan.starts_its_servers {
        _ if plan.has_proxies => context.routes(eras)?,
        true => context.programs(eras)?,
        false => context.servers(eras)?,
    };
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let turn = Turn { context, plan, values: values.clone(), subject, seed };
        match (plan.own_code, redis) {
            (Some(OwnCode::Redis), Some(address)) => redis::measure(&turn, address, into).await,
            (Some(OwnCode::Pages), _) => pages::measure(&turn, into).await,
            (Some(OwnCode::Failover), _) => failover::measure(&turn, into).await,
            (Some(OwnCode::ProxyReads), _) => proxy_reads::measure(&turn, into).await,
            (Some(OwnCode::ProxyWatchers), _) => proxy_watchers::measure(&turn, into).await,
            _ if plan.phases.is_empty() => curve::measure(&turn, into).await,
            _ => phases::measure(&turn, into).await,
        }
    };
    let mut measured = context.in_turns(&subjects, measure).await?;
    if redis.is_some() {
        measured.add_server(redis::REDIS);
    }
    Ok(Findings::of(plan, &values, measured))
}

/// Measures the selected experiments and writes the reports; for `Selection::List`, only prints the
/// list of experiments. `tell` is called with lines of progress, and `print` with the text of each
/// report for a terminal.
///
/// If a check fails or an experiment cannot be measured, the other experiments still run, and then
/// this function fails. It also fails after an interruption.
pub async fn run(
    arguments: &ExperimentArguments,
    tell: impl Fn(&str) + 'static,
    stop: Stop,
    print: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    let experiments = match arguments.selection {
        Selection::List => return print(&Experiment::list()),
        Selection::All => Experiment::all().iter().collect(),
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
            wrong.push(experiment.name.as_str());
        }
        if runner.context.stop.is_set() {
            let what = "interrupted; the reports of completed experiments are written";
            return Err(Error::Local(what.to_owned()));
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let wrong = wrong.join(", ");
    Err(Error::Server(format!("could not be measured, or a check fails: {wrong}")))
}

struct Runner<'a> {
    arguments: &'a ExperimentArguments,
    context: Context,
    output: Output,
    machine: Machine,
    versions: Vec<(String, String)>,
}

impl Runner<'_> {
    /// Runs an experiment. Returns false if one of its checks fails, or if it could not be
    /// measured. For a skipped experiment, returns true.
    async fn run(
        &mut self,
        experiment: &Experiment,
        print: &mut dyn FnMut(&str) -> Result<()>,
    ) -> Result<bool> {
        let Experiment { name, about, .. } = experiment;
        self.context.tell(&format!("{name}: {about}"));
        let before = Ticks::now();
        let findings = match experiment.measure(&self.context).await {
            Ok(Outcome::Found(findings)) => findings,
            Ok(Outcome::Skipped(reason)) => {
                self.output.add_skipped(name, &reason)?;
                print(&format!("{name}: {reason}\n"))?;
                return Ok(true);
            }
            Err(error) => {
                self.output.add_skipped(name, &format!("could not be measured: {error}"))?;
                print(&format!("{name}: COULD NOT BE MADE: {error}\n"))?;
                return Ok(false);
            }
        };
        let command = self.arguments.command(name);
        let conditions = Conditions {
            experiment,
            command: &command,
            scale: self.context.scale.name(),
            rounds: self.context.rounds,
            seed: self.context.seed,
            machine: &self.machine,
            withheld_percent: Ticks::now().withheld_percent_since(before),
            versions: &self.versions,
        };
        let path = self.output.report(&findings, &conditions)?;
        print(&shown_at_terminal(&findings, &conditions, &path.display().to_string()))?;
        Ok(findings.verdict() != Verdict::Fails)
    }
}

fn shown_at_terminal(findings: &Findings, conditions: &Conditions<'_>, path: &str) -> String {
    let tables = page::markdown(&conditions.experiment.title, &findings.tables());
    let warnings = findings.measured().warnings().iter().map(|text| format!("warning: {text}\n"));
    let checks = findings.checks().iter().map(|check| format!("{}\n", check.line()));
    let lines = warnings.chain(checks).collect::<String>();
    let verdict = findings.verdict_sentence();
    format!("{tables}\n{lines}{verdict}\n{path}\n")
}
