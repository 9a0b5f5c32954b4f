//! The context of one call: the services of its network thread, its server and user, its deadline,
//! and its trace.

use std::time::Duration;

use clearlane_net::bulk_turn::BulkTurns;
use clearlane_net::tls::ClientName;
use clearlane_replica::{Proposal, RequestError};
use clearlane_server::Server;
use clearlane_server::observe::request_trace::RequestTrace;
use http::HeaderMap;
use tonic::Status;
use tonic::service::Routes;

use crate::client_info::ClientInfo;
use crate::credentials;
use crate::interceptors::{self, RequiredRole};
use crate::metrics::ThreadMetrics;
use crate::status;

/// The services that handle the calls on one network thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadServices {
    pub(crate) server: Server,
    /// The services that tonic serves.
    pub(crate) grpc: Routes,
    pub(crate) metrics: ThreadMetrics,
    pub(crate) turns: BulkTurns,
    /// The thresholds for log lines about slow calls. A unary call of KV that takes longer than the
    /// first threshold is logged. A range or a read-only transaction is also logged if its read
    /// takes longer than the second threshold.
    pub(crate) slow_thresholds: (Duration, Duration),
}

impl ThreadServices {
    pub(crate) fn call_head(&self, headers: HeaderMap, client: ClientInfo) -> CallHead {
        let (server, slow_thresholds) = (self.server.clone(), self.slow_thresholds);
        CallHead { server, headers, client, slow_thresholds }
    }
}

/// The head of a request, the server that handles it, and the client that sent it.
pub(crate) struct CallHead {
    pub(crate) server: Server,
    pub(crate) headers: HeaderMap,
    pub(crate) client: ClientInfo,
    pub(crate) slow_thresholds: (Duration, Duration),
}

pub(crate) struct RequestContext {
    pub(crate) server: Server,
    pub(crate) trace: RequestTrace,
}

/// Proposes a request that goes through the log unchanged.
pub(crate) async fn propose<P: Proposal>(
    server: &Server,
    request: P,
) -> Result<P::Response, Status> {
    server.propose(request).await.map_err(status::from_error)
}

impl RequestContext {
    /// Creates the context of a call, with the deadline and the credentials from its head. Fails if
    /// this member [may not serve](interceptors::check_member_can_serve) a call with this head.
    pub(crate) fn start(
        member: &Server,
        head: &HeaderMap,
        certificate: Option<&ClientName>,
    ) -> Result<RequestContext, Status> {
        interceptors::check_member_can_serve(member, head, RequiredRole::Any)?;
        let trace =
            RequestTrace::start().with_number(member.threads().trace().next_request_number());
        let mut member = match interceptors::grpc_timeout(head) {
            Some(patience) => member.with_deadline(trace.time_limit_ns(patience)),
            None => member.clone(),
        };
        if member.threads().auth().is_enabled() {
            member = member.with_credentials(credentials::of_call(head, certificate));
        }
        Ok(RequestContext { server: member, trace })
    }

    pub(crate) async fn within_deadline<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, Status> {
        self.server.within_deadline(work).await.map_err(status::from_error)
    }

    /// Fails if this member is a learner. A learner serves no calls of KV except serializable
    /// calls of Range.
    pub(crate) fn check_not_learner(&self) -> Result<(), Status> {
        if self.server.threads().status().is_learner() {
            Err(status::from_error(RequestError::NotSupportedForLearner))
        } else {
            Ok(())
        }
    }
}
