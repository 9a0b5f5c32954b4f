//! One call of a client: at which member, until when, and where its time goes.
//!
//! The calls of KV are its functions: gRPC and the JSON gateway come through [`kv`](crate::kv).

use clearlane_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, TxnRequest, TxnResponse,
};
use clearlane_server::range::RangeResult;
use clearlane_server::request_trace::{RequestTrace, Stage};
use clearlane_server::{Proposal, RequestError, Server};
use http::HeaderMap;
use tonic::Status;

use crate::interceptors::{self, RequiredRole};
use crate::status;

/// One call of a client: at which member, and where its time goes.
#[derive(Debug)]
pub struct RequestContext {
    pub(crate) server: Server,
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

    /// A learner answers only reads that may be stale.
    pub(crate) fn check_not_learner(&self) -> Result<(), Status> {
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
        let found = self.server.range(request, &mut self.trace).await;
        if found.is_err() {
            // What was refused has taken its time, too.
            self.trace.end_stage(Stage::Backend);
        }
        found.map_err(|trouble| status::from_error(&trouble))
    }

    /// Puts a key.
    pub async fn put(&mut self, request: PutRequest) -> Result<PutResponse, Status> {
        self.propose(request).await
    }

    /// Deletes a range of keys.
    pub async fn delete_range(
        &mut self,
        request: DeleteRangeRequest,
    ) -> Result<DeleteRangeResponse, Status> {
        self.propose(request).await
    }

    /// Runs a transaction.
    pub async fn txn(&mut self, request: TxnRequest) -> Result<TxnResponse, Status> {
        self.check_not_learner()?;
        let reply = self.server.txn(request, &mut self.trace).await;
        reply.map_err(|trouble| status::from_error(&trouble))
    }

    /// Compacts the history.
    pub async fn compact(
        &mut self,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Status> {
        self.check_not_learner()?;
        let reply = self.server.compact(request).await;
        self.trace.end_stage(Stage::Apply);
        reply.map_err(|trouble| status::from_error(&trouble))
    }

    async fn propose<P: Proposal>(&mut self, request: P) -> Result<P::Response, Status> {
        self.check_not_learner()?;
        let reply = self.server.propose(request).await;
        self.trace.end_stage(Stage::Apply);
        reply.map_err(|trouble| status::from_error(&trouble))
    }
}
