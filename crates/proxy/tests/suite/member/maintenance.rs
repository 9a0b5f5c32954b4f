//! The version of a [`Member`].

use std::sync::atomic::Ordering;

use clearlane_proto::etcdserverpb::maintenance_server::Maintenance;
use clearlane_proto::etcdserverpb::*;
use tonic::{Request, Status};

use super::{Answer, Member};

macro_rules! maintenance {
    ($($name:ident $request:ident $response:ident),+) => {
        #[tonic::async_trait]
        impl Maintenance for Member {
            type SnapshotStream = tokio_stream::Empty<Result<SnapshotResponse, Status>>;

            async fn status(&self, _: Request<StatusRequest>) -> Answer<StatusResponse> {
                self.state.counts.statuses.fetch_add(1, Ordering::SeqCst);
                let version = (*self.state.version.lock()).to_owned();
                let header = Some(self.header());
                Ok(StatusResponse { header, version, ..StatusResponse::default() }.into())
            }

            async fn snapshot(&self, _: Request<SnapshotRequest>) -> Answer<Self::SnapshotStream> {
                Err(Status::unimplemented("not here"))
            }

            $(async fn $name(&self, _: Request<$request>) -> Answer<$response> {
                Err(Status::unimplemented("not here"))
            })+
        }
    };
}

maintenance!(
    alarm AlarmRequest AlarmResponse,
    defragment DefragmentRequest DefragmentResponse,
    hash HashRequest HashResponse,
    hash_kv HashKvRequest HashKvResponse,
    move_leader MoveLeaderRequest MoveLeaderResponse,
    downgrade DowngradeRequest DowngradeResponse
);
