//! Writing: put, delete, compact.

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
    /// This value under this key.
    pub fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Put {
        let (key, value) = (key.into().into(), value.into().into());
        Put { request: PutRequest { key, value, ..PutRequest::default() } }
    }

    /// Goes on with the value that the key has. Useful for changing its lease only.
    pub fn keep_value(key: impl Into<Vec<u8>>) -> Put {
        let mut put = Put::new(key, Vec::new());
        put.request.ignore_value = true;
        put
    }

    /// Ends with this lease.
    pub fn lease(mut self, id: i64) -> Put {
        self.request.lease = id;
        self
    }

    /// Goes on with the lease that the key has; without this and [`lease`](Put::lease) it has none.
    pub fn keep_lease(mut self) -> Put {
        self.request.ignore_lease = true;
        self
    }

    /// The reply has what was there before.
    pub fn prev_kv(mut self) -> Put {
        self.request.prev_kv = true;
        self
    }
}

/// What a put has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PutReply {
    /// The member that has answered, and the revision of this put.
    pub header: ResponseHeader,
    /// What was there before, if that was asked for and there was something.
    pub prev_kv: Option<KeyValue>,
}

impl PutReply {
    /// The revision of this put.
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
    /// These keys.
    pub fn new(keys: impl Into<Keys>) -> Delete {
        let Keys { key, range_end } = keys.into();
        Delete { request: DeleteRangeRequest { key, range_end, prev_kv: false } }
    }

    /// All that begin like this.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Delete {
        Delete::new(Keys::prefix(prefix))
    }

    /// The reply has what was there before.
    pub fn prev_kv(mut self) -> Delete {
        self.request.prev_kv = true;
        self
    }
}

/// What a deletion has done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteReply {
    /// The member that has answered, and the revision: that of the deletion, if anything was
    /// deleted.
    pub header: ResponseHeader,
    /// So many keys.
    pub deleted: i64,
    /// What was there before, if that was asked for.
    pub prev_kvs: Vec<KeyValue>,
}

impl DeleteReply {
    /// The revision of this deletion, or the present one if it found nothing.
    pub fn revision(&self) -> i64 {
        self.header.revision
    }

    /// The value of the first key that was deleted.
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
    /// Puts a value under a key.
    pub async fn put(
        &self,
        key: impl Into<Vec<u8>>,
        value: impl Into<Vec<u8>>,
    ) -> Result<PutReply> {
        self.put_with(Put::new(key, value)).await
    }

    /// Puts with options.
    pub async fn put_with(&self, put: Put) -> Result<PutReply> {
        let send = |channel, request| async move { kv(channel).put(request).await };
        Ok(self.call(CallPolicy::WRITE, put.request, send).await?.into())
    }

    /// Deletes keys.
    pub async fn delete(&self, what: impl Into<Delete>) -> Result<DeleteReply> {
        let send = |channel, request| async move { kv(channel).delete_range(request).await };
        Ok(self.call(CallPolicy::WRITE, what.into().request, send).await?.into())
    }

    /// Forgets what keys were before this revision. Returns the revision of the store.
    pub async fn compact(&self, revision: i64) -> Result<i64> {
        self.compaction(revision, false).await
    }

    /// The same, and returns when that is done on the disk of the member that was asked.
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
