//! gRPC's service Health, for load balancers and Kubernetes. It shows whether this server is up.
//!
//! The only service name is the empty one, which stands for the server as a whole. The server is up
//! as long as it responds, even without a leader or with an alarm; the checks over HTTP show more.
//! A learner rejects the calls of this service. With the feature gate `StopGRPCServiceOnDefrag` the
//! state is NOT_SERVING while a defragmentation runs, so that clients use another member.

use std::pin::Pin;

use clearlane_proto::grpc::health::v1::health_check_response::ServingStatus;
use clearlane_proto::grpc::health::v1::health_server::Health;
use clearlane_proto::grpc::health::v1::{
    HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse,
};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use crate::status::Reply;

/// The serving status that the service Health reports: NOT_SERVING while a defragmentation runs, if
/// `stops_on_defragment` is set, and otherwise SERVING. All network threads share this value.
#[derive(Clone, Debug)]
pub struct ServingState {
    defragmentations: watch::Sender<usize>,
    stops_on_defragment: bool,
}

impl ServingState {
    pub fn new(stops_on_defragment: bool) -> ServingState {
        ServingState { defragmentations: watch::Sender::new(0), stops_on_defragment }
    }

    /// Logs the status when the server starts. Tools that start a server for tests wait for this
    /// line.
    pub fn log_start(&self) {
        log_status(status_of(*self.defragmentations.borrow()));
    }

    /// Returns a guard, which the caller holds while a defragmentation runs. While the guard
    /// exists, the status is NOT_SERVING. Returns `None` if a defragmentation does not change the
    /// status.
    pub(crate) fn on_defragment(&self) -> Option<DefragmentRun> {
        self.stops_on_defragment.then(|| {
            log_status(ServingStatus::NotServing);
            self.defragmentations.send_modify(|count| *count += 1);
            DefragmentRun(self.clone())
        })
    }
}

#[derive(Debug)]
pub(crate) struct DefragmentRun(ServingState);

impl Drop for DefragmentRun {
    fn drop(&mut self) {
        self.0.defragmentations.send_modify(|count| *count -= 1);
        log_status(status_of(*self.0.defragmentations.borrow()));
    }
}

fn log_status(status: ServingStatus) {
    let status = status.as_str_name();
    tracing::info!(service = "", status, "grpc service status changed");
}

fn status_of(defragmentations: usize) -> ServingStatus {
    if defragmentations == 0 { ServingStatus::Serving } else { ServingStatus::NotServing }
}

#[derive(Clone, Debug)]
pub(crate) struct HealthService {
    pub(crate) state: ServingState,
}

impl HealthService {
    fn response(&self) -> HealthCheckResponse {
        health_response(status_of(*self.state.defragmentations.borrow()))
    }
}

fn health_response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn check(&self, request: Request<HealthCheckRequest>) -> Reply<HealthCheckResponse> {
        if request.get_ref().service.is_empty() {
            Ok(Response::new(self.response()))
        } else {
            Err(Status::not_found("unknown service"))
        }
    }

    async fn list(&self, _: Request<HealthListRequest>) -> Reply<HealthListResponse> {
        let server = (String::new(), self.response());
        Ok(Response::new(HealthListResponse { statuses: [server].into() }))
    }

    /// Sends the current status, and then each change. For an unknown service, sends
    /// `ServiceUnknown` once, and the stream stays open.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Reply<Self::WatchStream> {
        if !request.get_ref().service.is_empty() {
            let unknown = Ok(health_response(ServingStatus::ServiceUnknown));
            let once = tokio_stream::once(unknown).chain(tokio_stream::pending());
            return Ok(Response::new(Box::pin(once)));
        }
        let counts = WatchStream::new(self.state.defragmentations.subscribe());
        Ok(Response::new(Box::pin(counts.map(|count| Ok(health_response(status_of(count)))))))
    }
}
