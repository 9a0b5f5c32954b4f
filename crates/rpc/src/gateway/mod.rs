//! The API for clients that have only HTTP and JSON, as etcd's gateway: `docs/http.md`.
//!
//! A POST to the path of an rpc is translated from JSON by the descriptors of the `.proto` files,
//! goes through the same services as a gRPC call, as frames of bytes, and the frames that come back
//! are translated to JSON. Of a stream each message is one line `{"result":…}`, an error a last
//! line `{"error":…}`.
//!
//! * A JSON request, or one message of a request stream, has at most [`JSON_BYTES_MAX`] bytes. The
//!   read pool decodes all but short ones.
//! * An answer of more than 64 KiB is translated by a [`json_transcoder`] as the client takes it.
//! * An error after the first byte breaks the connection off (HTTP/1) or resets the stream
//!   (HTTP/2).
//!
//! Error texts for malformed JSON are not etcd's, which are those of Go's decoder; the codes are.

pub(crate) mod bindings;
pub(crate) mod json;
mod response;
mod request;
pub(crate) mod json_splitter;
pub(crate) mod json_transcoder;

use clearlane_net::bulk_turn::BulkTurn;
use clearlane_net::tls::ClientName;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, TE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use tonic::body::Body;
use tonic::{Code, Status};

use self::bindings::Binding;
use self::request::JsonDecoder;
use crate::client_info::{ClientInfo, RemoteAddress};
use crate::context::ThreadServices;
use crate::grpc_frame::frame_bytes;
use crate::interceptors;
use crate::kv::{self, KvMethod};
use crate::metrics::counted_call;

/// The most bytes of JSON of one message: what fits into the 2 MiB of a gRPC message, as base64,
/// and space for names and white space.
const JSON_BYTES_MAX: usize = 4 << 20;

const JSON: &str = "application/json";

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// Headers with this prefix are metadata of the call, without it.
const METADATA: &str = "grpc-metadata-";

/// The part behind the version. `/v3beta` is an old name of `/v3`.
pub(super) fn path_of_rpc(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/v3")?;
    let rest = rest.strip_prefix("beta").unwrap_or(rest);
    rest.starts_with('/').then_some(rest)
}

/// The gateway of one network thread.
#[derive(Clone, Debug)]
pub(super) struct Gateway {
    services: ThreadServices,
    decoder: JsonDecoder,
}

impl Gateway {
    pub(super) fn new(services: ThreadServices) -> Gateway {
        let decoder = JsonDecoder::new(services.server.clone());
        Gateway { services, decoder }
    }

    /// A turn of the network thread.
    pub(super) fn request_turn(&self) -> BulkTurn {
        self.services.turns.request()
    }
}

pub(super) async fn handle(gateway: &Gateway, request: Request<Body>) -> Response<Body> {
    let Some(binding) = path_of_rpc(request.uri().path()).and_then(bindings::find) else {
        return error_response(&Status::not_found("Not Found"));
    };
    if request.method() != Method::POST {
        return error_response(&Status::unimplemented("Method Not Allowed"));
    }
    call(gateway, binding, request).await.unwrap_or_else(|status| error_response(&status))
}

async fn call(
    Gateway { services, decoder }: &Gateway,
    binding: &'static Binding,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let (mut parts, body) = request.into_parts();
    // A certificate's name is not the user's here, as in etcd: the gateway asks for a token.
    let certificate = parts.extensions.remove::<ClientName>();
    let has_name = certificate.is_some_and(|ClientName(name)| !name.is_empty());
    if has_name && services.server.threads().auth().is_enabled() {
        return Ok(common_name_response());
    }
    if let Some((kind, method)) = KvMethod::find(binding.rpc) {
        let message = request::message(decoder, body, binding).await?;
        let client = ClientInfo::without_tls(RemoteAddress::Gateway);
        let head = services.call_head(metadata(&parts.headers), client);
        let counted = services.metrics.start_call(method);
        let answer = kv::handle_message(kind, head, counted, message).await;
        return response::single(answer.map(Body::new), binding).await;
    }
    let (body, cut_off) = if binding.method.is_client_streaming() {
        let (body, cut_off) = request::stream(decoder.clone(), body, binding).await?;
        (body, Some(cut_off))
    } else {
        let message = request::message(decoder, body, binding).await?;
        (Body::new(Full::new(frame_bytes(&message))), None)
    };
    let mut call = Request::new(body);
    *call.method_mut() = Method::POST;
    *call.uri_mut() = http::Uri::from_static(binding.rpc);
    *call.headers_mut() = metadata(&parts.headers);
    let until_ns = interceptors::deadline_ns(call.headers());
    *call.extensions_mut() = parts.extensions;
    let answer = counted_call::call(services.clone(), binding.number, call, until_ns).await;
    if binding.method.is_server_streaming() {
        Ok(response::stream(answer, binding, cut_off).await)
    } else {
        response::single(answer, binding).await
    }
}

/// In etcd's words.
fn common_name_response() -> Response<Body> {
    let why = "CommonName of client sending a request against gateway will be ignored and not used \
               as expected\n";
    crate::http::text(StatusCode::BAD_REQUEST, crate::http::PLAIN, why)
}

/// The token, the time-out, and the headers with the prefix [`METADATA`].
fn metadata(headers: &HeaderMap) -> HeaderMap {
    let mut call = HeaderMap::new();
    call.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    call.insert(TE, HeaderValue::from_static("trailers"));
    for (name, value) in headers {
        if *name == AUTHORIZATION || name == GRPC_TIMEOUT {
            call.append(name, value.clone());
        } else if let Some(name) = name.as_str().strip_prefix(METADATA)
            && let Ok(name) = name.parse::<HeaderName>()
            && !is_transport_header(&name)
        {
            call.append(name, value.clone());
        }
    }
    call
}

fn is_transport_header(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("grpc-") || matches!(name, "content-type" | "te" | "host" | "content-length")
}

fn json_response(body: Body) -> Response<Body> {
    const OF_GRPC: HeaderName = HeaderName::from_static("grpc-metadata-content-type");
    let mut response = crate::http::response(StatusCode::OK, JSON, body);
    response.headers_mut().insert(OF_GRPC, HeaderValue::from_static("application/grpc"));
    response
}

fn error_response(status: &Status) -> Response<Body> {
    let body = Body::new(Full::from(json::of_status(status)));
    crate::http::response(http_status(status.code()), JSON, body)
}

/// The same of a stream.
fn stream_error_response(status: &Status) -> Response<Body> {
    let body = Body::new(Full::from(json::error_line(status)));
    crate::http::response(http_status(status.code()), JSON, body)
}

fn http_status(code: Code) -> StatusCode {
    match code {
        Code::Ok => StatusCode::OK,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => {
            StatusCode::BAD_REQUEST
        }
        Code::Unauthenticated => StatusCode::UNAUTHORIZED,
        Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        // nginx's number, which has no name: the client has gone.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}
