//! One request, as it comes off a connection: who answers it?
//!
//! A port carries three kinds of requests. They are told apart by what is in their heads:
//!
//! ```text
//!                           ┌─ Range, Put, DeleteRange, Txn, Compact ─▶ unary    this module
//!   connection ─▶ request ──┼─ other gRPC calls ─────────────────────▶ tonic    kv, watch, lease ...
//!                           └─ HTTP ─────────────────────────────────▶ http     health, metrics ...
//! ```
//!
//! The five calls that a busy server gets go past tonic: its router and its codec cost as much as
//! looking a key up. Here the message is decoded where it lies, and the answer is encoded into one
//! frame of the right length. What the calls do is said once, in [`kv`], and tonic's
//! service would do the same.

mod body;
mod range;
mod unary;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use clearlane_member::Handle;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use tonic::Status;
use tonic::service::Routes;

pub use self::body::Answer;
use self::unary::{Counted, call, message};
use crate::caller::{Who, admit};
use crate::http::Endpoints;
use crate::kv;
use crate::metrics::{Method, ThreadMetrics, observe};

/// Beside the request itself, a message may have so many bytes more: etcd's.
const MESSAGE_OVERHEAD: usize = 512 << 10;

/// What answers the requests of one thread.
#[derive(Clone, Debug)]
pub struct Front {
    member: Handle,
    grpc: Routes,
    http: Endpoints,
    thread: ThreadMetrics,
    methods: Methods,
}

/// The calls that are answered here, as they are counted.
#[derive(Clone, Copy, Debug)]
struct Methods {
    range: Method,
    put: Method,
    txn: Method,
    delete_range: Method,
    compact: Method,
}

impl Methods {
    fn new() -> Methods {
        let of = |name| Method::of(&format!("/etcdserverpb.KV/{name}")).expect("an rpc of the API");
        Methods {
            range: of("Range"),
            put: of("Put"),
            txn: of("Txn"),
            delete_range: of("DeleteRange"),
            compact: of("Compact"),
        }
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

impl Front {
    /// In front of a member; `grpc` has the services that are not answered here, and `http` answers
    /// what is not gRPC.
    pub fn new(member: Handle, grpc: Routes, http: Endpoints, thread: ThreadMetrics) -> Front {
        Front { member, grpc: grpc.prepare(), http, thread, methods: Methods::new() }
    }

    /// Starts to answer.
    pub fn answer(&self, request: Request<Incoming>) -> Answering {
        let member = self.member.clone();
        let limit = member.limits().request_bytes_max + MESSAGE_OVERHEAD;
        if !is_grpc(&request) {
            let http = self.http.clone();
            return Box::pin(async move { Ok(http.answer(request).await.map(Answer::Tonic)) });
        }
        let Methods { range, put, txn, delete_range, compact } = self.methods;
        let counted = |method| Counted::new(&self.thread, method);
        let admitted = |who| admit(&self.member, request.headers(), who);
        match request.uri().path().strip_prefix("/etcdserverpb.KV/") {
            Some("Range") => {
                let work = |q| kv::range(member, q);
                call(admitted(Who::Anybody), request, limit, counted(range), work, range::answer)
            }
            Some("Put") => {
                let work = |q| kv::put(member, q);
                call(admitted(Who::Voters), request, limit, counted(put), work, message)
            }
            Some("Txn") => {
                let work = |q| kv::txn(member, q);
                call(admitted(Who::Voters), request, limit, counted(txn), work, message)
            }
            Some("DeleteRange") => {
                let work = |q| kv::delete_range(member, q);
                call(admitted(Who::Voters), request, limit, counted(delete_range), work, message)
            }
            Some("Compact") => {
                let work = |q| kv::compact(member, q);
                call(admitted(Who::Voters), request, limit, counted(compact), work, message)
            }
            _ => Box::pin(self.by_tonic(request)),
        }
    }

    fn by_tonic(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
        let (mut grpc, thread) = (self.grpc.clone(), self.thread.clone());
        async move {
            let method = Method::of(request.uri().path());
            let request = request.map(tonic::body::Body::new);
            let answer = observe::call(&thread, method, &mut grpc, request).await;
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

fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

/// A call that went wrong: a head and nothing behind it.
fn failed(status: &Status) -> Response<Answer> {
    status.clone().into_http()
}
