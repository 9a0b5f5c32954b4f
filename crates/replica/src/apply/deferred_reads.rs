//! The reads of a write request that the apply loop leaves to the waiting request: ranges of a
//! transaction, and the records that a delete returns. The results of these reads have no effect on
//! the store, and only the waiting request needs them.
//!
//! ```text
//!   apply loop    put a │ range │ put b │ end    next entry ...
//!                       └ read transaction: the state after the first put
//!   read pool                             range ─▶ into the response; if large, only measured
//! ```
//!
//! The read transaction shows all changes that the write made before the read, and none of its
//! later changes. So the result equals, byte for byte, the result of a read by the write itself.
//! [`TxnReads`](super::txn_reads::TxnReads) decides which reads are deferred. A `DeferredReader` of
//! the crate `server` makes the reads. If the records are too large to be kept in the response, the
//! reader only measures them, and they are read again while the response is being sent.

use std::fmt;
use std::sync::Arc;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};

use super::AppliedResponse;
use super::operation_responses::OperationResponses;
use super::range::execute_range;
use super::rejection::ApplyError;
use crate::error::Error;

pub type SharedReadTxn = Arc<dyn ReadTxn + Send + Sync>;

/// The read of a range, or of the records that a delete removes.
#[derive(Clone)]
pub struct DeferredRead {
    pub operation: usize,
    pub read_txn: SharedReadTxn,
    pub request: RangeRequest,
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

    pub fn response_mut(&mut self) -> &mut AppliedResponse {
        &mut self.response
    }

    /// Returns the length of the response without the deferred reads.
    pub fn encoded_len(&self) -> usize {
        self.response.encoded_len()
    }

    /// Returns the complete response, or the partial response if it still has deferred reads.
    pub fn into_whole(self) -> Result<AppliedResponse, Box<PartialResponse>> {
        if self.reads.is_empty() { Ok(self.response) } else { Err(Box::new(self)) }
    }

    pub fn into_parts(self) -> (AppliedResponse, Vec<DeferredRead>) {
        (self.response, self.reads)
    }

    /// Makes the deferred reads. Returns the complete response.
    pub fn make_reads(self) -> Result<AppliedResponse, ApplyError> {
        let PartialResponse { mut response, reads } = self;
        for read in reads {
            let read_txn: &dyn ReadTxn = &*read.read_txn;
            read.place(execute_range(read_txn, &read.request)?, &mut response)?;
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
    /// Puts the result of this read into the response of its operation. Fails if that response has
    /// no list of records.
    pub fn place(
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
        let DeferredRead { operation, read_txn, request } = self;
        let revision = read_txn.revision();
        write!(f, "operation {operation} at revision {revision}: {request:?}")
    }
}
