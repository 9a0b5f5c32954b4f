//! Put, delete, compact.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse,
    ResponseHeader,
};
use clearlane_proto::mvccpb::KeyValue;

use super::keys::{Keys, from_keys};
use super::{header, kv};
use crate::Client;
use crate::call::CallPolicy;
use crate::error::Result;

/// A put with options.
///
/// ```
/// use clearlane_client::Put;
///
/// let put = Put::new("session/7", "alive").lease(7).prev_kv();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Put {
    pub(crate) request: PutRequest,
}

impl Put {
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Put {
        let (key, value) = (key.into().into(), value.into().into());
        Put { request: PutRequest { key, value, ..PutRequest::default() } }
    }

    /// Keeps the key's present value; for changing its lease only.
    pub fn keep_value(key: impl Into<Vec<u8>>) -> Put {
        let mut put = Put::new(key, Vec::new());
        put.request.ignore_value = true;
        put
    }

    pub fn lease(mut self, id: i64) -> Put {
        self.request.lease = id;
        self
    }

    /// Keeps the key's lease; without this and [`lease`](Put::lease) it has none.
    pub fn keep_lease(mut self) -> Put {
        self.request.ignore_lease = true;
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
    pub(crate) request: DeleteRangeRequest,
}

from_keys!(Delete);

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

    /// Of the first deleted key.
    pub fn prev_value(&self) -> Option<&Bytes> {
        self.prev_kvs.first().map(|record| &record.value)
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
        let send = |channel, request| async move { kv(channel).put(request).await };
        Ok(self.call(CallPolicy::WRITE, put.request, send).await?.into())
    }

    pub async fn delete(&self, what: impl Into<Delete>) -> Result<DeleteReply> {
        let send = |channel, request| async move { kv(channel).delete_range(request).await };
        Ok(self.call(CallPolicy::WRITE, what.into().request, send).await?.into())
    }

    /// Removes the history before this revision. Returns the revision of the store.
    pub async fn compact(&self, revision: i64) -> Result<i64> {
        self.compaction(revision, false).await
    }

    /// As `compact`, and returns when it is done on the disk of the member that was asked.
    pub async fn compact_physically(&self, revision: i64) -> Result<i64> {
        self.compaction(revision, true).await
    }

    async fn compaction(&self, revision: i64, physical: bool) -> Result<i64> {
        let request = CompactionRequest { revision, physical };
        let way = if physical { CallPolicy::LONG_WRITE } else { CallPolicy::WRITE };
        let send = |channel, request| async move { kv(channel).compact(request).await };
        Ok(header(self.call(way, request, send).await?.header).revision)
    }
}
