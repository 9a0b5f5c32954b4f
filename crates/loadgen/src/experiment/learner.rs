//! Expensive reads at the leader, and at a learner.

use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::RangeRequest;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use tokio::time::sleep;

use super::beside::{CALM, data_keys, phase};
use super::charts::{Column, bars, label, log, table};
use super::check::Check;
use super::clusters::cluster;
use super::context::{Context, Running, Subject, channel};
use super::expensive::{ExpensiveRead, Records};
use super::findings::{Findings, Story};
use super::load::{self, Background, Repetition};
use super::measurements::Measurements;
use crate::keys::KeySpace;
use crate::plot::Better;
use crate::requests::{Call, range};
use crate::servers::ClusterOptions;
use crate::workload::Workload;
use crate::{Error, Result};

const STORY: Story = Story {
    title: "Expensive reads at a learner",
    see: "A learner has all keys and no vote. It answers serializable reads, and what waits for \
          their locks waits there: at the leader of 3.2 cheap reads and puts are as if they were \
          calm, but for the core. In clearlane there is little to be gained.",
    published: "Learners came with 3.4, for members that join, and answer serializable reads \
                alone. No figures were found.",
    source: "etcd.io, learner design, and a reading of etcd's code",
    differs: "The learner shares the machine with the leader here, so an expensive read takes a \
              core from it wherever it is read. With a machine of its own only the locks and the \
              log's way would be left.",
};

const AT_LEADER: &str = "at the leader";
const AT_LEARNER: &str = "at the learner";
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn learner(context: &Context) -> Result<Findings> {
    let (records, seconds) = (Records::new(context, 100_000), context.pick(4, 20));
    let ExpensiveRead { keys: count, reason } = ExpensiveRead::size(context, records).await?;
    let load = workload(count, records, seconds)?;
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        let options = ClusterOptions { members: 3, ..ClusterOptions::default() };
        let mut cluster = cluster(context.start(subject, options).await?)?;
        let leader = cluster.leader().await?;
        let learner = cluster.add_learner().await?;
        let [leader, learner] = [leader, learner].map(|member| cluster.endpoint(member));
        load::fill(context, &leader, &load.space, seed).await?;
        wait_for_keys(&learner, &load.space).await?;
        let running = Running::Started(cluster);
        let all = RangeRequest { serializable: true, ..range(&load.space, 0, count) };
        let expensive = Call::new("/etcdserverpb.KV/Range", &all, Some(count));
        for (name, endpoint) in
            [(CALM, None), (AT_LEADER, Some(&leader)), (AT_LEARNER, Some(&learner))]
        {
            let calls = vec![expensive.clone(); usize::from(endpoint.is_some())];
            let pause = Duration::from_millis(500);
            let repetition = Repetition { pause, ..Repetition::default() };
            let reads = Background::start(endpoint.unwrap_or(&leader), calls, repetition).await?;
            phase(name, &leader, &load, seed).run(context, subject.name(), &running, into).await?;
            reads.end(&format!("{name}/expensive"), subject.name(), into).await;
        }
        running.end().await
    };
    let subjects = context.programs(&["3.2", "clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let columns = [
        Column::median("cheap p99 calm, ms", "calm/cheap/p99"),
        Column::median("expensive reads at the leader", "at the leader/cheap/p99"),
        Column::median("at the learner", "at the learner/cheap/p99"),
        Column::median("put p99 calm, ms", "calm/put/p99"),
        Column::median("expensive reads at the leader", "at the leader/put/p99"),
        Column::median("at the learner", "at the learner/put/p99"),
    ];
    let figures = [
        (CALM, "calm/cheap/p99"),
        (AT_LEADER, "at the leader/cheap/p99"),
        (AT_LEARNER, "at the learner/cheap/p99"),
    ];
    let title = "Cheap reads at the leader, by where the expensive ones are";
    let shown = vec![
        table(&measured, &columns),
        bars(&measured, title, log("p99, ms"), Better::Lower, &figures),
    ];
    let times = |server: &str| {
        measured.times(server, "at the leader/cheap/p99", "at the learner/cheap/p99")
    };
    let claim = "era 3.2, cheap p99 with expensive reads at the leader over those at the learner";
    let mut checks = vec![Check::at_least(claim, times("3.2"), 1.5)];
    for server in measured.servers() {
        let times = measured.times(server, "at the learner/cheap/p99", "calm/cheap/p99");
        let claim =
            format!("{}, cheap p99 with expensive reads at the learner over calm", label(server));
        checks.push(Check::at_most(&claim, times, 2.0).into_bar());
    }
    let setting = vec![setting_of(&load), reason];
    Ok(Findings { story: STORY, setting, shown, checks, measured })
}

fn setting_of(load: &Workload) -> String {
    let Workload { seconds, space: KeySpace { count, key_size, value, .. }, .. } = load;
    format!(
        "Three voting members and a learner; {count} keys of {key_size} bytes with values of \
         {value}. Per second 100 linearizable reads of 10 keys and 20 puts at the leader in an \
         open loop for {seconds} s: calm; with a serializable read of all keys at the leader, \
         again half a second after its answer; and with the same at the learner."
    )
}

fn workload(count: u64, records: Records<'_>, seconds: u64) -> Result<Workload> {
    let keys = data_keys(count, records.key_size, records.value);
    Workload::parse(&format!(
        "seconds = {seconds}
        {keys}
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
        "
    ))
}

/// A learner is behind the leader by what is on its way.
async fn wait_for_keys(endpoint: &str, space: &KeySpace) -> Result<()> {
    let mut client = KvClient::new(channel(endpoint).await?);
    let deadline = Instant::now() + CATCH_UP_TIMEOUT;
    loop {
        let count = RangeRequest { serializable: true, ..Call::count(space) };
        let found = client.range(count).await.map_err(|status| {
            Error::Server(format!("the learner does not count: {}", status.message()))
        })?;
        let found = found.into_inner().count;
        if found == space.count as i64 {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let expected = space.count;
            let what = format!("the learner has {found} of {expected} keys after 60 s");
            return Err(Error::Server(what));
        }
        sleep(Duration::from_millis(10)).await;
    }
}
