//! Reads a range of any size in chunks, so that neither side needs memory for all of it.
//!
//! The revision is determined before the first chunk. If an endpoint fails during the read, the
//! client continues at another endpoint, after the last received key:
//!
//! ```text
//!   server 1:   a b c d ╳               at revision 17
//!   server 2:           e f g h         starting at "d\0", at revision 17
//! ```
//!
//! A server without streamed ranges (etcd before 3.7) is queried page by page, with the same
//! result. If the revision is compacted during the read, the read fails with [`Error::Compacted`].

use std::collections::VecDeque;

use clearlane_proto::etcdserverpb::{RangeRequest, RangeStreamResponse};
use clearlane_proto::mvccpb::KeyValue;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use super::{Get, kv};
use crate::Client;
use crate::backoff::Backoff;
use crate::error::{Error, Result, StatusKind, describe_status};

/// Maximum number of records in a page, for servers without streamed ranges.
const PAGE_RECORDS: i64 = 1000;

/// The records of a range, one after the other: [`Client::get_stream`].
#[derive(Debug)]
pub struct RangeStream {
    client: Client,
    remaining_range: RangeRequest,
    /// The number of records that may still be returned. `None` if there is no limit.
    remaining_limit: Option<i64>,
    source: RecordSource,
    buffered: VecDeque<KeyValue>,
    backoff: Backoff,
    /// The time of the first failure since the last received records. `None` if there was none.
    failing_since: Option<Instant>,
}

#[derive(Debug)]
enum RecordSource {
    NotStarted,
    Chunks(Box<Streaming<RangeStreamResponse>>),
    Pages,
    Finished,
}

impl RangeStream {
    /// Returns the revision at which all records are read.
    pub fn revision(&self) -> i64 {
        self.remaining_range.revision
    }

    /// Returns the next record. `None` after the last record, and after an error.
    pub async fn next(&mut self) -> Option<Result<KeyValue>> {
        loop {
            if let Some(record) = self.buffered.pop_front() {
                return Some(Ok(record));
            }
            if let Err(error) = self.fetch().await {
                self.source = RecordSource::Finished;
                return Some(Err(error));
            }
            if matches!(self.source, RecordSource::Finished) && self.buffered.is_empty() {
                return None;
            }
        }
    }

    async fn fetch(&mut self) -> Result<()> {
        if self.remaining_limit == Some(0) {
            self.source = RecordSource::Finished;
        }
        match &mut self.source {
            RecordSource::Finished => {}
            RecordSource::NotStarted => {
                let get = self.remaining(self.remaining_limit.unwrap_or(0));
                let send = async |channel, request| kv(channel).range_stream(request).await;
                self.source = match self.client.call(get.policy(), get.request, send).await {
                    Err(Error::Unsupported(_)) => RecordSource::Pages,
                    chunks => RecordSource::Chunks(Box::new(chunks?)),
                };
            }
            RecordSource::Chunks(chunks) => match chunks.message().await {
                Ok(Some(chunk)) => {
                    self.buffer_records(chunk.range_response.unwrap_or_default().kvs);
                }
                Ok(None) => self.source = RecordSource::Finished,
                Err(status) => self.on_stream_error(&status).await?,
            },
            RecordSource::Pages => self.fetch_page().await?,
        }
        Ok(())
    }

    fn remaining(&self, limit: i64) -> Get {
        Get { request: RangeRequest { limit, ..self.remaining_range.clone() } }
    }

    /// Buffers records, and moves the start of the remaining range after them.
    fn buffer_records(&mut self, records: Vec<KeyValue>) {
        self.failing_since = None;
        self.backoff.reset();
        if let Some(last) = records.last() {
            let mut behind = last.key.to_vec();
            behind.push(0);
            self.remaining_range.key = behind.into();
        }
        if let Some(left) = &mut self.remaining_limit {
            *left = (*left - records.len() as i64).max(0);
        }
        self.buffered.extend(records);
    }

    async fn on_stream_error(&mut self, status: &Status) -> Result<()> {
        self.source = match StatusKind::from_status(status) {
            _ if status.code() == Code::Unimplemented => RecordSource::Pages,
            StatusKind::Final => return Err(Error::from_status(status)),
            // The next request finds an endpoint that responds, or fetches a new token.
            _ => RecordSource::NotStarted,
        };
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.client.options_and_token.options.request_timeout {
            return Err(Error::Unavailable(describe_status(status)));
        }
        self.backoff.wait().await;
        Ok(())
    }

    async fn fetch_page(&mut self) -> Result<()> {
        let limit = self.remaining_limit.map_or(PAGE_RECORDS, |left| left.min(PAGE_RECORDS));
        let reply = self.client.get(self.remaining(limit)).await?;
        if !reply.more {
            self.source = RecordSource::Finished;
        }
        self.buffer_records(reply.kvs);
        Ok(())
    }
}

impl Client {
    /// Reads a range of any size, in the order of keys. Fails for a single key, a count, or a
    /// sorted range: use [`get`](Client::get) for these.
    pub async fn get_stream(&self, what: impl Into<Get>) -> Result<RangeStream> {
        let mut range = what.into().request;
        let is_sorted = range.sort_target != 0 || range.sort_order > 1;
        if range.range_end.is_empty() || range.count_only || is_sorted {
            let words = "a stream needs a key range in key order, without count_only";
            return Err(Error::InvalidArgument(words.to_owned()));
        }
        let limit = std::mem::take(&mut range.limit);
        if range.revision <= 0 {
            // This read only determines the revision. It has the same consistency as the stream: if
            // the stream is serializable, this read does not need the leader either.
            let mut now = Get::from(&range.key).count_only();
            now.request.serializable = range.serializable;
            range.revision = self.get(now).await?.revision();
        }
        Ok(RangeStream {
            client: self.clone(),
            remaining_range: range,
            remaining_limit: (limit > 0).then_some(limit),
            source: RecordSource::NotStarted,
            buffered: VecDeque::new(),
            backoff: Backoff::new(),
            failing_since: None,
        })
    }
}
