//! Reading: one request, or a range of any size piece by piece.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use clearlane_proto::mvccpb::KeyValue;

use super::keys::{Keys, from_keys};
use super::{header, kv};
use crate::Client;
use crate::call::CallPolicy;
use crate::error::Result;

/// What is to be read, and how.
///
/// ```
/// use clearlane_client::{Get, SortBy};
///
/// let newest_three = Get::prefix("job/").sort_descending(SortBy::CreateRevision).limit(3);
/// let how_many_then = Get::prefix("job/").revision(17).count_only();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Get {
    pub(crate) request: RangeRequest,
}

/// What a sorted answer is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    /// The key.
    Key,
    /// How often it was put since it was made.
    Version,
    /// When it was made.
    CreateRevision,
    /// When it was put last.
    ModRevision,
    /// The value.
    Value,
}

from_keys!(Get);

impl Get {
    /// These keys.
    pub fn new(keys: impl Into<Keys>) -> Get {
        let Keys { key, range_end } = keys.into();
        Get { request: RangeRequest { key, range_end, ..RangeRequest::default() } }
    }

    /// All that begin like this.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Get {
        Get::new(Keys::prefix(prefix))
    }

    /// From the first on, and before the other.
    pub fn range(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Get {
        Get::new(Keys::range(first, end))
    }

    fn with(mut self, change: impl FnOnce(&mut RangeRequest)) -> Get {
        change(&mut self.request);
        self
    }

    /// At most so many. [`GetReply::more`] says whether there were others.
    pub fn limit(self, limit: i64) -> Get {
        self.with(|request| request.limit = limit)
    }

    /// As it was then.
    pub fn revision(self, revision: i64) -> Get {
        self.with(|request| request.revision = revision)
    }

    /// What the member has that is asked, at once: it may be a little old. Without this the answer
    /// knows of every write that was done before the question.
    pub fn serializable(self) -> Get {
        self.with(|request| request.serializable = true)
    }

    /// Without values.
    pub fn keys_only(self) -> Get {
        self.with(|request| request.keys_only = true)
    }

    /// Only how many.
    pub fn count_only(self) -> Get {
        self.with(|request| request.count_only = true)
    }

    /// The smallest first.
    pub fn sort_ascending(self, by: SortBy) -> Get {
        self.sort(by, SortOrder::Ascend)
    }

    /// The largest first.
    pub fn sort_descending(self, by: SortBy) -> Get {
        self.sort(by, SortOrder::Descend)
    }

    fn sort(self, by: SortBy, order: SortOrder) -> Get {
        let target = match by {
            SortBy::Key => SortTarget::Key,
            SortBy::Version => SortTarget::Version,
            SortBy::CreateRevision => SortTarget::Create,
            SortBy::ModRevision => SortTarget::Mod,
            SortBy::Value => SortTarget::Value,
        };
        self.with(|request| {
            request.sort_target = target.into();
            request.sort_order = order.into();
        })
    }

    /// Only what was put last at this revision or later.
    pub fn min_mod_revision(self, revision: i64) -> Get {
        self.with(|request| request.min_mod_revision = revision)
    }

    /// Only what was put last at this revision or before.
    pub fn max_mod_revision(self, revision: i64) -> Get {
        self.with(|request| request.max_mod_revision = revision)
    }

    /// Only what was made at this revision or later.
    pub fn min_create_revision(self, revision: i64) -> Get {
        self.with(|request| request.min_create_revision = revision)
    }

    /// Only what was made at this revision or before.
    pub fn max_create_revision(self, revision: i64) -> Get {
        self.with(|request| request.max_create_revision = revision)
    }
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GetReply {
    /// The member that has answered, and at which revision of the store.
    pub header: ResponseHeader,
    /// The records, in the order that was asked for.
    pub kvs: Vec<KeyValue>,
    /// Whether a limit has cut some off.
    pub more: bool,
    /// How many keys there are in the range, whatever the limit.
    pub count: i64,
}

impl GetReply {
    /// The revision of the store that was read; that of a read of the past is the present one.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    /// The first record.
    pub fn first(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }

    /// The value of the first record.
    pub fn value(&self) -> Option<&Bytes> {
        self.first().map(|record| &record.value)
    }
}

impl From<RangeResponse> for GetReply {
    fn from(reply: RangeResponse) -> GetReply {
        let RangeResponse { header: head, kvs, more, count } = reply;
        GetReply { header: header(head), kvs, more, count }
    }
}

impl Client {
    /// Reads keys. The answer comes whole; [`get_stream`](Client::get_stream) is for many.
    pub async fn get(&self, what: impl Into<Get>) -> Result<GetReply> {
        let request = what.into().request;
        let way = if request.serializable { CallPolicy::LOCAL } else { CallPolicy::READ };
        let send = |channel, request| async move { kv(channel).range(request).await };
        Ok(self.call(way, request, send).await?.into())
    }
}
