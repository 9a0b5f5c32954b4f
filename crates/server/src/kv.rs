//! The service KV: etcd's keys and values.

use clearlane_member::requests::Reply;
use clearlane_member::{Handle, Trouble, range};
use clearlane_proto::etcdserverpb::kv_server::Kv;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    TxnRequest, TxnResponse,
};
use tonic::{Request, Response, Status};

use crate::status;

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct KvService {
    member: Handle,
}

impl KvService {
    /// In front of a member.
    pub fn new(member: Handle) -> KvService {
        KvService { member }
    }

    async fn write(&self, request: InternalRaftRequest) -> Result<Reply, Status> {
        self.member.write(request).await.map_err(|trouble| status::of(&trouble))
    }
}

/// A reply of another kind than the request is a bug.
fn mismatch(reply: &Reply) -> Status {
    Status::internal(format!("{reply:?} answers another request"))
}

fn answered<T>(outcome: Result<T, Trouble>) -> Result<Response<T>, Status> {
    outcome.map(Response::new).map_err(|trouble| status::of(&trouble))
}

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = tokio_stream::Empty<Result<RangeStreamResponse, Status>>;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        answered(range::range(&self.member, request.get_ref()).await)
    }

    async fn range_stream(
        &self,
        _request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        // Clients that know it ask whether a server does, and go on with Range.
        Err(Status::unimplemented("RangeStream is not served yet"))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let put = Some(request.into_inner());
        match self.write(InternalRaftRequest { put, ..Default::default() }).await? {
            Reply::Put(response) => Ok(Response::new(response)),
            reply => Err(mismatch(&reply)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let delete_range = Some(request.into_inner());
        match self.write(InternalRaftRequest { delete_range, ..Default::default() }).await? {
            Reply::DeleteRange(response) => Ok(Response::new(response)),
            reply => Err(mismatch(&reply)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        match answered(self.member.txn(request.into_inner()).await)?.into_inner() {
            Reply::Txn(response) => Ok(Response::new(response)),
            reply => Err(mismatch(&reply)),
        }
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let compaction = Some(request.into_inner());
        match self.write(InternalRaftRequest { compaction, ..Default::default() }).await? {
            Reply::Compact(response) => Ok(Response::new(response)),
            reply => Err(mismatch(&reply)),
        }
    }
}
