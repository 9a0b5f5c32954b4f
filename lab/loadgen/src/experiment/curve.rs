//! Runs closed loops, at each point of a curve if there is one. The loops show the maximum rate of
//! a server while something grows, such as the number of clients.

use std::slice;
use std::time::Duration;

use tokio::try_join;

use super::closed_loop::{self, run_class};
use super::context::Running;
use super::load::open_loop;
use super::measurements::Measurements;
use super::plan::LoopPlan;
use super::turn::Turn;
use crate::Result;
use crate::run::WindowBegin;
use crate::servers::DelayProxy;
use crate::workload::Operation;

pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    let Some(points) = &turn.plan.points else {
        let running = turn.start(&[]).await?;
        run_loops(turn, &running, None, into).await?;
        return running.end().await;
    };
    let ascending = points.at.at(turn.context.scale);
    if points.has_own_servers {
        for at in ascending {
            let turn = turn.at(&points.name, *at);
            let running = turn.start(&[]).await?;
            run_loops(&turn, &running, Some(*at), into).await?;
            running.end().await?;
        }
        return Ok(());
    }
    let running = turn.start(&[]).await?;
    let windows = turn.values.get("windows").unwrap_or(1);
    for at in turn.context.in_order(ascending, turn.seed).repeat(windows) {
        run_loops(&turn.at(&points.name, at), &running, Some(at), into).await?;
    }
    running.end().await
}

/// Runs the loops of the plan, one after the other.
pub(super) async fn run_loops(
    turn: &Turn<'_>,
    running: &Running,
    at: Option<f64>,
    into: &mut Measurements,
) -> Result<()> {
    let (server, seed) = (turn.server(), turn.seed);
    if let Some(round_trip) = turn.round_trip()? {
        let measured = DelayProxy::measure(round_trip)?.as_secs_f64() * 1e3;
        into.add_at(server, "measured", at, measured);
    }
    let workload = &turn.values.workload(&turn.plan.load)?;
    let window = Duration::from_secs(turn.values.get("seconds")?);
    for LoopPlan { figure, class, clients, is_spread, .. } in &turn.plan.loops {
        let leader = slice::from_ref(&running.leader);
        let endpoints = if *is_spread { &running.endpoints[..] } else { leader };
        let mut options = closed_loop::options(endpoints, turn.values.number(clients)?, window)?;
        let class = workload.class(class)?;
        let report = match &turn.plan.open_loop {
            Some(open) if at != Some(0.0) => {
                // The warm-up ends when the window of the open loop starts.
                let begin = WindowBegin::default();
                let has_begun = begin.clone();
                options.warm_up = Some(Box::pin(async move { has_begun.wait().await }));
                let closed = run_class(options, workload, class, seed);
                let open = run_open_loop(turn, running, (open, begin), at, into);
                try_join!(closed, open)?.0
            }
            _ => run_class(options, workload, class, seed).await?,
        };
        report.record(figure, at, server, into);
        if let Operation::Put { value } = class.operation {
            let mb = (value.min + value.max) as f64 / 2.0 / 1e6;
            into.add_at(server, &format!("{figure}/MB per second"), at, report.per_second() * mb);
        }
    }
    Ok(())
}

/// Runs the open loop of the plan while a closed loop runs, for the same time.
async fn run_open_loop(
    turn: &Turn<'_>,
    running: &Running,
    (plan, begin): (&LoopPlan, WindowBegin),
    at: Option<f64>,
    into: &mut Measurements,
) -> Result<()> {
    let (server, mut found) = (turn.server(), Measurements::default());
    let LoopPlan { figure, class, load, .. } = plan;
    let workload = turn.values.workload(load)?;
    open_loop(turn, running, (figure, &workload), begin, &mut found).await?;
    for name in ["p99", "per second"] {
        let value = found.median(server, &format!("{figure}/{class}/{name}"));
        into.add_at(server, &format!("{figure}/{name}"), at, value);
    }
    into.take_warnings(found);
    Ok(())
}
