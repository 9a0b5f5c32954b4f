//! Reads of many clients at a member and through proxies, and how old the returned values are.
//!
//! While the clients read, one writer puts a counter at the member, and one reader reads the
//! counter on the route that is measured:
//!
//! ```text
//!   writer ── put 7 ──▶ member ──▶ proxy ── 5 ──▶ reader
//!     │                                             │ when it was sent, 6 was acknowledged
//!     ╰─ time of each acknowledgement ──────────────╯ for 3 ms: the staleness is 3 ms
//! ```
//!
//! A read is *stale* if the next value was acknowledged before the read was sent. Both times are of
//! one clock, and delays of the driver only shorten the staleness. So a stale read is always a
//! fault of the route, or a lag that it allows.

use std::cell::RefCell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest};
use tokio::time::sleep;
use tokio::try_join;
use tonic::transport::Channel;

use super::context::{PREFIX, Running, channel};
use super::curve::run_planned;
use super::measurements::Measurements;
use super::turn::Turn;
use crate::{Error, Result, connection};

/// Time between the acknowledgement of a value and the put of the next value.
const PAUSE: Duration = Duration::from_millis(20);

/// Runs each closed loop of the plan while a counter is written and read. The counter is read with
/// the consistency of the loop's reads.
pub(super) async fn measure(turn: &Turn<'_>, into: &mut Measurements) -> Result<()> {
    let (server, running) = (turn.server(), turn.start(&[]).await?);
    for planned in &turn.plan.loops {
        let figure = &planned.figure;
        let key = format!("{PREFIX}data/counter/{figure}");
        let (counter, is_serializable) = (Counter::default(), planned.class == "serializable");
        tokio::select! {
            ended = run_planned(turn, &running, planned, None, into) => ended?,
            failed = counter.run(&running, &key, is_serializable) => match failed? {},
        }
        let mut staleness = counter.staleness.into_inner();
        staleness.sort_unstable();
        let ms = |at: usize| staleness.get(at).map(|staleness| staleness.as_secs_f64() * 1e3);
        let last = staleness.len().saturating_sub(1);
        into.add(server, &format!("{figure}/staleness p99"), ms(last * 99 / 100));
        into.add(server, &format!("{figure}/staleness max"), ms(last));
        let stale = staleness.iter().filter(|staleness| !staleness.is_zero()).count();
        into.add(server, &format!("{figure}/stale"), stale as f64);
        into.add(server, &format!("{figure}/checked"), staleness.len() as f64);
    }
    running.end().await
}

/// A key whose value is the number of earlier puts of the key.
#[derive(Default)]
struct Counter {
    /// The time when the put of each value was acknowledged.
    acknowledged: RefCell<Vec<Instant>>,
    /// The staleness of each read.
    staleness: RefCell<Vec<Duration>>,
}

impl Counter {
    /// Writes and reads the counter. Returns only if a request fails.
    async fn run(&self, running: &Running, key: &str, is_serializable: bool) -> Result<Infallible> {
        let mut writer = KvClient::new(channel(&running.leader).await?);
        let reader = KvClient::new(channel(&running.endpoints[0]).await?);
        self.put(&mut writer, key).await?;
        Ok(try_join!(self.write(writer, key), self.read(reader, key, is_serializable))?.0)
    }

    async fn write(&self, mut client: KvClient<Channel>, key: &str) -> Result<Infallible> {
        loop {
            sleep(PAUSE).await;
            self.put(&mut client, key).await?;
        }
    }

    async fn put(&self, client: &mut KvClient<Channel>, key: &str) -> Result<()> {
        let value = self.acknowledged.borrow().len().to_string();
        let (key, value) = (key.to_owned().into(), value.into());
        let put = client.put(PutRequest { key, value, ..PutRequest::default() }).await;
        put.map_err(connection::error("a put of the counter failed"))?;
        self.acknowledged.borrow_mut().push(Instant::now());
        Ok(())
    }

    async fn read(
        &self,
        mut client: KvClient<Channel>,
        key: &str,
        serializable: bool,
    ) -> Result<Infallible> {
        let key = key.to_owned().into();
        let range = RangeRequest { key, serializable, ..RangeRequest::default() };
        loop {
            let sent = Instant::now();
            let answer = client.range(range.clone()).await;
            let failed = connection::error("a read of the counter failed");
            let found = answer.map_err(failed)?.into_inner().kvs.pop();
            let value = found.and_then(|pair| str::from_utf8(&pair.value).ok()?.parse().ok());
            let value = value.ok_or_else(|| {
                Error::Server("a read did not find the counter, which was acknowledged".to_owned())
            })?;
            let staleness = staleness(&self.acknowledged.borrow(), value, sent);
            self.staleness.borrow_mut().push(staleness);
        }
    }
}

/// Returns for how long the next value had been acknowledged when the read was sent. The result is
/// 0 if the next value was acknowledged later or not at all.
fn staleness(acknowledged: &[Instant], value: usize, sent: Instant) -> Duration {
    let replaced = acknowledged.get(value + 1);
    replaced.map_or(Duration::ZERO, |replaced| sent.saturating_duration_since(*replaced))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_stale_from_the_acknowledgement_of_the_next_one() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let acknowledged = [at(0), at(20), at(40)];
        let ms = |value, sent| staleness(&acknowledged, value, at(sent)).as_millis();
        assert_eq!((ms(0, 19), ms(0, 20), ms(0, 25), ms(0, 90)), (0, 0, 5, 70));
        assert_eq!((ms(1, 45), ms(2, 90)), (5, 0));
        assert_eq!(ms(3, 90), 0, "a value whose put is not acknowledged yet");
    }
}
