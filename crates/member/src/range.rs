//! The whole path of a read, on one screen.
//!
//! ```text
//!   client ── Range ──▶ range          is it a request at all?
//!                        ├─ fresh      linearizable: wait until this member has applied what was
//!                        │             acknowledged before the read came
//!                        ├─ view       one revision, its index and its records
//!                        └─ found      keys → records → (sorted, filtered, cut off)
//! ```
//!
//! From the view on nobody waits for anybody: in the default era the view is one pointer, and it
//! shows the same state for as long as it is kept.
//!
//! # Small and large
//!
//! Nobody knows beforehand how much a range will find. So it begins on the network thread, which
//! would only lose time by handing over a single key, and has a budget there. What goes beyond it
//! begins again in the [read pool](crate::node::ReadPool), and is read there [piece by
//! piece](crate::long), as fast as the client takes it. So all answers together need a bounded amount of
//! memory, whatever their size, and however slowly they are taken.
//!
//! What is small and not in memory is read by [threads of its own](crate::node::Node::cold_pool): one client's wait for
//! the disk would be that of all clients of a network thread, which therefore reads [without
//! waiting](clearlane_engine::without_waiting).
//!
//! The old eras hold locks as long as a read is open. There a range that may find more than one key
//! goes to the pool at once, and is read in one go, as etcd does it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use clearlane_engine::without_waiting;
use clearlane_locks::Actor;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::actors::{GET, RANGE, READ_TXN};
use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::long::Long;
use crate::node::ReadPool;
use crate::requests::{self, Refused, Span, Stop, apart, check, txn};
use crate::stages::{Card, LocksBefore, Stage};
use crate::trouble::Trouble;

/// What a range may find on the network thread.
const AT_ONCE: Budget = Budget { records: 128, bytes: 256 << 10 };

/// Reads a range.
pub async fn range(
    member: &Handle,
    request: RangeRequest,
    card: &mut Card,
) -> std::result::Result<Found, Trouble> {
    check::range(&request)?;
    if !request.serializable {
        member.fresh_on(card).await?;
    }
    let store = member.store();
    let mut found = match store.view() {
        Some(view) if requests::range::is_plain(&request) => {
            plain(member, view, request, card).await?
        }
        view => {
            let (has_locks, is_one_key) = (view.is_none(), request.range_end.is_empty());
            let number = card.number();
            let work = move || {
                let _as = actor(&request).enter_as(number);
                match &view {
                    Some(view) => requests::range(&**view, &request),
                    None => requests::range(&*store.read(), &request),
                }
            };
            Found::Shaped(match is_one_key {
                true => small(member, card, has_locks, work).await?,
                false => Box::pin(watched(member, member.read_pool(), card, work)).await?,
            })
        }
    };
    card.stamp(Stage::Backend);
    member.stamp(found.header());
    Ok(found)
}

/// A range whose records go as they are stored.
async fn plain(
    member: &Handle,
    view: Arc<dyn ReadTxn + Send + Sync>,
    request: RangeRequest,
    card: &mut Card,
) -> std::result::Result<Found, Trouble> {
    let number = card.number();
    let gathered = {
        let _as = actor(&request).enter_as(number);
        warm(member, || gather(&*view, &request, AT_ONCE))
    };
    // What is rare has a place of its own, or every range would make room for it.
    let records = match gathered {
        Some(gathered) => gathered??,
        None => {
            let (view, request) = (Arc::clone(&view), request.clone());
            let gather = move || {
                let _as = actor(&request).enter_as(number);
                gather(&*view, &request, AT_ONCE)
            };
            Box::pin(watched(member, member.cold_pool(), card, gather)).await?
        }
    };
    if let Some(records) = records {
        return Ok(Found::Records(records));
    }
    let measure = move || {
        let _as = RANGE.enter_as(number);
        Long::measure(view, request)
    };
    Box::pin(watched(member, member.read_pool(), card, measure)).await
}

/// Runs a transaction that only reads.
pub async fn read_txn(
    member: &Handle,
    request: TxnRequest,
    card: &mut Card,
) -> std::result::Result<TxnResponse, Trouble> {
    if !is_serializable(&request) {
        member.fresh_on(card).await?;
    }
    let store = member.store();
    let is_small = ranges(&request).all(|range| range.range_end.is_empty());
    let number = card.number();
    let view = store.view();
    let has_locks = view.is_none();
    let work = move || {
        let _as = READ_TXN.enter_as(number);
        match &view {
            Some(view) => txn::read_txn(&**view, &request),
            None => txn::read_txn(&*store.read(), &request),
        }
    };
    let mut response = match is_small {
        true => small(member, card, has_locks, work).await?,
        false => Box::pin(watched(member, member.read_pool(), card, work)).await?,
    };
    card.stamp(Stage::Backend);
    member.stamp(&mut response.header);
    Ok(response)
}

/// Reads something small: on the network thread, unless it would have to wait for the disk there. The old eras read with
/// their locks in hand, as etcd did, and wait for the disk with them.
async fn small<T: Send + 'static>(
    member: &Handle,
    card: &mut Card,
    has_locks: bool,
    work: impl Fn() -> Result<std::result::Result<T, Refused>> + Send + 'static,
) -> std::result::Result<T, Trouble> {
    if has_locks {
        let before = LocksBefore::now();
        let done = work();
        card.stamp_with_locks(Stage::Backend, before);
        return Ok(done??);
    }
    match warm(member, &work) {
        Some(done) => Ok(done??),
        None => Box::pin(watched(member, member.cold_pool(), card, work)).await,
    }
}

/// Reads what is in memory. Nothing comes back if the disk would have to be waited for.
fn warm<T>(member: &Handle, read: impl FnOnce() -> T) -> Option<T> {
    let found = without_waiting(read).ok();
    if found.is_none() {
        member.node().figures().cold_reads.fetch_add(1, Ordering::Relaxed);
    }
    found
}

/// Has something read by a pool, and writes down which locks it waited for there.
async fn watched<T: Send + 'static>(
    member: &Handle,
    pool: &ReadPool,
    card: &mut Card,
    work: impl FnOnce() -> Result<std::result::Result<T, Refused>> + Send + 'static,
) -> std::result::Result<T, Trouble> {
    let mut stamped = *card;
    let done = pool.run(move || {
        stamped.stamp(Stage::Pool);
        let before = LocksBefore::now();
        let done = work();
        stamped.stamp_with_locks(Stage::Backend, before);
        (done, stamped)
    });
    let (done, stamped) = member.in_time(done).await?.ok_or(Trouble::Stopped)?;
    *card = stamped;
    Ok(done??)
}

/// In whose name a range takes its locks.
fn actor(request: &RangeRequest) -> Actor {
    match request.range_end.is_empty() {
        true => *GET,
        false => *RANGE,
    }
}

/// Whether each of a transaction's ranges may be answered from what this member has.
fn is_serializable(request: &TxnRequest) -> bool {
    ranges(request).all(|range| range.serializable)
}

/// The ranges of a transaction that has nothing else.
fn ranges(request: &TxnRequest) -> impl Iterator<Item = &RangeRequest> {
    let ops = request.success.iter().chain(&request.failure);
    ops.filter_map(|op| match &op.request {
        Some(Request::RequestRange(range)) => Some(range),
        _ => None,
    })
}

/// What a range has found.
#[derive(Debug)]
pub enum Found {
    /// So little that it is here.
    Records(Records),
    /// So much that it is read when it is sent.
    Long(Long),
    /// Sorted, filtered, or without values.
    Shaped(RangeResponse),
}

/// What an answer says beside its records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct About {
    /// Who answers, and as of which revision.
    pub header: Option<ResponseHeader>,
    /// Whether the limit has cut off something.
    pub more: bool,
    /// How many keys there are in the range, whatever the limit.
    pub count: i64,
}

/// Records as they are stored, which is as they go on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    /// The rest of the answer.
    pub about: About,
    /// Encoded, in the order of their keys.
    pub records: Vec<Bytes>,
}

impl Found {
    /// Who answers.
    pub fn header(&mut self) -> &mut Option<ResponseHeader> {
        match self {
            Found::Records(found) => &mut found.about.header,
            Found::Long(found) => &mut found.about.header,
            Found::Shaped(response) => &mut response.header,
        }
    }

    /// How many records there are in the answer.
    pub fn records(&self) -> usize {
        match self {
            Found::Records(found) => found.records.len(),
            Found::Long(found) => found.records(),
            Found::Shaped(response) => response.kvs.len(),
        }
    }

    /// All of it in memory, for whoever cannot take it piece by piece.
    pub async fn whole(self, member: &Handle) -> std::result::Result<RangeResponse, Trouble> {
        match self {
            Found::Long(_) => member.expensive(move || self.into_response().map(Ok)).await,
            here => Ok(here.into_response()?),
        }
    }

    fn into_response(self) -> Result<RangeResponse> {
        let (about, records) = match self {
            Found::Shaped(response) => return Ok(response),
            Found::Records(found) => (found.about, found.records),
            Found::Long(mut found) => {
                let mut records = Vec::new();
                while let Some(piece) = found.next(usize::MAX)? {
                    records.extend(piece);
                }
                (found.about, records)
            }
        };
        let kvs = records.into_iter().map(decode).collect::<Result<_>>()?;
        let About { header, more, count } = about;
        Ok(RangeResponse { header, kvs, more, count })
    }
}

/// How much may be gathered.
#[derive(Clone, Copy, Debug)]
struct Budget {
    records: usize,
    bytes: usize,
}

/// The records of a plain range, or none if they are beyond the budget.
fn gather(
    view: &dyn ReadTxn,
    request: &RangeRequest,
    budget: Budget,
) -> Result<std::result::Result<Option<Records>, Refused>> {
    let mut records = Vec::new();
    let mut left = budget;
    let mut is_beyond = false;
    let count = view.records(span(request).range(), options(request), &mut |record| {
        is_beyond = left.records == 0 || left.bytes < record.len();
        if is_beyond {
            return ControlFlow::Break(());
        }
        left.records -= 1;
        left.bytes -= record.len();
        records.push(record);
        ControlFlow::Continue(())
    });
    Ok(apart(count.map_err(Stop::from))?.map(|count| {
        let about = about(view, request, count);
        (!is_beyond).then_some(Records { about, records })
    }))
}

pub(crate) fn span(request: &RangeRequest) -> Span<'_> {
    Span::new(&request.key, &request.range_end)
}

pub(crate) fn options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, limit, count_only, .. } = *request;
    RangeOptions { revision, limit, count_only, uncounted: false }
}

pub(crate) fn about(view: &dyn ReadTxn, request: &RangeRequest, count: u64) -> About {
    let header = ResponseHeader { revision: view.revision(), ..ResponseHeader::default() };
    let limit = u64::try_from(request.limit).unwrap_or(0);
    let more = !request.count_only && limit > 0 && count > limit;
    About { header: Some(header), more, count: count as i64 }
}

pub(crate) fn decode(record: Bytes) -> Result<KeyValue> {
    KeyValue::decode(record).map_err(|error| Error::damaged("a record", error.to_string()))
}
