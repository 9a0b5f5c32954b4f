//! Reads of a write that were left to the waiting request: ranges of a transaction, and what a
//! delete returns. They decide nothing, and no other request needs them.
//!
//! ```text
//!   apply loop    put a │ range │ put b │ end    next entry ...
//!                       └ view: the state at this place
//!   read pool                             range ─▶ into the response, or measured: read when sent
//! ```
//!
//! A view shows what the transaction has done before the read, and nothing of what comes after it.
//! So the answer is, byte for byte, what the transaction itself would have read. Which reads are
//! left: [`TxnReads`](super::txn_reads::TxnReads); they are made by a
//! [`DeferredReader`](crate::streamed_response::DeferredReader).

use std::fmt;
use std::sync::Arc;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};

use super::AppliedResponse;
use super::operation_responses::OperationResponses;
use super::range::execute_range;
use super::rejection::ApplyError;
use crate::error::Error;

pub(crate) type View = Arc<dyn ReadTxn + Send + Sync>;

/// A range, or what a delete has removed.
#[derive(Clone)]
pub struct DeferredRead {
    pub(crate) operation: usize,
    pub(crate) view: View,
    pub(crate) request: RangeRequest,
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

    pub(crate) fn into_parts(self) -> (AppliedResponse, Vec<DeferredRead>) {
        (self.response, self.reads)
    }

    /// With all that they find in the response.
    pub fn make_reads(self) -> Result<AppliedResponse, ApplyError> {
        let PartialResponse { mut response, reads } = self;
        for read in reads {
            let view: &dyn ReadTxn = &*read.view;
            read.place(execute_range(view, &read.request)?, &mut response)?;
        }
        Ok(response)
    }
}

impl From<AppliedResponse> for PartialResponse {
    fn from(response: AppliedResponse) -> PartialResponse {
        PartialResponse { response, reads: Vec::new() }
    }
}

impl DeferredRead {
    /// Puts what was found into the response of the operation.
    pub(crate) fn place(
        &self,
        found: RangeResponse,
        response: &mut AppliedResponse,
    ) -> Result<(), ApplyError> {
        let (mut found, mut operation, mut is_placed) = (Some(found), 0, false);
        response.visit_operations(&mut |response| {
            if operation == self.operation
                && let Some(found) = found.take()
            {
                is_placed = response.set_range(found);
            }
            operation += 1;
        });
        if is_placed {
            return Ok(());
        }
        let why = format!("{self:?} has no place in {response:?}");
        Err(Error::damaged("the response of a write", why).into())
    }
}

impl fmt::Debug for DeferredRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeferredRead { operation, view, request } = self;
        let revision = view.revision();
        write!(f, "operation {operation} at revision {revision}: {request:?}")
    }
}
