//! A range that is sent page by page: etcd 3.7's `RangeStream`.
//!
//! Put together, the pages are the answer to the same range in one message, as of the first page: its
//! header and its count go out with the last page. Each page is a read of its own at the revision of the
//! first one. So no lock and no old state of the store is kept while a client takes its time, and
//! the stream ends with an error if that revision is compacted meanwhile, as in etcd.
//!
//! A sort target without an order is the only order besides that of the keys that etcd takes here. Such a
//! range is read and sorted at once, as `Range` does it, and then cut into pages. (etcd sorts each
//! page for itself and goes on behind its last key, so that keys come twice or not at all.)
//!
//! The first page has ten keys. From there on a page has twice as many if the last was far below the
//! size that a message should have, and half as many if it was far above.

use std::mem;
use std::vec::IntoIter;

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse};
use clearlane_proto::mvccpb::KeyValue;
use prost::Message;

use crate::handle::Handle;
use crate::range::{About, Found, range};
use crate::requests;
use crate::stages::Card;
use crate::trouble::Trouble;

/// So many keys the first page has.
const FIRST_KEYS: i64 = 10;

/// A range under way.
#[derive(Debug)]
pub struct RangeStream {
    member: Handle,
    left: Left,
    keys: i64,
    /// What the first page says of the whole range.
    about: Option<About>,
}

/// What is left of it.
#[derive(Debug)]
enum Left {
    /// Records to be read.
    ToRead(RangeRequest),
    /// Records that were sorted, and are in memory.
    Sorted(IntoIter<KeyValue>),
    /// Nothing: the last page was there.
    Nothing,
}

impl RangeStream {
    /// Begins. What cannot be streamed is refused at once.
    pub fn open(member: Handle, request: RangeRequest) -> Result<RangeStream, Trouble> {
        requests::check::range(&request)?;
        requests::check::range_stream(&request)?;
        Ok(RangeStream { member, left: Left::ToRead(request), keys: FIRST_KEYS, about: None })
    }

    /// The next page; nothing behind the last one.
    pub async fn next(&mut self) -> Result<Option<RangeResponse>, Trouble> {
        match mem::replace(&mut self.left, Left::Nothing) {
            Left::Nothing => Ok(None),
            Left::ToRead(request) if request.count_only => self.read(request).await.map(Some),
            Left::ToRead(request) if requests::range::has_order(&request) => {
                let RangeResponse { header, kvs, more, count } = self.read(request).await?;
                self.about = Some(About { header, more, count });
                Ok(Some(self.cut(kvs.into_iter())))
            }
            Left::ToRead(request) => self.read_page(request).await.map(Some),
            Left::Sorted(records) => Ok(Some(self.cut(records))),
        }
    }

    async fn read_page(&mut self, request: RangeRequest) -> Result<RangeResponse, Trouble> {
        let limit = if request.limit > 0 { request.limit } else { i64::MAX };
        let page = RangeRequest { limit: limit.min(self.keys), ..request.clone() };
        let RangeResponse { header, kvs, more, count } = self.read(page).await?;
        let about = self.about.get_or_insert(About { header, more, count });
        let found = kvs.len() as i64;
        about.more = more && found == limit;
        if !more || found == limit {
            return Ok(self.last(kvs));
        }
        let revision = about.header.as_ref().map_or(0, |header| header.revision);
        self.left = Left::ToRead(rest(request, &kvs, revision));
        Ok(self.page(kvs))
    }

    async fn read(&self, page: RangeRequest) -> Result<RangeResponse, Trouble> {
        let found: Found = range(&self.member, page, &mut Card::begin()).await?;
        found.whole(&self.member).await
    }

    /// A page of records that are in memory.
    fn cut(&mut self, mut records: IntoIter<KeyValue>) -> RangeResponse {
        let keys = usize::try_from(self.keys).unwrap_or(usize::MAX);
        let page = records.by_ref().take(keys).collect();
        if records.as_slice().is_empty() {
            return self.last(page);
        }
        self.left = Left::Sorted(records);
        self.page(page)
    }

    /// Any page but the last has its records only.
    fn page(&mut self, kvs: Vec<KeyValue>) -> RangeResponse {
        let page = RangeResponse { kvs, ..RangeResponse::default() };
        self.adapt(page.encoded_len());
        page
    }

    fn last(&mut self, kvs: Vec<KeyValue>) -> RangeResponse {
        let About { mut header, more, count } = self.about.take().unwrap_or_default();
        // The revision stays that of the first page; the term is the present one.
        self.member.stamp(&mut header);
        RangeResponse { header, kvs, more, count }
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

/// What is left behind a page: of the same revision, and never fresher.
fn rest(request: RangeRequest, page: &[KeyValue], first_revision: i64) -> RangeRequest {
    let last = page.last().map_or(&[][..], |record| &record.key);
    RangeRequest {
        key: Bytes::from([last, &[0]].concat()),
        limit: if request.limit > 0 { request.limit - page.len() as i64 } else { 0 },
        revision: if request.revision > 0 { request.revision } else { first_revision },
        serializable: true,
        ..request
    }
}
