//! The requests of a closed loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use super::arguments::{
    ClosedLoop, Consistency, KeyArguments, LoopArguments, RangeArguments, Ratio,
};
use super::engine::{LoopRequest, RequestSource};
use super::{call, failed};
use crate::connection::Endpoints;
use crate::keys::{KeySpace, Sizes, ValueGenerator};
use crate::requests::Call;
use crate::response_scanner::ResponseShape;
use crate::users::Session;
use crate::{Error, Result, connection};

const PUT: &str = "/etcdserverpb.KV/Put";
const RANGE: &str = "/etcdserverpb.KV/Range";
const RANGE_STREAM: &str = "/etcdserverpb.KV/RangeStream";
const TXN: &str = "/etcdserverpb.KV/Txn";
const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const LEASE_TTL_SECONDS: i64 = 100;
/// At a time.
const GRANTS_MAX: usize = 100;
/// Of a transaction. No server takes as much.
const TXN_BYTES_MAX: u64 = 256 << 20;

/// Where the requests of all threads come from.
pub(super) enum Sources {
    Put(PutSource),
    TxnPut(PutSource, u64),
    TxnMixed(PutSource, Call, Ratio),
    Range(Call),
    /// Over channels that clients use in turn.
    Pages(Vec<Channel>, RangeRequest),
    /// A call for each client.
    KeepAlive(Arc<Vec<Call>>),
}

#[derive(Clone)]
pub(super) struct PutSource {
    space: KeySpace,
    values: ValueGenerator,
    sequential: bool,
    /// The number of the next key, if keys are sequential: of all threads.
    next: Arc<AtomicU64>,
}

impl Sources {
    pub(super) async fn prepare(
        asked: &ClosedLoop,
        options: &LoopArguments,
        endpoints: &Endpoints,
        session: Option<&Session>,
    ) -> Result<Sources> {
        let seed = options.common.target.seed;
        Ok(match asked {
            ClosedLoop::Put { keys, sequential_keys, .. } => {
                let source = PutSource::new(*keys, seed)?;
                Sources::Put(PutSource { sequential: *sequential_keys, ..source })
            }
            ClosedLoop::TxnPut { keys, txn_ops, .. } if *txn_ops > keys.key_space_size => {
                // A transaction may put a key once.
                let there = keys.key_space_size;
                let allowed = format!("it must be at most --key-space-size, {there}");
                return Err(Error::Local(format!("--txn-ops {txn_ops}: {allowed}")));
            }
            ClosedLoop::TxnPut { keys, txn_ops, .. }
                if txn_ops * (keys.key_size + keys.val_size) > TXN_BYTES_MAX =>
            {
                let bytes = txn_ops * (keys.key_size + keys.val_size);
                let allowed = format!("a transaction may have {TXN_BYTES_MAX}");
                return Err(Error::Local(format!("--txn-ops {txn_ops}: {bytes} bytes; {allowed}")));
            }
            ClosedLoop::TxnPut { keys, txn_ops, .. } => {
                Sources::TxnPut(PutSource::new(*keys, seed)?, *txn_ops)
            }
            ClosedLoop::TxnMixed { keys, end_key, limit, consistency, rw_ratio, .. } => {
                let range = RangeRequest {
                    key: Bytes::from_static(&[0]),
                    range_end: end_of(end_key),
                    limit: *limit as i64,
                    serializable: *consistency == Consistency::Serializable,
                    ..RangeRequest::default()
                };
                let txn = TxnRequest {
                    success: vec![RequestOp { request: Some(Op::RequestRange(range)) }],
                    ..TxnRequest::default()
                };
                Sources::TxnMixed(PutSource::new(*keys, seed)?, call(TXN, &txn), *rw_ratio)
            }
            ClosedLoop::Range { range, .. } if range.paginate => {
                let range = request(range)?;
                Sources::Pages(connection::open(endpoints, options.common.conns).await?, range)
            }
            ClosedLoop::Range { range, .. } => {
                let message = request(range)?;
                Sources::Range(if range.stream {
                    Call { answer: ResponseShape::Stream, ..call(RANGE_STREAM, &message) }
                } else {
                    call(RANGE, &message)
                })
            }
            ClosedLoop::LeaseKeepalive { .. } => {
                let channel = connection::open(endpoints, 1).await?.remove(0);
                let leases = grant(channel, session, options.common.clients).await?;
                let keep_alive = |id| Call {
                    answer: ResponseShape::KeepAlive,
                    ..Call::new(LEASE_KEEP_ALIVE, &LeaseKeepAliveRequest { id }, Some(1))
                };
                Sources::KeepAlive(Arc::new(leases.into_iter().map(keep_alive).collect()))
            }
            ClosedLoop::Watch { .. } | ClosedLoop::WatchLatency { .. } => {
                unreachable!("a watch has no source of requests")
            }
        })
    }

    pub(super) fn classes(&self) -> &'static [&'static str] {
        match self {
            Sources::Put(_) => &["put"],
            Sources::TxnPut(..) => &["txn-put"],
            Sources::TxnMixed(..) => &["read", "write"],
            Sources::Range(_) | Sources::Pages(..) => &["range"],
            Sources::KeepAlive(_) => &["lease-keepalive"],
        }
    }

    /// What a class does, if that is not its name: a scan by pages, or as a stream, is more than
    /// one range.
    pub(super) fn operation(&self, class: &'static str) -> &'static str {
        match self {
            Sources::Pages(..) => "range-pages",
            Sources::Range(call) if call.answer == ResponseShape::Stream => "range-stream",
            _ => class,
        }
    }

    /// Of one thread.
    pub(super) fn source(&self, seed: u64) -> RequestSource {
        let mut rng = SmallRng::seed_from_u64(seed);
        let of_class = |class, call| LoopRequest::Call { class, call };
        match self {
            Sources::Put(puts) => {
                let mut puts = puts.clone();
                Box::new(move |_| of_class(0, call(PUT, &puts.next_put(&mut rng))))
            }
            Sources::TxnPut(puts, ops) => {
                let (mut puts, ops) = (puts.clone(), *ops);
                Box::new(move |_| of_class(0, call(TXN, &puts.next_txn(ops, &mut rng))))
            }
            Sources::TxnMixed(puts, read, Ratio(reads)) => {
                let (mut puts, read, reads) = (puts.clone(), read.clone(), *reads);
                Box::new(move |_| match rng.random_range(0..reads + 1000) < reads {
                    true => of_class(0, read.clone()),
                    false => of_class(1, call(TXN, &puts.next_txn(1, &mut rng))),
                })
            }
            Sources::Range(call) => {
                let call = call.clone();
                Box::new(move |_| of_class(0, call.clone()))
            }
            Sources::Pages(channels, range) => {
                let (channels, range) = (channels.clone(), range.clone());
                Box::new(move |client| {
                    let channel = channels[client as usize % channels.len()].clone();
                    LoopRequest::Pages(channel, range.clone())
                })
            }
            Sources::KeepAlive(calls) => {
                let calls = Arc::clone(calls);
                Box::new(move |client| of_class(0, calls[client as usize].clone()))
            }
        }
    }
}

impl PutSource {
    fn new(keys: KeyArguments, seed: u64) -> Result<PutSource> {
        let KeyArguments { key_size, val_size, key_space_size } = keys;
        let shortest = KeySpace::min_key_size("", key_space_size);
        if key_size < shortest {
            let allowed = format!("{key_space_size} keys have at least {shortest} bytes");
            return Err(Error::Local(format!("--key-size {key_size}: {allowed}")));
        }
        let value = Sizes::constant(val_size);
        let space = KeySpace { prefix: String::new(), count: key_space_size, key_size, value };
        let values = ValueGenerator::new(value, seed);
        Ok(PutSource { space, values, sequential: false, next: Arc::default() })
    }

    fn next_put(&mut self, rng: &mut SmallRng) -> PutRequest {
        let number = if self.sequential {
            self.next.fetch_add(1, Ordering::Relaxed) % self.space.count
        } else {
            self.space.random_start(1, rng)
        };
        self.put(number, rng)
    }

    fn put(&self, number: u64, rng: &mut SmallRng) -> PutRequest {
        crate::requests::put(&self.space, number, self.values.random_value(rng))
    }

    /// Puts keys that follow each other.
    fn next_txn(&mut self, ops: u64, rng: &mut SmallRng) -> TxnRequest {
        let from = self.space.random_start(ops, rng);
        let puts = (from..from + ops).map(|number| {
            let put = Op::RequestPut(self.put(number, rng));
            RequestOp { request: Some(put) }
        });
        TxnRequest { success: puts.collect(), ..TxnRequest::default() }
    }
}

/// Of a range without an end: that of all keys.
fn end_of(text: &str) -> Bytes {
    if text.is_empty() { Bytes::from_static(&[0]) } else { Bytes::copy_from_slice(text.as_bytes()) }
}

fn request(range: &RangeArguments) -> Result<RangeRequest> {
    let (key, range_end) = match (&range.end, range.prefix) {
        (None, false) if range.key.is_empty() => {
            let allowed = "a key has at least one byte; --prefix reads all keys";
            return Err(Error::Local(format!("the key is empty: {allowed}")));
        }
        (None, false) => (range.key.clone().into_bytes(), Bytes::new()),
        (Some(end), _) => (key_or_first(&range.key), end_of(end)),
        (None, true) => (key_or_first(&range.key), prefix_end(range.key.as_bytes())),
    };
    Ok(RangeRequest {
        key: key.into(),
        range_end,
        limit: range.limit as i64,
        serializable: range.consistency == Consistency::Serializable,
        keys_only: range.keys_only,
        count_only: range.count_only,
        ..RangeRequest::default()
    })
}

/// In a range from the empty key, all keys come first.
fn key_or_first(key: &str) -> Vec<u8> {
    if key.is_empty() { vec![0] } else { key.as_bytes().to_vec() }
}

/// The first key behind all that begin with these bytes.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let Some(last) = last else { return Bytes::from_static(&[0]) };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end.into()
}

async fn grant(channel: Channel, session: Option<&Session>, leases: u64) -> Result<Vec<i64>> {
    let mut granting = JoinSet::new();
    let mut granted = Vec::new();
    for number in 0..leases {
        let request = LeaseGrantRequest { ttl: LEASE_TTL_SECONDS, id: 0 };
        let request = Session::request_of(session, request);
        let mut client = LeaseClient::new(channel.clone());
        granting.spawn(async move { client.lease_grant(request).await });
        while granting.len() >= GRANTS_MAX || number + 1 == leases && !granting.is_empty() {
            let Some(done) = granting.join_next().await else { break };
            let answer = done.expect("a grant neither panics nor is stopped");
            granted.push(answer.map_err(|status| failed("a grant", &status))?.into_inner().id);
        }
    }
    Ok(granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_is_one_more() {
        assert_eq!(&prefix_end(b"ab")[..], b"ac");
        assert_eq!(&prefix_end(&[b'a', 0xff])[..], b"b");
        assert_eq!(&prefix_end(&[0xff])[..], &[0]);
        assert_eq!(&prefix_end(b"")[..], &[0]);
    }

    #[test]
    fn keys_are_as_long_as_asked_and_as_many() {
        let keys = KeyArguments { key_size: 4, val_size: 3, key_space_size: 5 };
        let mut puts = PutSource { sequential: true, ..PutSource::new(keys, 1).expect("it fits") };
        let mut rng = SmallRng::seed_from_u64(1);
        let made: Vec<_> = (0..6).map(|_| puts.next_put(&mut rng).key).collect();
        assert_eq!(made, ["0000", "0001", "0002", "0003", "0004", "0000"]);
        let txn = puts.next_txn(5, &mut rng);
        assert_eq!(txn.success.len(), 5);
        let wrong = PutSource::new(KeyArguments { key_space_size: 10_000, ..keys }, 1);
        let told = wrong.err().map(|error| error.to_string());
        assert_eq!(told.as_deref(), Some("--key-size 4: 10000 keys have at least 5 bytes"));
    }
}
