//! The API for clients that have only HTTP and JSON, like etcd's gateway: `docs/http.md`.
//!
//! A POST to the path of an rpc is handled in three steps:
//!
//! 1. The JSON is translated to the frames of a gRPC call, with the descriptors of the `.proto`
//!    files.
//! 2. The call goes through the same services as a call from a gRPC connection.
//! 3. The frames of the response are translated to JSON. In a stream, each message is one line
//!    `{"result":…}`, and an error is a last line `{"error":…}`.
//!
//! Limits:
//!
//! * A JSON request, or one message of a request stream, has at most [`JSON_BYTES_MAX`] bytes. The
//!   read pool decodes JSON of more than 16 KiB.
//! * A [`json_transcoder`] translates a single response of more than 64 KiB while the client reads
//!   it. If such a response fails after its first byte, the connection (HTTP/1) or the stream
//!   (HTTP/2) is reset.
//! * Each message of a response stream is held in memory as a whole while it is translated, however
//!   long it is. An error ends the stream, and becomes its last line.
//!
//! The error texts for malformed JSON differ from etcd's, which are the texts of Go's decoder. The
//! codes are the same.

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

/// Maximum number of bytes of JSON of one message. A gRPC message of 2 MiB fits into this limit as
/// base64, with some space left for names and white space.
const JSON_BYTES_MAX: usize = 4 << 20;

const JSON: &str = "application/json";

const GRPC_TIMEOUT: &str = "grpc-timeout";

/// The prefix of the HTTP headers that become metadata of the call. The names in the metadata do
/// not have this prefix.
const METADATA: &str = "grpc-metadata-";

/// Returns the part of a path after the version `/v3`, or `None` for any other path. `/v3beta` is
/// an old name of `/v3`.
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

    /// Requests a turn for bulk work on the network thread. The returned future completes when the
    /// turn is granted.
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
    // As in etcd, the gateway takes the user only from a token. While auth is enabled, it rejects a
    // client whose certificate names a user.
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

/// Returns etcd's error for a client whose certificate has a common name.
fn common_name_response() -> Response<Body> {
    let why = "CommonName of client sending a request against gateway will be ignored and not used \
               as expected\n";
    crate::http::text(StatusCode::BAD_REQUEST, crate::http::PLAIN, why)
}

/// Returns the metadata of the call: the token, the time-out, and the headers with the prefix
/// [`METADATA`].
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

/// Returns the error response of a call that has a stream of responses.
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
        // The client has left. 499 is nginx's status for this case; the standard has no name for
        // it.
        Code::Cancelled => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
        Code::Unknown | Code::Internal | Code::DataLoss => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
    }
}
