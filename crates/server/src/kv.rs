//! The service KV: etcd's keys and values.
//!
//! Each call is a function here, and has two callers: [`front`](crate::front), which is lean, and
//! tonic, for whoever comes to the service another way, such as the JSON gateway.

use std::pin::Pin;

use clearlane_member::range::Found;
use clearlane_member::range_stream::RangeStream;
use clearlane_member::requests::Reply;
use clearlane_member::{Handle, Trouble, range};
use clearlane_proto::etcdserverpb::kv_server::Kv;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    TxnRequest, TxnResponse,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::caller::{self, Who, admit};
use crate::status::{self, mismatch};

/// Reads a range of keys. Of a learner, only what it has itself is to be had.
pub async fn range(member: Handle, request: RangeRequest) -> Result<Found, Status> {
    if !request.serializable && caller::is_learner(member.node()) {
        return Err(status::of(&Trouble::Learner));
    }
    range::range(&member, request).await.map_err(|trouble| status::of(&trouble))
}

/// Puts a key.
pub async fn put(member: Handle, request: PutRequest) -> Result<PutResponse, Status> {
    let put = Some(request);
    match write(&member, InternalRaftRequest { put, ..Default::default() }).await? {
        Reply::Put(response) => Ok(response),
        reply => Err(mismatch(&reply)),
    }
}

/// Deletes a range of keys.
pub async fn delete_range(
    member: Handle,
    request: DeleteRangeRequest,
) -> Result<DeleteRangeResponse, Status> {
    let delete_range = Some(request);
    match write(&member, InternalRaftRequest { delete_range, ..Default::default() }).await? {
        Reply::DeleteRange(response) => Ok(response),
        reply => Err(mismatch(&reply)),
    }
}

/// Runs a transaction.
pub async fn txn(member: Handle, request: TxnRequest) -> Result<TxnResponse, Status> {
    match member.txn(request).await.map_err(|trouble| status::of(&trouble))? {
        Reply::Txn(response) => Ok(response),
        reply => Err(mismatch(&reply)),
    }
}

/// Forgets the past.
pub async fn compact(
    member: Handle,
    request: CompactionRequest,
) -> Result<CompactionResponse, Status> {
    match member.compact(request).await.map_err(|trouble| status::of(&trouble))? {
        Reply::Compact(response) => Ok(response),
        reply => Err(mismatch(&reply)),
    }
}

async fn write(member: &Handle, request: InternalRaftRequest) -> Result<Reply, Status> {
    member.write(request).await.map_err(|trouble| status::of(&trouble))
}

/// The pages of a range.
pub type PageStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

/// Reads the next page when the one before has gone.
fn pages(range: RangeStream) -> PageStream {
    Box::pin(futures_util::stream::unfold(Some(range), |range| async {
        let mut range = range?;
        match range.next().await {
            Ok(page) => {
                let range_response = Some(page?);
                Some((Ok(RangeStreamResponse { range_response }), Some(range)))
            }
            Err(trouble) => Some((Err(status::of(&trouble)), None)),
        }
    }))
}

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

    fn admit<T>(&self, request: &Request<T>, who: Who) -> Result<(), Status> {
        admit(&self.member, request.metadata().as_ref(), who)
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = PageStream;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        self.admit(&request, Who::Anybody)?;
        let found = range(self.member.clone(), request.into_inner()).await?;
        found.into_response().map(Response::new).map_err(|error| status::of(&error.into()))
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<PageStream>, Status> {
        self.admit(&request, Who::Voters)?;
        let opened = RangeStream::open(self.member.clone(), request.into_inner());
        Ok(Response::new(pages(opened.map_err(|trouble| status::of(&trouble))?)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.admit(&request, Who::Voters)?;
        put(self.member.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.admit(&request, Who::Voters)?;
        delete_range(self.member.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.admit(&request, Who::Voters)?;
        txn(self.member.clone(), request.into_inner()).await.map(Response::new)
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        self.admit(&request, Who::Voters)?;
        compact(self.member.clone(), request.into_inner()).await.map(Response::new)
    }
}
