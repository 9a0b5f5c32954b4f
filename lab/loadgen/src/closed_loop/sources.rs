//! Sources of the requests of closed loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use clearlane_proto::Message;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, RangeRequest, TxnRequest,
};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tonic::transport::Channel;

use super::arguments::{ClosedLoop, CommonArguments, Consistency, KeyArguments, RangeArguments};
use super::engine::{LoopRequest, RequestSource};
use super::key_space;
use crate::class_metrics::CallResult;
use crate::keys::{KeySpace, ValueGenerator};
use crate::requests::{Call, PUT, RANGE, RANGE_STREAM, TXN, operations, put};
use crate::response_scanner::{ResponseShape, ResponseStats};
use crate::target::OpenTarget;
use crate::users::Session;
use crate::{Error, Result, connection};

const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const LEASE_TTL_SECONDS: i64 = 100;
/// Maximum number of lease grants in flight.
const GRANTS_MAX: usize = 100;
/// Maximum size of a transaction in bytes. No server accepts a transaction of this size, so
/// arguments that would require a larger transaction are rejected.
const TXN_BYTES_MAX: u64 = 256 << 20;
const PAGE_KEYS: i64 = 10_000;

/// Creates the request source of each thread.
pub(super) struct Sources {
    pub(super) classes: &'static [&'static str],
    /// The operation of the class, if it differs from the class's name. A read in pages or as a
    /// stream has a separate name, because the server does not measure it as one range request.
    pub(super) operation: Option<&'static str>,
    /// If false, the requests do not use the connections of the loop.
    pub(super) has_calls: bool,
    source: Box<dyn Fn(SmallRng) -> RequestSource>,
}

#[derive(Clone)]
pub(super) struct PutSource {
    space: KeySpace,
    values: ValueGenerator,
    sequential: bool,
    /// The number of the next key, if keys are sequential. All threads share it.
    next: Arc<AtomicU64>,
}

impl Sources {
    pub(super) async fn prepare(
        asked: &ClosedLoop,
        common: &CommonArguments,
        target: &OpenTarget,
    ) -> Result<Sources> {
        let seed = common.target.seed;
        match asked {
            ClosedLoop::Put { keys, sequential_keys, .. } => {
                let mut puts = PutSource::new(*keys, seed)?;
                puts.sequential = *sequential_keys;
                Ok(Sources::of_calls(&["put"], move |_, rng| (0, call(PUT, &puts.next_put(rng)))))
            }
            ClosedLoop::TxnPut { keys, txn_ops, .. } => {
                check_txn(keys, *txn_ops)?;
                let (puts, ops) = (PutSource::new(*keys, seed)?, *txn_ops);
                Ok(Sources::of_calls(&["txn-put"], move |_, rng| {
                    (0, call(TXN, &puts.next_txn(ops, rng)))
                }))
            }
            ClosedLoop::TxnMixed { keys, end_key, limit, consistency, rw_ratio, .. } => {
                let range = RangeRequest {
                    key: Bytes::from_static(&[0]),
                    range_end: end_of(end_key),
                    limit: *limit as i64,
                    serializable: *consistency == Consistency::Serializable,
                    ..RangeRequest::default()
                };
                let read = call(TXN, &txn([Op::RequestRange(range)]));
                let (puts, reads) = (PutSource::new(*keys, seed)?, *rw_ratio);
                Ok(Sources::of_calls(&["read", "write"], move |_, rng| {
                    match rng.random_range(0..reads + 1000) < reads {
                        true => (0, read.clone()),
                        false => (1, call(TXN, &puts.next_txn(1, rng))),
                    }
                }))
            }
            ClosedLoop::Range { range, .. } if range.paginate => {
                Sources::of_pages(request(range)?, common, target).await
            }
            ClosedLoop::Range { range, .. } if range.stream => {
                let call = Call::stream(RANGE_STREAM, &request(range)?, None);
                let sources = Sources::of_calls(&["range"], move |_, _| (0, call.clone()));
                Ok(Sources { operation: Some("range-stream"), ..sources })
            }
            ClosedLoop::Range { range, .. } => {
                let call = call(RANGE, &request(range)?);
                Ok(Sources::of_calls(&["range"], move |_, _| (0, call.clone())))
            }
            ClosedLoop::LeaseKeepalive { .. } => {
                let leases = grant(target, common.clients).await?;
                let keep_alive = |id| Call {
                    answer: ResponseShape::KeepAlive,
                    ..Call::new(LEASE_KEEP_ALIVE, &LeaseKeepAliveRequest { id }, Some(1))
                };
                let calls = leases.into_iter().map(keep_alive).collect::<Vec<_>>();
                Ok(Sources::of_calls(&["lease-keepalive"], move |client, _| {
                    (0, calls[client as usize].clone())
                }))
            }
            ClosedLoop::Watch { .. } | ClosedLoop::WatchLatency { .. } => {
                unreachable!("a watch has no source of requests")
            }
        }
    }

    /// Creates sources of single calls. `next` makes the next call of a client, with the number of
    /// its class.
    fn of_calls(
        classes: &'static [&'static str],
        next: impl Fn(u64, &mut SmallRng) -> (usize, Call) + Send + Sync + 'static,
    ) -> Sources {
        let next = Arc::new(next);
        let source = Box::new(move |mut rng: SmallRng| -> RequestSource {
            let next = Arc::clone(&next);
            Box::new(move |client| {
                let (class, call) = next(client, &mut rng);
                LoopRequest::Call { class, call }
            })
        });
        Sources { classes, operation: None, has_calls: true, source }
    }

    /// Creates sources that read a range in pages. Clients use the channels in turn.
    async fn of_pages(
        range: RangeRequest,
        common: &CommonArguments,
        target: &OpenTarget,
    ) -> Result<Sources> {
        let channels = connection::open(&target.endpoints, common.conns).await?;
        let session = target.session.clone();
        let source = Box::new(move |_: SmallRng| -> RequestSource {
            let (channels, session, range) = (channels.clone(), session.clone(), range.clone());
            Box::new(move |client| {
                let channel = channels[client as usize % channels.len()].clone();
                LoopRequest::Calls(Box::pin(read_pages(channel, session.clone(), range.clone())))
            })
        });
        let operation = Some("range-pages");
        Ok(Sources { classes: &["range"], operation, has_calls: false, source })
    }

    /// Returns the source of one thread.
    pub(super) fn source(&self, seed: u64) -> RequestSource {
        (self.source)(SmallRng::seed_from_u64(seed))
    }
}

/// Creates a call whose response may have any number of keys.
fn call(path: &'static str, message: &impl Message) -> Call {
    Call::new(path, message, None)
}

fn txn(success: impl IntoIterator<Item = Op>) -> TxnRequest {
    TxnRequest { success: operations(success), ..TxnRequest::default() }
}

fn check_txn(keys: &KeyArguments, txn_ops: u64) -> Result<()> {
    let (there, bytes) = (keys.key_space_size, txn_ops * (keys.key_size + keys.val_size));
    let wrong = if txn_ops > there {
        // A transaction must not put the same key twice.
        format!("must be at most --key-space-size, {there}")
    } else if bytes > TXN_BYTES_MAX {
        format!("a transaction would have {bytes} bytes; at most {TXN_BYTES_MAX} are allowed")
    } else {
        return Ok(());
    };
    Err(Error::Local(format!("--txn-ops {txn_ops}: {wrong}")))
}

/// Reads a range in pages. All pages are read at the revision of the first page.
async fn read_pages(
    channel: Channel,
    session: Option<Arc<Session>>,
    mut range: RangeRequest,
) -> CallResult {
    let mut client = KvClient::new(channel).max_decoding_message_size(usize::MAX);
    let mut stats = ResponseStats::default();
    range.limit = PAGE_KEYS;
    loop {
        let request = Session::request_of(session.as_deref(), range.clone());
        let page = client.range(request).await.map_err(connection::text)?.into_inner();
        stats.keys += page.kvs.len() as u64;
        stats.bytes += page.encoded_len() as u64;
        let Some(last) = page.kvs.last().filter(|_| page.more) else { return Ok(stats) };
        range.key = [&last.key[..], &[0]].concat().into();
        range.revision = page.header.map_or(0, |header| header.revision);
    }
}

impl PutSource {
    fn new(keys: KeyArguments, seed: u64) -> Result<PutSource> {
        let KeyArguments { key_size, val_size, key_space_size } = keys;
        let space = key_space(key_space_size, key_size, val_size)?;
        let values = ValueGenerator::new(space.value, seed);
        Ok(PutSource { space, values, sequential: false, next: Arc::default() })
    }

    fn next_put(&self, rng: &mut SmallRng) -> PutRequest {
        let number = if self.sequential {
            self.next.fetch_add(1, Ordering::Relaxed) % self.space.count
        } else {
            self.space.random_start(1, rng)
        };
        self.put(number, rng)
    }

    fn put(&self, number: u64, rng: &mut SmallRng) -> PutRequest {
        put(&self.space, number, self.values.random_value(rng))
    }

    /// Puts `ops` consecutive keys in one transaction.
    fn next_txn(&self, ops: u64, rng: &mut SmallRng) -> TxnRequest {
        let from = self.space.random_start(ops, rng);
        txn((from..from + ops).map(|number| Op::RequestPut(self.put(number, rng))))
    }
}

/// Returns the end of a range. An empty `text` means that the range has no end.
fn end_of(text: &str) -> Bytes {
    if text.is_empty() { Bytes::from_static(&[0]) } else { Bytes::copy_from_slice(text.as_bytes()) }
}

fn request(range: &RangeArguments) -> Result<RangeRequest> {
    let (key, range_end) = match (&range.end, range.prefix) {
        (None, false) if range.key.is_empty() => {
            let allowed = "a key has at least one byte; use --prefix to read all keys";
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

/// Returns the first key of a range. An empty key is replaced by the smallest possible key.
fn key_or_first(key: &str) -> Vec<u8> {
    if key.is_empty() { vec![0] } else { key.as_bytes().to_vec() }
}

/// Returns the first key after all keys that start with `prefix`. If no key follows them, returns a
/// zero byte, which as the end of a range means that the range has no end.
fn prefix_end(prefix: &[u8]) -> Bytes {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX);
    let Some(last) = last else { return Bytes::from_static(&[0]) };
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    end.into()
}

/// Grants a lease for each client.
async fn grant(target: &OpenTarget, leases: u64) -> Result<Vec<i64>> {
    let channel = connection::channel(&target.endpoints).await?;
    let grant = |_| {
        let request = LeaseGrantRequest { ttl: LEASE_TTL_SECONDS, id: 0 };
        let request = Session::request_of(target.session.as_deref(), request);
        let mut client = LeaseClient::new(channel.clone());
        async move { client.lease_grant(request).await.map(|granted| granted.into_inner().id) }
    };
    let granted = stream::iter(0..leases).map(grant).buffer_unordered(GRANTS_MAX);
    granted.try_collect().await.map_err(connection::error("a grant failed"))
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
        let puts = PutSource { sequential: true, ..PutSource::new(keys, 1).expect("it fits") };
        let mut rng = SmallRng::seed_from_u64(1);
        let made: Vec<_> = (0..6).map(|_| puts.next_put(&mut rng).key).collect();
        assert_eq!(made, ["0000", "0001", "0002", "0003", "0004", "0000"]);
        let txn = puts.next_txn(5, &mut rng);
        assert_eq!(txn.success.len(), 5);
        let wrong = PutSource::new(KeyArguments { key_space_size: 10_000, ..keys }, 1);
        let told = wrong.err().map(|error| error.to_string());
        assert_eq!(
            told.as_deref(),
            Some("--key-size 4: 10000 different keys need at least 5 bytes each")
        );
    }
}
