//! Linearizable and serializable reads, at three members.

use std::time::Duration;

use super::beside::{data_keys, filled};
use super::charts::{Column, bars, linear, log, table};
use super::check::Check;
use super::closed_loop::ClosedLoop;
use super::context::{Context, Subject};
use super::findings::{Findings, Story};
use super::measurements::Measurements;
use crate::Result;
use crate::plot::Better;
use crate::servers::ClusterOptions;
use crate::workload::Workload;

const STORY: Story = Story {
    title: "Serializable against linearizable reads, with three members",
    see: "A serializable read is answered by the member that was asked. A linearizable one first \
          asks the leader how far the log is, and the leader asks a majority whether it still \
          leads; reads that come together share one such question. So it costs a way between \
          members while there is one client, and less as clients become more.",
    published: "Of three members with 8 processors each: one client 1,353 linearizable reads per \
                second of 0.7 ms and 2,909 serializable ones of 0.3 ms; 1,000 clients 141,578 of \
                5.5 ms and 185,758 of 2.2 ms. Three members of etcd 3.7.1 on two cores: 18,732 \
                and 24,976 per second, one client 1,742 linearizable ones.",
    source: "etcd.io, operations guide, performance; the last two on the machine of this project",
    differs: "Here three members and the clients share all cores of one machine, so what a round \
              of heartbeats costs in processor time counts as much as its way; the ways are a \
              loopback's.",
};

/// With one client and with many.
const PHASES: [&str; 2] = ["one", "many"];
const KINDS: [&str; 2] = ["linearizable", "serializable"];

pub(super) async fn serializable_vs_linearizable(context: &Context) -> Result<Findings> {
    let (count, many) = (context.pick(2000, 100_000), context.pick(50, 200));
    let window = context.pick(2, 10);
    let load = workload(count)?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions { members: 3, ..ClusterOptions::default() };
        let running = filled(context, subject, options, &[&load], seed).await?;
        let endpoints = running.endpoints();
        for (phase, clients) in PHASES.into_iter().zip([1, many]) {
            for kind in KINDS {
                let window = Duration::from_secs(window);
                let (endpoints, workload, class) = (&endpoints[..], &load, kind);
                let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
                let report = closed.run().await?;
                report.record(&format!("{phase}/{kind}"), None, subject.name(), into);
            }
        }
        running.end().await
    };
    let subjects = context.servers(&["clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let columns = [
        Column::median("one client, linearizable p50, ms", "one/linearizable/p50"),
        Column::median("serializable p50, ms", "one/serializable/p50"),
        Column::times("times", "one/linearizable/p50", "one/serializable/p50"),
        Column::median("many clients, linearizable per second", "many/linearizable/per second"),
        Column::median("serializable per second", "many/serializable/per second"),
        Column::times("times", "many/serializable/per second", "many/linearizable/per second"),
    ];
    let one = [("linearizable", "one/linearizable/p50"), ("serializable", "one/serializable/p50")];
    let rates = [
        ("linearizable", "many/linearizable/per second"),
        ("serializable", "many/serializable/per second"),
    ];
    let shown = vec![
        table(&measured, &columns),
        bars(&measured, "One client: p50 of a read", log("p50, ms"), Better::Lower, &one),
        bars(
            &measured,
            "Many clients: reads per second",
            linear("reads per second"),
            Better::Higher,
            &rates,
        ),
    ];
    let mut checks = Vec::new();
    for server in measured.servers() {
        let times = measured.times(server, "one/linearizable/p50", "one/serializable/p50");
        let claim =
            format!("{server}, one client: p50 of a linearizable read over a serializable one");
        checks.push(Check::at_least(&claim, times, 1.1));
        let rates =
            measured.times(server, "many/serializable/per second", "many/linearizable/per second");
        let claim = format!("{server}, many clients: serializable reads over linearizable ones");
        checks.push(Check::at_least(&claim, rates, 0.9));
    }
    let setting = vec![format!(
        "Three members, {count} keys of 32 bytes with 64, reads of single keys in closed loops for \
         {window} s: by one client, and by {many} that are spread over the members."
    )];
    Ok(Findings { story: STORY, setting, shown, checks, measured })
}

fn workload(count: u64) -> Result<Workload> {
    let keys = data_keys(count, 32, "64");
    let classes = KINDS.map(|kind| {
        format!(
            "[[class]]\nname = '{kind}'\noperation = 'range'\nconsistency = '{kind}'\nrate = 1\n"
        )
    });
    Workload::parse(&format!("seconds = 1\n{keys}{}", classes.concat()))
}
