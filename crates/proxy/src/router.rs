//! Finds out who answers a request: the cache, the proxy itself, or a member.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use clearlane_contention::timeline::LaneKind;
use clearlane_proto::Message as _;
use clearlane_proto::etcdserverpb::{
    LeaseKeepAliveRequest, LeaseKeepAliveResponse, RangeRequest, WatchRequest, WatchResponse,
};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::sync::OwnedSemaphorePermit;
use tonic::body::Body;
use tonic::codec::{Codec, Streaming};
use tonic::{Status, server};

use crate::cache::read::Lookup;
use crate::connection::ConnectionState;
use crate::forward::{self, Call};
use crate::frames;
use crate::gzip;
use crate::identity::Caller;
use crate::lease;
use crate::login::Login;
use crate::pages;
use crate::seen_body::SeenBody;
use crate::services::Services;
use crate::small_buffers::{self, Responses, SmallBuffers};
use crate::trace::{RequestTrace, WaitFor};
use crate::watch::session::Session;

/// Number of responses of a stream that wait for the connection.
const UNSENT_RESPONSES_MAX: usize = 2;

/// Maximum size of a compressed request on a stream, and of the same request decompressed. It is
/// tonic's limit for plain requests.
const STREAMED_BYTES_MAX: usize = 4 << 20;

const RANGE: &str = "/etcdserverpb.KV/Range";
const WATCH: &str = "/etcdserverpb.Watch/Watch";
const LEASE_KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
const MEMBER_LIST: &str = "/etcdserverpb.Cluster/MemberList";

/// Serves the requests of one connection.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    pub(crate) services: Arc<Services>,
    pub(crate) connection: Arc<ConnectionState>,
    /// The login for the client's certificate.
    pub(crate) login: Option<Arc<Login>>,
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

impl hyper::service::Service<Request<Incoming>> for Router {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn call(&self, request: Request<Incoming>) -> ResponseFuture {
        let router = self.clone();
        Box::pin(async move { Ok(router.handle(request).await) })
    }
}

impl Router {
    async fn handle(self, request: Request<Incoming>) -> Response<Body> {
        if !is_grpc(&request) {
            return pages::answer(&self.services, request.map(drop)).await;
        }
        match request.uri().path() {
            WATCH => self.watch(request).await,
            LEASE_KEEP_ALIVE => self.keep_alive(request).await,
            _ => self.call(request).await,
        }
    }

    /// Serves a call with one request message.
    async fn call(self, request: Request<Incoming>) -> Response<Body> {
        let trace = self.services.trace.request();
        let (head, body) = request.into_parts();
        let body = match forward::collect(body, self.services.request_bytes_max).await {
            Ok(body) => body,
            Err(status) => return status.into_http(),
        };
        let mut call = Call { uri: head.uri, headers: head.headers, body };
        // The body may change, and the connection upstream has its own headers about the length.
        call.headers.remove(CONTENT_LENGTH);
        if self.services.namespace.is_some() {
            match gzip::is_gzip(&call.headers) {
                Ok(true) => return self.packed_call(call, trace).await,
                Ok(false) => {}
                Err(status) => return status.into_http(),
            }
        }
        self.plain_call(call, trace).await
    }

    /// Serves a call in a namespace whose message is compressed. Its keys must be changed.
    async fn packed_call(self, mut call: Call, trace: RequestTrace) -> Response<Body> {
        match gzip::decompress_frame(call.body, self.services.request_bytes_max) {
            Ok(body) => call.body = body,
            Err(status) => return status.into_http(),
        }
        // The keys in the response must be changed also.
        call.headers.remove(gzip::GRPC_ENCODING);
        call.headers.remove(gzip::GRPC_ACCEPT_ENCODING);
        compressed(self.plain_call(call, trace).await)
    }

    async fn plain_call(self, mut call: Call, mut trace: RequestTrace) -> Response<Body> {
        if let Some(namespace) = &self.services.namespace {
            match namespace.change_request(call.path(), &call.body) {
                Ok(body) => call.body = body,
                Err(status) => return status.into_http(),
            }
        }
        let mut permit = None;
        match call.path() {
            RANGE => match self.cached_range(&call, &mut trace).await {
                Ok(response) => {
                    trace.end("cached range", LaneKind::Read);
                    return response;
                }
                Err(fallback) => permit = fallback,
            },
            MEMBER_LIST => {
                if let Some(list) = self.services.members.list().await {
                    trace.end("member list", LaneKind::Read);
                    return message_response(forward::frame(&list));
                }
            }
            _ => {}
        }
        let cache = Arc::clone(&self.services.cache);
        let epoch = cache.epoch();
        trace.start_wait();
        let response = self.forward(&mut call).await;
        // A client that reads slowly must not keep the permit.
        drop(permit);
        trace.end_wait(|| WaitFor::Member);
        let (class, kind) = call.lane();
        trace.end(class, kind);
        let response =
            response.map(|body| Body::new(SeenBody::new(body, cache, self.connection, epoch)));
        frames::end_with_status(match &self.services.namespace {
            Some(namespace) => response.map(|body| namespace.change_response(call.path(), body)),
            None => response,
        })
    }

    /// Forwards a call. If the client has a login and no token, the call gets the token of the
    /// login. If the member rejects this token, the call was not carried out, so it is repeated
    /// once with a new token.
    async fn forward(&self, call: &mut Call) -> Response<Body> {
        let upstream = &self.services.upstream;
        let caller = Caller::new(&call.headers, self.login.as_ref());
        let login = caller.login().filter(|_| call.path() != AUTHENTICATE);
        let mut may_repeat = true;
        loop {
            let Some(login) = login else {
                return forward::forward(upstream, call, &self.connection).await;
            };
            let token = match login.token(upstream).await {
                Ok(token) => token,
                Err(status) => return status.into_http(),
            };
            call.headers.remove("token");
            if let Some(token) = &token {
                call.headers.insert("token", token.clone());
            }
            let response = forward::forward(upstream, call, &self.connection).await;
            if !forward::is_token_rejected(&response) {
                return response;
            }
            login.reject(token.as_ref()).await;
            if !std::mem::take(&mut may_repeat) {
                return response;
            }
        }
    }

    /// Returns the cache's response. Otherwise the call must be forwarded, with the permit if there
    /// is one.
    async fn cached_range(
        &self,
        call: &Call,
        trace: &mut RequestTrace,
    ) -> Result<Response<Body>, Option<OwnedSemaphorePermit>> {
        let (request, is_packed) = self.range_request(call).ok_or(None)?;
        let caller = Caller::new(&call.headers, self.login.as_ref());
        let epoch = self.services.cache.epoch();
        let seen = self.connection.seen(epoch);
        let mut response = match self.services.cache.read(&request, &caller, seen, trace).await {
            Lookup::Answer(response) => response,
            Lookup::Forward(permit) => return Err(permit),
        };
        if let Some(namespace) = &self.services.namespace {
            namespace.remove_from_range(&mut response);
        }
        let revision = response.header.as_ref().map_or(0, |header| header.revision);
        self.connection.note_seen(epoch, revision);
        self.services.cache.note_seen(epoch, revision);
        let response = message_response(forward::frame(&response));
        Ok(if is_packed { compressed(response) } else { response })
    }

    /// Returns the message of a call of Range, and true if it was compressed.
    fn range_request(&self, call: &Call) -> Option<(RangeRequest, bool)> {
        let is_packed = gzip::is_gzip(&call.headers).ok()?;
        let body = match is_packed {
            true => {
                gzip::decompress_frame(call.body.clone(), self.services.request_bytes_max).ok()?
            }
            false => call.body.clone(),
        };
        Some((RangeRequest::decode(forward::message_of(&body)?).ok()?, is_packed))
    }

    async fn watch(self, request: Request<Incoming>) -> Response<Body> {
        let codec = SmallBuffers::<WatchResponse, WatchRequest>::default();
        self.stream(codec, request).await
    }

    async fn keep_alive(self, request: Request<Incoming>) -> Response<Body> {
        let codec = SmallBuffers::<LeaseKeepAliveResponse, LeaseKeepAliveRequest>::default();
        self.stream(codec, request).await
    }

    /// Serves a stream, whose messages may be compressed.
    async fn stream<C>(self, codec: C, mut request: Request<Incoming>) -> Response<Body>
    where
        C: Codec,
        StreamService: server::StreamingService<C::Decode, Response = C::Encode>,
        <StreamService as server::StreamingService<C::Decode>>::ResponseStream: Send + 'static,
    {
        let is_packed = match gzip::is_gzip(request.headers()) {
            Ok(is_packed) => is_packed,
            Err(status) => return status.into_http(),
        };
        let mut grpc = server::Grpc::new(codec);
        if !is_packed {
            return grpc.streaming(StreamService(self), request).await;
        }
        request.headers_mut().remove(gzip::GRPC_ENCODING);
        let request = request.map(|body| {
            frames::map_frames(Body::new(body), STREAMED_BYTES_MAX, |framed| {
                gzip::decompress_frame(framed, STREAMED_BYTES_MAX)
            })
        });
        compressed(grpc.streaming(StreamService(self), request).await)
    }
}

/// Compresses the messages of a response.
fn compressed(response: Response<Body>) -> Response<Body> {
    if response.headers().contains_key("grpc-status") {
        // It has only an error.
        return response;
    }
    let mut response = response.map(|body| {
        frames::map_frames(body, usize::MAX, |framed| Ok(gzip::compress_frame(framed)))
    });
    response.headers_mut().insert(gzip::GRPC_ENCODING, gzip::GZIP);
    response
}

/// The streams that the proxy serves itself.
struct StreamService(Router);

type StreamFuture<T> = Pin<Box<dyn Future<Output = Result<tonic::Response<T>, Status>> + Send>>;
impl server::StreamingService<WatchRequest> for StreamService {
    type Response = WatchResponse;
    type ResponseStream = Responses<WatchResponse>;
    type Future = StreamFuture<Self::ResponseStream>;

    fn call(&mut self, request: tonic::Request<Streaming<WatchRequest>>) -> Self::Future {
        let Router { services, connection, login } = self.0.clone();
        Box::pin(async move {
            let caller = Caller::new(request.metadata().as_ref(), login.as_ref());
            let (sender, responses) = small_buffers::responses(UNSENT_RESPONSES_MAX);
            let session = Session::new(&services, caller, connection, sender);
            let stopped = services.stopped();
            tokio::spawn(session.run(request.into_inner(), stopped));
            Ok(tonic::Response::new(responses))
        })
    }
}

impl server::StreamingService<LeaseKeepAliveRequest> for StreamService {
    type Response = LeaseKeepAliveResponse;
    type ResponseStream = Responses<LeaseKeepAliveResponse>;
    type Future = StreamFuture<Self::ResponseStream>;

    fn call(&mut self, request: tonic::Request<Streaming<LeaseKeepAliveRequest>>) -> Self::Future {
        let Router { services, login, .. } = self.0.clone();
        Box::pin(async move {
            let (sender, responses) = small_buffers::responses(UNSENT_RESPONSES_MAX);
            let caller = Caller::new(request.metadata().as_ref(), login.as_ref());
            let group = services.keep_alives.group_of(&caller);
            let stopped = services.stopped.clone();
            tokio::spawn(lease::serve_client(group, request.into_inner(), sender, stopped));
            Ok(tonic::Response::new(responses))
        })
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_2
        && kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// Returns a gRPC response with one message and the status OK.
fn message_response(frame: bytes::Bytes) -> Response<Body> {
    let trailers = std::future::ready(Some(Ok(ok_trailers())));
    let mut response = Response::new(Body::new(Full::new(frame).with_trailers(trailers)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn ok_trailers() -> http::HeaderMap {
    let mut trailers = http::HeaderMap::with_capacity(1);
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    trailers
}
