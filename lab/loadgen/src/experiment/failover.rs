//! A member is killed under load: how long is nothing served, and is anything lost?
//!
//! Each writer puts a key of its own number again and again, and goes to the next member if one
//! does not answer. A put is *acknowledged* if its answer came; afterwards each such key must be
//! there, with its value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::charts::{Column, bars, linear, table};
use super::check::Check;
use super::clusters::cluster;
use super::context::{Context, PREFIX, Subject, channel};
use super::findings::{Findings, Story};
use super::measurements::Measurements;
use crate::plot::Better;
use crate::servers::{Cluster, ClusterOptions, ETCD};
use crate::{Error, Result, connection};

const STORY: Story = Story {
    title: "A member is killed under load",
    see: "Without a follower, the two others go on. Without the leader, nothing is written until \
          its followers have missed it for an election timeout, one to two times a second here, \
          and have elected another. No put that was acknowledged is lost in either case: a \
          majority has it.",
    published: "An election takes about the election timeout, 1,000 ms by default; writes wait \
                for it and are not lost.",
    source: "etcd.io, operations guide, failure modes",
    differs: "Clients here try another member after half a second without an answer; with a longer \
              patience the gap of a client is longer than that of the cluster.",
};

const WRITERS: u64 = 8;
/// After that, another member is tried.
const PATIENCE: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(10);
const PAGE_KEYS: i64 = 5000;
/// In which a member with its data answers again, and has caught up.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Follower,
    Leader,
}

#[derive(Clone, Debug, Default)]
struct Written {
    /// When each put was acknowledged, since the beginning.
    acknowledged: Vec<(Duration, Bytes)>,
    failed: u64,
    /// When writers were told to end.
    end: Duration,
}

pub(super) async fn failover(context: &Context) -> Result<Findings> {
    let before = Duration::from_secs(context.pick(1, 5));
    // Longer than a gap may be.
    let after = Duration::from_secs(context.pick(8, 15));
    let measure = async |subject: &Subject, seed: u64, into: &mut Measurements| {
        kill_each(context, subject, seed, (before, after), into).await
    };
    let subjects = context.programs(&["clearlane"])?;
    let measured = context.in_turns(&subjects, measure).await?;
    let columns = [
        Column::median("follower killed: gap, s", "follower/gap s"),
        Column::median("acknowledged puts", "follower/acknowledged"),
        Column::max("of them lost, at most", "follower/lost"),
        Column::median("leader killed: gap, s", "leader/gap s"),
        Column::median("acknowledged puts", "leader/acknowledged"),
        Column::max("of them lost, at most", "leader/lost"),
        Column::median("attempts that failed", "leader/failed"),
    ];
    let gaps = [("follower killed", "follower/gap s"), ("leader killed", "leader/gap s")];
    let title = "The longest time without an acknowledged put";
    let shown = vec![
        table(&measured, &columns),
        bars(&measured, title, linear("seconds"), Better::Lower, &gaps),
    ];
    let mut checks = Vec::new();
    for server in measured.servers() {
        for victim in ["follower", "leader"] {
            let lost = measured.max(server, &format!("{victim}/lost"));
            let claim =
                format!("{server}, acknowledged puts that a round has lost with a {victim}");
            checks.push(Check::at_most(&claim, lost, 0.0));
        }
        let leader = measured.median(server, "leader/gap s");
        checks.push(Check::at_most(&format!("{server}, gap in s after the leader"), leader, 5.0));
        let times = measured.times(server, "leader/gap s", "follower/gap s");
        let claim = format!("{server}, the gap after the leader over that after a follower");
        checks.push(Check::at_least(&claim, times, 1.0));
    }
    let setting = vec![format!(
        "Three members, {WRITERS} writers that put new keys as fast as they are acknowledged, and \
         go to another member if one fails or takes longer than {} ms. After {} s a follower is \
         killed with SIGKILL, {} s later it is started again; then the same with the leader. At \
         the end every acknowledged key is looked for at the member that was killed.",
        PATIENCE.as_millis(),
        before.as_secs(),
        after.as_secs()
    )];
    Ok(Findings { story: STORY, setting, shown, checks, measured })
}

/// A follower, then the leader.
async fn kill_each(
    context: &Context,
    subject: &Subject,
    seed: u64,
    (before, after): (Duration, Duration),
    into: &mut Measurements,
) -> Result<()> {
    let options = ClusterOptions { members: 3, ..ClusterOptions::default() };
    let mut cluster = cluster(context.start(subject, options).await?)?;
    for victim in [Victim::Follower, Victim::Leader] {
        let leader = cluster.leader().await?;
        let killed = match victim {
            Victim::Follower => (leader + 1) % cluster.len(),
            Victim::Leader => leader,
        };
        let name = victim.name();
        context.tell(&format!("{}: the {name} is killed", subject.name()));
        let (written, at) =
            write_and_kill(&mut cluster, killed, seed, victim, before, after).await?;
        let gap = longest_gap(&written, at);
        let server = subject.name();
        // Looked for at the member that was away.
        let (back, asked) = match cluster.restart(killed).await {
            Ok(()) => (true, killed),
            // Ours must come back; etcd's is what it is.
            Err(error) if server == ETCD => {
                into.warn(format!("{server}: the {name} has not come back: {error}"));
                (false, (killed + 1) % cluster.len())
            }
            Err(error) => return Err(error),
        };
        let lost = count_lost(&cluster.endpoint(asked), &written, victim).await?;
        into.add(server, &format!("{name}/gap s"), gap.as_secs_f64());
        into.add(server, &format!("{name}/lost"), lost as f64);
        into.add(server, &format!("{name}/acknowledged"), written.acknowledged.len() as f64);
        into.add(server, &format!("{name}/failed"), written.failed as f64);
        if !back {
            break;
        }
    }
    Ok(())
}

impl Victim {
    fn name(self) -> &'static str {
        match self {
            Victim::Follower => "follower",
            Victim::Leader => "leader",
        }
    }

    fn prefix(self) -> String {
        format!("{PREFIX}failover/{}/", self.name())
    }
}

/// Returns what was written, and when the member was killed, since the beginning.
async fn write_and_kill(
    cluster: &mut Cluster,
    killed: usize,
    seed: u64,
    victim: Victim,
    before: Duration,
    after: Duration,
) -> Result<(Written, Duration)> {
    let endpoints = cluster.endpoints();
    let endpoints = endpoints.iter().map(|endpoint| connection::endpoint(endpoint));
    let endpoints = endpoints.collect::<Result<Vec<_>>>()?;
    let (start, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut writers = JoinSet::new();
    for number in 0..WRITERS {
        let members = Members { endpoints: endpoints.clone(), at: number as usize, channel: None };
        let prefix = format!("{}{seed}/{number}/", victim.prefix());
        writers.spawn(write(members, prefix, start, Arc::clone(&is_over)));
    }
    sleep(before).await;
    let at = start.elapsed();
    cluster.kill(killed);
    sleep(after).await;
    let mut written = Written { end: start.elapsed(), ..Written::default() };
    is_over.store(true, Ordering::Relaxed);
    while let Some(own) = writers.join_next().await {
        let own = own.map_err(|error| Error::Local(format!("a writer failed: {error}")))?;
        written.acknowledged.extend(own.acknowledged);
        written.failed += own.failed;
    }
    written.acknowledged.sort_unstable();
    Ok((written, at))
}

/// The members, of which one is used until it fails.
struct Members {
    endpoints: Vec<Endpoint>,
    at: usize,
    channel: Option<Channel>,
}

impl Members {
    async fn put(&mut self, key: Bytes) -> bool {
        let endpoint = &self.endpoints[self.at % self.endpoints.len()];
        let opened = self.channel.take();
        let attempt = async {
            let channel = match opened {
                Some(channel) => channel,
                None => endpoint.connect().await.ok()?,
            };
            let put = PutRequest { value: key.clone(), key, ..PutRequest::default() };
            KvClient::new(channel.clone()).put(put).await.ok()?;
            Some(channel)
        };
        self.channel = timeout(PATIENCE, attempt).await.ok().flatten();
        if self.channel.is_none() {
            self.at += 1;
        }
        self.channel.is_some()
    }
}

/// A key that was tried and not acknowledged may be there or not, so it is not tried again.
async fn write(
    mut members: Members,
    prefix: String,
    start: Instant,
    is_over: Arc<AtomicBool>,
) -> Written {
    let mut written = Written::default();
    for number in 0_u64.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        let key = Bytes::from(format!("{prefix}{number:09}"));
        if members.put(key.clone()).await {
            written.acknowledged.push((start.elapsed(), key));
        } else {
            written.failed += 1;
            sleep(PAUSE).await;
        }
    }
    written
}

/// Between two acknowledgements, of which the second came after the member was killed, or from the
/// last one to the end.
fn longest_gap(written: &Written, killed: Duration) -> Duration {
    let times = written.acknowledged.iter().map(|(at, _)| *at);
    let mut last = killed;
    let mut longest = Duration::ZERO;
    for at in times.chain([written.end]) {
        if at >= killed {
            longest = longest.max(at.saturating_sub(last));
        }
        last = at;
    }
    longest
}

/// With linearizable reads: what the member lacks it gets before it answers them.
async fn count_lost(endpoint: &str, written: &Written, victim: Victim) -> Result<usize> {
    let found = timeout(VERIFY_TIMEOUT, keys_below(endpoint, &victim.prefix())).await;
    let late = || Error::Server("the keys could not be read again within 60 s".to_owned());
    let found = found.map_err(|_| late())??;
    let is_lost = |key: &Bytes| found.binary_search(key).is_err();
    Ok(written.acknowledged.iter().filter(|(_, key)| is_lost(key)).count())
}

/// In order; those whose value is not the one that was put are left out.
async fn keys_below(endpoint: &str, prefix: &str) -> Result<Vec<Bytes>> {
    let mut client = KvClient::new(channel(endpoint).await?);
    let range_end = Bytes::from(format!("{}0", prefix.trim_end_matches('/')));
    let (mut keys, mut from) = (Vec::new(), Bytes::from(prefix.to_owned()));
    loop {
        let page = RangeRequest {
            key: from,
            range_end: range_end.clone(),
            limit: PAGE_KEYS,
            ..RangeRequest::default()
        };
        let page = client.range(page).await.map_err(|status| {
            Error::Server(format!("the keys could not be read again: {}", status.message()))
        })?;
        let page = page.into_inner();
        let Some(last) = page.kvs.last() else { return Ok(keys) };
        // The next key that there may be.
        from = [&last.key[..], &[0]].concat().into();
        let right = page.kvs.into_iter().filter(|pair| pair.key == pair.value);
        keys.extend(right.map(|pair| pair.key));
        if !page.more {
            return Ok(keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_the_longest_that_ends_after_the_kill() {
        let at = |ms| (Duration::from_millis(ms), Bytes::new());
        let acknowledged = [0, 500, 510, 990, 2100, 2101, 2500].map(at).to_vec();
        let end = Duration::from_millis(2600);
        let written = Written { acknowledged, failed: 0, end };
        let gap = |killed| longest_gap(&written, Duration::from_millis(killed)).as_millis();
        assert_eq!(gap(1000), 1110);
        assert_eq!(gap(2101), 399);
        assert_eq!(gap(2550), 100, "service did not come back");
        let none = Written { acknowledged: Vec::new(), ..written };
        assert_eq!(longest_gap(&none, Duration::from_millis(600)).as_millis(), 2000);
    }
}
