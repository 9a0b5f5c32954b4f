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
//! frame of the right length. What the calls do is said once, in [`kv`](crate::kv), and tonic's
//! service would do the same.

mod body;
mod range;
mod unary;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use clearlane_member::Handle;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use tonic::Status;
use tonic::service::Routes;
use tower_service::Service;

pub use self::body::Answer;
use self::unary::{call, message};
use crate::kv;

/// Beside the request itself, a message may have so many bytes more: etcd's.
const MESSAGE_OVERHEAD: usize = 512 << 10;

/// What answers the requests of one thread.
#[derive(Clone, Debug)]
pub struct Front {
    member: Handle,
    grpc: Routes,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

impl Front {
    /// In front of a member; `grpc` has the services that are not answered here.
    pub fn new(member: Handle, grpc: Routes) -> Front {
        Front { member, grpc: grpc.prepare() }
    }

    /// Starts to answer.
    pub fn answer(&self, request: Request<Incoming>) -> Answering {
        let member = self.member.clone();
        let limit = member.limits().request_bytes_max + MESSAGE_OVERHEAD;
        if !is_grpc(&request) {
            return Box::pin(async { Ok(not_found()) });
        }
        match request.uri().path().strip_prefix("/etcdserverpb.KV/") {
            Some("Range") => call(request, limit, |q| kv::range(member, q), range::answer),
            Some("Put") => call(request, limit, |q| kv::put(member, q), message),
            Some("Txn") => call(request, limit, |q| kv::txn(member, q), message),
            Some("DeleteRange") => call(request, limit, |q| kv::delete_range(member, q), message),
            Some("Compact") => call(request, limit, |q| kv::compact(member, q), message),
            _ => Box::pin(self.by_tonic(request)),
        }
    }

    fn by_tonic(
        &self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Answer>, Infallible>> + Send + use<> {
        let answer = self.grpc.clone().call(request);
        async move {
            let answer: Result<_, Infallible> = answer.await;
            answer.map(|response| response.map(Answer::Tonic))
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

fn not_found() -> Response<Answer> {
    let mut response = Response::new(Answer::text("404 page not found\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

/// A call that went wrong: a head and nothing behind it.
fn failed(status: &Status) -> Response<Answer> {
    status.clone().into_http()
}
