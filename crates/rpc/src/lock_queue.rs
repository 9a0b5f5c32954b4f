//! The queue of keys in which clients wait for locks and elections: etcd's `concurrency` package on
//! the server's side.
//!
//! A lock is a name. A client that wants it puts the key `name/LEASE`, which is bound to that
//! lease, and the key with the lowest create revision holds the lock. A waiting client waits for
//! the *last* key in front of its own only, and checks again when that is gone, so one removed key
//! wakes one client. A request with the same lease finds the key it has put.
//!
//! * Nothing is kept here: a queue is keys and leases, and each member can serve it.
//! * A client that gives up while it waits leaves no key behind, if this server lives. A holder
//!   that dies loses its key when its lease ends.
//! * A lease that was granted for a request without one ends after 60 seconds, unless the client
//!   keeps it alive. While the request waits, the server renews it.

use std::future::{Future, poll_fn};
use std::time::Duration;

use bytes::Bytes;
use clearlane_auth::checks::{Checker, LeaseKeys};
use clearlane_mvcc::watch::{self, ResponseKind, WatchRequest, WatchedKeys};
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse,
    RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_server::request_trace::RequestTrace;
use clearlane_server::watch::Stream;
use clearlane_server::{RequestError, Server};
use tokio::sync::watch::Receiver;
use tonic::{Request, Status};

use crate::credentials::server_for;
use crate::lease;
use crate::watch::WatchService;

/// The TTL of a lease that is granted for a request without one: etcd's `defaultSessionTTL`.
const SESSION_TTL_SECONDS: i64 = 60;
/// How often a waiting client's lease is renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);
const EVENT_BYTES_PER_POLL: usize = 64 << 10;

/// The queues of a member.
///
/// ```text
///   l/a1   created at 5   holds it
///   l/b7   created at 8   waits until l/a1 is gone
///   l/c3   created at 9   waits until l/a1 and l/b7 are gone
/// ```
#[derive(Clone)]
pub(crate) struct LockQueue {
    pub(crate) server: Server,
    pub(crate) watch: WatchService,
    /// Waits end when it becomes true.
    pub(crate) stopped: Receiver<bool>,
}

#[derive(Clone, Default)]
pub(crate) struct LockQueueEntry {
    /// The name and a slash.
    pub(crate) prefix: Vec<u8>,
    pub(crate) key: Bytes,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
    /// The value before, if the key was in the queue already.
    pub(crate) old_value: Option<Bytes>,
    /// Of the answer that put or found the key.
    pub(crate) header: Option<ResponseHeader>,
}

/// The status that etcd's own client, through which its server asks here, makes of an error.
pub(crate) fn client_error(error: RequestError) -> Status {
    Status::unknown(error.to_string())
}

impl LockQueue {
    /// For the user of a call.
    pub(crate) fn of<T>(&self, request: &Request<T>) -> LockQueue {
        LockQueue { server: server_for(&self.server, request), ..self.clone() }
    }

    /// Puts a key into the queue, or finds the one that this lease has already.
    pub(crate) async fn enqueue(
        &self,
        name: &[u8],
        lease: i64,
        value: Bytes,
    ) -> Result<LockQueueEntry, RequestError> {
        let lease = match lease {
            0 => {
                self.server.require(|user| user.user()).await?;
                let grant = LeaseGrantRequest { ttl: SESSION_TTL_SECONDS, id: 0 };
                self.server.propose(grant).await?.id
            }
            lease => lease,
        };
        let prefix = [name, b"/"].concat();
        let key = Bytes::from([&prefix[..], format!("{lease:x}").as_bytes()].concat());
        let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let txn = TxnRequest {
            compare: vec![create_revision_is(&key, 0)],
            success: vec![RequestOp { request: Some(Op::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(Op::RequestRange(get)) }],
        };
        let done = self.txn(txn).await?;
        let found = (!done.succeeded).then(|| first_record(&done)).flatten();
        let revision = done.header.as_ref().map_or(0, |header| header.revision);
        Ok(LockQueueEntry {
            prefix,
            key,
            create_revision: found.as_ref().map_or(revision, |found| found.create_revision),
            lease,
            old_value: found.map(|found| found.value),
            header: done.header,
        })
    }

    /// Waits until no key is in front, and returns whether one was. A client that stops to wait
    /// loses its key.
    pub(crate) async fn wait_until_first(
        &self,
        place: &LockQueueEntry,
    ) -> Result<bool, RequestError> {
        let mut leaves = ReleaseOnDrop(Some((self.clone(), place.clone())));
        let first = async {
            let mut has_waited = false;
            while let Some((ahead, revision)) = self.predecessor(place).await? {
                self.wait_until_deleted(&ahead, revision).await?;
                has_waited = true;
            }
            Ok(has_waited)
        };
        let waited = self.with_lease_renewal(place.lease, first).await;
        if waited.is_ok() {
            leaves.0 = None;
        }
        waited
    }

    /// The last key in front of an entry, and the revision at which it was there.
    async fn predecessor(
        &self,
        place: &LockQueueEntry,
    ) -> Result<Option<(Bytes, i64)>, RequestError> {
        let newest_before = RangeRequest {
            max_create_revision: place.create_revision - 1,
            ..queue_range(&place.prefix, SortOrder::Descend)
        };
        let found = self.get(newest_before).await?;
        let revision = found.header.as_ref().map_or(0, |header| header.revision);
        Ok(found.kvs.into_iter().next().map(|record| (record.key, revision)))
    }

    /// Waits until a key is gone that was there at a revision.
    async fn wait_until_deleted(&self, key: &Bytes, revision: i64) -> Result<(), RequestError> {
        let keys = WatchedKeys::Single(key.clone());
        let mut stream =
            self.watch_after(revision, WatchRequest { no_put: true, ..WatchRequest::new(keys) });
        // Events, or an end of the watcher: in any case the key is checked again.
        wait_for_change(&mut stream).await
    }

    /// Ends early when the server stops.
    async fn with_lease_renewal<T>(
        &self,
        lease: i64,
        work: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let renew = async {
            loop {
                tokio::time::sleep(RENEWAL_INTERVAL).await;
                // Without it the lease ends, and the request that waits for this key goes on.
                let may =
                    move |user: Checker<'_>, keys: &LeaseKeys<'_>| user.write_lease(lease, keys);
                if self.server.require_for_lease(lease, may).await.is_ok() {
                    let _ = lease::renew(&self.server, lease).await;
                }
            }
        };
        tokio::select! {
            done = work => done,
            () = renew => unreachable!("it goes on"),
            () = self.wait_until_stopped() => Err(RequestError::Stopped),
        }
    }

    pub(crate) async fn wait_until_stopped(&self) {
        // The sender may have gone before.
        drop(self.stopped.clone().wait_for(|stopped| *stopped).await);
    }

    pub(crate) async fn holder(
        &self,
        name: &[u8],
    ) -> Result<(Option<KeyValue>, ResponseHeader), RequestError> {
        let oldest = queue_range(&[name, b"/"].concat(), SortOrder::Ascend);
        let found = self.get(oldest).await?;
        Ok((found.kvs.into_iter().next(), found.header.unwrap_or_default()))
    }

    /// Returns whether it was the holder.
    pub(crate) async fn update_value(
        &self,
        place: &LockQueueEntry,
        value: Bytes,
    ) -> Result<(bool, Option<ResponseHeader>), RequestError> {
        let (key, lease) = (place.key.clone(), place.lease);
        let put = PutRequest { key, value, lease, ..PutRequest::default() };
        self.txn_if_present(place, Op::RequestPut(put)).await
    }

    /// Does nothing if it was removed before.
    pub(crate) async fn release(
        &self,
        place: &LockQueueEntry,
    ) -> Result<Option<ResponseHeader>, RequestError> {
        let delete = DeleteRangeRequest { key: place.key.clone(), ..Default::default() };
        Ok(self.txn_if_present(place, Op::RequestDeleteRange(delete)).await?.1)
    }

    async fn txn_if_present(
        &self,
        place: &LockQueueEntry,
        then: Op,
    ) -> Result<(bool, Option<ResponseHeader>), RequestError> {
        let txn = TxnRequest {
            compare: vec![create_revision_is(&place.key, place.create_revision)],
            success: vec![RequestOp { request: Some(then) }],
            failure: vec![],
        };
        let done = self.txn(txn).await?;
        Ok((done.succeeded, done.header))
    }

    async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, RequestError> {
        self.server.txn(request, &mut RequestTrace::start()).await?.read_all(&self.server).await
    }

    /// A linearizable read.
    pub(crate) async fn get(&self, request: RangeRequest) -> Result<RangeResponse, RequestError> {
        let found = self.server.range(request, &mut RequestTrace::start()).await?;
        found.read_all(&self.server).await
    }

    pub(crate) fn watch_after(&self, revision: i64, request: WatchRequest) -> Stream {
        let stream = self.watch.wake_set().open();
        stream.watch(WatchRequest { start_revision: revision + 1, ..request });
        stream
    }
}

pub(crate) async fn next_responses(
    stream: &mut Stream,
) -> Result<Vec<watch::Response>, RequestError> {
    Ok(poll_fn(|context| stream.poll_responses(EVENT_BYTES_PER_POLL, context)).await?)
}

/// Waits for anything but the word that the watcher was made.
pub(crate) async fn wait_for_change(stream: &mut Stream) -> Result<(), RequestError> {
    while next_responses(stream).await?.iter().all(|told| told.kind == ResponseKind::Created) {}
    Ok(())
}

/// The prefix must end with a slash.
pub(crate) fn prefix_range(prefix: &[u8]) -> (Bytes, Bytes) {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (Bytes::copy_from_slice(prefix), end.into())
}

/// The first or the last of a queue.
fn queue_range(prefix: &[u8], order: SortOrder) -> RangeRequest {
    let (key, range_end) = prefix_range(prefix);
    RangeRequest {
        key,
        range_end,
        limit: 1,
        sort_order: order as i32,
        sort_target: SortTarget::Create as i32,
        ..RangeRequest::default()
    }
}

fn create_revision_is(key: &Bytes, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        target: CompareTarget::Create as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

fn first_record(done: &TxnResponse) -> Option<KeyValue> {
    use clearlane_proto::etcdserverpb::response_op::Response;
    match done.responses.first()?.response.as_ref()? {
        Response::ResponseRange(found) => found.kvs.first().cloned(),
        _ => None,
    }
}

struct ReleaseOnDrop(Option<(LockQueue, LockQueueEntry)>);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        // Outside of a runtime the server has stopped, and the lease will end.
        if let (Some((line, place)), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move { line.release(&place).await });
        }
    }
}
