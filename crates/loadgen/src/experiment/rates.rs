//! What a server answers at most, in closed loops, as something grows: writes beside reads, the
//! size of values, the number of clients.

use std::time::Duration;

use tokio::try_join;

use super::beside::{data_keys, filled, phase, probes};
use super::charts::{linear, lines, log, table_by_point};
use super::check::Check;
use super::closed_loop::ClosedLoop;
use super::context::{Context, Subject};
use super::findings::{Findings, Story};
use super::measurements::{Measurements, quotient};
use crate::Result;
use crate::plot::Better;
use crate::servers::ClusterOptions;
use crate::workload::Workload;

const READS_UNDER_WRITES: Story = Story {
    title: "Reads beside writes",
    see: "Each write takes processor time from reads, at every server. In 3.4 each read also \
          copies the writes that are not committed yet, up to 10,000; in 3.5 the reads between \
          two writes share a copy, so the more writes, the fewer share one. In clearlane a read \
          takes a pointer.",
    published: "The copy that is shared brought 3.5 up to 2.4 times the reads of 3.4 in read-heavy \
                mixes, and 1.4 times the writes in write-heavy ones.",
    source: "etcd pull request 12933, and the announcement of etcd 3.5",
    differs: "Those mixes had up to 4,096 connections on machines with more cores. On two cores \
              the load's own processor time, and that of the writes, is most of what the reads \
              lose.",
};

pub(super) async fn reads_under_writes(context: &Context) -> Result<Findings> {
    let rates = context.pick(&[0_u64, 1000, 3000][..], &[0, 100, 300, 1000, 2000, 3000]);
    let (clients, seconds) = (32, context.pick(2, 10));
    // A single short window can fall into a slow time of the machine.
    let windows = context.pick(3, 1);
    let reads = one_class(10_000, 32, 256, "operation = 'range'\nconsistency = 'serializable'", 1)?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions::default();
        let running = filled(context, subject, options, &[&reads], seed).await?;
        let (server, endpoints) = (subject.name(), [running.endpoint()]);
        for rate in context.in_order(rates, seed).repeat(windows) {
            let window = Duration::from_secs(seconds);
            let (endpoints, workload, class) = (&endpoints[..], &reads, "load");
            let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
            let at = rate as f64;
            if rate == 0 {
                closed.run().await?.record("reads", at, server, into);
                continue;
            }
            let mut of_puts = Measurements::default();
            let puts = one_class(10_000, 32, 256, "operation = 'put'\nconnections = 4", rate)?;
            let puts = Workload { seconds, ..puts };
            let phase = phase("puts", &endpoints[0], &puts, seed);
            let closed = closed.run_beside(phase.begin.clone());
            let run = phase.run(context, server, &running, &mut of_puts);
            let (report, ()) = try_join!(closed, run)?;
            report.record("reads", at, server, into);
            for figure in ["p99", "per second"] {
                if let Some(value) = of_puts.median(server, &format!("puts/load/{figure}")) {
                    into.add_at(server, &format!("puts/{figure}"), at, value);
                }
            }
            into.take_warnings(of_puts);
        }
        running.end().await
    };
    let subjects = context.servers(&["3.2", "3.4", "3.5", "clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let figures = [
        ("reads/s", "reads/per second"),
        ("read p99, ms", "reads/p99"),
        ("put p99, ms", "puts/p99"),
        ("puts/s reached", "puts/per second"),
    ];
    let axes = [linear("writes per second"), linear("reads per second")];
    let shown = vec![
        table_by_point(&measured, "writes/s", &figures),
        lines(
            &measured,
            "Reads per second beside writes",
            axes,
            Better::Higher,
            "reads/per second",
        ),
    ];
    let checks = reads_checks(&measured, rates[0] as f64, rates[rates.len() - 1] as f64);
    let setting = vec![format!(
        "One member, 10,000 keys of 32 bytes with 256. {clients} clients in a closed loop read \
         single keys, serializable, for {seconds} s; beside them so many puts per second in an \
         open loop. Each rate has {windows} of these windows in a round, in turns."
    )];
    Ok(Findings { story: READS_UNDER_WRITES, setting, shown, checks, measured })
}

/// `first` and `last` are rates of writes.
fn reads_checks(measured: &Measurements, first: f64, last: f64) -> Vec<Check> {
    let read = |server: &str, at| measured.median_at(server, "reads/per second", at);
    let mut checks = Vec::new();
    for server in measured.servers() {
        let share = quotient(read(server, last), read(server, first));
        let claim = format!("{server}, reads beside {last} writes per second over those without");
        checks.push(Check::at_most(&claim, share, 1.0));
    }
    let share = quotient(read("clearlane", last), read("3.4", last));
    let claim = format!("reads beside {last} writes per second, clearlane over 3.4");
    checks.push(Check::at_least(&claim, share, 0.8));
    // The published ratio is that of a mixed load on more cores.
    let share = quotient(read("3.5", last), read("3.4", last));
    let claim = format!("reads beside {last} writes per second, 3.5 over 3.4");
    checks.push(Check::at_least(&claim, share, 0.9).into_bar());
    checks
}

const LARGE_VALUES: Story = Story {
    title: "Large values",
    see: "Fewer puts as values grow, and more bytes: each put has its share of a sync of the log, \
          which a small value hardly fills. Small reads beside them wait for a core, and in etcd \
          for the commit of what was put.",
    published: "With values of 256 KB and 400 puts per second, put p50 was 0.83 s and p99 1.40 s. \
                Requests above 1.5 MiB are refused.",
    source: "etcd pull request 18121, with a watcher that wants the previous values",
    differs: "The disk decides: each value is written to the log and to the store.",
};

pub(super) async fn large_values(context: &Context) -> Result<Findings> {
    let sizes =
        context.pick(&[256_u64, 16_384, 262_144][..], &[256, 1024, 16_384, 262_144, 1_048_576]);
    let (clients, seconds) = (8, context.pick(2, 5));
    let gets = probes(seconds, 100, 1)?.without(&["put".to_owned()])?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions::default();
        let running = filled(context, subject, options, &[&gets], seed).await?;
        let (server, endpoints) = (subject.name(), [running.endpoint()]);
        for size in context.in_order(sizes, seed) {
            let puts = one_class(100, 40, 64, &format!("operation = 'put'\nvalue = {size}"), 1)?;
            let window = Duration::from_secs(seconds);
            let (endpoints, workload, class) = (&endpoints[..], &puts, "load");
            let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
            let mut of_gets = Measurements::default();
            let phase = phase("gets", &endpoints[0], &gets, seed);
            let closed = closed.run_beside(phase.begin.clone());
            let run = phase.run(context, server, &running, &mut of_gets);
            let (report, ()) = try_join!(closed, run)?;
            let at = size as f64;
            report.record("puts", at, server, into);
            into.add_at(server, "puts/MB per second", at, report.per_second() * at / 1e6);
            if let Some(p99) = of_gets.median(server, "gets/get/p99") {
                into.add_at(server, "gets/p99", at, p99);
            }
            into.take_warnings(of_gets);
        }
        running.end().await
    };
    let subjects = context.servers(&["clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let figures = [
        ("puts/s", "puts/per second"),
        ("MB/s", "puts/MB per second"),
        ("put p50, ms", "puts/p50"),
        ("put p99, ms", "puts/p99"),
        ("get p99 beside, ms", "gets/p99"),
    ];
    let bytes = || log("bytes of a value");
    let shown = vec![
        table_by_point(&measured, "bytes", &figures),
        lines(
            &measured,
            "Puts per second by the size of their values",
            [bytes(), log("puts per second")],
            Better::Higher,
            "puts/per second",
        ),
        lines(
            &measured,
            "Small gets beside them",
            [bytes(), log("p99, ms")],
            Better::Lower,
            "gets/p99",
        ),
    ];
    let checks = fewer_puts_and_more_bytes(&measured, sizes);
    let setting = vec![format!(
        "One member. {clients} clients in a closed loop put values of one size for {seconds} s; \
         beside them 100 small gets per second in an open loop."
    )];
    Ok(Findings { story: LARGE_VALUES, setting, shown, checks, measured })
}

fn fewer_puts_and_more_bytes(measured: &Measurements, sizes: &[u64]) -> Vec<Check> {
    let (first, last) = (sizes[0] as f64, sizes[sizes.len() - 1] as f64);
    let mut checks = Vec::new();
    for server in measured.servers() {
        let of = |figure: &str| {
            let at = |size| measured.median_at(server, figure, size);
            quotient(at(first), at(last))
        };
        let claim = format!("{server}, puts per second of {first} bytes over those of {last}");
        checks.push(Check::at_least(&claim, of("puts/per second"), 2.0));
        let claim = format!("{server}, bytes per second of {first} bytes over those of {last}");
        checks.push(Check::at_most(&claim, of("puts/MB per second"), 0.5));
    }
    checks
}

const WRITE_BATCHING: Story = Story {
    title: "Puts that share a sync of the log",
    see: "A put waits for a sync of the log. Puts that come meanwhile share the next one: with \
          more clients there are many more puts per second, and each waits little longer, until \
          the processor is what is short.",
    published: "Three members: 583 puts per second with one client, 44,341 with 1,000. One etcd \
                3.7.1 on two cores: 1,627 and, with 500 clients, 20,345.",
    source: "etcd.io, operations guide, performance; the last two on the machine of this project",
    differs: "On two cores the clients take up to half of the machine, so the curve bends earlier.",
};

pub(super) async fn write_batching(context: &Context) -> Result<Findings> {
    let clients = context.pick(&[1_u64, 8, 64, 256][..], &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512]);
    let seconds = context.pick(2, 10);
    let puts = one_class(10_000, 32, 256, "operation = 'put'", 1)?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let running = context.start(subject, ClusterOptions::default()).await?;
        let endpoints = [running.endpoint()];
        for clients in context.in_order(clients, seed) {
            let (window, at) = (Duration::from_secs(seconds), clients as f64);
            let (endpoints, workload, class) = (&endpoints[..], &puts, "load");
            let closed = ClosedLoop { endpoints, workload, class, clients, window, seed };
            closed.run().await?.record("puts", at, subject.name(), into);
        }
        running.end().await
    };
    let subjects = context.servers(&["clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let figures = [("puts/s", "puts/per second"), ("p50, ms", "puts/p50"), ("p99, ms", "puts/p99")];
    let axes = || log("clients");
    let shown = vec![
        table_by_point(&measured, "clients", &figures),
        lines(
            &measured,
            "Puts per second by the number of clients",
            [axes(), log("puts per second")],
            Better::Higher,
            "puts/per second",
        ),
        lines(
            &measured,
            "How long a put takes",
            [axes(), log("p50, ms")],
            Better::Lower,
            "puts/p50",
        ),
    ];
    let (first, last) = (clients[0] as f64, clients[clients.len() - 1] as f64);
    let mut checks = Vec::new();
    for server in measured.servers() {
        let rate = |at| measured.median_at(server, "puts/per second", at);
        let claim = format!("{server}, puts per second of {last} clients over those of one");
        checks.push(Check::at_least(&claim, quotient(rate(last), rate(first)), 3.0));
    }
    let setting = vec![format!(
        "One member, puts of 256 bytes to 10,000 keys, in a closed loop for {seconds} s with each \
         number of clients."
    )];
    Ok(Findings { story: WRITE_BATCHING, setting, shown, checks, measured })
}

/// Requests of one class, `load`; `operation` has its lines.
fn one_class(
    count: u64,
    key_size: u64,
    value: u64,
    operation: &str,
    rate: u64,
) -> Result<Workload> {
    let keys = data_keys(count, key_size, &value.to_string());
    let class = format!("[[class]]\nname = 'load'\n{operation}\nrate = {rate}\n");
    Workload::parse(&format!("seconds = 1\n{keys}{class}"))
}
