//! Kills a member under load. Measures for how long no write succeeds, and whether any write is
//! lost.
//!
//! Each writer puts its own keys, one after the other. If a member does not answer, the writer
//! tries the next member. A put is *acknowledged* if its response has arrived. At the end, each
//! acknowledged key must exist with its value.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use super::context::{PREFIX, channel, given};
use super::measurements::Measurements;
use super::turn::Turn;
use crate::servers::{Cluster, ETCD};
use crate::waiting::answered;
use crate::{Error, Result, TextResult, connection};

const PAUSE: Duration = Duration::from_millis(10);
const PAGE_KEYS: i64 = 5000;
/// Maximum time to read all keys again. The restarted member must catch up before it answers.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, Default)]
struct Written {
    /// The time of the response, since the start, and the key of each acknowledged put.
    acknowledged: Vec<(Duration, Bytes)>,
    failed: u64,
    /// The time when the writers were stopped, since the start.
    end: Duration,
}

/// Kills a follower, and then the leader.
pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    let (mut running, server) = (turn.start(&[]).await?, turn.server());
    let cluster = running.cluster.as_mut().ok_or_else(given)?;
    for name in ["follower", "leader"] {
        let leader = cluster.leader().await?;
        let killed = if name == "leader" { leader } else { (leader + 1) % cluster.len() };
        turn.context.tell(&format!("{server}: killing the {name}"));
        let (written, at) = write_and_kill(turn, cluster, killed, name).await?;
        // The keys are read at the member that was killed, or at the next member if etcd's member
        // does not restart.
        let (back, asked) = match cluster.restart(killed).await {
            Ok(()) => (true, killed),
            // The restart of a Clearlane member must succeed. If the restart of etcd's member
            // fails, that is only a warning.
            Err(error) if server == ETCD => {
                into.warn(format!("{server}: the {name} did not restart: {error}"));
                (false, (killed + 1) % cluster.len())
            }
            Err(error) => return Err(error),
        };
        let lost = count_lost(&cluster.endpoint(asked), &written, name).await?;
        let gap = longest_gap(&written, at).as_secs_f64();
        into.add(server, &format!("{name}/gap s"), gap);
        into.add(server, &format!("{name}/lost"), lost as f64);
        into.add(server, &format!("{name}/acknowledged"), written.acknowledged.len() as f64);
        into.add(server, &format!("{name}/failed"), written.failed as f64);
        if !back {
            break;
        }
    }
    Ok(())
}

fn prefix(victim: &str) -> String {
    format!("{PREFIX}failover/{victim}/")
}

/// Kills a member while writers put keys. Returns the writes, and the time from the start of the
/// writers until the member was killed.
async fn write_and_kill(
    turn: &Turn<'_>,
    cluster: &mut Cluster,
    killed: usize,
    victim: &str,
) -> Result<(Written, Duration)> {
    let seconds = |name| turn.values.get(name).map(Duration::from_secs);
    let (before, after) = (seconds("seconds_before")?, seconds("seconds_after")?);
    let patience = Duration::from_millis(turn.values.get("patience_ms")?);
    let endpoints = cluster.endpoints();
    let endpoints = endpoints.iter().map(|endpoint| connection::endpoint(endpoint));
    let endpoints = endpoints.collect::<Result<Vec<_>>>()?;
    let (start, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut writers = JoinSet::new();
    for number in 0..turn.values.get("writers")? {
        let members = Members { endpoints: endpoints.clone(), at: number, channel: None, patience };
        let prefix = format!("{}{}/{number}/", prefix(victim), turn.seed);
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

/// The members. One member is used until it fails.
struct Members {
    endpoints: Vec<Endpoint>,
    at: usize,
    channel: Option<Channel>,
    /// Maximum time of an attempt. After this time, another member is tried.
    patience: Duration,
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
        self.channel = timeout(self.patience, attempt).await.ok().flatten();
        if self.channel.is_none() {
            self.at += 1;
        }
        self.channel.is_some()
    }
}

/// Writes keys until `is_over` is set. After a failure the key may exist or not, so the next
/// attempt uses a new key.
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

/// Returns the longest time without an acknowledgement, among the gaps that ended after the member
/// was killed. A gap ends with an acknowledgement or with the end of the load. If there is no
/// earlier acknowledgement, the gap starts at the kill.
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

/// Counts the acknowledged keys that are missing or have a wrong value. The reads are linearizable,
/// so the member first catches up.
async fn count_lost(endpoint: &str, written: &Written, victim: &str) -> Result<usize> {
    let found = keys_below(endpoint, prefix(victim));
    let found = answered("a read of all keys", VERIFY_TIMEOUT, found).await?;
    let is_lost = |key: &Bytes| found.binary_search(key).is_err();
    Ok(written.acknowledged.iter().filter(|(_, key)| is_lost(key)).count())
}

/// Returns the keys below a prefix, in order. Keys whose values differ from the values that were
/// put are skipped.
async fn keys_below(endpoint: &str, prefix: String) -> TextResult<Vec<Bytes>> {
    let channel = channel(endpoint).await.map_err(|error| error.to_string())?;
    let mut client = KvClient::new(channel);
    let range_end = Bytes::from(format!("{}0", prefix.trim_end_matches('/')));
    let (mut keys, mut key) = (Vec::new(), Bytes::from(prefix));
    loop {
        let (range_end, limit) = (range_end.clone(), PAGE_KEYS);
        let page = RangeRequest { key, range_end, limit, ..RangeRequest::default() };
        let page = client.range(page).await.map_err(connection::text)?.into_inner();
        let Some(last) = page.kvs.last() else { return Ok(keys) };
        // The smallest possible key after the last one.
        key = [&last.key[..], &[0]].concat().into();
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
