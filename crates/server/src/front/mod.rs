//! One request, as it comes off a connection: who answers it?
//!
//! A port carries three kinds of requests. They are told apart by what is in their heads:
//!
//! ```text
//!                           ┌─ Range, Put, DeleteRange, Txn, Compact ─▶ hot      this module
//!   connection ─▶ request ──┼─ other gRPC calls ─────────────────────▶ tonic    kv, watch, lease ...
//!                           └─ HTTP ─────────────────────────────────▶ http     health, metrics ...
//! ```
//!
//! The five calls that a busy server gets go past tonic: its router and its codec cost as much as
//! looking a key up. Here the message is decoded where it lies, and the answer is encoded into one
//! frame of the right length. What the calls do is said once, in [`kv`](crate::kv), and tonic's
//! service would do the same.

mod body;
pub(crate) mod gzip;
pub(crate) mod hot;
pub(crate) mod range;
pub(crate) mod unary;

use std::convert::Infallible;
use std::fmt;
use std::future::{Future, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use clearlane_locks::now_ns;
use clearlane_member::Handle;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::uri::PathAndQuery;
use http::{Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tonic::Status;
use tonic::service::Routes;

pub use self::body::Answer;
use self::hot::{Asker, Kinds};
use crate::caller;
use crate::http::{Endpoints, Secure};
use crate::metrics::{Method, ThreadMetrics, observe};
use crate::one_piece::LongAnswers;
use crate::tls::ClientName;

/// What answers the requests of one thread.
#[derive(Clone, Debug)]
pub struct Front {
    member: Handle,
    grpc: Routes,
    http: Endpoints,
    thread: ThreadMetrics,
    kinds: Kinds,
    caller: Caller,
    slow: (Duration, Duration),
}

/// From where a connection comes.
#[derive(Clone, Copy, Debug)]
pub enum Remote {
    /// Over the network.
    Tcp(SocketAddr),
    /// From a process of this machine.
    Unix,
    /// From the JSON gateway, whoever has asked there.
    Gateway,
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remote::Tcp(address) => write!(f, "{address}"),
            Remote::Unix => f.write_str("unix"),
            Remote::Gateway => f.write_str("gateway"),
        }
    }
}

/// Who is at the other end of a connection.
#[derive(Clone, Debug)]
pub struct Caller {
    /// From where he comes.
    pub remote: Remote,
    /// Whether nobody can listen in.
    pub is_secure: bool,
    /// Who he is, by the certificate that he has shown. Calls that tonic answers have it among their
    /// extensions.
    pub name: Option<ClientName>,
    /// What else his connection carries.
    pub long: LongAnswers,
}

impl Caller {
    /// Somebody without TLS.
    pub fn plain(remote: Remote) -> Caller {
        Caller { remote, is_secure: false, name: None, long: LongAnswers::default() }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(ClientName(name)) => write!(f, "{} (CN {name})", self.remote),
            None => self.remote.fmt(f),
        }
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

impl Front {
    /// In front of a member; `grpc` has the services that are not answered here, and `http` answers
    /// what is not gRPC. A call that takes longer than the first of `slow` is told of in the log, and
    /// so is a read that takes longer than the second.
    pub fn new(
        member: Handle,
        grpc: Routes,
        http: Endpoints,
        thread: ThreadMetrics,
        slow: (Duration, Duration),
    ) -> Front {
        let (grpc, kinds, caller) = (grpc.prepare(), Kinds::new(), Caller::plain(Remote::Unix));
        Front { member, grpc, http, thread, kinds, caller, slow }
    }

    /// Starts to answer.
    pub fn answer(&self, mut request: Request<Incoming>) -> Answering {
        match is_grpc(&request) {
            Some(true) => {}
            Some(false) => return Box::pin(ready(Ok(wrong_kind(&request)))),
            None => {
                self.introduce(&mut request);
                if self.caller.is_secure {
                    request.extensions_mut().insert(Secure);
                }
                let http = self.http.clone();
                return Box::pin(async move { Ok(http.answer(request).await.map(Answer::Tonic)) });
            }
        }
        let Some((kind, method)) = self.kinds.of(request.uri().path()) else {
            let Some(method) = Method::of(request.uri().path()) else {
                return Box::pin(ready(Ok(failed(&unknown(request.uri())))));
            };
            self.introduce(&mut request);
            return Box::pin(self.by_tonic(request, method));
        };
        let (head, body) = request.into_parts();
        let (member, caller, slow) = (self.member.clone(), self.caller.clone(), self.slow);
        let asker = Asker { member, head: head.headers, caller, slow };
        let counted = self.thread.begin(method);
        Box::pin(async move { Ok(hot::answer(kind, asker, counted, body).await) })
    }

    /// The same for one connection.
    pub fn at(&self, caller: Caller) -> Front {
        Front { caller, ..self.clone() }
    }

    /// Those of its connection.
    pub(crate) fn long_answers(&self) -> LongAnswers {
        self.caller.long.clone()
    }

    /// Says who asks, to those who only see the request.
    fn introduce(&self, request: &mut Request<Incoming>) {
        if let Some(name) = &self.caller.name {
            request.extensions_mut().insert(name.clone());
        }
    }

    fn by_tonic(
        &self,
        request: Request<Incoming>,
        method: Method,
    ) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
        let (mut grpc, thread) = (self.grpc.clone(), self.thread.clone());
        let limit = hot::message_max(&self.member);
        async move {
            let is_packed = match gzip::is_used(request.headers()) {
                Ok(is_packed) => is_packed,
                Err(status) => return Ok(failed(&status)),
            };
            let until_ns = caller::patience(request.headers()).map(|patience| {
                let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
                now_ns().saturating_add(patience)
            });
            let mut request = request.map(tonic::body::Body::new);
            if is_packed {
                request = gzip::unpacked(request, limit);
            }
            let within = observe::Within { limit, until_ns };
            let answer = observe::call(&thread, method, &mut grpc, request, within).await;
            let answer = if is_packed { gzip::repacked(answer) } else { answer };
            Ok(answer.map(Answer::Tonic))
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Front {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        self.answer(request)
    }
}

/// Whether a request is gRPC; nothing if it is plain HTTP. What only begins like it, such as
/// `application/grpc-web`, is neither.
fn is_grpc<B>(request: &Request<B>) -> Option<bool> {
    let kind = request.headers().get(CONTENT_TYPE)?.as_bytes();
    let rest = kind.strip_prefix(b"application/grpc")?;
    (request.version() == Version::HTTP_2).then_some(matches!(rest, [] | [b'+' | b';', ..]))
}

/// gRPC of another kind than ours: etcd's words.
fn wrong_kind<B>(request: &Request<B>) -> Response<Answer> {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let kind = String::from_utf8_lossy(kind);
    let why = format!("invalid gRPC request content-type {kind:?}");
    let mut answer = failed(&Status::invalid_argument(why));
    *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    answer
}

/// The path is none of a method: etcd's words.
fn unknown(uri: &Uri) -> Status {
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    let named = path.strip_prefix('/').and_then(|path| path.rsplit_once('/'));
    Status::unimplemented(match named {
        None => format!("malformed method name: {path:?}"),
        Some((service, method)) if Method::is_of_service(service) => {
            format!("unknown method {method} for service {service}")
        }
        Some((service, _)) => format!("unknown service {service}"),
    })
}

/// A call that went wrong: a head and nothing behind it.
fn failed(status: &Status) -> Response<Answer> {
    status.clone().into_http()
}
