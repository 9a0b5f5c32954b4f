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
//! begins again in the [read pool](crate::node::ReadPool): there it finds out how long the answer
//! will be, which is said first on the wire, and drops what it has read. The answer is read a second
//! time while it is sent, a [piece](Long::next) at a time, as fast as the client takes it. So what an
//! answer needs in memory does not depend on its size.
//!
//! The old eras hold locks as long as a read is open. There a range that may find more than one key
//! goes to the pool at once, and is read in one go, as etcd does it.

use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::request_op::Request;
use clearlane_proto::etcdserverpb::{
    RangeRequest, RangeResponse, ResponseHeader, TxnRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::error::{Error, Result};
use crate::handle::Handle;
use crate::requests::{self, Refused, Span, Stop, apart, check, txn};
use crate::stages::{Card, LocksBefore, Stage};
use crate::trouble::Trouble;

/// What a range may find on the network thread.
const AT_ONCE: Budget = Budget { records: 128, bytes: 128 << 10 };
/// What it may keep in memory; beyond that it is read twice.
const KEPT: Budget = Budget { records: usize::MAX, bytes: 1 << 20 };

/// Reads a range.
pub async fn range(
    member: &Handle,
    request: RangeRequest,
    card: &mut Card,
) -> std::result::Result<Found, Trouble> {
    check::range(&request)?;
    if !request.serializable {
        member.fresh().await?;
        card.stamp(Stage::ReadIndex);
    }
    let store = member.store();
    let mut found = match store.view() {
        Some(view) if requests::range::is_plain(&request) => {
            match gather(&*view, &request, AT_ONCE)?? {
                Some(records) => Found::Records(records),
                // What is rare has a place of its own, or every range would make room for it.
                None => Box::pin(member.expensive(move || Long::measure(view, request))).await?,
            }
        }
        view => {
            let is_one_key = request.range_end.is_empty();
            let work = move || match view {
                Some(view) => requests::range(&*view, &request),
                None => requests::range(&*store.read(), &request),
            };
            Found::Shaped(match is_one_key {
                true => work()??,
                false => Box::pin(watched(member, card, work)).await?,
            })
        }
    };
    card.stamp(Stage::Backend);
    member.stamp(found.header());
    Ok(found)
}

/// Runs a transaction that only reads.
pub async fn read_txn(
    member: &Handle,
    request: TxnRequest,
    card: &mut Card,
) -> std::result::Result<TxnResponse, Trouble> {
    if !is_serializable(&request) {
        member.fresh().await?;
        card.stamp(Stage::ReadIndex);
    }
    let store = member.store();
    let is_small = ranges(&request).all(|range| range.range_end.is_empty());
    let work = move || txn::read_txn(&*store.read(), &request);
    let mut response =
        if is_small { work()?? } else { Box::pin(watched(member, card, work)).await? };
    card.stamp(Stage::Backend);
    member.stamp(&mut response.header);
    Ok(response)
}

/// Has something read by the pool, and writes down which locks it waited for there.
async fn watched<T: Send + 'static>(
    member: &Handle,
    card: &mut Card,
    work: impl FnOnce() -> Result<std::result::Result<T, Refused>> + Send + 'static,
) -> std::result::Result<T, Trouble> {
    let mut stamped = *card;
    let (done, stamped) = member
        .expensive(move || {
            let before = LocksBefore::now();
            let done = work()?;
            stamped.stamp_with_locks(Stage::Backend, before);
            Ok(done.map(|done| (done, stamped)))
        })
        .await?;
    *card = stamped;
    Ok(done)
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
    /// So much that it is read again when it is sent.
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
            Found::Long(found) => found.records as usize,
            Found::Shaped(response) => response.kvs.len(),
        }
    }

    /// All of it in memory, for whoever cannot take it piece by piece.
    pub fn into_response(self) -> Result<RangeResponse> {
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

fn span(request: &RangeRequest) -> Span<'_> {
    Span::new(&request.key, &request.range_end)
}

fn options(request: &RangeRequest) -> RangeOptions {
    let RangeRequest { revision, limit, count_only, .. } = *request;
    RangeOptions { revision, limit, count_only }
}

fn about(view: &dyn ReadTxn, request: &RangeRequest, count: u64) -> About {
    let header = ResponseHeader { revision: view.revision(), ..ResponseHeader::default() };
    let limit = u64::try_from(request.limit).unwrap_or(0);
    let more = !request.count_only && limit > 0 && count > limit;
    About { header: Some(header), more, count: count as i64 }
}

/// A range whose records are read when they are sent.
pub struct Long {
    /// The rest of the answer.
    pub about: About,
    view: Arc<dyn ReadTxn + Send + Sync>,
    /// What is left of it: it begins behind what was read last.
    request: RangeRequest,
    records: u64,
    encoded: u64,
}

impl Long {
    /// Finds out how long a plain range will be.
    fn measure(
        view: Arc<dyn ReadTxn + Send + Sync>,
        request: RangeRequest,
    ) -> Result<std::result::Result<Found, Refused>> {
        match gather(&*view, &request, KEPT)? {
            Ok(Some(records)) => return Ok(Ok(Found::Records(records))),
            Ok(None) => {}
            Err(refused) => return Ok(Err(refused)),
        }
        let (mut records, mut encoded) = (0, 0);
        let count = view.records(span(&request).range(), options(&request), &mut |record| {
            records += 1;
            encoded += field_len(record.len()) as u64;
            ControlFlow::Continue(())
        });
        Ok(apart(count.map_err(Stop::from))?.map(|count| {
            let about = about(&*view, &request, count);
            Found::Long(Long { about, view, request, records, encoded })
        }))
    }

    /// How many bytes the records that are left take, with what lies between them on the wire.
    pub fn encoded_len(&self) -> u64 {
        self.encoded
    }

    /// The next records, about so many bytes; nothing if there are no more.
    pub fn next(&mut self, bytes: usize) -> Result<Option<Vec<Bytes>>> {
        if self.records == 0 {
            return Ok(None);
        }
        let mut piece = Vec::new();
        let mut left = bytes;
        let options = RangeOptions { limit: self.records as i64, ..options(&self.request) };
        self.view.records(span(&self.request).range(), options, &mut |record| {
            left = left.saturating_sub(record.len());
            self.encoded -= field_len(record.len()) as u64;
            piece.push(record);
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let Some(last) = piece.last() else {
            return Err(Error::damaged("the store", "a range has become shorter under a reader"));
        };
        self.records -= piece.len() as u64;
        self.request.key = behind(&decode(last.clone())?.key);
        Ok(Some(piece))
    }
}

/// The first key behind this one.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}

/// What a record takes in an answer: its tag, its length, and itself.
fn field_len(record: usize) -> usize {
    1 + prost::length_delimiter_len(record) + record
}

fn decode(record: Bytes) -> Result<KeyValue> {
    KeyValue::decode(record).map_err(|error| Error::damaged("a record", error.to_string()))
}

impl std::fmt::Debug for Long {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Long { about, records, encoded, .. } = self;
        f.debug_struct("Long")
            .field("about", about)
            .field("records", records)
            .field("encoded", encoded)
            .finish_non_exhaustive()
    }
}
