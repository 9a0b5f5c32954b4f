//! The service Health of gRPC, for load balancers and Kubernetes: is this server up?
//!
//! The one service is the server as a whole, by the empty name. It is up for as long as it answers,
//! also without a leader or with an alarm; the checks over HTTP tell more.

use std::pin::Pin;

use clearlane_proto::grpc::health::v1::health_check_response::ServingStatus;
use clearlane_proto::grpc::health::v1::health_server::Health;
use clearlane_proto::grpc::health::v1::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::status::Reply;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HealthService;

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Reply<HealthCheckResponse> {
        if request.get_ref().service.is_empty() {
            Ok(Response::new(health_response(ServingStatus::Serving)))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Reply<HealthListResponse> {
        let server = (String::new(), health_response(ServingStatus::Serving));
        Ok(Response::new(HealthListResponse { statuses: [server].into() }))
    }

    /// Sends the status once: it does not change for as long as the server runs.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Reply<Self::WatchStream> {
        let now = match &request.get_ref().service[..] {
            "" => ServingStatus::Serving,
            _ => ServingStatus::ServiceUnknown,
        };
        let once = tokio_stream::once(Ok(health_response(now))).chain(tokio_stream::pending());
        Ok(Response::new(Box::pin(once)))
    }
}
