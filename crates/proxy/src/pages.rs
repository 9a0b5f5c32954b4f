//! The pages over HTTP/1.1: health and metrics.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use http_body_util::{BodyExt as _, Full, Limited};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Code;
use tonic::body::Body;
use tower_service::Service as _;

use crate::metrics;
use crate::services::Services;
use crate::upstream::Member;

const HEALTH_TIMEOUT: Duration = Duration::from_secs(1);
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of a member's metrics page.
const PAGE_BYTES_MAX: u64 = 16 << 20;
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

type PageFuture = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// The function that makes the pages below `/debug/pprof/`. Its arguments are the part of the path
/// after this prefix, and the query.
#[derive(Clone)]
pub struct ProfilePages(Arc<dyn Fn(String, String) -> PageFuture + Send + Sync>);

impl ProfilePages {
    pub fn new(page: impl Fn(String, String) -> PageFuture + Send + Sync + 'static) -> Self {
        ProfilePages(Arc::new(page))
    }
}

impl fmt::Debug for ProfilePages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProfilePages")
    }
}

pub(crate) async fn answer(services: &Services, request: Request<()>) -> Response<Body> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned());
    }
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let profile = path.strip_prefix("/debug/pprof/").or((path == "/debug/pprof").then_some(""));
    if let (Some(name), Some(pages)) = (profile, &services.profiles) {
        return (pages.0)(name.to_owned(), query.to_owned()).await;
    }
    match path {
        "/health" | "/proxy/health" => health(services).await,
        "/metrics" => member_metrics(services).await,
        "/proxy/metrics" => {
            let mut page = text(StatusCode::OK, metrics::page(services));
            page.headers_mut().insert(CONTENT_TYPE, TEXT);
            page
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    }
}

/// Reports whether a linearizable read is possible. With auth, the read has no user and is refused,
/// which shows that the cluster works.
async fn health(services: &Services) -> Response<Body> {
    let probe = timeout(HEALTH_TIMEOUT, services.cache.prober.probe()).await;
    let reason = match probe {
        Ok(Ok(_)) => None,
        Ok(Err(status)) if status.code() != Code::Unavailable => None,
        Ok(Err(status)) => Some(status.message().to_owned()),
        Err(_) => Some("context deadline exceeded".to_owned()),
    };
    match reason {
        None => text(StatusCode::OK, r#"{"health":"true","reason":""}"#.to_owned()),
        Some(why) => {
            let body = serde_json::json!({ "health": "false", "reason": why });
            text(StatusCode::SERVICE_UNAVAILABLE, body.to_string())
        }
    }
}

fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response
}

/// Returns the metrics page of a member, as in etcd.
async fn member_metrics(services: &Services) -> Response<Body> {
    let Some(member) = services.upstream.pick() else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "no member is connected\n".to_owned());
    };
    let page = match member.url().strip_prefix("http://") {
        // Without TLS, etcd serves this page only over HTTP/1.1.
        Some(address) => timeout(PAGE_TIMEOUT, plain_page(address)).await,
        None => timeout(PAGE_TIMEOUT, page_over_http2(&member)).await,
    };
    match page {
        Ok(Ok(body)) => {
            let mut page = text(StatusCode::OK, String::new());
            *page.body_mut() = Body::new(Full::new(body));
            page.headers_mut().insert(CONTENT_TYPE, TEXT);
            page
        }
        Ok(Err(why)) => text(StatusCode::INTERNAL_SERVER_ERROR, why + "\n"),
        Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the member is late\n".to_owned()),
    }
}

/// Gets the page over HTTP/1.0, so that the end of the connection ends it.
async fn plain_page(address: &str) -> Result<Bytes, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let head = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut page = Vec::new();
    let mut limited = stream.take(PAGE_BYTES_MAX);
    limited.read_to_end(&mut page).await.map_err(|error| error.to_string())?;
    let end = page.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let end = end.ok_or("the member's answer has no head")?;
    let status = page.split(|byte| *byte == b' ').nth(1);
    if status != Some(b"200") {
        return Err("the member has no metrics page".to_owned());
    }
    Ok(Bytes::from(page).slice(end + 4..))
}

async fn page_over_http2(member: &Member) -> Result<Bytes, String> {
    let mut channel = member.channel().ok_or("the member is not connected")?;
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = Uri::from_static("/metrics");
    *request.version_mut() = Version::HTTP_2;
    let ready = std::future::poll_fn(|context| channel.poll_ready(context)).await;
    ready.map_err(|error| error.to_string())?;
    let response = channel.call(request).await.map_err(|error| error.to_string())?;
    if response.status() != StatusCode::OK {
        return Err(format!("the member answers with status {}", response.status()));
    }
    let page = Limited::new(response.into_body(), PAGE_BYTES_MAX as usize).collect().await;
    Ok(page.map_err(|error| error.to_string())?.to_bytes())
}
