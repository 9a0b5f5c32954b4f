//! Put, delete and compact.

use clearlane_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    ResponseHeader,
};
use clearlane_proto::mvccpb::KeyValue;

use super::keys::Keys;
use super::{header, kv};
use crate::Client;
use crate::call::CallPolicy;
use crate::error::Result;

/// A put request; its rarer options are fields of `request`.
///
/// ```
/// use clearlane_client::Put;
///
/// let put = Put::new("session/7", "alive").lease(7).prev_kv();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Put {
    /// The message that is sent.
    pub request: PutRequest,
}

impl Put {
    /// Creates a request that writes `value` under `key`.
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Put {
        let (key, value) = (key.into().into(), value.into().into());
        Put { request: PutRequest { key, value, ..PutRequest::default() } }
    }

    /// Attaches the key to this lease. The key is deleted when the lease ends.
    pub fn lease(mut self, id: i64) -> Put {
        self.request.lease = id;
        self
    }

    /// Requests the previous record. The reply contains it if the key existed.
    pub fn prev_kv(mut self) -> Put {
        self.request.prev_kv = true;
        self
    }
}

/// The reply to a [`Put`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PutReply {
    /// The member that responded, its raft term, and the store's revision.
    pub header: ResponseHeader,
    /// The previous record, if it was requested and existed.
    pub prev_kv: Option<KeyValue>,
}

impl PutReply {
    /// Returns the revision of this put.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }
}

impl From<PutResponse> for PutReply {
    fn from(reply: PutResponse) -> PutReply {
        PutReply { header: header(reply.header), prev_kv: reply.prev_kv }
    }
}

/// A request that deletes keys; its options are fields of `request`.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    /// The message that is sent.
    pub request: DeleteRangeRequest,
}

impl<K: Into<Keys>> From<K> for Delete {
    fn from(keys: K) -> Delete {
        Delete::new(keys)
    }
}

impl Delete {
    /// Creates a request that deletes these keys.
    pub fn new(keys: impl Into<Keys>) -> Delete {
        let Keys { key, range_end } = keys.into();
        Delete { request: DeleteRangeRequest { key, range_end, prev_kv: false } }
    }

    /// Creates a request that deletes all keys that start with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Delete {
        Delete::new(Keys::prefix(prefix))
    }

    /// Requests the deleted records. The reply contains them.
    pub fn prev_kv(mut self) -> Delete {
        self.request.prev_kv = true;
        self
    }
}

/// The reply to a [`Delete`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteReply {
    /// The member that responded, its raft term, and the store's revision.
    pub header: ResponseHeader,
    /// Number of deleted keys.
    pub deleted: i64,
    /// The deleted records, if they were requested.
    pub prev_kvs: Vec<KeyValue>,
}

impl DeleteReply {
    /// Returns the revision of this deletion, or the current one if nothing was deleted.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }
}

impl From<DeleteRangeResponse> for DeleteReply {
    fn from(reply: DeleteRangeResponse) -> DeleteReply {
        let DeleteRangeResponse { header: head, deleted, prev_kvs } = reply;
        DeleteReply { header: header(head), deleted, prev_kvs }
    }
}

impl Client {
    /// Writes `value` under `key`. [`put_with`](Client::put_with) supports the options.
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Result<PutReply> {
        self.put_with(Put::new(key, value)).await
    }

    /// Executes a [`Put`] with its options.
    pub async fn put_with(&self, put: Put) -> Result<PutReply> {
        let send = async |channel, request| kv(channel).put(request).await;
        Ok(self.call(CallPolicy::WRITE, put.request, send).await?.into())
    }

    /// Deletes a key, or all keys of a range.
    pub async fn delete(&self, what: impl Into<Delete>) -> Result<DeleteReply> {
        let send = async |channel, request| kv(channel).delete_range(request).await;
        Ok(self.call(CallPolicy::WRITE, what.into().request, send).await?.into())
    }

    /// Removes the history before this revision. Returns the revision of the store.
    pub async fn compact(&self, revision: i64) -> Result<i64> {
        let request = CompactionRequest { revision, physical: false };
        let send = async |channel, request| kv(channel).compact(request).await;
        Ok(header(self.call(CallPolicy::WRITE, request, send).await?.header).revision)
    }
}
