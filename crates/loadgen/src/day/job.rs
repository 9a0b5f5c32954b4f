//! The jobs of a period: each is a request, or a few that belong together.

use std::sync::Arc;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::watch_request::RequestUnion;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::connection::{self, UnreadAnswer, text};
use crate::keys::{KeySpace, ValueGenerator};
use crate::requests::{Call, range};
use crate::response_scanner::ResponseShape;

const LEASE_KEYS: u64 = 3;
const REVOKED_TTL_SECONDS: i64 = 60 * 60;
/// Real time, not simulated: as a rule, its keys are put within it.
const EXPIRING_TTL_SECONDS: i64 = 5;
const PAGE_KEYS: i64 = 500;
/// A slow watch takes so much before it is read.
const SLOW_WINDOW_BYTES: u32 = 64 << 10;

/// The error is a short text.
type Done<T> = std::result::Result<T, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Update(u64),
    /// If the key is there.
    ComparedUpdate(u64),
    /// If the key is not there.
    Create {
        period: u64,
        number: u64,
    },
    Delete {
        period: u64,
        number: u64,
    },
    /// A grant, keys with the lease, and its revocation.
    RevokedLease {
        period: u64,
        number: u64,
    },
    /// It is left to expire, and its keys with it.
    ExpiringLease {
        period: u64,
        number: u64,
    },
    KeepAlive(u64),
    Get(u64),
    OldGet(u64),
    /// All keys that are updated, in pages, each at the revision of the first.
    List,
    OldList,
    /// A watch from an old revision, until it has the events of the period before.
    CatchUp,
    /// A new one, with a get, closed afterwards.
    Connection(u64),
}

/// What jobs of a period share.
pub(super) struct JobContext {
    pub(super) space: KeySpace,
    pub(super) endpoint: Endpoint,
    pub(super) kept_leases: Arc<[i64]>,
    /// Where the period before the last one ended. It is not compacted yet.
    pub(super) old_revision: i64,
    /// Events of a period on the keys of the space.
    pub(super) updates: u64,
    /// Values differ from one period to the next.
    pub(super) period: u64,
    pub(super) values: ValueGenerator,
}

/// A watch of which nothing is read, on a connection of its own.
pub(super) type SlowWatch = (Channel, UnreadAnswer);

impl Job {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Job::Update(_) => "an update",
            Job::ComparedUpdate(_) => "a compared update",
            Job::Create { .. } => "a creation",
            Job::Delete { .. } => "a deletion",
            Job::RevokedLease { .. } => "a lease that is revoked",
            Job::ExpiringLease { .. } => "a lease that expires",
            Job::KeepAlive(_) => "a keep-alive",
            Job::Get(_) => "a get",
            Job::OldGet(_) => "a get at an old revision",
            Job::List => "a list",
            Job::OldList => "a list at an old revision",
            Job::CatchUp => "a watch that catches up",
            Job::Connection(_) => "a connection",
        }
    }

    /// Returns how many requests it was.
    pub(super) async fn run(&self, channel: Channel, context: &JobContext) -> Done<u64> {
        match *self {
            Job::Update(number) => put(channel, context.update(number)).await,
            Job::ComparedUpdate(number) => {
                let put = context.update(number);
                put_if(channel, CompareResult::Greater, put).await
            }
            Job::Create { period, number } => {
                let put = context.put(pod(period, number), number);
                put_if(channel, CompareResult::Equal, put).await
            }
            Job::Delete { period, number } => delete(channel, pod(period, number)).await,
            Job::RevokedLease { period, number } => {
                let names = event_names("revoked", period, number);
                let lease = lease(channel.clone(), context, REVOKED_TTL_SECONDS, names).await?;
                let revoke = LeaseRevokeRequest { id: lease.id };
                LeaseClient::new(channel).lease_revoke(revoke).await.map_err(text)?;
                Ok(lease.requests + 1)
            }
            Job::ExpiringLease { period, number } => {
                let names = event_names("expiring", period, number);
                let lease = lease(channel, context, EXPIRING_TTL_SECONDS, names).await?;
                Ok(lease.requests)
            }
            Job::KeepAlive(number) => {
                let lease = number as usize % context.kept_leases.len();
                let request = LeaseKeepAliveRequest { id: context.kept_leases[lease] };
                call(channel, Call::new("/etcdserverpb.Lease/LeaseKeepAlive", &request, None)).await
            }
            Job::Get(number) => get(channel, range(&context.space, number, 1)).await,
            Job::OldGet(number) => {
                let revision = context.old_revision;
                let old = RangeRequest { revision, ..range(&context.space, number, 1) };
                get(channel, old).await
            }
            Job::List => list(channel, &context.space, 0).await,
            Job::OldList => list(channel, &context.space, context.old_revision).await,
            Job::CatchUp => call(channel, context.watch(Some(context.updates))).await,
            Job::Connection(number) => {
                let opened = connection::open(&context.endpoint.clone().into(), 1).await;
                let channel = opened.map_err(|error| error.to_string())?.remove(0);
                get(channel, range(&context.space, number, 1)).await
            }
        }
    }
}

impl JobContext {
    pub(super) async fn open_slow_watch(&self) -> Done<SlowWatch> {
        let endpoint = self.endpoint.clone().initial_stream_window_size(SLOW_WINDOW_BYTES);
        let opened = connection::open(&endpoint.into(), 1).await;
        let channel = opened.map_err(|error| error.to_string())?.remove(0);
        let answer = connection::call_unread(channel.clone(), &self.watch(None)).await?;
        Ok((channel, answer))
    }

    /// Of all keys that are updated. The call ends when it has so many events, with `None` never.
    fn watch(&self, events: Option<u64>) -> Call {
        let RangeRequest { key, range_end, .. } = range(&self.space, 0, self.space.count);
        let start_revision = self.old_revision + 1;
        let create = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
        let watch = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let call = Call::new("/etcdserverpb.Watch/Watch", &watch, events);
        Call { answer: ResponseShape::Watch, ..call }
    }

    fn update(&self, number: u64) -> PutRequest {
        self.put(self.space.key(number), number)
    }

    /// Of one number, the value is another one in each period.
    fn put(&self, key: Bytes, number: u64) -> PutRequest {
        let seed = (self.period << u32::BITS) + number;
        let value = self.values.random_value(&mut SmallRng::seed_from_u64(seed));
        PutRequest { key, value, ..PutRequest::default() }
    }
}

fn pod(period: u64, number: u64) -> Bytes {
    format!("/day/pods/{period}-{number}").into()
}

fn event_names(end: &str, period: u64, number: u64) -> impl Iterator<Item = Bytes> {
    (0..LEASE_KEYS).map(move |key| format!("/day/events/{end}/{period}-{number}-{key}").into())
}

async fn call(channel: Channel, call: Call) -> Done<u64> {
    connection::call(channel, call).await.map(|_| 1)
}

async fn put(channel: Channel, put: PutRequest) -> Done<u64> {
    KvClient::new(channel).put(put).await.map(|_| 1).map_err(text)
}

/// Puts if the key's version compares to 0 as `result` says. An error if it does not.
async fn put_if(channel: Channel, result: CompareResult, put: PutRequest) -> Done<u64> {
    let compare = Compare {
        key: put.key.clone(),
        target: CompareTarget::Version as i32,
        result: result as i32,
        target_union: Some(TargetUnion::Version(0)),
        ..Compare::default()
    };
    let read = RangeRequest { key: put.key.clone(), ..RangeRequest::default() };
    let operation = |operation| vec![RequestOp { request: Some(operation) }];
    let (success, failure) = (operation(Op::RequestPut(put)), operation(Op::RequestRange(read)));
    let txn = TxnRequest { compare: vec![compare], success, failure };
    let answer = KvClient::new(channel).txn(txn).await.map_err(text)?;
    match answer.into_inner().succeeded {
        true => Ok(1),
        false => Err("the comparison does not hold".to_owned()),
    }
}

async fn delete(channel: Channel, key: Bytes) -> Done<u64> {
    let delete = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
    let answer = KvClient::new(channel).delete_range(delete).await.map_err(text)?;
    match answer.into_inner().deleted {
        1 => Ok(1),
        deleted => Err(format!("{deleted} keys instead of 1")),
    }
}

struct LeaseWithKeys {
    id: i64,
    /// That were sent for it.
    requests: u64,
}

async fn lease(
    channel: Channel,
    context: &JobContext,
    ttl: i64,
    names: impl Iterator<Item = Bytes>,
) -> Done<LeaseWithKeys> {
    let grant = LeaseGrantRequest { ttl, id: 0 };
    let granted = LeaseClient::new(channel.clone()).lease_grant(grant).await.map_err(text)?;
    let mut lease = LeaseWithKeys { id: granted.into_inner().id, requests: 1 };
    for (number, name) in names.enumerate() {
        let with_lease = PutRequest { lease: lease.id, ..context.put(name, number as u64) };
        lease.requests += 1;
        match KvClient::new(channel.clone()).put(with_lease).await {
            Ok(_) => {}
            // It has expired before all its keys were put: the server is slow, but not wrong.
            Err(status) if ttl == EXPIRING_TTL_SECONDS && status.code() == Code::NotFound => break,
            Err(status) => return Err(text(status)),
        }
    }
    Ok(lease)
}

async fn get(channel: Channel, range: RangeRequest) -> Done<u64> {
    call(channel, Call::new("/etcdserverpb.KV/Range", &range, Some(1))).await
}

/// At the newest revision if it is 0. Returns how many pages there were.
async fn list(channel: Channel, space: &KeySpace, mut revision: i64) -> Done<u64> {
    let (mut client, mut next, mut pages) = (KvClient::new(channel), 0, 0);
    while next < space.count {
        let page = range(space, next, space.count - next);
        let page = RangeRequest { limit: PAGE_KEYS, revision, ..page };
        let answer = client.range(page).await.map_err(text)?.into_inner();
        if answer.kvs.is_empty() {
            return Err(format!("{next} keys instead of {}", space.count));
        }
        next += answer.kvs.len() as u64;
        pages += 1;
        if revision == 0 {
            revision = answer.header.unwrap_or_default().revision;
        }
    }
    Ok(pages)
}
