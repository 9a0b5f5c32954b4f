//! A large read now and then beside cheap requests: three published loads of one kind.

use super::arguments::Scale;
use super::beside::{BESIDE, CALM, data_keys, filled, only, phase, plot_of, table_of_p99};
use super::charts::{Column, percentiles};
use super::check::Check;
use super::context::{Context, Subject};
use super::expensive::{ExpensiveRead, LARGE_VALUES, Records};
use super::findings::{Findings, Story};
use super::measurements::{Measurements, quotient};
use crate::Result;
use crate::keys::KeySpace;
use crate::page::Section;
use crate::servers::{ClusterOptions, ERAS};
use crate::workload::{Operation, Workload};

/// The classes that are measured, calm and beside the others.
struct Load<'a> {
    cheap: &'a [&'a str],
    big: &'a str,
    workload: Workload,
}

const EXPENSIVE_READS: Story = Story {
    title: "Expensive reads: one a second, beside cheap ones and puts",
    see: "In 3.2 the expensive read holds readTx to its end; a put waits for it, and behind the \
          put every other request. So cheap reads take about as long as the expensive one. In 3.0 \
          and 3.1 one mutex does the same. From 3.4 on a read copies the pending writes and lets \
          go. In clearlane it takes no lock: what is left is the core that its bytes need.",
    published: "Real etcd under this load on two cores, cheap p99 in ms, calm and beside: 3.1.20 \
                2.5 and 32.5, 3.2.32 2.8 and 36.3, 3.3.27 2.9 and 27.0, 3.4.45 2.9 and 10.9, \
                3.5.33 2.9 and 10.2, 3.6.14 2.6 and 7.5, 3.7.1 2.8 and 9.1. Puts beside: 42.0, \
                56.4, 49.5, 9.8, 10.6, 7.5 and 12.2. With values of 1 to 32 KiB cheap p99 rose \
                from 5.0 to 209 ms in 3.3.27, and from 3.8 to 42 ms in 3.7.1.",
    source: "the load is that of etcd pull request 9384 with a fifth of the keys in each expensive \
             read; the figures are of etcd's releases, built by one compiler, 30 s each",
    differs: "An old era holds the locks of that etcd for as long as its own read takes, which is \
              at least 100 ms by the size of the read, and longer than etcd's 20,000 keys of 1 KB \
              took: what compares is the order of the eras, and how \
              many times as long a request takes beside the read. Load and server share two \
              cores, which the expensive read wants, too: a part of each figure beside it is \
              that, at etcd as well.",
};

/// Of large values two eras tell all: their servers are filled for longest.
const LARGE_VALUES_ERAS: [&str; 2] = ["3.2", "clearlane"];

/// Number of keys in a published expensive read.
const PUBLISHED_KEYS: u64 = 20_000;

pub(super) async fn expensive_reads(context: &Context) -> Result<Findings> {
    let eras = context.pick(&["3.2", "3.4", "clearlane"][..], &ERAS[..]);
    let records = Records::new(context, PUBLISHED_KEYS);
    let (count, seconds) = (context.pick(0, 100_000), context.pick(8, 15));
    let (load, reason) = sized_load(context, records, count, 1.0, seconds).await?;
    let mut measured = in_turns(context, &context.servers(eras)?, &load).await?;
    let mut shown = charts(&measured, &load);
    let mut checks = holds_up_old_readers(&measured, "cheap", 3.0);
    let times = |server| measured.times(server, "beside/cheap/p99", "calm/cheap/p99");
    let claim = |server: &str| format!("{server}, cheap p99 beside over calm");
    checks.push(Check::at_least(&claim("era 3.2"), times("3.2"), 8.0).into_bar());
    checks.push(Check::at_most(&claim("clearlane"), times("clearlane"), 1.2).into_bar());
    let later = quotient(times("3.2"), times("3.4"));
    checks.push(Check::at_least("these times in 3.2 over those in 3.4", later, 1.5));
    let ours = quotient(times("3.4"), times("clearlane"));
    checks.push(Check::at_least("these times in 3.4 over ours", ours, 1.0).into_bar());
    let mut setting = vec![setting_of(&load, "The form of the Alibaba test"), reason];
    if context.scale == Scale::Full {
        let records = Records { value: LARGE_VALUES, ..records };
        let (large, reason) = sized_load(context, records, 50_000, 0.25, 20).await?;
        let found = in_turns(context, &context.servers(&LARGE_VALUES_ERAS)?, &large).await?;
        setting.extend([setting_of(&large, "Then the same with large values"), reason]);
        shown.push(cheap_table(&found, &large));
        let times = |server| found.times(server, "beside/cheap/p99", "calm/cheap/p99");
        let claim = |server| format!("{server}, cheap p99 beside over calm, values of 1 to 32 KiB");
        checks.push(Check::at_least(&claim("era 3.2"), times("3.2"), 3.0));
        checks.push(Check::at_most(&claim("clearlane"), times("clearlane"), 1.5).into_bar());
        measured.take(found.with_prefix("large values/"));
    }
    Ok(Findings { story: EXPENSIVE_READS, setting, shown, checks, measured })
}

/// The load and the reason for the size of its expensive reads. There are `count` keys, or more if
/// an expensive read has more.
async fn sized_load(
    context: &Context,
    records: Records<'_>,
    count: u64,
    rate: f64,
    seconds: u64,
) -> Result<(Load<'static>, String)> {
    let ExpensiveRead { keys, reason } = ExpensiveRead::size(context, records).await?;
    let load = expensive_reads_load(count.max(keys), keys, records.value, rate, seconds)?;
    Ok((load, reason))
}

fn expensive_reads_load(
    count: u64,
    expensive_keys: u64,
    value: &str,
    rate: f64,
    seconds: u64,
) -> Result<Load<'static>> {
    let keys = data_keys(count, 256, value);
    let classes = "
        [[class]]
        name = 'cheap'
        operation = 'range'
        keys = 10
        rate = 100
        arrivals = 'poisson'
        connections = 4
        [[class]]
        name = 'put'
        operation = 'put'
        rate = 20
        arrivals = 'poisson'
        connections = 2
        ";
    let expensive = format!(
        "[[class]]\nname = 'expensive'\noperation = 'range'\nkeys = {expensive_keys}\nrate = {rate:?}\n"
    );
    let workload = Workload::parse(&format!("seconds = {seconds}\n{keys}{classes}{expensive}"))?;
    Ok(Load { cheap: &["cheap", "put"], big: "expensive", workload })
}

const SMALL_BESIDE_BIG: Story = Story {
    title: "Small requests beside a big read (etcd #9384)",
    see: "Where the locks are, small reads have two kinds of latencies: of about a millisecond, \
          and of up to the length of the big read. Their p99 is of the second kind in the old \
          eras.",
    published: "100,000 keys of 256 bytes with 1 KB; per second one read of all, 100 small reads \
                and 20 puts. Before: during the big read about 90 % of the reads took 30 times as \
                long, 10 % about 600 ms; half of the puts 30 times as long, the rest 100 to 600 \
                ms. With the change that was proposed: reads about 3 times, puts 4 times.",
    source: "etcd pull request 9384, February 2019",
    differs: "The machine of that measurement had more cores: here the big read and the load's \
              own work of receiving 125 MB take the cores from the small requests in every era, \
              so a factor of a few is left where no lock is.",
};

pub(super) async fn small_beside_big(context: &Context) -> Result<Findings> {
    let (records, seconds) = (Records::new(context, 100_000), context.pick(4, 30));
    let ExpensiveRead { keys: count, reason } = ExpensiveRead::size(context, records).await?;
    let keys = data_keys(count, records.key_size, records.value);
    let workload = Workload::parse(&format!(
        "seconds = {seconds}
        {keys}
        [[class]]
        name = 'small'
        operation = 'range'
        keys = 10
        rate = 100
        arrivals = 'poisson'
        connections = 4
        [[class]]
        name = 'put'
        operation = 'put'
        rate = 20
        arrivals = 'poisson'
        connections = 2
        [[class]]
        name = 'big'
        operation = 'range'
        keys = {count}
        rate = 1
        "
    ))?;
    let load = Load { cheap: &["small", "put"], big: "big", workload };
    let subjects = context.servers(&["3.2", "3.4", "clearlane"])?;
    let measured = in_turns(context, &subjects, &load).await?;
    let shown = charts(&measured, &load);
    let checks = holds_up_old_readers(&measured, "small", 3.0);
    let setting = vec![setting_of(&load, "The load of the pull request"), reason];
    Ok(Findings { story: SMALL_BESIDE_BIG, setting, shown, checks, measured })
}

const TRIPLE_LOAD: Story = Story {
    title: "Three loads at once: long reads, short ones, and puts (etcd #10523)",
    see: "The change of 3.4, which lets a read go on without readTx, is the step between the bars \
          of 3.2 and 3.4. What is left in 3.4 is the copy of the pending writes for each read.",
    published: "Long reads, short ones at 10,000 per second as far as they went, and puts of 10 \
                KB at 2,000: with the change the others' throughput rose by about 70 %, and their \
                p99 and p99.9 fell by about 90 %; without long reads nothing changed.",
    source: "etcd pull request 10523, June 2019",
    differs: "That load was closed: as many clients as there were, so a server that stood still \
              was asked for less. This one is open, at rates that two cores can answer, and so \
              the waits of all that were due are in it.",
};

pub(super) async fn triple_load(context: &Context) -> Result<Findings> {
    let (records, seconds) = (Records::new(context, 200_000), context.pick(4, 30));
    let ExpensiveRead { keys: count, reason } = ExpensiveRead::size(context, records).await?;
    let (short, puts) = (context.pick(200, 500), context.pick(60, 150));
    let long = context.pick(0.7, 0.4);
    let keys = data_keys(count, records.key_size, records.value);
    let workload = Workload::parse(&format!(
        "seconds = {seconds}
        {keys}
        [[class]]
        name = 'short'
        operation = 'range'
        keys = 10
        rate = {short}
        arrivals = 'poisson'
        connections = 4
        [[class]]
        name = 'put'
        operation = 'put'
        value = 10_240
        rate = {puts}
        arrivals = 'poisson'
        connections = 2
        [[class]]
        name = 'long'
        operation = 'range'
        keys = {count}
        rate = {long:?}
        consistency = 'serializable'
        "
    ))?;
    let load = Load { cheap: &["short", "put"], big: "long", workload };
    let subjects = context.servers(&["3.2", "3.4", "clearlane"])?;
    let measured = in_turns(context, &subjects, &load).await?;
    let shown = charts(&measured, &load);
    let [old, new] = ["3.2", "3.4"].map(|era| measured.median(era, "beside/short/p99"));
    let claim = "short p99 beside long reads, 3.2 over 3.4";
    let mut checks = vec![Check::at_least(claim, quotient(old, new), 2.0)];
    checks.extend(holds_up_old_readers(&measured, "short", 3.0));
    let setting = vec![setting_of(&load, "The three loads, at rates for two cores"), reason];
    Ok(Findings { story: TRIPLE_LOAD, setting, shown, checks, measured })
}

async fn in_turns(
    context: &Context,
    subjects: &[Subject],
    load: &Load<'_>,
) -> Result<Measurements> {
    let calm = only(&load.workload, load.cheap)?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let workload = &load.workload;
        let running =
            filled(context, subject, ClusterOptions::default(), &[workload], seed).await?;
        let endpoint = running.endpoint();
        for (name, workload) in [(CALM, &calm), (BESIDE, workload)] {
            let phase = phase(name, &endpoint, workload, seed);
            phase.run(context, subject.name(), &running, into).await?;
        }
        running.end().await
    };
    context.in_turns(subjects, measure).await
}

/// The table, and plots of the cheap classes.
fn charts(measured: &Measurements, load: &Load<'_>) -> Vec<Section> {
    let mut charts = vec![cheap_table(measured, load)];
    for class in load.cheap {
        charts.push(plot_of(measured, class, "p99"));
        let title = format!("{class}: latencies beside it, by percentile");
        charts.push(percentiles(measured, &title, &format!("{BESIDE}/{class}")));
    }
    charts
}

fn cheap_table(measured: &Measurements, load: &Load<'_>) -> Section {
    let (heading, figure) = (format!("{} p50, ms", load.big), format!("beside/{}/p50", load.big));
    let more = [
        Column::median(&heading, &figure),
        Column::median("server's processor time, s", "beside/processor s"),
        Column::median("peak memory, MB", "beside/peak MB"),
    ];
    table_of_p99(measured, load.cheap, &more)
}

/// In 3.2 a cheap read waits for the big one, and in ours it does not.
fn holds_up_old_readers(measured: &Measurements, class: &str, bound: f64) -> Vec<Check> {
    let (beside, calm) = (format!("beside/{class}/p99"), format!("calm/{class}/p99"));
    let times = |server| measured.times(server, &beside, &calm);
    let over = quotient(times("3.2"), times("clearlane"));
    let of = |server: &str| format!("{server}, {class} p99 beside over calm");
    vec![
        Check::at_least(&of("era 3.2"), times("3.2"), bound),
        Check::at_least(
            &format!("these times in 3.2 over those in clearlane ({class})"),
            over,
            2.0,
        ),
    ]
}

fn setting_of(load: &Load<'_>, what: &str) -> String {
    let Workload { seconds, space, classes } = &load.workload;
    let classes = classes.iter().map(|class| {
        let kind = class.operation.name();
        let keys = match class.operation {
            Operation::Range { keys, .. } => format!(" of {keys} keys"),
            _ => String::new(),
        };
        format!("{} {}: {kind}{keys}", class.rate, class.name)
    });
    let classes = classes.collect::<Vec<_>>().join("; ");
    let KeySpace { count, key_size, value, .. } = space;
    let cheap = load.cheap.join(" and ");
    format!(
        "{what}: {count} keys of {key_size} bytes with values of {value}. Per second, in an open \
         loop for {seconds} s: {classes}. Before that, {cheap} alone: calm."
    )
}
