//! The service Lock: the first key of a [queue](crate::lock_queue) holds the lock.
//!
//! The server does not prevent a client from writing without the lock. The lock's key exists as
//! long as the lock is held. So a client protects a write with a transaction that compares the
//! create revision of this key.

use bytes::Bytes;
use clearlane_proto::etcdserverpb::{DeleteRangeRequest, RangeRequest};
use clearlane_proto::v3lockpb::lock_server::Lock;
use clearlane_proto::v3lockpb::{LockRequest, LockResponse, UnlockRequest, UnlockResponse};
use tonic::{Request, Response, Status};

use crate::lock_queue::{LockQueue, client_error};
use crate::status::Reply;

pub(crate) struct LockService {
    pub(crate) queue: LockQueue,
}

impl LockService {
    async fn acquire(queue: LockQueue, request: LockRequest) -> Result<LockResponse, Status> {
        let place = queue.enqueue(&request.name, request.lease, Bytes::new()).await;
        let place = place.map_err(client_error)?;
        if !queue.wait_until_first(&place).await.map_err(client_error)? {
            return Ok(LockResponse { header: place.header, key: place.key });
        }
        // The client's lease may have ended while the client waited. In this case its key was
        // deleted with the lease, and the lock belongs to another client.
        let own = RangeRequest { key: place.key.clone(), ..RangeRequest::default() };
        let own = queue.get(own).await.map_err(client_error)?;
        match own.count {
            0 => Err(Status::unknown("mutex: session is expired")),
            _ => Ok(LockResponse { header: own.header, key: place.key }),
        }
    }
}

#[tonic::async_trait]
impl Lock for LockService {
    async fn lock(&self, request: Request<LockRequest>) -> Reply<LockResponse> {
        let queue = self.queue.of(&request);
        LockService::acquire(queue, request.into_inner()).await.map(Response::new)
    }

    async fn unlock(&self, request: Request<UnlockRequest>) -> Reply<UnlockResponse> {
        let server = self.queue.of(&request).server;
        let key = request.into_inner().key;
        let request = DeleteRangeRequest { key, ..DeleteRangeRequest::default() };
        let header = server.propose(request).await.map_err(client_error)?.header;
        Ok(Response::new(UnlockResponse { header }))
    }
}
