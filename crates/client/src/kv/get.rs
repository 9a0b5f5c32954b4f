//! Reads.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use clearlane_proto::mvccpb::KeyValue;

use super::keys::{Keys, from_keys};
use super::{header, kv};
use crate::Client;
use crate::call::CallPolicy;
use crate::error::Result;

/// A range request with its options.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SortBy {
    Key,
    /// The number of puts since the key was created.
    Version,
    CreateRevision,
    ModRevision,
    Value,
}

from_keys!(Get);

impl Get {
    pub fn new(keys: impl Into<Keys>) -> Get {
        let Keys { key, range_end } = keys.into();
        Get { request: RangeRequest { key, range_end, ..RangeRequest::default() } }
    }

    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Get {
        Get::new(Keys::prefix(prefix))
    }

    pub fn range(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Get {
        Get::new(Keys::range(first, end))
    }

    fn with(mut self, change: impl FnOnce(&mut RangeRequest)) -> Get {
        change(&mut self.request);
        self
    }

    /// [`GetReply::more`] says whether there were others.
    pub fn limit(self, limit: i64) -> Get {
        self.with(|request| request.limit = limit)
    }

    /// Reads the store as it was at this revision.
    pub fn revision(self, revision: i64) -> Get {
        self.with(|request| request.revision = revision)
    }

    /// Reads what the member has without asking the leader: it may be stale. Without this the read
    /// is linearizable.
    pub fn serializable(self) -> Get {
        self.with(|request| request.serializable = true)
    }

    pub fn keys_only(self) -> Get {
        self.with(|request| request.keys_only = true)
    }

    pub fn count_only(self) -> Get {
        self.with(|request| request.count_only = true)
    }

    pub fn sort_ascending(self, by: SortBy) -> Get {
        self.sort(by, SortOrder::Ascend)
    }

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

    pub fn min_mod_revision(self, revision: i64) -> Get {
        self.with(|request| request.min_mod_revision = revision)
    }

    pub fn max_mod_revision(self, revision: i64) -> Get {
        self.with(|request| request.max_mod_revision = revision)
    }

    pub fn min_create_revision(self, revision: i64) -> Get {
        self.with(|request| request.min_create_revision = revision)
    }

    pub fn max_create_revision(self, revision: i64) -> Get {
        self.with(|request| request.max_create_revision = revision)
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct GetReply {
    pub header: ResponseHeader,
    /// In the order that was asked for.
    pub kvs: Vec<KeyValue>,
    /// Whether a limit has cut some off.
    pub more: bool,
    /// The number of keys in the range, whatever the limit.
    pub count: i64,
}

impl GetReply {
    /// The revision of the store when it was read, not the one that [`Get::revision`] asks for.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    pub fn first(&self) -> Option<&KeyValue> {
        self.kvs.first()
    }

    /// Of the first record.
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
    /// For large ranges there is [`get_stream`](Client::get_stream).
    pub async fn get(&self, what: impl Into<Get>) -> Result<GetReply> {
        let request = what.into().request;
        let way = if request.serializable { CallPolicy::LOCAL } else { CallPolicy::READ };
        let send = |channel, request| async move { kv(channel).range(request).await };
        Ok(self.call(way, request, send).await?.into())
    }
}
