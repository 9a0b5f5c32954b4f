//! A range that is sent page by page: etcd 3.7's `RangeStream`.
//!
//! Put together, the pages are the answer to the same range in one message. Each page is a read of
//! its own, at the revision of the first one, so in no era does anybody wait for the whole of it. If
//! the revision is compacted meanwhile, the stream ends with that error.
//!
//! The first page has ten keys. From there on a page has twice as many if the last was far below the
//! size that a message should have, and half as many if it was far above.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use prost::Message;

use crate::handle::Handle;
use crate::range::{Found, range};
use crate::requests;
use crate::stages::Card;
use crate::trouble::Trouble;

/// So many keys the first page has.
const FIRST_KEYS: i64 = 10;

/// A range under way.
#[derive(Debug)]
pub struct RangeStream {
    member: Handle,
    /// What is left of it; nothing behind the last page.
    left: Option<RangeRequest>,
    keys: i64,
    /// Keys of the whole range, known from the first page.
    count: Option<i64>,
}

impl RangeStream {
    /// Begins. What cannot be streamed is refused at once.
    pub fn open(member: Handle, request: RangeRequest) -> Result<RangeStream, Trouble> {
        requests::check::range(&request)?;
        requests::check::range_stream(&request)?;
        Ok(RangeStream { member, left: Some(request), keys: FIRST_KEYS, count: None })
    }

    /// The next page; nothing behind the last one.
    pub async fn next(&mut self) -> Result<Option<RangeResponse>, Trouble> {
        let Some(request) = self.left.take() else { return Ok(None) };
        if request.count_only {
            return Ok(Some(self.read(request).await?));
        }
        let limit = if request.limit > 0 { request.limit } else { i64::MAX };
        let page = RangeRequest { limit: limit.min(self.keys), ..request.clone() };
        let mut page = self.read(page).await?;
        let count = *self.count.get_or_insert(page.count);
        let found = page.kvs.len() as i64;
        let is_last = !page.more || found == limit;
        if is_last {
            page.more = page.more && found == limit;
            page.count = count;
            return Ok(Some(page));
        }
        self.left = Some(self.rest(request, &page, found));
        self.adapt(page.encoded_len());
        page = RangeResponse { header: None, more: false, count: 0, ..page };
        Ok(Some(page))
    }

    async fn read(&self, page: RangeRequest) -> Result<RangeResponse, Trouble> {
        let found: Found = range(&self.member, page, &mut Card::begin()).await?;
        found.whole(&self.member).await
    }

    /// What is left behind a page: of the same revision, and never fresher.
    fn rest(&self, request: RangeRequest, page: &RangeResponse, found: i64) -> RangeRequest {
        let revision = match request.revision {
            ..=0 => page.header.as_ref().map_or(0, |header| header.revision),
            revision => revision,
        };
        let last = page.kvs.last().map_or(&[][..], |record| &record.key);
        RangeRequest {
            key: Bytes::from([last, &[0]].concat()),
            limit: if request.limit > 0 { request.limit - found } else { 0 },
            revision,
            serializable: true,
            ..request
        }
    }

    fn adapt(&mut self, bytes: usize) {
        let wanted = self.member.limits().request_bytes_max;
        if bytes < wanted / 2 {
            self.keys = self.keys.saturating_mul(2);
        } else if bytes > wanted * 2 {
            self.keys = (self.keys / 2).max(1);
        }
    }
}
