//! Finds the service that responds to a request from a connection.
//!
//! A port carries three kinds of requests. They differ in their heads:
//!
//! ```text
//!                           ┌─ Range, Put, DeleteRange, Txn, Compact ─▶ kv
//!   connection ─▶ request ──┼─ other gRPC calls ─────────────────────▶ tonic    watch, lease ...
//!                           └─ HTTP ─────────────────────────────────▶ http     health, metrics
//! ```
//!
//! The unary calls of [KV](crate::kv) bypass tonic, whose router and codec cost as much as the
//! lookup of a key. RangeStream uses tonic.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use http::header::{CONTENT_TYPE, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tonic::Status;

use crate::client_info::ClientInfo;
use crate::context::ThreadServices;
use crate::http::{EncryptedConnection, HttpService};
use crate::interceptors;
use crate::kv::KvMethod;
use crate::metrics::{RpcMethod, counted_call};
use crate::read_ahead::{ReadAheadBody, ReadAheadMemory};
use crate::response_body::{ResponseBody, error_response};
use crate::stream_executor::StreamExecutor;
use crate::{gzip, kv, unread_body};

#[derive(Clone)]
pub(crate) struct Router {
    pub(crate) services: ThreadServices,
    pub(crate) http: HttpService,
    pub(crate) client: ClientInfo,
    pub(crate) read_ahead: ReadAheadMemory,
    /// The executor of this connection.
    pub(crate) streams: StreamExecutor,
}

type ResponseFuture =
    Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, Infallible>> + Send>>;

impl Router {
    fn handle(&self, mut request: Request<Incoming>) -> ResponseFuture {
        match classify_content_type(&request) {
            Some(true) => {}
            Some(false) => return refusal(unsupported_content_type(&request), request),
            None => return Box::pin(self.handle_http(request)),
        }
        self.streams.limit_next(interceptors::grpc_timeout(request.headers()));
        let Some((kind, method)) = KvMethod::find(request.uri().path()) else {
            let Some(method) = RpcMethod::find(request.uri().path()) else {
                return refusal(error_response(&unknown_method(request.uri())), request);
            };
            self.add_client_name(&mut request);
            request.extensions_mut().insert(self.client.large_responses.clone());
            request.extensions_mut().insert(self.client.clone());
            return Box::pin(self.call_tonic(request, method));
        };
        let (head, body) = request.into_parts();
        let head = self.services.call_head(head.headers, self.client.clone());
        let counted = self.services.metrics.start_call(method);
        Box::pin(async move { Ok(kv::handle_call(kind, head, counted, body).await) })
    }

    fn handle_http(
        &self,
        mut request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
        self.add_client_name(&mut request);
        if self.client.is_secure {
            request.extensions_mut().insert(EncryptedConnection);
        }
        let http = self.http.clone();
        async move {
            if request.version() != Version::HTTP_2 {
                return Ok(http.handle(request).await.map(ResponseBody::tonic));
            }
            let (request, unread) = unread_body::recoverable(request);
            let response = http.handle(request).await;
            unread.discard().await;
            Ok(response.map(ResponseBody::tonic))
        }
    }

    /// Adds the client's name to the extensions of the request if it is the name of a user. Code
    /// that has only the request reads the name there.
    fn add_client_name(&self, request: &mut Request<Incoming>) {
        if let Some(name) = self.client.user_name() {
            request.extensions_mut().insert(name.clone());
        }
    }

    fn call_tonic(
        &self,
        request: Request<Incoming>,
        method: RpcMethod,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
        let (services, read_ahead) = (self.services.clone(), self.read_ahead.clone());
        async move {
            let is_packed = match gzip::is_gzip(request.headers()) {
                Ok(is_packed) => is_packed,
                Err(status) => {
                    unread_body::discard(request.into_body()).await;
                    return Ok(error_response(&status));
                }
            };
            let until_ns = interceptors::deadline_ns(request.headers());
            let mut request = request.map(|body| {
                if method.descriptor().is_client_streaming() {
                    tonic::body::Body::new(ReadAheadBody::start(body, &read_ahead))
                } else {
                    tonic::body::Body::new(body)
                }
            });
            if is_packed {
                request =
                    gzip::decompress_request(request, kv::message_bytes_max(&services.server));
            }
            let answer = counted_call::call(services, method, request, until_ns).await;
            let answer = if is_packed { gzip::recompress_response(answer) } else { answer };
            Ok(answer.map(ResponseBody::tonic))
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Router {
    type Response = Response<ResponseBody>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        self.handle(request)
    }
}

/// [Discards](unread_body::discard) the body of a request, and then returns a response that does
/// not depend on this body.
fn refusal(response: Response<ResponseBody>, request: Request<Incoming>) -> ResponseFuture {
    Box::pin(async move {
        unread_body::discard(request.into_body()).await;
        Ok(response)
    })
}

/// Returns true for a gRPC request, and `None` for plain HTTP, which includes each request over
/// HTTP/1.1. Returns false for a content type that only starts like gRPC's, such as
/// `application/grpc-web`.
fn classify_content_type<B>(request: &Request<B>) -> Option<bool> {
    let kind = request.headers().get(CONTENT_TYPE)?.as_bytes();
    let rest = kind.strip_prefix(b"application/grpc")?;
    (request.version() == Version::HTTP_2).then_some(matches!(rest, [] | [b'+' | b';', ..]))
}

/// Returns etcd's error for a content type that is not supported.
fn unsupported_content_type<B>(request: &Request<B>) -> Response<ResponseBody> {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = String::from_utf8_lossy(kind);
    let why = format!("invalid gRPC request content-type {kind:?}");
    let mut answer = error_response(&Status::invalid_argument(why));
    *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    answer
}

/// Returns etcd's error for an unknown method.
fn unknown_method(uri: &Uri) -> Status {
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let named = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
    Status::unimplemented(match named {
        None => format!("malformed method name: {path:?}"),
        Some((service, method)) if RpcMethod::is_of_service(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    })
}
