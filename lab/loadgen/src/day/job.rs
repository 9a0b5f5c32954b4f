//! The requests of a job, and the checks of their responses.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::compare::CompareResult;
use clearlane_proto::etcdserverpb::kv_client::KvClient;
use clearlane_proto::etcdserverpb::lease_client::LeaseClient;
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest, RangeRequest,
    TxnRequest,
};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use super::mix::{Job, JobKind};
use crate::TextResult;
use crate::connection::{self, OpenWatch, open_watch, text};
use crate::keys::{KeySpace, ValueGenerator};
use crate::requests::{compare_version, delete, operations, range, watch_all};

const LEASE_KEYS: u64 = 3;
const REVOKED_TTL_SECONDS: i64 = 60 * 60;
/// The TTL of leases that are left to expire. It is real time, not simulated time. The keys of a
/// lease are usually put within this time.
const EXPIRING_TTL_SECONDS: i64 = 5;
const PAGE_KEYS: i64 = 500;
/// The stream window of a slow watch: the server can send this many bytes before the client reads
/// any.
const SLOW_WINDOW_BYTES: u32 = 64 << 10;

/// State that the jobs of a period share.
pub(super) struct JobContext {
    pub(super) space: KeySpace,
    pub(super) endpoint: Endpoint,
    pub(super) kept_leases: Vec<i64>,
    /// The revisions at the ends of the last two periods, the older one first. The store is not
    /// compacted beyond the older one, so it can still be read.
    pub(super) period_ends: [i64; 2],
    /// Number of events on the keys of the space in one period.
    pub(super) updates: u64,
    /// The number of the current period. The values of puts differ from one period to the next.
    pub(super) period: u64,
    pub(super) values: ValueGenerator,
}

/// A watch on its own connection. Nobody reads its events.
pub(super) type SlowWatch = (Channel, OpenWatch);

impl JobContext {
    /// Runs a job. Returns the number of requests that it has sent.
    pub(super) async fn run(&self, job: Job, channel: Channel) -> TextResult<u64> {
        let Job { kind, period, number } = job;
        let created = || Bytes::from(format!("/day/pods/{period}-{number}"));
        let update = || self.put(self.space.key(number), number);
        let one = || range(&self.space, number, 1);
        let revision = self.period_ends[0];
        match kind {
            JobKind::Update => {
                KvClient::new(channel).put(update()).await.map_err(text)?;
            }
            JobKind::ComparedUpdate => put_if(channel, CompareResult::Greater, update()).await?,
            JobKind::Create => {
                put_if(channel, CompareResult::Equal, self.put(created(), number)).await?;
            }
            JobKind::Delete => {
                let created = RangeRequest { key: created(), ..RangeRequest::default() };
                let answer = KvClient::new(channel).delete_range(delete(created)).await;
                check_one(answer.map_err(text)?.into_inner().deleted)?;
            }
            JobKind::RevokedLease | JobKind::ExpiringLease => {
                return self.lease(job, channel).await;
            }
            JobKind::KeepAlive => {
                let id = self.kept_leases[number as usize % self.kept_leases.len()];
                let requests = tokio_stream::once(LeaseKeepAliveRequest { id });
                let kept = LeaseClient::new(channel).lease_keep_alive(requests).await;
                kept.map_err(text)?.into_inner().message().await.map_err(text)?;
            }
            JobKind::Get => get(channel, one()).await?,
            JobKind::OldGet => get(channel, RangeRequest { revision, ..one() }).await?,
            JobKind::List => return self.list(channel, 0).await,
            JobKind::OldList => return self.list(channel, revision).await,
            JobKind::CatchUp => self.catch_up(channel).await?,
            JobKind::Connection => get(connect(self.endpoint.clone()).await?, one()).await?,
        }
        Ok(1)
    }

    pub(super) async fn open_slow_watch(&self) -> TextResult<SlowWatch> {
        let endpoint = self.endpoint.clone().initial_stream_window_size(SLOW_WINDOW_BYTES);
        let channel = connect(endpoint).await?;
        let watch = self.watch(channel.clone()).await?;
        Ok((channel, watch))
    }

    /// Reads the events of one period.
    async fn catch_up(&self, channel: Channel) -> TextResult<()> {
        let (_requests, mut answers) = self.watch(channel).await?;
        let mut events = 0;
        while events < self.updates {
            let answer = answers.message().await.map_err(text)?;
            let answer = answer.filter(|answer| !answer.canceled);
            events += answer.ok_or("the watch was canceled")?.events.len() as u64;
        }
        Ok(())
    }

    /// Watches all keys of the space, starting after the older of the two revisions in
    /// `period_ends`.
    async fn watch(&self, channel: Channel) -> TextResult<OpenWatch> {
        let create = watch_all(&self.space, self.period_ends[0] + 1);
        open_watch(channel, None, create).await.map_err(text)
    }

    /// Grants a lease and puts its keys. Revokes the lease if the job is a `RevokedLease`. Returns
    /// the number of requests.
    async fn lease(&self, Job { kind, period, number }: Job, channel: Channel) -> TextResult<u64> {
        let is_revoked = kind == JobKind::RevokedLease;
        let (end, ttl) = match is_revoked {
            true => ("revoked", REVOKED_TTL_SECONDS),
            false => ("expiring", EXPIRING_TTL_SECONDS),
        };
        let mut leases = LeaseClient::new(channel.clone());
        let granted = leases.lease_grant(LeaseGrantRequest { ttl, id: 0 }).await.map_err(text)?;
        let (lease, mut requests) = (granted.into_inner().id, 1);
        for key in 0..LEASE_KEYS {
            let name = format!("/day/events/{end}/{period}-{number}-{key}");
            let put = PutRequest { lease, ..self.put(name.into(), key) };
            requests += 1;
            match KvClient::new(channel.clone()).put(put).await {
                Ok(_) => {}
                // The lease has expired before all its keys were put. The server is slow, but not
                // wrong.
                Err(status) if !is_revoked && status.code() == Code::NotFound => break,
                Err(status) => return Err(text(status)),
            }
        }
        if is_revoked {
            leases.lease_revoke(LeaseRevokeRequest { id: lease }).await.map_err(text)?;
            requests += 1;
        }
        Ok(requests)
    }

    /// Reads all keys of the space in pages. If `revision` is 0, the first page is read at the
    /// newest revision, and the other pages at the same revision. Returns the number of pages.
    async fn list(&self, channel: Channel, mut revision: i64) -> TextResult<u64> {
        let (mut client, count) = (KvClient::new(channel), self.space.count);
        let (mut next, mut pages) = (0, 0);
        while next < count {
            let page = range(&self.space, next, count - next);
            let page = RangeRequest { limit: PAGE_KEYS, revision, ..page };
            let answer = client.range(page).await.map_err(text)?.into_inner();
            if answer.kvs.is_empty() {
                return Err(format!("{next} keys instead of {count}"));
            }
            next += answer.kvs.len() as u64;
            pages += 1;
            if revision == 0 {
                revision = answer.header.unwrap_or_default().revision;
            }
        }
        Ok(pages)
    }

    /// Returns a put. The value for the same number is different in each period.
    fn put(&self, key: Bytes, number: u64) -> PutRequest {
        let seed = (self.period << u32::BITS) + number;
        let value = self.values.random_value(&mut SmallRng::seed_from_u64(seed));
        PutRequest { key, value, ..PutRequest::default() }
    }
}

async fn connect(endpoint: Endpoint) -> TextResult<Channel> {
    connection::channel(&endpoint.into()).await.map_err(|error| error.to_string())
}

/// Puts a key if its version compares to 0 as `result` requires. Fails if the compare does not
/// hold.
async fn put_if(channel: Channel, result: CompareResult, put: PutRequest) -> TextResult<()> {
    let read = RangeRequest { key: put.key.clone(), ..RangeRequest::default() };
    let txn = TxnRequest {
        compare: vec![compare_version(&read, result)],
        success: operations([Op::RequestPut(put)]),
        failure: operations([Op::RequestRange(read)]),
    };
    let answer = KvClient::new(channel).txn(txn).await.map_err(text)?;
    let is_put = answer.into_inner().succeeded;
    is_put.then_some(()).ok_or_else(|| "the comparison does not hold".to_owned())
}

async fn get(channel: Channel, range: RangeRequest) -> TextResult<()> {
    let answer = KvClient::new(channel).range(range).await.map_err(text)?;
    check_one(answer.into_inner().kvs.len() as i64)
}

fn check_one(keys: i64) -> TextResult<()> {
    if keys == 1 { Ok(()) } else { Err(format!("{keys} keys instead of 1")) }
}
