//! The response of a transaction or a delete. Its long parts are read while it is being sent.
//!
//! ```text
//!   operation      put      range      range      delete
//!   message        ■■■      ■ ■■ ■     ■ ·· ■     ■ ··       ·· records that are streamed
//!   streams                              └─1        └─2      in the order of the operations
//! ```
//!
//! Records stay in the message while they fit into a limit of bytes for the whole response. A range
//! that does not fit into the rest of the limit becomes a [`StreamedRange`]: it is measured, keeps
//! its read transaction, and is read when its turn comes.
//!
//! [`OperationResponses`] defines how the operations are numbered.

use std::mem;
use std::sync::Arc;

use clearlane_mvcc::ReadTxn;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_replica::apply::range::execute_range;
use clearlane_replica::apply::{
    AppliedResponse, DeferredRead, OperationResponses, PartialResponse, SharedReadTxn,
};
use clearlane_replica::{RequestError, Result};

use crate::handle::Server;
use crate::observe::request_trace::RequestTrace;
use crate::read::executor::{PoolJob, ReadResult};
use crate::read::range::RangeMeta;
use crate::read::streamed_range::{StreamedRange, encoded_len};
use crate::threads::JobKind;

#[derive(Debug)]
pub struct StreamedResponse<M> {
    /// The complete message, except the records of `streams`.
    pub message: M,
    /// The streams, in the order of their operations.
    pub streams: Vec<OperationStream>,
}

#[derive(Debug)]
pub struct OperationStream {
    pub operation: usize,
    pub records: StreamedRange,
}

impl<M> From<M> for StreamedResponse<M> {
    fn from(message: M) -> StreamedResponse<M> {
        StreamedResponse { message, streams: Vec::new() }
    }
}

impl<M> StreamedResponse<M> {
    pub(crate) fn try_map<N, E>(
        self,
        map: impl FnOnce(M) -> std::result::Result<N, E>,
    ) -> std::result::Result<StreamedResponse<N>, E> {
        Ok(StreamedResponse { message: map(self.message)?, streams: self.streams })
    }
}

impl<M: OperationResponses> StreamedResponse<M> {
    /// Visits each operation. If its records have more than `bytes_max` bytes, moves them from the
    /// message into a stream. So they are not in memory a second time when they are encoded.
    pub fn stream_records(&mut self, bytes_max: u64) {
        let (mut operation, streams) = (0, &mut self.streams);
        self.message.visit_operations(&mut |response| {
            let records = response.records().filter(|records| !records.is_empty());
            if let Some(records) = records {
                let encoded = encoded_len(records);
                if encoded > bytes_max {
                    let records = StreamedRange::of_records(mem::take(records), encoded);
                    streams.push(OperationStream { operation, records });
                }
            }
            operation += 1;
        });
        self.streams.sort_unstable_by_key(|stream| stream.operation);
    }

    /// Returns the message with all records.
    pub fn into_message(self) -> Result<M> {
        let StreamedResponse { mut message, streams } = self;
        let mut streams = streams.into_iter().peekable();
        let (mut operation, mut outcome) = (0, Ok(()));
        message.visit_operations(&mut |response| {
            let stream = streams.next_if(|stream| stream.operation == operation);
            operation += 1;
            if let Some((stream, records)) = stream.zip(response.records()) {
                match stream.records.into_records() {
                    Ok(found) => *records = found,
                    Err(error) => outcome = Err(error),
                }
            }
        });
        outcome.map(|()| message)
    }
}

impl<M: OperationResponses + Send + 'static> StreamedResponse<M> {
    pub async fn read_all(self, server: &Server) -> std::result::Result<M, RequestError> {
        if self.streams.is_empty() {
            return Ok(self.message);
        }
        let read = move || Ok(self.into_message()?);
        let job = PoolJob::Read(JobKind::Long);
        server.run_in_pool(job, &mut RequestTrace::start(), read).await
    }
}

/// Reads the ranges of one response, in the order of their operations.
#[derive(Debug)]
pub(crate) struct ResponseReader {
    /// Number of bytes of records that the message can still take.
    inline_bytes: u64,
    streams: Vec<OperationStream>,
}

impl ResponseReader {
    pub(crate) fn new(inline_bytes: u64) -> ResponseReader {
        ResponseReader { inline_bytes, streams: Vec::new() }
    }

    /// Reads a range. The returned response has no records if they are streamed.
    pub(crate) fn read_range(
        &mut self,
        operation: usize,
        read_txn: &SharedReadTxn,
        request: &RangeRequest,
    ) -> ReadResult<RangeResponse> {
        let (response, records) = if !request.range_end.is_empty() {
            let mut records = StreamedRange::unread(Arc::clone(read_txn), request.clone())?;
            let RangeMeta { header, more, count } = mem::take(&mut records.meta);
            (RangeResponse { header, kvs: Vec::new(), more, count }, records)
        } else {
            let read: &dyn ReadTxn = &**read_txn;
            let mut response = execute_range(read, request)?;
            let found = mem::take(&mut response.kvs);
            let encoded = encoded_len(&found);
            let records = if encoded <= self.inline_bytes {
                StreamedRange::of_records(found, encoded)
            } else {
                // The record is large, and the client may be slow to receive it. To save memory,
                // the record is dropped here and read again when it is sent.
                drop(found);
                StreamedRange::unread(Arc::clone(read_txn), request.clone())?
            };
            (response, records)
        };
        let Some(left) = self.inline_bytes.checked_sub(records.encoded_len()) else {
            self.streams.push(OperationStream { operation, records });
            return Ok(response);
        };
        self.inline_bytes = left;
        Ok(RangeResponse { kvs: records.into_records()?, ..response })
    }

    pub(crate) fn finish<M>(self, message: M) -> StreamedResponse<M> {
        StreamedResponse { message, streams: self.streams }
    }
}

/// Performs the deferred reads of a [`PartialResponse`], one after the other.
#[derive(Debug)]
pub struct DeferredReader {
    response: AppliedResponse,
    /// The reads in reverse order: the last element is the next read.
    reads: Vec<DeferredRead>,
    ranges: ResponseReader,
}

impl DeferredReader {
    /// Creates a reader. Records beyond `inline_bytes` are streamed.
    pub fn new(partial: PartialResponse, inline_bytes: u64) -> DeferredReader {
        let (response, mut reads) = partial.into_parts();
        reads.reverse();
        DeferredReader { response, reads, ranges: ResponseReader::new(inline_bytes) }
    }

    pub(crate) fn next(&self) -> Option<&DeferredRead> {
        self.reads.last()
    }

    pub(crate) fn make_next(&mut self) -> ReadResult<()> {
        let Some(read) = self.reads.pop() else { return Ok(()) };
        let found = self.ranges.read_range(read.operation, &read.read_txn, &read.request)?;
        read.place(found, &mut self.response)
    }

    /// Performs the remaining reads, and returns the response.
    pub fn finish(mut self) -> ReadResult<StreamedResponse<AppliedResponse>> {
        while !self.reads.is_empty() {
            self.make_next()?;
        }
        Ok(self.ranges.finish(self.response))
    }
}

#[cfg(test)]
mod tests;
