//! Put, delete, compact.

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

/// A put; its rarer options are fields of `request`.
///
/// ```
/// use clearlane_client::Put;
///
/// let put = Put::new("session/7", "alive").lease(7).prev_kv();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Put {
    pub request: PutRequest,
}

impl Put {
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Put {
        let (key, value) = (key.into().into(), value.into().into());
        Put { request: PutRequest { key, value, ..PutRequest::default() } }
    }

    pub fn lease(mut self, id: i64) -> Put {
        self.request.lease = id;
        self
    }

    /// The reply has the previous record.
    pub fn prev_kv(mut self) -> Put {
        self.request.prev_kv = true;
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PutReply {
    pub header: ResponseHeader,
    /// If it was asked for and existed.
    pub prev_kv: Option<KeyValue>,
}

impl PutReply {
    pub fn revision(&self) -> i64 {
        self.header.revision
    }
}

impl From<PutResponse> for PutReply {
    fn from(reply: PutResponse) -> PutReply {
        PutReply { header: header(reply.header), prev_kv: reply.prev_kv }
    }
}

/// A deletion with options.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete {
    pub request: DeleteRangeRequest,
}

impl<K: Into<Keys>> From<K> for Delete {
    fn from(keys: K) -> Delete {
        Delete::new(keys)
    }
}

impl Delete {
    pub fn new(keys: impl Into<Keys>) -> Delete {
        let Keys { key, range_end } = keys.into();
        Delete { request: DeleteRangeRequest { key, range_end, prev_kv: false } }
    }

    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Delete {
        Delete::new(Keys::prefix(prefix))
    }

    /// The reply has the deleted records.
    pub fn prev_kv(mut self) -> Delete {
        self.request.prev_kv = true;
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteReply {
    pub header: ResponseHeader,
    pub deleted: i64,
    /// If they were asked for.
    pub prev_kvs: Vec<KeyValue>,
}

impl DeleteReply {
    /// The revision of this deletion, or the present one if it found nothing.
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
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Result<PutReply> {
        self.put_with(Put::new(key, value)).await
    }

    pub async fn put_with(&self, put: Put) -> Result<PutReply> {
        let send = async |channel, request| kv(channel).put(request).await;
        Ok(self.call(CallPolicy::WRITE, put.request, send).await?.into())
    }

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
