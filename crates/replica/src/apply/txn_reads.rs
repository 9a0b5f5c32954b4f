//! The reads of a write transaction: made in it, [left](super::deferred_reads) to the waiting
//! request, or left out.
//!
//! One key is read at once, and so are ranges while the transaction's [`ReadBudget`] lasts: most
//! transactions have no other reads, and another thread would have to be woken for them. From the
//! first range that is larger all are left: the request has to wait for that one anyway.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_engine::KeyRange;
use clearlane_mvcc::{RangeOptions, RangeRecords, WriteTxn};
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use super::deferred_reads::{DeferredRead, View};
use super::range::{RecordSource, execute_range};
use super::rejection::ApplyError;
use crate::applied_position::AppliedPosition;

/// What the apply loop does with such reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Makes them in the transaction, as etcd does.
    Inline,
    /// Makes them in the transaction while this lasts.
    Deferred(ReadBudget),
    /// Leaves them out: no request waits for the response at this member.
    Skipped,
}

/// What one transaction may read of ranges before its other reads are deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadBudget {
    pub records: usize,
    pub bytes: usize,
}

impl ReadBudget {
    /// As much as a network thread reads for a range.
    pub const DEFAULT: ReadBudget = ReadBudget { records: 128, bytes: 256 << 10 };
    const NONE: ReadBudget = ReadBudget { records: 0, bytes: 0 };

    /// `None` if the record is beyond it.
    fn take(&mut self, bytes: usize) -> Option<()> {
        self.records = self.records.checked_sub(1)?;
        self.bytes = self.bytes.checked_sub(bytes)?;
        Some(())
    }
}

/// The reads of one write transaction.
pub(crate) struct TxnReads {
    mode: ReadMode,
    /// What the transaction has shown since its last change, if a read needed it.
    view: Option<View>,
    /// The number of the operation that runs.
    operation: usize,
    deferred: Vec<DeferredRead>,
}

impl TxnReads {
    pub(crate) fn new(mode: ReadMode) -> TxnReads {
        TxnReads { mode, view: None, operation: 0, deferred: Vec::new() }
    }

    pub(crate) fn into_deferred(self) -> Vec<DeferredRead> {
        self.deferred
    }

    /// An operation has been run.
    pub(crate) fn end_operation(&mut self, is_write: bool) {
        self.operation += 1;
        if is_write {
            self.view = None;
        }
    }

    /// The response is empty if the range is read later.
    pub(crate) fn range(
        &mut self,
        txn: &(dyn WriteTxn<AppliedPosition> + '_),
        request: &RangeRequest,
    ) -> Result<RangeResponse, ApplyError> {
        match self.mode {
            ReadMode::Skipped => return Ok(RangeResponse::default()),
            ReadMode::Deferred(budget) if !request.range_end.is_empty() => {
                let bounded = BoundedReads::new(txn, budget);
                let response = execute_range(&bounded, request)?;
                if self.is_within_budget(&bounded) {
                    return Ok(response);
                }
                if self.defer(txn, request) {
                    return Ok(RangeResponse::default());
                }
            }
            ReadMode::Deferred(_) | ReadMode::Inline => {}
        }
        execute_range(txn, request)
    }

    /// What a delete is about to remove; empty if that is read later.
    pub(crate) fn prev_kvs(
        &mut self,
        txn: &(dyn WriteTxn<AppliedPosition> + '_),
        request: &DeleteRangeRequest,
    ) -> Result<Vec<KeyValue>, ApplyError> {
        let (key, range_end) = (request.key.clone(), request.range_end.clone());
        Ok(self.range(txn, &RangeRequest { key, range_end, ..RangeRequest::default() })?.kvs)
    }

    /// Takes over what a read has left of the budget.
    fn is_within_budget(&mut self, read: &BoundedReads<'_>) -> bool {
        let left = read.budget.get();
        self.mode = ReadMode::Deferred(left.unwrap_or(ReadBudget::NONE));
        left.is_some()
    }

    /// Returns false in an old era.
    fn defer(
        &mut self,
        txn: &(dyn WriteTxn<AppliedPosition> + '_),
        request: &RangeRequest,
    ) -> bool {
        let Some(view) = self.view.take().or_else(|| txn.begin_snapshot_read()) else {
            return false;
        };
        self.view = Some(Arc::clone(&view));
        let (operation, request) = (self.operation, request.clone());
        self.deferred.push(DeferredRead { operation, view, request });
        true
    }
}

/// A write transaction that is read within a budget.
struct BoundedReads<'t> {
    txn: &'t (dyn WriteTxn<AppliedPosition> + 't),
    /// `None` after a read beyond it, which has found nothing.
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
        // Only at the newest revision the index counts without a walk.
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
