//! The reads of a write transaction, including the records that a delete returns. Each read is made
//! in the transaction, [deferred](super::deferred_reads) to the waiting request, or skipped.
//!
//! With [`TxnReadMode::Deferred`], these reads are still made in the transaction: the read of a
//! single key, the count of a range, and the read of a range that fits into the transaction's
//! [`ReadBudget`]. Most transactions have no other reads, and a read on another thread would have
//! to wake that thread. A count or a range that names a revision is always deferred, because the
//! index may have to be walked to count its keys. After the first deferred range, all ranges with
//! records are deferred, because the request must wait for that range in any case.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{RangeOptions, RangeRecords, WriteTxn};
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::deferred_reads::{DeferredRead, SharedReadTxn};
use super::range::{RecordSource, execute_range};
use super::rejection::ApplyError;
use crate::applied_position::AppliedPosition;

/// How the apply loop handles the reads of a write transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxnReadMode {
    /// Makes the reads in the transaction, as etcd does.
    Inline,
    /// Makes the reads in the transaction while the budget lasts, and defers the other ranges.
    Deferred(ReadBudget),
    /// Skips the reads, because no request waits for the response at this member.
    Skipped,
}

/// The size of the ranges that one transaction may read before its other ranges are deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBudget {
    pub records: usize,
    pub bytes: usize,
}

impl ReadBudget {
    /// The default budget, which equals the limit for a range on a network thread.
    pub const DEFAULT: ReadBudget = ReadBudget { records: 128, bytes: 256 << 10 };
    const NONE: ReadBudget = ReadBudget { records: 0, bytes: 0 };

    /// Takes one record with this number of bytes from the budget. Returns `None` if the record
    /// exceeds the budget.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.records = self.records.checked_sub(1)?;
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }
}

/// The reads of one write transaction.
pub(crate) struct TxnReads {
    mode: TxnReadMode,
    /// A snapshot of the transaction after its last change, or `None` if no read has needed one.
    read_txn: Option<SharedReadTxn>,
    /// The number of the running operation.
    operation: usize,
    deferred: Vec<DeferredRead>,
}

impl TxnReads {
    pub(crate) fn new(mode: TxnReadMode) -> TxnReads {
        TxnReads { mode, read_txn: None, operation: 0, deferred: Vec::new() }
    }

    pub(crate) fn into_deferred(self) -> Vec<DeferredRead> {
        self.deferred
    }

    /// Records that an operation has run. After a write, the next deferred read needs a new
    /// snapshot.
    pub(crate) fn end_operation(&mut self, is_write: bool) {
        self.operation += 1;
        if is_write {
            self.read_txn = None;
        }
    }

    /// Reads a range. The response is empty if the range is read later or skipped.
    pub(crate) fn range(
        &mut self,
        txn: &(dyn WriteTxn<AppliedPosition> + '_),
        request: &RangeRequest,
    ) -> Result<RangeResponse, ApplyError> {
        match self.mode {
            TxnReadMode::Skipped => return Ok(RangeResponse::default()),
            TxnReadMode::Deferred(budget) if !request.range_end.is_empty() => {
                let bounded = BoundedReads::new(txn, budget);
                let response = execute_range(&bounded, request)?;
                if self.is_within_budget(&bounded) {
                    return Ok(response);
                }
                if self.defer(txn, request) {
                    return Ok(RangeResponse::default());
                }
            }
            TxnReadMode::Deferred(_) | TxnReadMode::Inline => {}
        }
        execute_range(txn, request)
    }

    /// Returns the records that a delete is about to remove. The list is empty if they are read
    /// later or skipped.
    pub(crate) fn prev_kvs(
        &mut self,
        txn: &(dyn WriteTxn<AppliedPosition> + '_),
        request: &DeleteRangeRequest,
    ) -> Result<Vec<KeyValue>, ApplyError> {
        let (key, range_end) = (request.key.clone(), request.range_end.clone());
        Ok(self.range(txn, &RangeRequest { key, range_end, ..RangeRequest::default() })?.kvs)
    }

    /// Keeps the rest of the budget after a read. Returns whether the read was within the budget.
    fn is_within_budget(&mut self, read: &BoundedReads<'_>) -> bool {
        let left = read.budget.get();
        self.mode = TxnReadMode::Deferred(left.unwrap_or(ReadBudget::NONE));
        left.is_some()
    }

    /// Defers a range. Returns false in an old era, which has no snapshots of transactions.
    fn defer(
        &mut self,
        txn: &(dyn WriteTxn<AppliedPosition> + '_),
        request: &RangeRequest,
    ) -> bool {
        let Some(read_txn) = self.read_txn.take().or_else(|| txn.begin_snapshot_read()) else {
            return false;
        };
        self.read_txn = Some(Arc::clone(&read_txn));
        let (operation, request) = (self.operation, request.clone());
        self.deferred.push(DeferredRead { operation, read_txn, request });
        true
    }
}

/// Reads a write transaction within a budget.
struct BoundedReads<'t> {
    txn: &'t (dyn WriteTxn<AppliedPosition> + 't),
    /// The rest of the budget, or `None` after a read that exceeded it and returned nothing.
    budget: Cell<Option<ReadBudget>>,
}

impl<'t> BoundedReads<'t> {
    fn new(txn: &'t (dyn WriteTxn<AppliedPosition> + 't), budget: ReadBudget) -> BoundedReads<'t> {
        BoundedReads { txn, budget: Cell::new(Some(budget)) }
    }

    fn read(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        budget: &mut ReadBudget,
    ) -> clearlane_mvcc::Result<Option<RangeRecords>> {
        // At a past revision the index cannot count without a walk.
        if options.revision > 0 {
            return Ok(None);
        }
        let count_only = RangeOptions { count_only: true, ..options };
        let RangeRecords { count, .. } = self.txn.range(range, count_only)?;
        if options.count_only {
            return Ok(Some(RangeRecords { records: Vec::new(), count }));
        }
        let limit = u64::try_from(options.limit).ok().filter(|limit| *limit > 0);
        let wanted = limit.map_or(count, |limit| limit.min(count));
        if wanted > budget.records as u64 {
            return Ok(None);
        }
        let mut records = Vec::new();
        let mut outcome: clearlane_mvcc::Result<_> = Ok(ControlFlow::Continue(()));
        let options = RangeOptions { skip_count: true, ..options };
        self.txn.visit_records(range, options, &mut |record| {
            outcome = budget.take(record.len()).map_or(Ok(ControlFlow::Break(())), |()| {
                records.push(decode(record)?);
                Ok(ControlFlow::Continue(()))
            });
            *outcome.as_ref().unwrap_or(&ControlFlow::Break(()))
        })?;
        Ok(outcome?.is_continue().then_some(RangeRecords { records, count }))
    }
}

impl RecordSource for BoundedReads<'_> {
    fn revision(&self) -> i64 {
        self.txn.revision()
    }

    fn visit(
        &self,
        range: KeyRange<'_>,
        options: RangeOptions,
        visit: &mut dyn FnMut(KeyValue),
    ) -> clearlane_mvcc::Result<u64> {
        let Some(mut budget) = self.budget.take() else { return Ok(0) };
        let found = self.read(range, options, &mut budget)?;
        self.budget.set(found.as_ref().map(|_| budget));
        let RangeRecords { records, count } = found.unwrap_or_default();
        records.into_iter().for_each(visit);
        Ok(count)
    }
}

fn decode(record: Bytes) -> clearlane_mvcc::Result<KeyValue> {
    KeyValue::decode(record)
        .map_err(|error| clearlane_mvcc::Error::Damaged(format!("a record: {error}")))
}
