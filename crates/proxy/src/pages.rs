//! The pages over HTTP/1.1: health and metrics.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::timeout;
use tonic::Code;
use tonic::body::Body;

use crate::metrics;
use crate::services::Services;

const HEALTH_TIMEOUT: Duration = Duration::from_secs(1);
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

pub(crate) async fn answer(services: &Services, request: Request<()>) -> Response<Body> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return text(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed\n".to_owned());
    }
    match request.uri().path() {
        "/health" | "/proxy/health" => health(services).await,
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
