//! Sends what is due, when it is due, and waits for nobody.
//!
//! ```text
//!   pace ──due──▶ [ run ] ──▶ a task per request ──▶ connection of its class
//!                    ▲                │
//!                    └──── Done ──────┘
//! ```
//!
//! All of it but [`pace`](arrivals::pace) is one thread. When the last request was sent, answers have
//! another [`DRAIN`] to come; what has not come by then is an error, and so is what could not be sent,
//! because [`UNDER_WAY_MAX`] others had no answer yet: a server that answers nothing must not cost the
//! driver all of its memory.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout_at};
use tonic::transport::{Channel, Endpoint};

use crate::arrivals::{self, Arrival, Merged, Schedule};
use crate::connection;
use crate::process::Process;
use crate::report::{Line, Report};
use crate::requests::{Call, Maker};
use crate::tally::{Done, Tally};
use crate::workload::{Class, Workload};
use crate::{Result, Trouble};

/// Between what is prepared and the first request.
const HEAD_START: Duration = Duration::from_millis(50);
/// Answers have so long after the last request was due.
pub const DRAIN: Duration = Duration::from_secs(30);
/// So many requests may have no answer yet.
pub const UNDER_WAY_MAX: usize = 100_000;
/// So many arrivals may be waiting to be sent.
const QUEUE: usize = 65_536;

/// What is run, beside the workload.
#[derive(Clone, Debug)]
pub struct Order {
    /// Against what.
    pub endpoint: Endpoint,
    /// Decides when requests are due, and for which keys.
    pub seed: u64,
    /// Whose use of the machine is to be told.
    pub process: Option<Process>,
}

/// A class, while it runs.
struct Lane<'w> {
    class: &'w Class,
    maker: Maker,
    connections: Vec<Channel>,
    tally: Tally,
    /// How many were due so far.
    due: u64,
}

/// Runs a workload to its end. `tell` hears once per second how it goes.
pub async fn run(workload: &Workload, order: &Order, tell: &mut dyn FnMut(&str)) -> Result<Report> {
    let mut lanes = lanes(workload, order).await?;
    check_filled(workload, &lanes[0].connections[0]).await?;
    let look = || order.process.as_ref().map(Process::look).transpose();
    let before = look()?;
    let window = Duration::from_secs(workload.seconds);
    let start = Instant::now() + HEAD_START;
    let (say, arrivals) = mpsc::channel(QUEUE);
    let schedules = workload.classes.iter().map(|class| {
        let [seed, _] = seeds(order.seed, class);
        Schedule::new(class.spacing, class.rate, seed)
    });
    let pacer = arrivals::pace(Merged::new(schedules, window), start, say)
        .map_err(|error| Trouble::Here(format!("no thread could be started: {error}")))?;
    let mut under_way = JoinSet::new();
    send_all(&mut lanes, arrivals, &mut under_way, start, tell).await;
    pacer.join().expect("it sleeps and sends");
    drain(&mut lanes, &mut under_way, start + window + DRAIN).await;
    let lines = lanes.into_iter().map(|lane| Line { class: lane.class.clone(), tally: lane.tally });
    Ok(Report {
        endpoint: order.endpoint.uri().to_string(),
        seed: order.seed,
        window,
        lines: lines.collect(),
        used: before.zip(look()?),
    })
}

/// One for the times of a class, one for what it asks for.
fn seeds(seed: u64, class: &Class) -> [u64; 2] {
    let first = seed.wrapping_mul(1 << 20).wrapping_add(class.place * 2);
    [first, first + 1]
}

async fn lanes<'w>(workload: &'w Workload, order: &Order) -> Result<Vec<Lane<'w>>> {
    let mut lanes = Vec::new();
    for class in &workload.classes {
        let [_, seed] = seeds(order.seed, class);
        let maker = Maker::new(class, &workload.space, !workload.deletes(), seed);
        let connections = connection::open(&order.endpoint, class.connections).await?;
        lanes.push(Lane { class, maker, connections, tally: Tally::default(), due: 0 });
    }
    Ok(lanes)
}

/// Reads of keys that are not there are quick, and would pass for good figures.
async fn check_filled(workload: &Workload, channel: &Channel) -> Result<()> {
    if workload.deletes() || !workload.reads() {
        return Ok(());
    }
    let count = KvClient::new(channel.clone()).range(Call::count(&workload.space)).await;
    let count = count.map_err(|status| {
        Trouble::Server(format!("the keys could not be counted: {}", status.message()))
    })?;
    let (found, expected) = (count.into_inner().count, workload.space.count);
    if found == expected as i64 {
        return Ok(());
    }
    let what = format!("the server has {found} of the workload's {expected} keys");
    Err(Trouble::Server(format!("{what}; `clearlane-load fill` puts them there")))
}

/// Until nothing more will be due.
async fn send_all(
    lanes: &mut [Lane<'_>],
    mut arrivals: mpsc::Receiver<Arrival>,
    under_way: &mut JoinSet<Done>,
    start: Instant,
    tell: &mut dyn FnMut(&str),
) {
    let mut second = interval(Duration::from_secs(1));
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            arrival = arrivals.recv() => match arrival {
                Some(arrival) => lanes[arrival.class].send(arrival, under_way, start),
                None => return,
            },
            Some(done) = under_way.join_next() => add(lanes, done),
            _ = second.tick() => tell(&progress(lanes, start)),
        }
    }
}

async fn drain(lanes: &mut [Lane<'_>], under_way: &mut JoinSet<Done>, end: Instant) {
    while let Ok(Some(done)) = timeout_at(end.into(), under_way.join_next()).await {
        add(lanes, done);
    }
    for lane in lanes {
        let silent = lane.due - lane.tally.answered() - lane.tally.failed();
        if silent > 0 {
            lane.tally.fail(format!("no answer {} s after the end", DRAIN.as_secs()), silent);
        }
    }
}

fn add(lanes: &mut [Lane<'_>], done: std::result::Result<Done, tokio::task::JoinError>) {
    let done = done.expect("a request neither panics nor is stopped");
    lanes[done.class].tally.add(done);
}

impl Lane<'_> {
    fn send(&mut self, arrival: Arrival, under_way: &mut JoinSet<Done>, start: Instant) {
        self.due += 1;
        if under_way.len() >= UNDER_WAY_MAX {
            self.tally.fail(format!("not sent: {UNDER_WAY_MAX} others had no answer"), 1);
            return;
        }
        let Arrival { class, due } = arrival;
        let call = self.maker.call();
        let turn = self.due as usize % self.connections.len();
        let channel = self.connections[turn].clone();
        under_way.spawn(async move {
            let sent = start.elapsed();
            let outcome = connection::call(channel, call).await;
            Done { class, due, sent, answered: start.elapsed(), outcome }
        });
    }
}

fn progress(lanes: &[Lane<'_>], start: Instant) -> String {
    let each = lanes.iter().map(|lane| {
        let (name, answered) = (&lane.class.name, lane.tally.answered());
        let p99 = lane.tally.latency_ms(0.99).unwrap_or_default();
        let errors = lane.tally.failed();
        format!("{name} {answered} of {}, {errors} errors, p99 {p99:.1} ms", lane.due)
    });
    format!("{:3} s: {}", start.elapsed().as_secs(), each.collect::<Vec<_>>().join("; "))
}
