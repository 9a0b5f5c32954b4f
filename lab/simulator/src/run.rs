//! Runs a scenario in an era, and collects the results.

use std::cell::RefCell;
use std::cmp::Reverse;
use std::rc::Rc;
use std::thread;
use std::time::Duration;

use clearlane_contention::wait_chain;
use clearlane_loadgen::Error;

use crate::World;
use crate::account::TimeKind;
use crate::cluster::Cluster;
use crate::costs::Costs;
use crate::model::Connect;
use crate::recorder::Recorded;
use crate::results::{ClassResults, LockResults, Results};
use crate::scenario::{Class, Scenario};
use crate::server::Build;

/// How long a run waits for responses after the end of the workload.
const DRAIN: Duration = Duration::from_secs(30);

/// The second run records the longest wait, and this multiple of its length before and after it. So
/// the recording contains the causes of the wait.
const AROUND_MAX: u64 = 4;

/// To determine the CPU time of a request, [`check`] simulates the request alone for at most this
/// time. CPU time after this limit is ignored.
const ALONE_NS: u64 = 60_000_000_000;

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunError {
    #[error(
        "the requests need {needed:.2} cores all the time, {:.0} % of the {cores} cores of member \
         {member}, so queues would grow without end; lower the rates, or raise `--cores`",
        100.0 * needed / *cores as f64
    )]
    Overloaded {
        /// The member's number, from 1.
        member: usize,
        /// Number of cores that are needed on average.
        needed: f64,
        cores: usize,
    },
    /// Knobs contradict each other, or the model cannot send the requests of a class.
    #[error(transparent)]
    Invalid(#[from] Error),
}

/// Runs each scenario on a separate thread. The results have the order of `runs`.
pub fn run_each(runs: &[(&Scenario, &Build)]) -> Vec<Result<Results, RunError>> {
    thread::scope(|scope| {
        let start = |&(scenario, build)| scope.spawn(move || run(scenario, build));
        let running: Vec<_> = runs.iter().map(start).collect();
        running.into_iter().map(|run| run.join().expect("a run does not panic")).collect()
    })
}

/// Like [`run_each`], but also records timelines of all runs in the same window. The window is
/// around the longest wait of a request in any run. The first runs find this wait, and second runs
/// record it. If no request waits for another task, there are no second runs and no timelines.
pub fn run_each_and_record(runs: &[(&Scenario, &Build)]) -> Vec<Result<Results, RunError>> {
    let with = |recorded| {
        let own = runs.iter().map(|(scenario, build)| {
            (Scenario { recorded, ..Scenario::clone(scenario) }, Build::clone(build))
        });
        let own: Vec<(Scenario, Build)> = own.collect();
        run_each(&own.iter().map(|(scenario, build)| (scenario, build)).collect::<Vec<_>>())
    };
    let found = with(Recorded::LongestWait);
    let waits = found.iter().enumerate().filter_map(|(place, results)| {
        let (from_ns, to_ns) = results.as_ref().ok()?.longest_wait?;
        Some((place, from_ns, to_ns))
    });
    let longest = waits.min_by_key(|(_, from_ns, to_ns)| (Reverse(to_ns - from_ns), *from_ns));
    let Some((place, from_ns, to_ns)) = longest else { return found };
    let around_ns = AROUND_MAX * (to_ns - from_ns);
    let around = (from_ns.saturating_sub(around_ns), to_ns + around_ns);
    let mut recorded = with(Recorded::Window(around.0, around.1));
    let timeline = recorded[place].as_ref().map(|results| &results.timeline);
    let window = timeline.ok().and_then(wait_chain::window_of_longest_wait);
    let (from_ns, to_ns) = window.unwrap_or(around);
    for results in recorded.iter_mut().flatten() {
        results.timeline = results.timeline.slice(from_ns, to_ns);
    }
    recorded
}

pub fn run(scenario: &Scenario, build: &Build) -> Result<Results, RunError> {
    check(scenario, build)?;
    let world = World::new();
    world.recorder().begin(scenario.recorded);
    let cluster = Cluster::start(&world, scenario, build);
    let window_ns = scenario.workload.seconds * 1_000_000_000;
    let mut classes = Vec::new();
    for load in &scenario.workload.classes {
        let results = Rc::new(RefCell::new(ClassResults::new(&load.name)));
        let class = Class::new(scenario, load);
        world.spawn(sends(Rc::clone(&cluster), class, window_ns, Rc::clone(&results)));
        classes.push(results);
    }
    world.run(window_ns);
    let used_ns = cluster.used_ns().into_iter().max().unwrap_or(0);
    world.run(window_ns + DRAIN.as_nanos() as u64);
    let mut classes: Vec<ClassResults> =
        classes.iter().map(|results| results.borrow().clone()).collect();
    classes.extend(cluster.jobs.take());
    let results = Results {
        era: build.era,
        names: TimeKind::all(&world).map(|kind| (kind, kind.name(&world))).collect(),
        classes,
        locks: locks(&cluster),
        cores_used: used_ns as f64 / window_ns as f64,
        gap_max: cluster.members.iter().map(|member| member.gap_max.get()).max().unwrap_or(0),
        steps: world.steps(),
        longest_wait: world.recorder().longest_wait(),
        timeline: world.recorder().take(),
    };
    world.end();
    Ok(results)
}

/// Returns the locks of all members. Locks with the same name are added up.
fn locks(cluster: &Cluster) -> Vec<LockResults> {
    let mut all: Vec<LockResults> = Vec::new();
    let every = cluster.members.iter().flat_map(|member| member.locks.all());
    for lock in every.filter(|lock| lock.accounting().entries > 0) {
        let (name, accounting) = (lock.name(), lock.accounting());
        match all.iter_mut().find(|known| known.name == name) {
            Some(known) => known.accounting.add_all(accounting),
            None => all.push(LockResults { name, accounting }),
        }
    }
    all
}

/// Sends each request of a class when it is due, without waiting for other requests.
async fn sends(
    cluster: Rc<Cluster>,
    mut class: Class,
    window_ns: u64,
    results: Rc<RefCell<ClassResults>>,
) {
    while let Some(due) = class.schedule.next() {
        let due_ns = due.as_nanos() as u64;
        if due_ns >= window_ns {
            return;
        }
        cluster.world.sleep_until(due_ns).await;
        let (connect, actor, request) = (class.connect, class.actor, class.request());
        let (its, results) = (Rc::clone(&cluster), Rc::clone(&results));
        results.borrow_mut().due += 1;
        cluster.world.spawn(async move {
            match its.serve(connect, actor, request).await {
                Some((took_ns, account)) => results.borrow_mut().answered(took_ns, account),
                None => results.borrow_mut().refused += 1,
            }
        });
    }
}

/// Checks that the knobs fit together and that the machines have enough capacity. A member needs
/// CPU time for its requests (per class: CPU time of a single request times the rate), its logins
/// and its commits. The sum must be less than the CPU time of the member's cores.
pub fn check(scenario: &Scenario, build: &Build) -> Result<(), RunError> {
    scenario.check()?;
    let mut needed = vec![0.0; scenario.model.members + scenario.model.learners];
    let auth = scenario.model.auth;
    needed[0] = auth.logins_per_s * auth.bcrypt_ns as f64 / 1e9;
    let model = scenario.model.without_background();
    // The number of commits does not depend on the number of requests. So the fixed CPU time of a
    // commit is added once per commit interval, instead of to the CPU time of each request.
    let commit_ns = build.costs.commit_ns;
    let build =
        Build::new(build.era, Costs { commit_ns: 0, quantum_ns: u64::MAX, ..build.costs.clone() });
    for (_, needed) in needed.iter_mut().enumerate().filter(|(place, _)| model.is_used(*place)) {
        *needed += commit_ns as f64 / model.commit_interval_ns as f64;
    }
    for load in &scenario.workload.classes {
        // With `Connect::Spread`, each voting member gets an equal share of the requests.
        let dealt = match scenario.model.connects(&load.name) {
            Connect::Spread => scenario.model.members,
            Connect::Leader | Connect::Member(_) => 1,
        };
        for _ in 0..dealt {
            let world = World::new();
            let alone = Scenario { cores: 1, model: model.clone(), ..scenario.clone() };
            let cluster = Cluster::start(&world, &alone, &build);
            let mut class = Class::new(scenario, load);
            let (connect, actor, request) = (class.connect, class.actor, class.request());
            let its = Rc::clone(&cluster);
            world.spawn(async move {
                its.serve(connect, actor, request).await;
            });
            world.run(ALONE_NS);
            for (needed, used_ns) in needed.iter_mut().zip(cluster.used_ns()) {
                *needed += load.rate / dealt as f64 * used_ns as f64 / 1e9;
            }
            world.end();
        }
    }
    let cores = scenario.cores;
    let busiest = needed.iter().enumerate().max_by(|one, other| one.1.total_cmp(other.1));
    match busiest.filter(|(_, needed)| **needed >= cores as f64) {
        None => Ok(()),
        Some((place, needed)) => {
            Err(RunError::Overloaded { member: place + 1, needed: *needed, cores })
        }
    }
}
