//! The service Lock: a lock is a place at the front of a [line](crate::succession).
//!
//! Nothing stops a client from writing what it has not locked. The lock's key lives as long as the
//! lock is held, and a transaction that compares its revision of creation does something under it.

use bytes::Bytes;
use clearlane_member::Trouble;
use clearlane_member::requests::Reply;
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, InternalRaftRequest, RangeRequest};
use clearlane_proto::v3lockpb::lock_server::Lock;
use clearlane_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status};

use crate::caller::{Who, admit};
use crate::succession::{Succession, plain};

/// The service, for one thread.
#[derive(Clone, Debug)]
pub struct LockService {
    line: Succession,
}

impl LockService {
    /// Over these lines.
    pub fn new(line: Succession) -> LockService {
        LockService { line }
    }

    async fn locked(&self, request: LockRequest) -> Result<LockResponse, Status> {
        let told = |trouble: Trouble| plain(&trouble);
        let place =
            self.line.stand(&request.name, request.lease, Bytes::new()).await.map_err(told)?;
        if !self.line.wait(&place).await.map_err(told)? {
            return Ok(LockResponse { header: place.header, key: place.key });
        }
        // Its lease may have ended meanwhile, and then somebody else is the first.
        let own = RangeRequest { key: place.key.clone(), ..RangeRequest::default() };
        let own = self.line.get(own).await.map_err(told)?;
        match own.count {
            0 => Err(Status::unknown("mutex: session is expired")),
            _ => Ok(LockResponse { header: own.header, key: place.key }),
        }
    }
}

#[tonic::async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Result<Response<LockResponse>, Status> {
        admit(self.line.member(), request.metadata().as_ref(), Who::Voters)?;
        self.locked(request.into_inner()).await.map(Response::new)
    }

    async fn unlock(
        &self,
        request: Request<UnlockRequest>,
    ) -> Result<Response<UnlockResponse>, Status> {
        admit(self.line.member(), request.metadata().as_ref(), Who::Voters)?;
        let key = request.into_inner().key;
        let delete_range = Some(DeleteRangeRequest { key, ..DeleteRangeRequest::default() });
        let request = InternalRaftRequest { delete_range, ..Default::default() };
        match self.line.member().write(request).await.map_err(|trouble| plain(&trouble))? {
            Reply::DeleteRange(done) => Ok(Response::new(UnlockResponse { header: done.header })),
            reply => Err(crate::status::mismatch(&reply)),
        }
    }
}
