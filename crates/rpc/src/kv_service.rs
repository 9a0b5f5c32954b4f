//! The service KV of tonic: what of it does not go through [`kv`](crate::kv), which is RangeStream.

use std::pin::Pin;

use clearlane_proto::etcdserverpb::kv_server::Kv;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
};
use clearlane_server::Server;
use clearlane_server::range_stream::RangeStream;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::context::RequestContext;
use crate::status;

/// The pages of a range.
pub type PageStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

/// Reads the next page when the one before has gone.
fn pages(range: RangeStream) -> PageStream {
    Box::pin(futures_util::stream::unfold(Some(range), |range| async {
        let mut range = range?;
        match range.next_page().await {
            Ok(page) => {
                let range_response = Some(page?);
                Some((Ok(RangeStreamResponse { range_response }), Some(range)))
            }
            Err(trouble) => Some((Err(status::from_error(&trouble)), None)),
        }
    }))
}

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct KvService {
    server: Server,
}

impl KvService {
    /// In front of a member.
    pub fn new(member: Server) -> KvService {
        KvService { server: member }
    }

    fn context<M>(&self, request: &Request<M>) -> Result<RequestContext, Status> {
        RequestContext::start(&self.server, request.metadata().as_ref())
    }
}

#[tonic::async_trait]
impl Kv for KvService {
    type RangeStreamStream = PageStream;

    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let found = self.context(&request)?.range(request.into_inner()).await?;
        found
            .read_all(&self.server)
            .await
            .map(Response::new)
            .map_err(|trouble| status::from_error(&trouble))
    }

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<PageStream>, Status> {
        let errand = self.context(&request)?;
        errand.check_not_learner()?;
        let opened = RangeStream::open(errand.server, request.into_inner());
        Ok(Response::new(pages(opened.map_err(|trouble| status::from_error(&trouble))?)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let mut errand = self.context(&request)?;
        errand.put(request.into_inner()).await.map(Response::new)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let mut errand = self.context(&request)?;
        errand.delete_range(request.into_inner()).await.map(Response::new)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let mut errand = self.context(&request)?;
        errand.txn(request.into_inner()).await.map(Response::new)
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let mut errand = self.context(&request)?;
        errand.compact(request.into_inner()).await.map(Response::new)
    }
}
