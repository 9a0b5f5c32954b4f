//! Reads of a write that were left to the waiting request: ranges of a transaction, and what a
//! delete returns. They decide nothing, and no other request needs them.
//!
//! ```text
//!   apply loop    put a │ range │ put b │ end    next entry ...
//!                       └ view: the state at this place
//!   read pool                             range ─▶ into the response
//! ```
//!
//! A view shows what the transaction has done before the read, and nothing of what comes after it.
//! So the answer is, byte for byte, what the transaction itself would have read. Which reads are
//! left: [`TxnReads`](super::txn_reads::TxnReads).

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use clearlane_mvcc::{RangeOptions, ReadTxn};
use clearlane_proto::etcdserverpb::response_op::Response;
use clearlane_proto::etcdserverpb::{
    DeleteRangeRequest, DeleteRangeResponse, RangeRequest, TxnResponse,
};
use clearlane_proto::mvccpb::KeyValue;

use super::AppliedResponse;
use super::key_span::KeySpan;
use super::range::{RecordSource, execute_range};
use super::rejection::ApplyError;
use crate::error::Error;

pub(super) type View = Arc<dyn ReadTxn + Send + Sync>;

#[derive(Clone)]
pub struct DeferredRead {
    /// The number of its operation in the order of execution, those of nested transactions
    /// included. A transaction itself has none.
    pub(super) operation: usize,
    pub(super) view: View,
    pub(super) request: ReadRequest,
}

#[derive(Clone, Debug)]
pub(super) enum ReadRequest {
    Range(RangeRequest),
    PrevKvs(DeleteRangeRequest),
}

/// The response of a write with reads that are still to be made.
#[derive(Clone, Debug)]
pub struct PartialResponse {
    response: AppliedResponse,
    reads: Vec<DeferredRead>,
}

impl PartialResponse {
    pub fn new(response: AppliedResponse, reads: Vec<DeferredRead>) -> PartialResponse {
        PartialResponse { response, reads }
    }

    pub(crate) fn response_mut(&mut self) -> &mut AppliedResponse {
        &mut self.response
    }

    /// Without what is still to be read.
    pub fn encoded_len(&self) -> usize {
        self.response.encoded_len()
    }

    /// The whole response, unless reads are left.
    pub fn into_whole(self) -> Result<AppliedResponse, Box<PartialResponse>> {
        if self.reads.is_empty() { Ok(self.response) } else { Err(Box::new(self)) }
    }

    /// What the next read reads: key, `range_end` and revision.
    pub(crate) fn next_read(&self) -> Option<(&(dyn ReadTxn + '_), &Bytes, &Bytes, i64)> {
        let DeferredRead { view, request, .. } = self.reads.last()?;
        Some(match request {
            ReadRequest::Range(RangeRequest { key, range_end, revision, .. }) => {
                (&**view, key, range_end, *revision)
            }
            ReadRequest::PrevKvs(DeleteRangeRequest { key, range_end, .. }) => {
                (&**view, key, range_end, 0)
            }
        })
    }

    pub fn make_next_read(&mut self) -> Result<(), ApplyError> {
        let Some(read) = self.reads.pop() else { return Ok(()) };
        match &mut self.response {
            AppliedResponse::Txn(txn) => {
                let (mut operation, mut made) = (0, None);
                visit_responses(txn, &mut |response| {
                    if operation == read.operation {
                        made = Some(read.fill(response));
                    }
                    operation += 1;
                });
                made.unwrap_or_else(|| Err(read.misplaced(txn)))
            }
            AppliedResponse::DeleteRange(response) => read.fill_delete(response),
            other => Err(read.misplaced(other)),
        }
    }

    pub fn make_reads(mut self) -> Result<AppliedResponse, ApplyError> {
        while !self.reads.is_empty() {
            self.make_next_read()?;
        }
        Ok(self.response)
    }
}

impl From<AppliedResponse> for PartialResponse {
    fn from(response: AppliedResponse) -> PartialResponse {
        PartialResponse { response, reads: Vec::new() }
    }
}

/// In the order of execution, without the nested transactions themselves.
fn visit_responses(txn: &mut TxnResponse, visit: &mut dyn FnMut(&mut Response)) {
    for response in txn.responses.iter_mut().filter_map(|op| op.response.as_mut()) {
        match response {
            Response::ResponseTxn(nested) => visit_responses(nested, visit),
            response => visit(response),
        }
    }
}

pub(super) fn prev_kvs(
    source: &(impl RecordSource + ?Sized),
    request: &DeleteRangeRequest,
) -> Result<Vec<KeyValue>, ApplyError> {
    let span = KeySpan::new(&request.key, &request.range_end);
    Ok(source.records(span.range(), RangeOptions::default())?.records)
}

impl DeferredRead {
    fn view(&self) -> &(dyn ReadTxn + '_) {
        &*self.view
    }

    fn fill(&self, response: &mut Response) -> Result<(), ApplyError> {
        match (&self.request, response) {
            (ReadRequest::Range(request), Response::ResponseRange(response)) => {
                *response = execute_range(self.view(), request)?;
                Ok(())
            }
            (_, Response::ResponseDeleteRange(response)) => self.fill_delete(response),
            (_, response) => Err(self.misplaced(response)),
        }
    }

    fn fill_delete(&self, response: &mut DeleteRangeResponse) -> Result<(), ApplyError> {
        let ReadRequest::PrevKvs(request) = &self.request else {
            return Err(self.misplaced(response));
        };
        response.prev_kvs = prev_kvs(self.view(), request)?;
        Ok(())
    }

    fn misplaced(&self, response: &dyn fmt::Debug) -> ApplyError {
        let why = format!("{response:?} is at the place of {self:?}");
        Error::damaged("the response of a write", why).into()
    }
}

impl fmt::Debug for DeferredRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeferredRead { operation, view, request } = self;
        let revision = view.revision();
        write!(f, "operation {operation} at revision {revision}: {request:?}")
    }
}
