//! The service KV: etcd's keys and values.
//!
//! Each call is a function of [`RequestContext`] here, and has two callers: [`front`](crate::front), which is
//! lean, and tonic, for whoever comes to the service another way, such as the JSON gateway.

use std::pin::Pin;

use clearlane_member::range::RangeResult;
use clearlane_member::range_stream::RangeStream;
use clearlane_member::request_trace::{RequestTrace, Stage};
use clearlane_member::requests::AppliedResponse;
use clearlane_member::{RequestError, Server, range};
use clearlane_proto::etcdserverpb::kv_server::Kv;
use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
    InternalRaftRequest, PutRequest, PutResponse, RangeRequest, RangeResponse, RangeStreamResponse,
    TxnRequest, TxnResponse,
};
use http::HeaderMap;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::interceptors::{self, RequiredRole};
use crate::status::{self, unexpected_response};

/// One call of a client: at which member, and where its time goes.
#[derive(Debug)]
pub struct RequestContext {
    server: Server,
    /// Stamped at the end of each stage.
    pub trace: RequestTrace,
}

impl RequestContext {
    /// Begins, if this member may answer a call with this head at all.
    pub fn start(member: &Server, head: &HeaderMap) -> Result<RequestContext, Status> {
        interceptors::check_member_can_serve(member, head, RequiredRole::Any)?;
        let card =
            RequestTrace::start().with_number(member.threads().trace().next_request_number());
        let member = match interceptors::grpc_timeout(head) {
            Some(patience) => member.with_deadline(card.time_limit_ns(patience)),
            None => member.clone(),
        };
        Ok(RequestContext { server: member, trace: card })
    }

    /// Waits for something up to the call's deadline.
    pub async fn within_deadline<T>(&self, work: impl Future<Output = T>) -> Result<T, Status> {
        self.server.within_deadline(work).await.map_err(|trouble| status::from_error(&trouble))
    }

    /// The call's deadline, if it has one.
    pub fn deadline_ns(&self) -> Option<u64> {
        self.server.deadline_ns()
    }

    /// A learner answers only what may be old.
    fn check_not_learner(&self) -> Result<(), Status> {
        match self.server.threads().status().is_learner() {
            true => Err(status::from_error(&RequestError::NotSupportedForLearner)),
            false => Ok(()),
        }
    }

    /// Reads a range of keys.
    pub async fn range(&mut self, request: RangeRequest) -> Result<RangeResult, Status> {
        if !request.serializable {
            self.check_not_learner()?;
        }
        let found = range::range(&self.server, request, &mut self.trace).await;
        if found.is_err() {
            // What was refused has taken its time, too.
            self.trace.end_stage(Stage::Backend);
        }
        found.map_err(|trouble| status::from_error(&trouble))
    }

    /// Puts a key.
    pub async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Status> {
        let put = Some(request);
        match self.propose(Box::new(InternalRaftRequest { put, ..Default::default() })).await? {
            AppliedResponse::Put(response) => Ok(response),
            reply => Err(unexpected_response(&reply)),
        }
    }

    /// Deletes a range of keys.
    pub async fn delete_range(
        &mut self,
        request: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        let delete_range = Some(request);
        match self
            .propose(Box::new(InternalRaftRequest { delete_range, ..Default::default() }))
            .await?
        {
            AppliedResponse::DeleteRange(response) => Ok(response),
            reply => Err(unexpected_response(&reply)),
        }
    }

    /// Runs a transaction.
    pub async fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.check_not_learner()?;
        let reply = self.server.txn(request, &mut self.trace).await;
        match reply.map_err(|trouble| status::from_error(&trouble))? {
            AppliedResponse::Txn(response) => Ok(response),
            reply => Err(unexpected_response(&reply)),
        }
    }

    /// Forgets the past.
    pub async fn compact(
        &mut self,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Status> {
        self.check_not_learner()?;
        let reply = self.server.compact(request).await;
        self.trace.end_stage(Stage::Apply);
        match reply.map_err(|trouble| status::from_error(&trouble))? {
            AppliedResponse::Compact(response) => Ok(response),
            reply => Err(unexpected_response(&reply)),
        }
    }

    async fn propose(
        &mut self,
        request: Box<InternalRaftRequest>,
    ) -> Result<AppliedResponse, Status> {
        self.check_not_learner()?;
        let reply = self.server.propose(request).await;
        self.trace.end_stage(Stage::Apply);
        reply.map_err(|trouble| status::from_error(&trouble))
    }
}

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
