//! Everything that is served without gRPC: version, health, metrics, and the API in JSON. See
//! `docs/http.md`.
//!
//! [`HttpService`] is a function from a request to a response, for one network thread. [`serve`]
//! listens on a port that serves no gRPC.
//!
//! ```text
//!   port ── is it gRPC? ── yes ──▶ services ◀────────────────┐ a call in the same process
//!              └─ no ──▶ HttpService ── /v3/…      gateway ──┘
//!                             ├── /health, /livez, /readyz, /metrics, /version
//!                             └── /debug/vars, /debug/pprof/…
//! ```
//!
//! Streams over a websocket are not supported.

mod access;
mod debug;
mod health;
mod server;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clearlane_net::bulk_turn::BulkTurns;
use clearlane_replica::RequestError;
use clearlane_server::Server;
use http::header::{ALLOW, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tonic::body::Body;
use tonic::service::Routes;

pub use self::access::{AccessControl, EncryptedConnection};
pub use self::debug::{DebugPage, DebugPages};
pub use self::server::{METRICS_CONNECTIONS_MAX, serve};
use crate::context::ThreadServices;
use crate::gateway::{self, Gateway};
use crate::maintenance::{ETCD_VERSION, STORAGE_VERSION};
use crate::metrics::{self, RpcMetrics, ThreadMetrics};

#[derive(Clone, Debug)]
pub struct HttpServiceConfig {
    pub access_control: AccessControl,
    /// Time limit of a check that reads linearizably.
    pub read_timeout: Duration,
    /// The pages below `/debug/pprof/`. If `None`, these pages are not served.
    pub profiles: Option<DebugPages>,
}

impl Default for HttpServiceConfig {
    fn default() -> Self {
        HttpServiceConfig {
            access_control: AccessControl::default(),
            read_timeout: Duration::from_secs(7),
            profiles: None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct HttpService {
    server: Server,
    metrics: Arc<RpcMetrics>,
    thread: ThreadMetrics,
    gateway: Option<Gateway>,
    config: Arc<HttpServiceConfig>,
    /// The requests that wait until the next page of metrics is rendered.
    page_requests: Arc<Mutex<Vec<PageSender>>>,
}

type PageSender = oneshot::Sender<Result<Bytes, String>>;

impl HttpService {
    /// Creates a service without the JSON API.
    pub fn new(
        member: Server,
        metrics: Arc<RpcMetrics>,
        thread: ThreadMetrics,
        settings: Arc<HttpServiceConfig>,
    ) -> HttpService {
        HttpService {
            server: member,
            metrics,
            thread,
            gateway: None,
            config: settings,
            page_requests: Arc::default(),
        }
    }

    /// Adds the JSON API. A unary call of KV that takes longer than the first duration in `slow` is
    /// logged. A range or a read-only transaction is also logged if its read takes longer than the
    /// second duration.
    pub fn with_gateway(
        self,
        grpc: Routes,
        turns: BulkTurns,
        slow: (Duration, Duration),
    ) -> HttpService {
        let (server, metrics) = (self.server.clone(), self.thread.clone());
        let services = ThreadServices { server, grpc, metrics, turns, slow_thresholds: slow };
        HttpService { gateway: Some(Gateway::new(services)), ..self }
    }

    /// Handles a request. A request from an encrypted connection must have [`EncryptedConnection`]
    /// among its extensions.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tonic::codegen::StdError>,
    {
        let request = request.map(Body::new);
        let access = &self.config.access_control;
        if let Some(refused) = access.check_host(&request) {
            return refused;
        }
        let origin = access.allowed_origin(&request);
        let mut response = match *request.method() {
            Method::OPTIONS => Response::default(),
            _ => self.route(request).await,
        };
        if let Some(origin) = origin {
            access::add_cors_headers(&mut response, origin);
        }
        response
    }

    async fn route(&self, request: Request<Body>) -> Response<Body> {
        let path = request.uri().path();
        if let Some(gateway) = &self.gateway
            && gateway::path_of_rpc(path).is_some()
        {
            return gateway::handle(gateway, request).await;
        }
        let is_get = request.method() == Method::GET;
        match path {
            "/metrics" => self.metrics().await,
            "/version" | "/health" if !is_get => not_a_get(),
            "/version" => self.version(),
            "/health" => self.health(request.uri().query()).await,
            path => match health::checks_of(path) {
                None => {
                    let page = self.debug_page(path, request.uri().query(), is_get).await;
                    page.unwrap_or_else(|| {
                        error_response(StatusCode::NOT_FOUND, "404 page not found")
                    })
                }
                Some(_) if !is_get => not_a_get(),
                Some(checks) => self.run_checks(checks, request.uri().query()).await,
            },
        }
    }

    /// Returns the metrics page. Rendering a page takes about a millisecond, and a client may send
    /// thousands of requests at the same time. So all requests that arrive before the next page is
    /// rendered get that page.
    async fn metrics(&self) -> Response<Body> {
        let (sender, page) = oneshot::channel();
        let waiting = {
            let mut requests = self.page_requests.lock();
            requests.push(sender);
            requests.len()
        };
        if waiting == 1 {
            // A separate task renders the page, because the first request may be canceled.
            tokio::spawn(self.clone().render_page());
        }
        let stopped = || Err(RequestError::Stopped.to_string());
        match page.await.unwrap_or_else(|_| stopped()) {
            Ok(page) => text(StatusCode::OK, metrics::CONTENT_TYPE, page),
            Err(error) => error_response(StatusCode::SERVICE_UNAVAILABLE, &error),
        }
    }

    async fn render_page(self) {
        if let Some(gateway) = &self.gateway {
            gateway.request_turn().await;
        }
        let requests = std::mem::take(&mut *self.page_requests.lock());
        let metrics = self.metrics;
        let page = self.server.run_where_locks_may_wait(move |server| metrics.render(server)).await;
        let page = page.map(Bytes::from).map_err(|error| error.to_string());
        for request in requests {
            // A client may have left.
            let _ = request.send(page.clone());
        }
    }

    fn version(&self) -> Response<Body> {
        let members = self.server.threads().members();
        // The cluster's version determines the format of the store.
        let (cluster, storage) = match members.version() {
            Some(version) => (version, STORAGE_VERSION),
            None => ("not_decided", "unknown"),
        };
        let cluster = serde_json::Value::from(cluster);
        let line = format!(
            r#"{{"etcdserver":"{ETCD_VERSION}","etcdcluster":{cluster},"storage":"{storage}"}}"#
        );
        text(StatusCode::OK, "application/json", line)
    }
}

fn not_a_get() -> Response<Body> {
    let mut refused = error_response(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    refused
}

pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

pub(crate) fn text(
    status: StatusCode,
    kind: &'static str,
    text: impl Into<Bytes>,
) -> Response<Body> {
    response(status, kind, Body::new(Full::new(text.into())))
}

pub(crate) fn response(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Returns an error response. `nosniff` prevents a browser from treating the text as a page.
fn error_response(status: StatusCode, why: &str) -> Response<Body> {
    let mut response = text(status, PLAIN, format!("{why}\n"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// Returns the names and values in a query. A name without `=` has an empty value.
fn query_parts(query: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let parts = query.unwrap_or_default().split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}
