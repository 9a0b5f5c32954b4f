//! A range that is sent page by page: etcd 3.7's `RangeStream`.
//!
//! The pages together equal the response to a Range request at the time of the first page. Header
//! and count are sent with the last page. In key order, each page is a separate read at the
//! revision of the first page, so no lock and no old state is held between pages. A later page
//! fails if that revision is compacted, as in etcd, or if users or roles have changed. Only the
//! first page counts the keys of the range.
//!
//! In addition to key order, etcd accepts only one order here: a sort target without a direction.
//! Such a range is read and sorted as a whole, and then divided into pages. (etcd sorts each page
//! separately and continues after the last key of the page, so keys may be sent twice or never.)
//!
//! The first page has up to ten keys. A page should be about as large as the limit for requests. So
//! the number of keys doubles after a page with less than half of this size, and halves after a
//! page with more than twice this size.

use std::mem;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use clearlane_replica::{RequestError, apply};
use prost::Message;

use crate::auth::Admission;
use crate::handle::Server;
use crate::observe::request_trace::RequestTrace;
use crate::read::range::{RangeMeta, RangeResult};

/// Maximum number of keys on the first page.
const FIRST_PAGE_KEYS: i64 = 10;

#[derive(Debug)]
pub struct RangeStream {
    server: Server,
    remaining: Remaining,
    page_keys: i64,
    /// The header and the count as of the first page. `None` before the first page, and after the
    /// last one.
    meta: Option<RangeMeta>,
    /// The auth state as of the first page. A later page fails if users or roles have changed.
    /// `None` before the first page, and for a range that is not read page by page.
    admission: Option<Admission>,
}

#[derive(Debug)]
enum Remaining {
    Unread(RangeRequest),
    Sorted(IntoIter<KeyValue>),
    Done,
}

impl RangeStream {
    /// Opens a stream. Fails if the range is invalid or cannot be streamed.
    pub fn open(member: Server, request: RangeRequest) -> Result<RangeStream, RequestError> {
        apply::check::range(&request)?;
        apply::check::range_stream(&request)?;
        Ok(RangeStream {
            server: member,
            remaining: Remaining::Unread(request),
            page_keys: FIRST_PAGE_KEYS,
            meta: None,
            admission: None,
        })
    }

    /// Returns the next page, or `None` after the last page.
    pub async fn next_page(&mut self) -> Result<Option<RangeResponse>, RequestError> {
        match mem::replace(&mut self.remaining, Remaining::Done) {
            Remaining::Done => Ok(None),
            Remaining::Unread(request) if request.count_only => self.read(request).await.map(Some),
            Remaining::Unread(request) if apply::range::has_order(&request) => {
                let RangeResponse { header, kvs, more, count } = self.read(request).await?;
                self.meta = Some(RangeMeta { header, more, count });
                Ok(Some(self.next_sorted_page(kvs.into_iter())))
            }
            Remaining::Unread(request) => self.read_page(request).await.map(Some),
            Remaining::Sorted(records) => Ok(Some(self.next_sorted_page(records))),
        }
    }

    async fn read_page(&mut self, request: RangeRequest) -> Result<RangeResponse, RequestError> {
        let limit = if request.limit > 0 { request.limit } else { i64::MAX };
        let page = RangeRequest { limit: limit.min(self.page_keys), ..request.clone() };
        let (kvs, more) = if let Some(admission) = self.admission {
            let page = self.server.range_page(page).await?;
            self.server.check_admission(admission)?;
            page
        } else {
            // Read the auth state before the permission for the first page is checked. So if users
            // or roles change after that, the next page fails.
            self.admission = Some(self.server.current_admission());
            let RangeResponse { header, kvs, more, count } = self.read(page).await?;
            self.meta = Some(RangeMeta { header, more, count });
            (kvs, more)
        };
        let about = self.meta.get_or_insert_default();
        let found = kvs.len() as i64;
        about.more = more && found == limit;
        if !more || found == limit {
            return Ok(self.make_last_page(kvs));
        }
        let revision = about.header.as_ref().map_or(0, |header| header.revision);
        self.remaining = Remaining::Unread(remaining_request(request, &kvs, revision));
        Ok(self.make_page(kvs))
    }

    async fn read(&self, page: RangeRequest) -> Result<RangeResponse, RequestError> {
        let found: RangeResult = self.server.range(page, &mut RequestTrace::start()).await?;
        found.read_all(&self.server).await
    }

    fn next_sorted_page(&mut self, mut records: IntoIter<KeyValue>) -> RangeResponse {
        let keys = usize::try_from(self.page_keys).unwrap_or(usize::MAX);
        let page = records.by_ref().take(keys).collect();
        if records.as_slice().is_empty() {
            return self.make_last_page(page);
        }
        self.remaining = Remaining::Sorted(records);
        self.make_page(page)
    }

    /// Returns a page without header and count. Only the last page has them.
    fn make_page(&mut self, kvs: Vec<KeyValue>) -> RangeResponse {
        let page = RangeResponse { kvs, ..RangeResponse::default() };
        self.adapt_page_size(page.encoded_len());
        page
    }

    fn make_last_page(&mut self, kvs: Vec<KeyValue>) -> RangeResponse {
        let RangeMeta { mut header, more, count } = self.meta.take().unwrap_or_default();
        // The revision is the first page's revision; the term is the current term.
        self.server.fill_header(&mut header);
        RangeResponse { header, kvs, more, count }
    }

    fn adapt_page_size(&mut self, bytes: usize) {
        let wanted = self.server.limits().request_bytes_max;
        if bytes < wanted / 2 {
            self.page_keys = self.page_keys.saturating_mul(2);
        } else if bytes > wanted * 2 {
            self.page_keys = (self.page_keys / 2).max(1);
        }
    }
}

/// Returns the request for the keys after a page: at the same revision, and serializable.
fn remaining_request(
    request: RangeRequest,
    page: &[KeyValue],
    first_revision: i64,
) -> RangeRequest {
    let last = page.last().map_or(&[][..], |record| &record.key);
    RangeRequest {
        key: Bytes::from([last, &[0]].concat()),
        limit: if request.limit > 0 { request.limit - page.len() as i64 } else { 0 },
        revision: if request.revision > 0 { request.revision } else { first_revision },
        serializable: true,
        ..request
    }
}
