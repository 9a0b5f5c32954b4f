//! Several members: how many, and how far from each other.

use std::time::Duration;

use super::beside::data_keys;
use super::charts::{linear, lines, log, table_by_point};
use super::check::Check;
use super::closed_loop::ClosedLoop;
use super::context::{Context, Running, Subject};
use super::findings::{Findings, Story};
use super::load;
use super::measurements::{Measurements, quotient};
use crate::plot::Better;
use crate::servers::{Cluster, ClusterOptions, DelayProxy};
use crate::workload::Workload;
use crate::{Error, Result};

/// Classes of requests of single keys.
const PUT: &str = "put";
const LINEARIZABLE: &str = "linearizable";
const SERIALIZABLE: &str = "serializable";
const KEYS: u64 = 2000;

fn workload() -> Result<Workload> {
    let keys = data_keys(KEYS, 32, "256");
    let read = |kind| {
        format!(
            "[[class]]\nname = '{kind}'\noperation = 'range'\nconsistency = '{kind}'\nrate = 1\n"
        )
    };
    let put = format!("[[class]]\nname = '{PUT}'\noperation = 'put'\nrate = 1\n");
    let classes = [put, read(LINEARIZABLE), read(SERIALIZABLE)].concat();
    Workload::parse(&format!("seconds = 1\n{keys}{classes}"))
}

/// For experiments that cannot be made with a cluster that is given.
pub(super) fn cluster(running: Running) -> Result<Cluster> {
    match running {
        Running::Started(cluster) => Ok(cluster),
        Running::Given(_) => {
            Err(Error::Local("this experiment starts its servers itself".to_owned()))
        }
    }
}

const MEMBERS: Story = Story {
    title: "One, three and five members",
    see: "A put waits until a majority has it in its log, and each member writes it: with more \
          members a put takes longer, and there are fewer. Members of one machine share its cores \
          and its disk, so the loss is larger here than with a machine for each.",
    published: "Three members on machines of their own: 583 puts per second with one client and \
                44,341 with 1,000. On two cores, etcd 3.7.1: one member 20,345 and three members \
                9,795 puts per second; 1,627 and 827 with one client.",
    source: "etcd.io, operations guide, performance; the last on the machine of this project",
    differs: "All members share one machine here, so three times the work is done by as many \
              cores.",
};

pub(super) async fn members(context: &Context) -> Result<Findings> {
    let numbers = context.pick(&[1_usize, 3, 5][..], &[1, 3, 5]);
    let (clients, seconds) = (context.pick(32, 200), context.pick(2, 10));
    let (load, window) = (workload()?, Duration::from_secs(seconds));
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        for members in numbers {
            let options = ClusterOptions { members: *members, ..ClusterOptions::default() };
            let cluster = cluster(context.start(subject, options).await?)?;
            let leader = [cluster.endpoint(cluster.leader().await?)];
            load::fill(context, &leader[0], &load.space, seed).await?;
            let all = cluster.endpoints();
            let (server, at) = (subject.name(), *members as f64);
            for (name, endpoints, class, clients) in [
                ("one client/put", &leader[..], PUT, 1),
                ("put", &all[..], PUT, clients),
                ("linearizable", &all[..], LINEARIZABLE, clients),
            ] {
                let workload = &load;
                let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
                closed.run().await?.record(name, at, server, into);
            }
        }
        Ok(())
    };
    let subjects = context.programs(&["clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let figures = [
        ("one client, put p50, ms", "one client/put/p50"),
        ("puts/s", "put/per second"),
        ("put p50, ms", "put/p50"),
        ("linearizable reads/s", "linearizable/per second"),
    ];
    let axes = |what| [linear("members"), linear(what)];
    let shown = vec![
        table_by_point(&measured, "members", &figures),
        lines(
            &measured,
            "Puts per second by the number of members",
            axes("puts per second"),
            Better::Higher,
            "put/per second",
        ),
        lines(
            &measured,
            "A put of the only client",
            axes("p50, ms"),
            Better::Lower,
            "one client/put/p50",
        ),
    ];
    let mut checks = Vec::new();
    for server in measured.servers() {
        let of = |figure: &str, above: f64, below: f64| {
            let at = |members| measured.median_at(server, figure, members);
            quotient(at(above), at(below))
        };
        let claim = format!("{server}, puts per second of one member over those of five");
        checks.push(Check::at_least(&claim, of("put/per second", 1.0, 5.0), 1.0));
        let claim =
            format!("{server}, one client: p50 of a put with three members over that with one");
        checks.push(Check::at_least(&claim, of("one client/put/p50", 3.0, 1.0), 1.0));
    }
    let setting = vec![format!(
        "{KEYS} keys of 32 bytes with 256. In closed loops for {seconds} s each: puts by one \
         client at the leader; puts, and linearizable gets, by {clients} clients spread over the \
         members."
    )];
    Ok(Findings { story: MEMBERS, setting, shown, checks, measured })
}

const ROUND_TRIP: Story = Story {
    title: "The round trip between members",
    see: "A put and a linearizable read need one round trip from the leader to a majority, \
          whatever else they take; so both grow with it, in parallel. A serializable read needs \
          none. Many clients share round trips, so their rate falls much less than one client's.",
    published: "The least time of a request is the round trip between members and a sync of the \
                disk; in a data center that is less than a millisecond, across the United States \
                about 50 ms.",
    source: "etcd.io, operations guide, performance",
    differs: "A proxy delays each direction by half of the round trip; its threads wake some 0.1 \
              ms late. The table has the round trip that was measured through it.",
};

pub(super) async fn round_trip(context: &Context) -> Result<Findings> {
    let trips = context.pick(&[0.1, 2.0, 20.0][..], &[0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
    let (clients, seconds) = (64, context.pick(1, 10));
    let (load, window) = (workload()?, Duration::from_secs(seconds));
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        for ms in trips {
            let round_trip = Duration::from_secs_f64(ms / 1e3);
            let flags = Vec::new();
            let options = ClusterOptions { members: 3, flags, round_trip: Some(round_trip) };
            let cluster = cluster(context.start(subject, options).await?)?;
            let leader = [cluster.endpoint(cluster.leader().await?)];
            load::fill(context, &leader[0], &load.space, seed).await?;
            let (server, endpoints) = (subject.name(), &leader[..]);
            let measured = DelayProxy::measure(round_trip)?.as_secs_f64() * 1e3;
            into.add_at(server, "measured", *ms, measured);
            for (name, class, clients) in [
                (PUT, PUT, 1),
                (LINEARIZABLE, LINEARIZABLE, 1),
                (SERIALIZABLE, SERIALIZABLE, 1),
                ("many clients/put", PUT, clients),
            ] {
                let workload = &load;
                let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
                closed.run().await?.record(name, *ms, server, into);
            }
        }
        Ok(())
    };
    let subjects = context.programs(&["clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let figures = [
        ("measured, ms", "measured"),
        ("put p50, ms", "put/p50"),
        ("linearizable p50, ms", "linearizable/p50"),
        ("serializable p50, ms", "serializable/p50"),
        ("puts/s of many clients", "many clients/put/per second"),
    ];
    let axes = || [log("round trip, ms"), log("p50, ms")];
    let shown = vec![
        table_by_point(&measured, "round trip, ms", &figures),
        lines(&measured, "A put of the only client", axes(), Better::Lower, "put/p50"),
        lines(&measured, "Its linearizable reads", axes(), Better::Lower, "linearizable/p50"),
        lines(&measured, "Its serializable reads", axes(), Better::Lower, "serializable/p50"),
    ];
    let (first, last) = (trips[0], trips[trips.len() - 1]);
    let mut checks = Vec::new();
    for server in measured.servers() {
        let at_last = |figure: &str| measured.median_at(server, figure, last);
        for figure in ["put/p50", "linearizable/p50"] {
            let over = at_last(figure).map(|p50| p50 / last);
            let claim = format!("{server}, {figure} at {last} ms over the round trip");
            checks.push(Check::at_least(&claim, over, 0.95));
            checks.push(Check::at_most(&claim, over, 2.5));
        }
        let at_first = measured.median_at(server, "serializable/p50", first);
        let over = quotient(at_last("serializable/p50"), at_first);
        let claim = format!("{server}, serializable p50 at {last} ms over that at {first} ms");
        checks.push(Check::at_most(&claim, over, 5.0));
    }
    let setting = vec![format!(
        "Three members, {KEYS} keys of 32 bytes with 256, all requests to the leader. In closed \
         loops for {seconds} s each: puts, linearizable and serializable gets by one client, and \
         puts by {clients}."
    )];
    Ok(Findings { story: ROUND_TRIP, setting, shown, checks, measured })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workload_has_each_class() {
        let workload = workload().expect("it is right");
        let names = workload.classes.iter().map(|class| class.name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, [PUT, LINEARIZABLE, SERIALIZABLE]);
    }
}
