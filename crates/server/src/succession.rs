//! Who is next? The line in which locks and elections stand.
//!
//! # The idea
//!
//! A lock is a name, and who wants it puts a key below that name, which hangs on a lease. The keys were
//! created one after the other, and the oldest one has the lock:
//!
//! ```text
//!   l/a1   created at 5   holds it
//!   l/b7   created at 8   waits until l/a1 is gone
//!   l/c3   created at 9   waits until l/a1 and l/b7 are gone
//! ```
//!
//! Each waits for the *last* key in front of it only, and looks again when that is gone: so one
//! departure wakes one client. A holder that dies takes its key along when its lease ends.
//!
//! The key's name is the lease's number, so that a client which asks again with the same lease has its
//! place already.
//!
//! # What holds
//!
//! * Nothing is kept here: a line is keys and leases, and any member can be asked.
//! * A client that gives up while it waits leaves no key behind, if this server lives.
//! * A lease that was made for a client who brought none ends 60 seconds after its call, unless the
//!   client keeps it alive. While the client waits, the server does.

use std::future::{Future, poll_fn};
use std::time::Duration;

use bytes::Bytes;
use clearlane_member::requests::{self, Reply, check};
use clearlane_member::stages::Card;
use clearlane_member::watch::Stream;
use clearlane_member::{Handle, Trouble};
use clearlane_mvcc::Change;
use clearlane_mvcc::watch::{Response as Told, Says, WatchRequest, WatchedKeys};
use clearlane_proto::etcdserverpb::compare::{CompareResult, CompareTarget, TargetUnion};
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::request_op::Request as Op;
use clearlane_proto::etcdserverpb::{
    Compare, DeleteRangeRequest, InternalRaftRequest, LeaseGrantRequest, PutRequest, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use tokio::sync::watch;
use tonic::Status;

use crate::watch::WatchService;

/// How long a lease lasts that a client did not bring.
const SESSION_TTL: i64 = 60;
/// While its client waits it is renewed so often.
const RENEWAL: Duration = Duration::from_secs(20);
/// About so many bytes of events are looked at in one go.
const TAKEN_BYTES: usize = 64 << 10;

/// The lines of a member.
#[derive(Clone, Debug)]
pub struct Succession {
    member: Handle,
    watch: WatchService,
    stopped: watch::Receiver<bool>,
}

/// A place in a line.
#[derive(Clone, Debug)]
pub struct Place {
    /// What is below a name.
    pub prefix: Vec<u8>,
    /// The key.
    pub key: Bytes,
    /// When it was created.
    pub created: i64,
    /// What it hangs on.
    pub lease: i64,
    /// Its value, if it was there before.
    pub old_value: Option<Bytes>,
    /// Of the answer that gave it.
    pub header: Option<ResponseHeader>,
}

/// An error as etcd's own client, which its server asks here, passes it on.
pub fn plain(trouble: &Trouble) -> Status {
    Status::unknown(trouble.to_string())
}

impl Succession {
    /// Of a member, on the thread of a service Watch; until `stopped` becomes true.
    pub fn new(member: Handle, watch: WatchService, stopped: watch::Receiver<bool>) -> Succession {
        Succession { member, watch, stopped }
    }

    /// The member.
    pub fn member(&self) -> &Handle {
        &self.member
    }

    /// Gets a place, or finds the one that this lease has already.
    pub async fn stand(&self, name: &[u8], lease: i64, value: Bytes) -> Result<Place, Trouble> {
        let lease = if lease == 0 { self.session().await? } else { lease };
        let prefix = [name, b"/"].concat();
        let key = Bytes::from([&prefix[..], format!("{lease:x}").as_bytes()].concat());
        let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let txn = TxnRequest {
            compare: vec![created_at(&key, 0)],
            success: vec![RequestOp { request: Some(Op::RequestPut(put)) }],
            failure: vec![RequestOp { request: Some(Op::RequestRange(get)) }],
        };
        let done = self.txn(txn).await?;
        let there = (!done.succeeded).then(|| first_of(&done)).flatten();
        let revision = done.header.as_ref().map_or(0, |header| header.revision);
        let created = there.as_ref().map_or(revision, |there| there.create_revision);
        let old_value = there.map(|there| there.value);
        Ok(Place { prefix, key, created, lease, old_value, header: done.header })
    }

    async fn session(&self) -> Result<i64, Trouble> {
        let lease_grant = Some(LeaseGrantRequest { ttl: SESSION_TTL, id: 0 });
        let request = InternalRaftRequest { lease_grant, ..Default::default() };
        match self.member.write(request).await? {
            Reply::LeaseGrant(granted) => Ok(granted.id),
            reply => unreachable!("{reply:?} is no answer to a grant"),
        }
    }

    /// Waits until nobody is in front, and says whether anybody was. Whoever stops to wait loses his
    /// place.
    pub async fn wait(&self, place: &Place) -> Result<bool, Trouble> {
        let mut leaves = Leaves(Some((self.clone(), place.clone())));
        let first = async {
            let mut has_waited = false;
            while let Some((ahead, revision)) = self.ahead(place).await? {
                self.deleted(&ahead, revision).await?;
                has_waited = true;
            }
            Ok(has_waited)
        };
        let waited = self.alive(place.lease, first).await;
        if waited.is_ok() {
            leaves.0 = None;
        }
        waited
    }

    /// The last key in front of a place, and the revision at which it was there.
    async fn ahead(&self, place: &Place) -> Result<Option<(Bytes, i64)>, Trouble> {
        let newest_before = RangeRequest {
            max_create_revision: place.created - 1,
            ..in_line(&place.prefix, SortOrder::Descend)
        };
        let found = self.get(newest_before).await?;
        let revision = found.header.as_ref().map_or(0, |header| header.revision);
        Ok(found.kvs.into_iter().next().map(|record| (record.key, revision)))
    }

    /// Waits until a key is gone that was there at a revision.
    async fn deleted(&self, key: &Bytes, revision: i64) -> Result<(), Trouble> {
        let keys = WatchedKeys::One(key.clone());
        let stream = self.watch.desk().open();
        stream.watch(WatchRequest { start: revision + 1, no_put: true, ..WatchRequest::of(keys) });
        loop {
            // Events, or an end of the watcher: in any case it is time to look again.
            if next(&stream).await?.iter().any(|told| !matches!(told.says, Says::Created)) {
                return Ok(());
            }
        }
    }

    /// Does something while a lease is renewed, until the server stops.
    async fn alive<T>(
        &self,
        lease: i64,
        work: impl Future<Output = Result<T, Trouble>>,
    ) -> Result<T, Trouble> {
        let renew = async {
            loop {
                tokio::time::sleep(RENEWAL).await;
                // Without it the lease ends, and whoever waits for this place goes on.
                let _ = self.member.renew(lease).await;
            }
        };
        tokio::select! {
            done = work => done,
            () = renew => unreachable!("it goes on"),
            () = self.stopped() => Err(Trouble::Stopped),
        }
    }

    /// Waits until the server stops.
    pub async fn stopped(&self) {
        // Whoever would say so may have gone before.
        drop(self.stopped.clone().wait_for(|stopped| *stopped).await);
    }

    /// The holder, if there is one.
    pub async fn holder(&self, name: &[u8]) -> Result<(Option<KeyValue>, ResponseHeader), Trouble> {
        let oldest = in_line(&[name, b"/"].concat(), SortOrder::Ascend);
        let found = self.get(oldest).await?;
        Ok((found.kvs.into_iter().next(), found.header.unwrap_or_default()))
    }

    /// Changes a holder's value. Says whether it was the holder.
    pub async fn change(
        &self,
        place: &Place,
        value: Bytes,
    ) -> Result<(bool, Option<ResponseHeader>), Trouble> {
        let (key, lease) = (place.key.clone(), place.lease);
        let put = PutRequest { key, value, lease, ..PutRequest::default() };
        self.if_there(place, Op::RequestPut(put)).await
    }

    /// Gives a place up. If it was given up before, nothing happens.
    pub async fn leave(&self, place: &Place) -> Result<Option<ResponseHeader>, Trouble> {
        let delete = DeleteRangeRequest { key: place.key.clone(), ..Default::default() };
        Ok(self.if_there(place, Op::RequestDeleteRange(delete)).await?.1)
    }

    async fn if_there(
        &self,
        place: &Place,
        then: Op,
    ) -> Result<(bool, Option<ResponseHeader>), Trouble> {
        let txn = TxnRequest {
            compare: vec![created_at(&place.key, place.created)],
            success: vec![RequestOp { request: Some(then) }],
            failure: vec![],
        };
        let done = self.txn(txn).await?;
        Ok((done.succeeded, done.header))
    }

    async fn txn(&self, request: TxnRequest) -> Result<TxnResponse, Trouble> {
        match self.member.txn(request, &mut Card::begin()).await? {
            Reply::Txn(done) => Ok(done),
            reply => unreachable!("{reply:?} is no answer to a transaction"),
        }
    }

    /// Reads, after all that was acknowledged before.
    pub async fn get(&self, request: RangeRequest) -> Result<RangeResponse, Trouble> {
        check::range(&request)?;
        self.member.fresh().await?;
        let store = self.member.store();
        let mut found = requests::range(&*store.read(), &request)??;
        self.member.stamp(&mut found.header);
        Ok(found)
    }

    /// Opens a watcher of one key behind a revision.
    pub fn follow(&self, keys: WatchedKeys, revision: i64) -> Stream {
        let stream = self.watch.desk().open();
        stream.watch(WatchRequest { start: revision + 1, ..WatchRequest::of(keys) });
        stream
    }
}

/// What comes next out of a stream of watchers.
pub async fn next(stream: &Stream) -> Result<Vec<Told>, Trouble> {
    Ok(poll_fn(|context| stream.poll_take(TAKEN_BYTES, context)).await?)
}

/// The change that an event tells of, with its record.
pub fn record_of(change: &Change) -> (bool, &KeyValue) {
    match change {
        Change::Put(record) => (true, record),
        Change::Delete(record) => (false, record),
    }
}

/// All keys below a prefix that ends with a slash.
pub fn below(prefix: &[u8]) -> (Bytes, Bytes) {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    (Bytes::copy_from_slice(prefix), end.into())
}

/// The first or the last of a line.
fn in_line(prefix: &[u8], order: SortOrder) -> RangeRequest {
    let (key, range_end) = below(prefix);
    RangeRequest {
        key,
        range_end,
        limit: 1,
        sort_order: order as i32,
        sort_target: SortTarget::Create as i32,
        ..RangeRequest::default()
    }
}

fn created_at(key: &Bytes, revision: i64) -> Compare {
    Compare {
        key: key.clone(),
        target: CompareTarget::Create as i32,
        result: CompareResult::Equal as i32,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

fn first_of(done: &TxnResponse) -> Option<KeyValue> {
    use clearlane_proto::etcdserverpb::response_op::Response;
    match done.responses.first()?.response.as_ref()? {
        Response::ResponseRange(found) => found.kvs.first().cloned(),
        _ => None,
    }
}

/// Gives a place up when its client does.
struct Leaves(Option<(Succession, Place)>);

impl Drop for Leaves {
    fn drop(&mut self) {
        // Outside of a runtime the server has stopped, and the lease will end.
        if let (Some((line, place)), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move { line.leave(&place).await });
        }
    }
}
