//! What a store does with its history, beside gets and puts: watchers that read it, compactions
//! that remove it, defragmentations and snapshots that copy what is left.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DefragmentRequest, RangeRequest, SnapshotRequest, WatchCreateRequest,
    WatchRequest,
};
use tokio::time::{sleep, timeout};
use tokio::try_join;

use super::beside::{
    BESIDE, CALM, data, filled, phase, plot_of, probes, table_of_longest, table_of_p99,
};
use super::charts::{Column, bars, log, table};
use super::check::Check;
use super::context::{Context, Subject, channel};
use super::expensive::{ExpensiveRead, LARGE_VALUES, Records};
use super::findings::{Findings, Story};
use super::load::{Background, Repetition, write_revisions};
use super::measurements::{Measurements, quotient};
use crate::keys::KeySpace;
use crate::page::Section;
use crate::plot::Better;
use crate::requests::{Call, range};
use crate::response_scanner::ResponseShape;
use crate::run::WindowBegin;
use crate::servers::{ClusterOptions, ETCD};
use crate::{Error, Result};

const LAGGING_WATCHER: Story = Story {
    title: "A watcher that is far behind (etcd #22264)",
    see: "Ten times a second etcd reads all revisions that the watcher lacks to send it the first \
          thousand, under the lock that the end of each put needs. So puts wait, and linearizable \
          gets wait until what was put before them is applied. In clearlane a watcher reads what \
          it is sent, from a state that nothing else waits for; it has all events in a fraction \
          of a second, and begins again.",
    published: "The lock was held for 1.3 s of every 1.4 s, and puts stood still for more than 90 \
                % of the time. For one watcher that lacked 20,000 revisions, 210,001 were read. \
                One etcd of the main branch on two cores, 300 puts per second: put p99 171 ms \
                beside a watcher from revision 2 of 150,000, and 8.6 ms without.",
    source: "etcd issue 22264 and pull request 22265; the last on a machine as this one",
    differs: "The history here is shorter than a million revisions, so the waits are shorter, too: \
              they grow with it.",
};

pub(super) async fn lagging_watcher(context: &Context) -> Result<Findings> {
    let (revisions, seconds) = (context.pick(40_000, 200_000), context.pick(4, 20));
    let (history, probes) = (data(10_000, 64, 256)?, probes(seconds, 100, 50)?);
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions::default();
        let running = filled(context, subject, options, &[&probes], seed).await?;
        let (server, endpoint) = (subject.name(), running.endpoint());
        let first = revision(&endpoint).await? + 1;
        context.tell(&format!("{server}: {revisions} revisions are written"));
        write_revisions(&endpoint, &history, revisions, seed).await?;
        phase(CALM, &endpoint, &probes, seed).run(context, server, &running, into).await?;
        let watch = watch_from(first, &history.space, revisions);
        let repetition = Repetition { pause: WATCHER_PAUSE, ..Repetition::default() };
        let watcher = Background::start(&endpoint, vec![watch], repetition).await?;
        phase(BESIDE, &endpoint, &probes, seed).run(context, server, &running, into).await?;
        watcher.end("watcher", server, into).await;
        running.end().await
    };
    let subjects = context.servers(&["3.5", "clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let more = [Column::median("all events to one watcher, ms", "watcher/p50")];
    let shown = vec![
        table_of_p99(&measured, &["put", "get"], &more),
        plot_of(&measured, "put", "p99"),
        plot_of(&measured, "get", "p99"),
    ];
    let times = |server: &str| measured.times(server, "beside/put/p99", "calm/put/p99");
    let mut checks = vec![
        Check::at_least("era 3.5, put p99 beside over calm", times("3.5"), 2.0),
        Check::at_least(
            "these times in 3.5 over those in clearlane",
            quotient(times("3.5"), times("clearlane")),
            1.5,
        ),
    ];
    if measured.has(ETCD) {
        checks.push(Check::at_least("etcd, put p99 beside over calm", times(ETCD), 2.0));
    }
    let setting = vec![format!(
        "One member with {revisions} revisions of 10,000 keys of 64 bytes with 256. 100 gets and \
         50 puts per second of other keys in an open loop for {seconds} s; beside them one \
         watcher of all those keys from the first of these revisions, which begins again \
         half a second after it has all events."
    )];
    Ok(Findings { story: LAGGING_WATCHER, setting, shown, checks, measured })
}

/// After a watcher has all events, and before it begins again.
const WATCHER_PAUSE: Duration = Duration::from_millis(500);

fn watch_from(revision: i64, space: &KeySpace, events: u64) -> Call {
    let RangeRequest { key, range_end, .. } = range(space, 0, space.count);
    let create =
        WatchCreateRequest { key, range_end, start_revision: revision, ..Default::default() };
    let watch = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
    let call = Call::new("/etcdserverpb.Watch/Watch", &watch, Some(events));
    Call { answer: ResponseShape::Watch, ..call }
}

/// The present one.
async fn revision(endpoint: &str) -> Result<i64> {
    let get = RangeRequest { key: "revision".into(), ..RangeRequest::default() };
    let answer = KvClient::new(channel(endpoint).await?).range(get).await;
    let failed = |status: tonic::Status| {
        Error::Server(format!("the revision is not known: {}", status.message()))
    };
    Ok(answer.map_err(failed)?.into_inner().header.unwrap_or_default().revision)
}

/// What is done once in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Once {
    /// Of all that was overwritten, from the index and from the disk.
    Compact,
    Defragment,
}

/// From the beginning of what is measured.
const ONCE_AFTER: Duration = Duration::from_secs(1);
const ONCE_TIMEOUT: Duration = Duration::from_secs(120);

impl Once {
    /// Returns how long it took, in seconds.
    async fn run(self, endpoint: &str, begin: WindowBegin) -> Result<f64> {
        let channel = channel(endpoint).await?;
        let revision = revision(endpoint).await?;
        begin.wait().await;
        sleep(ONCE_AFTER).await;
        let begin = Instant::now();
        let request = async {
            match self {
                Once::Compact => {
                    let compact = CompactionRequest { revision, physical: true };
                    KvClient::new(channel).compact(compact).await.map(drop)
                }
                Once::Defragment => {
                    let mut client = MaintenanceClient::new(channel);
                    client.defragment(DefragmentRequest {}).await.map(drop)
                }
            }
        };
        let name = self.name();
        let late = || Error::Server(format!("no end of the {name} within 120 s"));
        let result = timeout(ONCE_TIMEOUT, request).await.map_err(|_| late())?;
        let failed = |status: tonic::Status| Error::Server(format!("{name}: {}", status.message()));
        result.map_err(failed)?;
        Ok(begin.elapsed().as_secs_f64())
    }

    fn name(self) -> &'static str {
        match self {
            Once::Compact => "compaction",
            Once::Defragment => "defragmentation",
        }
    }
}

/// The sizes of a run with something that is done once.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    keys: u64,
    revisions: u64,
    seconds: u64,
}

async fn measure_once(
    context: &Context,
    subjects: &[Subject],
    what: Once,
    Sizes { keys, revisions, seconds }: Sizes,
) -> Result<Measurements> {
    let (stored, probes) = (data(keys, 64, 512)?, probes(seconds, 200, 100)?);
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions::default();
        let running = filled(context, subject, options, &[&probes, &stored], seed).await?;
        let (server, endpoint) = (subject.name(), running.endpoint());
        context.tell(&format!("{server}: {revisions} revisions are written"));
        write_revisions(&endpoint, &stored, revisions, seed).await?;
        phase(CALM, &endpoint, &probes, seed).run(context, server, &running, into).await?;
        let phase = phase(BESIDE, &endpoint, &probes, seed);
        let once = what.run(&endpoint, phase.begin.clone());
        let ((), took) = try_join!(phase.run(context, server, &running, into), once)?;
        into.add(server, "took s", took);
        for class in ["get", "put"] {
            let longest = into.median(server, &format!("beside/{class}/max"));
            let share = longest.map(|longest| longest / 1e3 / took);
            into.add_some(server, &format!("{class}/share"), share);
        }
        running.end().await
    };
    context.in_turns(subjects, measure).await
}

fn setting_of_once(what: Once, Sizes { keys, revisions, seconds }: Sizes) -> String {
    format!(
        "One member with {keys} keys of 64 bytes with 512, overwritten {revisions} times. 200 \
         gets and 100 puts per second of other keys in an open loop for {seconds} s: calm, and \
         with one {} that begins a second later. The longest of them is what counts, as it \
         happens once.",
        what.name()
    )
}

const COMPACTION: Story = Story {
    title: "A compaction under load",
    see: "etcd 3.2 goes over its index with the index locked, and then over the store in batches \
          of 10,000, each under the lock of the writers with a commit. From 3.4 on the index is \
          copied and a batch has 1,000 revisions: shorter waits, many more of them. In clearlane \
          a step removes what goes and holds up one put at most.",
    published: "30,000 puts per second without a compaction and 15,900 with one (a store of 14.7 \
                GB). Timeouts at a compaction's walk over the index up to 3.3. A p99 that rises \
                every five minutes, with the compactions of Kubernetes.",
    source: "etcd issues 22332, 9511 and 11099",
    differs: "A compaction of this size is over within a second or two, and the store fits in \
              memory.",
};

pub(super) async fn compaction_under_load(context: &Context) -> Result<Findings> {
    let sizes = Sizes {
        // The walk of 3.2 over its index takes as long as there are keys.
        keys: context.pick(250_000, 600_000),
        revisions: context.pick(40_000, 400_000),
        seconds: context.pick(4, 20),
    };
    let subjects = context.programs(&["3.2", "3.5", "clearlane"])?;
    let measured = measure_once(context, &subjects, Once::Compact, sizes).await?;
    let longest =
        |server: &str, class: &str| measured.median(server, &format!("beside/{class}/max"));
    let mut checks = Vec::new();
    for class in ["get", "put"] {
        let over = quotient(longest("3.2", class), longest("clearlane", class));
        let claim = format!("the longest {class} beside it, 3.2 over clearlane");
        checks.push(Check::at_least(&claim, over, 1.0));
    }
    let more = [
        Column::median("get p99 beside, ms", "beside/get/p99"),
        Column::median("put p99 beside, ms", "beside/put/p99"),
        Column::median("compaction, s", "took s"),
    ];
    let shown = vec![
        table_of_longest(&measured, &["get", "put"], &more),
        plot_of(&measured, "get", "max"),
        plot_of(&measured, "put", "max"),
    ];
    let setting = vec![setting_of_once(Once::Compact, sizes)];
    Ok(Findings { story: COMPACTION, setting, shown, checks, measured })
}

const DEFRAGMENTATION: Story = Story {
    title: "A defragmentation under load",
    see: "In every era of etcd a defragmentation holds three locks until the file is copied: the \
          longest get takes as long as it. In clearlane it goes on beside reads and writes, in \
          steps.",
    published: "A store of 4.1 GB stood still for 15 s. An issue of 2018 that asks for one that \
                does not stop the world is still open.",
    source: "etcd issues 20952 and 9222; pull request 22425 of 2026 proposes one",
    differs: "The store is some hundred megabytes at most, so it is copied in less than a second \
              or two; etcd would stop for longer in proportion.",
};

pub(super) async fn defrag_under_load(context: &Context) -> Result<Findings> {
    let sizes = Sizes {
        keys: context.pick(60_000, 400_000),
        revisions: context.pick(20_000, 200_000),
        seconds: context.pick(4, 20),
    };
    let subjects = context.programs(&["3.5", "clearlane"])?;
    let measured = measure_once(context, &subjects, Once::Defragment, sizes).await?;
    let share = |server: &str| measured.median(server, "get/share");
    let claim =
        |server: &str| format!("{server}, the longest get over the time of the defragmentation");
    let mut checks = vec![
        Check::at_least(&claim("era 3.5"), share("3.5"), 0.5),
        Check::at_most(&claim("clearlane"), share("clearlane"), 0.5),
    ];
    if measured.has(ETCD) {
        checks.push(Check::at_least(&claim(ETCD), share(ETCD), 0.5));
    }
    let more = [
        Column::median("defragmentation, s", "took s"),
        Column::median("longest get over that", "get/share"),
    ];
    let shown = vec![
        table_of_longest(&measured, &["get", "put"], &more),
        plot_of(&measured, "get", "max"),
        plot_of(&measured, "put", "max"),
    ];
    let setting = vec![setting_of_once(Once::Defragment, sizes)];
    Ok(Findings { story: DEFRAGMENTATION, setting, shown, checks, measured })
}

const SNAPSHOT: Story = Story {
    title: "Snapshots under load",
    see: "At each disk snapshot etcd's applier commits the store, and for that waits for every \
          read that is open; all reads and puts behind it wait, too, in 3.5 and today. So beside \
          long reads snapshots cost what the fourth bar of each server is longer than the third. \
          Without long reads, the second bar, a snapshot has little to wait for. Snapshots that \
          are sent to a client take cores and the disk, and no lock.",
    published: "One etcd of the main branch on two cores, 300 puts and gets per second, p99 of \
                both: 8.6 and 3.9 ms calm, 128 and 79 ms beside a read of all keys in a loop, 253 \
                and 240 ms with a snapshot each 1,000 entries besides. The figures of single runs \
                vary by two.",
    source: "a reading of etcd's code, and these runs; no public report was found",
    differs: "On two cores the long read alone takes one of them, and the load that receives it \
              most of the other.",
};

/// The phases beside calm.
const SNAPSHOTS: &str = "snapshots";
const READS: &str = "reads";
const READS_AND_SNAPSHOTS: &str = "reads and snapshots";
const SENT: &str = "sent";
/// With the puts of the probes, four a second: some meet a long read also in a short run.
const SNAPSHOT_ENTRIES: &str = "50";
/// More than a run has.
const WITHOUT_SNAPSHOTS: &str = "10000000";

pub(super) async fn snapshot_under_load(context: &Context) -> Result<Findings> {
    let (value, keys_min) = context.pick((LARGE_VALUES, 0), ("512", 150_000));
    let records = Records { key_size: 64, value, keys_min };
    let ExpensiveRead { keys, reason } = ExpensiveRead::size(context, records).await?;
    let seconds = context.pick(2, 20);
    let (stored, probes) = (records.workload(keys)?, probes(seconds, 150, 200)?);
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        for (snapshot_count, phases) in [
            (WITHOUT_SNAPSHOTS, &[CALM, READS, SENT][..]),
            (SNAPSHOT_ENTRIES, &[SNAPSHOTS, READS_AND_SNAPSHOTS]),
        ] {
            let flags = vec!["--snapshot-count".to_owned(), snapshot_count.to_owned()];
            let options = ClusterOptions { flags, ..ClusterOptions::default() };
            let running = filled(context, subject, options, &[&probes, &stored], seed).await?;
            let (server, endpoint) = (subject.name(), running.endpoint());
            for name in phases {
                let calls = match *name {
                    CALM | SNAPSHOTS => Vec::new(),
                    SENT => vec![snapshot()],
                    _ => vec![range_of_all(&stored.space)],
                };
                let others = Background::start(&endpoint, calls, Repetition::default()).await?;
                phase(name, &endpoint, &probes, seed).run(context, server, &running, into).await?;
                others.end(&format!("{name}/others"), server, into).await;
            }
        }
        Ok(())
    };
    let subjects = context.programs(&["3.5", "clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let (shown, checks) = (snapshot_charts(&measured), snapshot_checks(&measured));
    let setting = vec![
        format!(
            "One member with {keys} keys of 64 bytes with values of {value}. 150 gets and 200 puts per second of \
         other keys in an open loop for {seconds} s: calm; with a disk snapshot each \
         {SNAPSHOT_ENTRIES} entries, so about four a second; beside a serializable read of all \
         those keys, again and again; the same with these snapshots; beside a snapshot that a \
         client takes, again and again.",
            value = stored.space.value
        ),
        reason,
    ];
    Ok(Findings { story: SNAPSHOT, setting, shown, checks, measured })
}

fn snapshot_charts(measured: &Measurements) -> Vec<Section> {
    let columns = [
        Column::median("get p99 calm, ms", "calm/get/p99"),
        Column::median("with snapshots", "snapshots/get/p99"),
        Column::median("beside long reads", "reads/get/p99"),
        Column::median("and with snapshots", "reads and snapshots/get/p99"),
        Column::median("beside a snapshot that is sent", "sent/get/p99"),
        Column::median("put p99 calm, ms", "calm/put/p99"),
        Column::median("with snapshots", "snapshots/put/p99"),
        Column::median("beside long reads", "reads/put/p99"),
        Column::median("and with snapshots", "reads and snapshots/put/p99"),
        Column::median("beside a snapshot that is sent", "sent/put/p99"),
    ];
    let mut shown = vec![table(measured, &columns)];
    for class in ["get", "put"] {
        let named = [CALM, SNAPSHOTS, READS, READS_AND_SNAPSHOTS, SENT]
            .map(|name| (name, format!("{name}/{class}/p99")));
        let named = named.each_ref().map(|(name, figure)| (*name, figure.as_str()));
        let title = format!("{class} p99 beside long reads and snapshots");
        shown.push(bars(measured, &title, log("p99, ms"), Better::Lower, &named));
    }
    shown
}

fn snapshot_checks(measured: &Measurements) -> Vec<Check> {
    let beside = |server: &str| measured.median(server, "reads and snapshots/get/p99");
    let claim = "get p99 beside long reads and snapshots, 3.5 over clearlane";
    let mut checks =
        vec![Check::at_least(claim, quotient(beside("3.5"), beside("clearlane")), 1.5)];
    for class in ["get", "put"] {
        for (with, without, what) in
            [(SNAPSHOTS, CALM, "alone"), (READS_AND_SNAPSHOTS, READS, "beside long reads")]
        {
            let [with, without] = [with, without].map(|name| format!("{name}/{class}/p99"));
            let claim = format!("clearlane, {class} p99 {what}, with snapshots over without");
            let times = measured.times("clearlane", &with, &without);
            checks.push(Check::at_most(&claim, times, 1.5).into_bar());
        }
    }
    checks
}

fn snapshot() -> Call {
    let path = "/etcdserverpb.Maintenance/Snapshot";
    let call = Call::new(path, &SnapshotRequest::default(), None);
    Call { answer: ResponseShape::Stream, ..call }
}

fn range_of_all(space: &KeySpace) -> Call {
    let all = RangeRequest { serializable: true, ..range(space, 0, space.count) };
    Call::new("/etcdserverpb.KV/Range", &all, Some(space.count))
}
