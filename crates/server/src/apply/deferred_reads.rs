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
//! left: [`TxnReads`](super::txn_reads::TxnReads).

use std::fmt;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::RangeRequest;

use super::AppliedResponse;
use super::rejection::ApplyError;
use crate::error::Error;
use crate::streamed_range::INLINE_BYTES_MAX;
use crate::streamed_response::{OperationResponses, ResponseReader, StreamedResponse, View};

/// A range, or what a delete has removed.
#[derive(Clone)]
pub struct DeferredRead {
    /// Its [number](crate::streamed_response).
    pub(super) operation: usize,
    pub(super) view: View,
    pub(super) request: RangeRequest,
}

/// The response of a write with reads that are still to be made.
#[derive(Debug)]
pub struct PartialResponse {
    response: AppliedResponse,
    /// The next is the last.
    reads: Vec<DeferredRead>,
    reader: ResponseReader,
}

impl PartialResponse {
    pub fn new(response: AppliedResponse, reads: Vec<DeferredRead>) -> PartialResponse {
        PartialResponse::with_inline_bytes(response, reads, INLINE_BYTES_MAX)
    }

    /// Beyond `inline_bytes` what is read is streamed.
    pub fn with_inline_bytes(
        response: AppliedResponse,
        mut reads: Vec<DeferredRead>,
        inline_bytes: u64,
    ) -> PartialResponse {
        reads.reverse();
        PartialResponse { response, reads, reader: ResponseReader::new(inline_bytes) }
    }

    pub(crate) fn response_mut(&mut self) -> &mut AppliedResponse {
        &mut self.response
    }

    /// Without what is still to be read.
    pub fn encoded_len(&self) -> usize {
        self.response.encoded_len()
    }

    pub fn is_whole(&self) -> bool {
        self.reads.is_empty()
    }

    /// The whole response, unless reads are left.
    pub(crate) fn into_whole(self) -> Result<AppliedResponse, Box<PartialResponse>> {
        if self.is_whole() { Ok(self.response) } else { Err(Box::new(self)) }
    }

    /// When no reads are left.
    pub(crate) fn into_streamed(self) -> StreamedResponse<AppliedResponse> {
        self.reader.finish(self.response)
    }

    pub(crate) fn next_read(&self) -> Option<(&(dyn ReadTxn + '_), &RangeRequest)> {
        let DeferredRead { view, request, .. } = self.reads.last()?;
        Some((&**view, request))
    }

    pub(crate) fn make_next_read(&mut self) -> Result<(), ApplyError> {
        let Some(read) = self.reads.pop() else { return Ok(()) };
        let mut found = Some(self.reader.read_range(read.operation, &read.view, &read.request)?);
        let (mut operation, mut is_placed) = (0, false);
        self.response.visit_operations(&mut |response| {
            if operation == read.operation
                && let Some(found) = found.take()
            {
                is_placed = response.set_range(found);
            }
            operation += 1;
        });
        if is_placed { Ok(()) } else { Err(self.misplaced(&read)) }
    }

    /// Makes all reads.
    pub fn read_all(mut self) -> Result<AppliedResponse, ApplyError> {
        while !self.is_whole() {
            self.make_next_read()?;
        }
        Ok(self.into_streamed().into_message()?)
    }

    fn misplaced(&self, read: &DeferredRead) -> ApplyError {
        let why = format!("{read:?} has no place in {:?}", self.response);
        Error::damaged("the response of a write", why).into()
    }
}

impl From<AppliedResponse> for PartialResponse {
    fn from(response: AppliedResponse) -> PartialResponse {
        PartialResponse::new(response, Vec::new())
    }
}

impl fmt::Debug for DeferredRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DeferredRead { operation, view, request } = self;
        let revision = view.revision();
        write!(f, "operation {operation} at revision {revision}: {request:?}")
    }
}
