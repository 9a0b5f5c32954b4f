//! RangeStream, the only method of etcd's service KV that is served by tonic. [`kv`](crate::kv)
//! serves the other methods.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use clearlane_net::tls::ClientName;
use clearlane_proto::etcdserverpb::{RangeRequest, RangeStreamResponse};
use clearlane_server::Server;
use clearlane_server::read::range_stream::RangeStream;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use crate::client_info::as_large_response;
use crate::context::RequestContext;
use crate::status;

type PageStream = Pin<Box<dyn Stream<Item = Result<RangeStreamResponse, Status>> + Send>>;

/// Returns the pages of a range. Each page is read only after the previous page was taken.
fn pages(range: RangeStream) -> PageStream {
    Box::pin(futures_util::stream::unfold(Some(range), |range| async {
        let mut range = range?;
        match range.next_page().await {
            Ok(page) => {
                let range_response = Some(page?);
                Some((Ok(RangeStreamResponse { range_response }), Some(range)))
            }
            Err(trouble) => Some((Err(status::from_error(trouble)), None)),
        }
    }))
}

#[derive(Clone)]
pub(crate) struct KvService {
    pub(crate) server: Server,
}

impl KvService {
    fn range_stream(&self, request: Request<RangeRequest>) -> Result<Response<PageStream>, Status> {
        let certificate = request.extensions().get::<ClientName>();
        let head = request.metadata().as_ref();
        let context = RequestContext::start(&self.server, head, certificate)?;
        context.check_not_learner()?;
        let (_, extensions, request) = request.into_parts();
        let opened = RangeStream::open(context.server, request).map_err(status::from_error)?;
        Ok(Response::new(Box::pin(as_large_response(pages(opened), &extensions))))
    }
}

impl NamedService for KvService {
    const NAME: &'static str = "etcdserverpb.KV";
}

/// The [router](crate::router) passes no other method of KV to this service.
impl Service<http::Request<Body>> for KvService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != "/etcdserverpb.KV/RangeStream" {
            let status = Status::unimplemented("");
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let service = self.clone();
        let codec = ProstCodec::default();
        Box::pin(async move { Ok(Grpc::new(codec).server_streaming(service, request).await) })
    }
}

impl ServerStreamingService<RangeRequest> for KvService {
    type Response = RangeStreamResponse;
    type ResponseStream = PageStream;
    type Future = std::future::Ready<Result<Response<PageStream>, Status>>;

    fn call(&mut self, request: Request<RangeRequest>) -> Self::Future {
        std::future::ready(self.range_stream(request))
    }
}
