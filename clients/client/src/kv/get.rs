//! Reads of keys.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeResponse, ResponseHeader};
use clearlane_proto::mvccpb::KeyValue;

use super::keys::Keys;
use super::{header, kv};
use crate::Client;
use crate::call::CallPolicy;
use crate::error::Result;

/// A range request; its rarer options are fields of `request`.
///
/// ```
/// use clearlane_client::Get;
/// use clearlane_client::proto::etcdserverpb::range_request::{SortOrder, SortTarget};
///
/// let how_many_then = Get::prefix("job/").revision(17).count_only();
/// let mut newest_three = Get::prefix("job/").limit(3);
/// newest_three.request.sort_target = SortTarget::Create.into();
/// newest_three.request.sort_order = SortOrder::Descend.into();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Get {
    /// The message that is sent.
    pub request: RangeRequest,
}

impl<K: Into<Keys>> From<K> for Get {
    fn from(keys: K) -> Get {
        Get::new(keys)
    }
}

impl Get {
    /// Creates a request that reads these keys.
    pub fn new(keys: impl Into<Keys>) -> Get {
        let Keys { key, range_end } = keys.into();
        Get { request: RangeRequest { key, range_end, ..RangeRequest::default() } }
    }

    /// Creates a request that reads all keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Get {
        Get::new(Keys::prefix(prefix))
    }

    /// Limits the number of records. [`GetReply::more`] shows whether there were others.
    pub fn limit(mut self, limit: i64) -> Get {
        self.request.limit = limit;
        self
    }

    /// Requests the records as of this revision.
    pub fn revision(mut self, revision: i64) -> Get {
        self.request.revision = revision;
        self
    }

    /// Lets any member respond from its own data without querying the leader, so the result may be
    /// stale. Without this option the read is linearizable.
    pub fn serializable(mut self) -> Get {
        self.request.serializable = true;
        self
    }

    /// Requests only the number of keys. The reply then has no records.
    pub fn count_only(mut self) -> Get {
        self.request.count_only = true;
        self
    }

    pub(super) fn policy(&self) -> CallPolicy {
        if self.request.serializable { CallPolicy::LOCAL } else { CallPolicy::READ }
    }
}

/// The reply to a [`Get`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GetReply {
    /// The member that responded, its raft term, and the store's revision.
    pub header: ResponseHeader,
    /// The records, in the requested order.
    pub kvs: Vec<KeyValue>,
    /// If true, some records are omitted because of the limit.
    pub more: bool,
    /// The number of keys in the range, independent of the limit.
    pub count: i64,
}

impl GetReply {
    /// Returns the store's revision at the time of the read, not the revision of [`Get::revision`].
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    /// Returns the value of the first record, or `None` if there is no record.
    pub fn value(&self) -> Option<&Bytes> {
        self.kvs.first().map(|record| &record.value)
    }
}

impl From<RangeResponse> for GetReply {
    fn from(reply: RangeResponse) -> GetReply {
        let RangeResponse { header: head, kvs, more, count } = reply;
        GetReply { header: header(head), kvs, more, count }
    }
}

impl Client {
    /// Reads keys. For large ranges, use [`get_stream`](Client::get_stream).
    pub async fn get(&self, what: impl Into<Get>) -> Result<GetReply> {
        let get = what.into();
        let send = async |channel, request| kv(channel).range(request).await;
        Ok(self.call(get.policy(), get.request, send).await?.into())
    }
}
