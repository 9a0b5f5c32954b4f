//! The queue of keys in which clients wait for locks and elections. It is etcd's `concurrency`
//! package on the server side.
//!
//! A lock has a name. A client that wants the lock puts the key `name/LEASE`, where LEASE is the ID
//! of its lease, and attaches the key to this lease. The key with the lowest create revision holds
//! the lock. A waiting client waits only for the *last* key before its own, and checks again when
//! that key is deleted. So one deleted key wakes one client. A later request with the same lease
//! finds the key that the first request has put.
//!
//! * This module has no state: a queue consists of keys and leases, so any member can serve it.
//! * If a client gives up before it has the lock, the server deletes the client's key. If this
//!   server dies or cannot delete the key, or if a holder dies, the key is deleted when its lease
//!   ends.
//! * A request without a lease gets a lease of 60 seconds, which the client must keep alive.
//! * While a request waits, the server renews its lease, even if the client has chosen the lease.

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
use clearlane_replica::RequestError;
use clearlane_server::Server;
use clearlane_server::observe::request_trace::RequestTrace;
use clearlane_server::watch::Stream;
use tokio::sync::oneshot;
use tokio::sync::watch::Receiver;
use tonic::{Request, Status};

use crate::credentials::server_for;
use crate::lease;
use crate::watch::WatchService;

/// The TTL of a lease that is granted for a request without a lease: etcd's `defaultSessionTTL`.
const SESSION_TTL_SECONDS: i64 = 60;
/// Interval at which the lease of a waiting client is renewed.
const RENEWAL_INTERVAL: Duration = Duration::from_secs(20);
const EVENT_BYTES_PER_POLL: usize = 64 << 10;

/// Gives access to the queues, which are keys in the store. The queue of a lock with the name `l`:
///
/// ```text
///   l/a1   created at 5   holds the lock
///   l/b7   created at 8   waits until l/a1 is deleted
///   l/c3   created at 9   waits until l/b7 is deleted, and then for l/a1 if it still exists
/// ```
#[derive(Clone)]
pub(crate) struct LockQueue {
    pub(crate) server: Server,
    pub(crate) watch: WatchService,
    /// When this becomes true, all waits end with an error.
    pub(crate) stopped: Receiver<bool>,
}

#[derive(Clone, Default)]
pub(crate) struct LockQueueEntry {
    /// The name of the lock or election, followed by a slash.
    pub(crate) prefix: Vec<u8>,
    pub(crate) key: Bytes,
    pub(crate) create_revision: i64,
    pub(crate) lease: i64,
    /// The previous value. `None` if the key was not in the queue before this request.
    pub(crate) old_value: Option<Bytes>,
    /// The header of the response that put or found the key.
    pub(crate) header: Option<ResponseHeader>,
}

/// Returns the status for an error. The code is always `Unknown`, as in etcd: etcd's server
/// implements these services with etcd's own client, whose errors have this code.
pub(crate) fn client_error(error: RequestError) -> Status {
    Status::unknown(error.to_string())
}

impl LockQueue {
    /// Returns a copy of the queues that acts with the credentials of a call.
    pub(crate) fn of<T>(&self, request: &Request<T>) -> LockQueue {
        LockQueue { server: server_for(&self.server, request), ..self.clone() }
    }

    /// Puts a key into the queue, or finds the key that this lease already has there. If `lease` is
    /// 0, a new lease is granted. If the future is dropped before it returns, a key that was put is
    /// deleted.
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
        let (sender, receiver) = oneshot::channel();
        let queue = self.clone();
        // A separate task runs the transaction, which takes effect even if the client gives up. In
        // this case the result is dropped, which deletes a new key.
        tokio::spawn(async move {
            let placed = queue.put_or_find(prefix, lease, value).await.map(|place| {
                let is_new = place.old_value.is_none();
                (place.clone(), ReleaseOnDrop(is_new.then_some((queue, place))))
            });
            let _ = sender.send(placed);
        });
        let (place, mut leaves) = receiver.await.map_err(|_| RequestError::Stopped)??;
        leaves.0 = None;
        Ok(place)
    }

    async fn put_or_find(
        &self,
        prefix: Vec<u8>,
        lease: i64,
        value: Bytes,
    ) -> Result<LockQueueEntry, RequestError> {
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

    /// Waits until no key is before this entry. Returns true if it had to wait. If the wait is
    /// dropped or fails, the key is deleted.
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

    /// Returns the last key before an entry, and the revision at which it was read. Returns `None`
    /// if the entry is the first.
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

    /// Waits until `key`, which existed at `revision`, is deleted. Returns early if the watcher
    /// ends, so the caller must read the queue again.
    async fn wait_until_deleted(&self, key: &Bytes, revision: i64) -> Result<(), RequestError> {
        let keys = WatchedKeys::Single(key.clone());
        let mut stream =
            self.watch_after(revision, WatchRequest { no_put: true, ..WatchRequest::new(keys) });
        // The stream may return events or the end of the watcher. In both cases the caller reads
        // the queue again.
        wait_for_change(&mut stream).await
    }

    /// Runs `work`, and renews the lease while it runs. Fails when the server stops.
    async fn with_lease_renewal<T>(
        &self,
        lease: i64,
        work: impl Future<Output = Result<T, RequestError>>,
    ) -> Result<T, RequestError> {
        let renew = async {
            loop {
                tokio::time::sleep(RENEWAL_INTERVAL).await;
                // If the user has lost the permission, the lease is not renewed. The lease then
                // ends, and the request that waits for this key can continue.
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
        // `wait_for` also returns if the sender was dropped.
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

    /// Sets the value of an entry. Returns whether the entry still existed, and the header of the
    /// response.
    pub(crate) async fn update_value(
        &self,
        place: &LockQueueEntry,
        value: Bytes,
    ) -> Result<(bool, Option<ResponseHeader>), RequestError> {
        let (key, lease) = (place.key.clone(), place.lease);
        let put = PutRequest { key, value, lease, ..PutRequest::default() };
        self.txn_if_present(place, Op::RequestPut(put)).await
    }

    /// Deletes an entry. Does nothing if it was already deleted.
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

    /// Reads a range linearizably.
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

/// Waits for any response except the first one, which confirms the creation of the watcher.
pub(crate) async fn wait_for_change(stream: &mut Stream) -> Result<(), RequestError> {
    while next_responses(stream)
        .await?
        .iter()
        .all(|response| response.kind == ResponseKind::Created)
    {}
    Ok(())
}

/// Returns the range of all keys with this prefix. The prefix must end with a slash.
pub(crate) fn prefix_range(prefix: &[u8]) -> (Bytes, Bytes) {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (Bytes::copy_from_slice(prefix), end.into())
}

/// Returns a request for the first key of a queue (ascending order) or the last key (descending
/// order), by create revision.
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
        // If there is no runtime, the server has stopped. Then the key is deleted when its lease
        // ends.
        if let (Some((line, place)), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move { line.release(&place).await });
        }
    }
}
