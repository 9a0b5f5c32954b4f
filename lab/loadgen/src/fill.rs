//! Fills a server with the keys of a key space.
//!
//! A separate put for each key would wait for a sync of the log each time. So the fill sends
//! transactions of up to 128 puts and about 1 MiB, which etcd accepts. Several transactions are in
//! flight, so that one sync can serve several transactions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{PutRequest, RangeRequest, RangeResponse, TxnRequest};
use futures_util::stream::{self, StreamExt as _};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tonic::transport::Channel;

use crate::connection::Endpoints;
use crate::keys::{KeySpace, ValueGenerator};
use crate::requests::{self, operations};
use crate::users::Session;
use crate::workload::{TXN_BYTES_MAX, TXN_OPERATIONS_MAX};
use crate::{Error, Result, connection};

const IN_FLIGHT_PER_CONNECTION: usize = 4;
const NO_LEASE: i64 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FillReport {
    pub keys: u64,
    /// Total size of keys and values.
    pub bytes: u64,
    pub elapsed: Duration,
}

/// Puts all keys of a space. `tell` is called once per second with the progress.
pub async fn fill(
    space: &KeySpace,
    endpoints: &Endpoints,
    session: Option<Arc<Session>>,
    connections: u64,
    seed: u64,
    tell: &mut dyn FnMut(&str),
) -> Result<FillReport> {
    let channels = connection::open(endpoints, connections).await?;
    let batches = FillBatches::new(space, NO_LEASE, seed);
    put_batches(batches, &channels, session, tell).await
}

/// Puts all keys of a space, attached to a lease.
pub(crate) async fn fill_with_lease(
    space: &KeySpace,
    lease: i64,
    endpoints: &Endpoints,
    connections: u64,
    seed: u64,
) -> Result<FillReport> {
    let channels = connection::open(endpoints, connections).await?;
    put_batches(FillBatches::new(space, lease, seed), &channels, None, &mut |_| {}).await
}

async fn put_batches(
    batches: FillBatches<'_>,
    channels: &[Channel],
    session: Option<Arc<Session>>,
    tell: &mut dyn FnMut(&str),
) -> Result<FillReport> {
    let begin = Instant::now();
    let (mut last_told, count) = (begin, batches.space.count);
    let put = |(batch, channel): (FillBatch, &Channel)| {
        let FillBatch { txn, keys, bytes } = batch;
        let mut client = KvClient::new(channel.clone());
        let txn = Session::request_of(session.as_deref(), txn);
        async move { client.txn(txn).await.map(|_| (keys, bytes)) }
    };
    let puts = stream::iter(batches.zip(channels.iter().cycle())).map(put);
    let mut puts = puts.buffer_unordered(channels.len() * IN_FLIGHT_PER_CONNECTION);
    let mut report = FillReport { keys: 0, bytes: 0, elapsed: Duration::ZERO };
    while let Some(done) = puts.next().await {
        let (keys, bytes) = done.map_err(connection::error("a transaction of the fill failed"))?;
        report.keys += keys;
        report.bytes += bytes;
        if last_told.elapsed() >= Duration::from_secs(1) {
            last_told = Instant::now();
            tell(&format!("{} of {count} keys", report.keys));
        }
    }
    Ok(FillReport { elapsed: begin.elapsed(), ..report })
}

/// Checks that the server has all keys of the space, and returns the store's revision. The error
/// for missing keys shows `owner`, which needs the keys, and `remedy`, the command that puts them.
pub(crate) async fn check_filled(
    channel: Channel,
    space: &KeySpace,
    session: Option<&Session>,
    owner: &str,
    remedy: &str,
) -> Result<i64> {
    let count = Session::request_of(session, requests::count(space));
    let count = KvClient::new(channel).range(count).await;
    let count = count.map_err(connection::error("cannot count the keys"))?;
    let RangeResponse { header, count: found, .. } = count.into_inner();
    if found != space.count as i64 {
        let what = format!("the server has {found} of the {owner}'s {} keys", space.count);
        return Err(Error::Server(format!("{what}; `{remedy}` puts them")));
    }
    Ok(header.unwrap_or_default().revision)
}

/// Returns the store's current revision.
pub(crate) async fn revision(channel: Channel, session: Option<&Session>) -> Result<i64> {
    let one = RangeRequest { key: "0".into(), count_only: true, ..RangeRequest::default() };
    let answer = KvClient::new(channel).range(Session::request_of(session, one)).await;
    let answer = answer.map_err(connection::error("the revision could not be read"))?;
    Ok(answer.into_inner().header.unwrap_or_default().revision)
}

/// A transaction, with the number of its keys, and their size with the values.
#[derive(Debug)]
struct FillBatch {
    txn: TxnRequest,
    keys: u64,
    bytes: u64,
}

#[derive(Debug)]
struct FillBatches<'s> {
    space: &'s KeySpace,
    lease: i64,
    values: ValueGenerator,
    rng: SmallRng,
    next: u64,
}

impl<'s> FillBatches<'s> {
    fn new(space: &'s KeySpace, lease: i64, seed: u64) -> FillBatches<'s> {
        let values = ValueGenerator::new(space.value, seed);
        FillBatches { space, lease, values, rng: SmallRng::seed_from_u64(seed), next: 0 }
    }
}

impl Iterator for FillBatches<'_> {
    type Item = FillBatch;

    fn next(&mut self) -> Option<FillBatch> {
        let (mut puts, mut bytes) = (Vec::new(), 0);
        // A transaction is full if a put of the largest size might no longer fit. It always has at
        // least one put.
        let largest = self.space.key_size + self.space.value.max;
        while self.next < self.space.count
            && (puts.len() as u64) < TXN_OPERATIONS_MAX
            && (puts.is_empty() || bytes + largest <= TXN_BYTES_MAX)
        {
            let value = self.values.random_value(&mut self.rng);
            let put =
                PutRequest { lease: self.lease, ..requests::put(self.space, self.next, value) };
            bytes += (put.key.len() + put.value.len()) as u64;
            puts.push(Op::RequestPut(put));
            self.next += 1;
        }
        let keys = puts.len() as u64;
        let txn = TxnRequest { success: operations(puts), ..TxnRequest::default() };
        (keys > 0).then_some(FillBatch { txn, keys, bytes })
    }
}

#[cfg(test)]
mod tests {
    use clearlane_proto::Message;

    use super::*;
    use crate::keys::Sizes;

    #[test]
    fn batches_are_bounded_and_hold_every_key_once() {
        let prefix = KeySpace::DEFAULT_PREFIX.to_owned();
        for value in [Sizes::constant(0), Sizes::constant(1 << 20), Sizes { min: 1, max: 40_000 }] {
            let space = KeySpace { prefix: prefix.clone(), count: 300, key_size: 20, value };
            let batches: Vec<FillBatch> = FillBatches::new(&space, NO_LEASE, 1).collect();
            assert!(batches.iter().all(|batch| batch.txn.success.len() <= 128));
            assert!(batches.iter().all(|batch| batch.txn.encoded_len() < 1_500_000));
            let operations = batches.iter().flat_map(|batch| &batch.txn.success);
            let puts = operations.filter_map(|operation| match &operation.request {
                Some(Op::RequestPut(put)) => Some((put.key.clone(), put.value.len())),
                _ => None,
            });
            let (keys, values): (Vec<_>, Vec<_>) = puts.unzip();
            assert_eq!(keys, (0..300).map(|number| space.key(number)).collect::<Vec<_>>());
            let bytes: u64 = batches.iter().map(|batch| batch.bytes).sum();
            assert_eq!(bytes, 300 * 20 + values.iter().sum::<usize>() as u64);
        }
    }
}
